"""YAML that users give -> plain values. Strict, and bounded in size and depth, whatever aliases stand for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from raydist.files.given import about_digits

DEEPEST = 100  # lists and mappings within each other
MOST_VALUES = 20_000  # aliases counted as what they stand for
MOST_BYTES = 1 << 20


class YamlError(ValueError):
    """A text is not the YAML that is read here; the message is one line."""


def load_yaml(text: str | bytes) -> Any:
    """Plain values from YAML. A repeated key is an error, not a silent choice; no two values are one object."""
    if len(text) > MOST_BYTES:
        raise YamlError(f"longer than {MOST_BYTES >> 20} MB")
    try:
        return _unshared(yaml.load(text, _Loader))
    except yaml.YAMLError as error:
        raise YamlError(_first_line(error)) from None
    except ValueError as error:  # a value such as 2026-02-31
        raise YamlError(about_digits(error)) from None
    except ArithmeticError:
        raise YamlError("a number that is too large") from None


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {text}" if mark else text


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _problem(text: str, at: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, at.start_mark)


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.depth = self.count = 0
        self.sizes: dict[int, tuple[int, int]] = {}  # of composed nodes: values and levels, behind aliases, too

    def compose_node(self, parent: Any, index: Any) -> Any:
        start = self.peek_event()
        self.depth, self.count = self.depth + 1, self.count + 1
        if self.depth > DEEPEST:
            raise _problem("nested too deeply", start)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if id(node) not in self.sizes:  # else an alias
            self.sizes[id(node)] = self._size(node)
        values, levels = self.sizes[id(node)]
        if levels > DEEPEST:
            raise _problem("nested too deeply", start)
        if max(values, self.count) > MOST_VALUES:
            raise _problem(f"more than {MOST_VALUES:,} values, aliases counted as what they stand for", start)
        return node

    def _size(self, node: Any) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 1
        nodes = [inner for pair in node.value for inner in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = [self.sizes.get(id(one), (1, 1)) for one in nodes]  # none yet: an alias of itself, refused later
        return 1 + sum(values for values, _ in inner), 1 + max((levels for _, levels in inner), default=0)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    pairs = [(loader.construct_object(key, deep=True), key) for key, _ in node.value]
    seen: set = set()
    for key, at in pairs:
        if not isinstance(key, Hashable):
            raise _problem(f"a key should be a plain value, got {key!r}"[:200], at)
        if key in seen:
            raise _problem(f"key {key!r} is given twice", at)
        seen.add(key)
    return {key: loader.construct_object(value, deep=True) for (key, _), (_, value) in zip(pairs, node.value)}


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = loader.construct_yaml_int(node)
    if not -(2**63) <= value < 2**64:
        raise _problem("an integer of more than 64 bits", node)
    return value


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
