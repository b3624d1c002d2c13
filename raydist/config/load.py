"""Reading a config: YAML, `extends:` and dotted overrides. All problems are reported at once.

The command line overrides a file, a file overrides those it extends, and these override the defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from raydist.config.explain import explained, problems_beside
from raydist.config.run import Config
from raydist.config.section import ConfigError, Section, listed


class _Loader(yaml.SafeLoader):
    """Strict YAML: a repeated key is an error, not a silent choice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    pairs = [(loader.construct_object(key, deep=True), key) for key, _ in node.value]
    seen: set = set()
    for key, at in pairs:
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, f"a key should be a plain value, got {key!r}", at.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", at.start_mark)
        seen.add(key)
    return {key: loader.construct_object(value, deep=True) for (key, _), (_, value) in zip(pairs, node.value)}


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def shipped_configs() -> Path:
    """The folder of the configs that come with the package."""
    package = Path(__file__).parents[1]
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """A config's file, by its path or, for a shipped one, by its name (`quickstart`, `paper/infomax`)."""
    path = Path(name)
    if path.is_file():
        return path
    folder = shipped_configs()
    shipped = folder / (name.removeprefix("configs/").removesuffix(".yaml") + ".yaml")
    if shipped.is_file() and shipped.resolve().is_relative_to(folder.resolve()):
        return shipped
    known = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml") if "cluster" not in p.parts)
    near = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "give a file, or one of these that ship with raydist: " + ", ".join(known)
    what = "is a folder, not a YAML file" if path.is_dir() else "no such config"
    raise ConfigError(f"{name}: {what}; {hint}")


@dataclass(frozen=True)
class Loaded:
    """A config and, for each dotted key that was set, the source of its value."""

    config: Config
    origins: dict[str, str]


def load_config(name: str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a config, apply `extends:` and the overrides, and check the whole."""
    path = find_config(name)
    values, origins = _read(path, ())
    problems: list[str] = []
    for text in overrides:
        try:
            keys = _apply(values, text)
        except ValueError as error:
            problems.append(str(error))
            continue
        origins = {key: origin for key, origin in origins.items() if not f"{key}.".startswith(f"{keys[0]}.")}
        origins |= dict.fromkeys(keys[1:], "command line")
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += explained(error) + problems_beside(values, error)
    if problems:
        raise ConfigError(_report(path, len(overrides), sorted(set(problems))))
    return Loaded(config, origins)


def _apply(values: dict, override: str) -> list[str]:
    """Apply an override; returns its key, then the keys of all leaves below it. Raises ValueError if it is wrong."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ValueError(f"{override}: an override is key=value")
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a value such as 2026-02-31
        raise ValueError(f"{key}: not YAML: {text!r} ({_first_line(error)})") from None
    if isinstance(value, dict) and not text.lstrip().startswith("{"):
        value = text  # `prefix=query: ` is a text; command-line mappings need braces
    path = tuple(key.split("."))
    if blocked := _set(values, list(path), value):
        raise ValueError(blocked)
    return [key, *(".".join(leaf) for leaf, _ in _leaves(value, path))]


def _report(path: Path, overrides: int, problems: Sequence[str]) -> str:
    count = f"{len(problems)} problem" + "s" * (len(problems) > 1)
    beside = f" with {overrides} override" + "s" * (overrides > 1) if overrides else ""
    return f"{path}{beside}: {count}\n  " + "\n  ".join(problems)


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """The same config with some dotted keys changed, checked again."""
    values = config.model_dump(mode="json", exclude_unset=True)
    problems = [blocked for key, value in changes.items() if (blocked := _set(values, key.split("."), value))]
    try:
        changed = Config.model_validate(values)
    except ValidationError as error:
        problems += explained(error)
    if problems:
        raise ConfigError("; ".join(problems))
    return changed


def to_yaml(config: Section) -> str:
    """The complete config as plain YAML that can be run unchanged."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flatten(config: Section) -> dict[str, Any]:
    """Every leaf under its dotted key."""
    return flat_values(config.model_dump(mode="json"))


def flat_values(plain: Mapping[str, Any]) -> dict[str, Any]:
    """`flatten` for nested plain values, such as those of a saved config."""
    return {".".join(path): value for path, value in _leaves(plain, ())} if plain else {}


def _read(path: Path, chain: tuple[Path, ...]) -> tuple[dict, dict[str, str]]:
    if path.resolve() in chain:
        raise ConfigError(f"{path} extends itself: " + " -> ".join(map(str, (*chain, path))))
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {_first_line(error)}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {type(values).__name__}")
    base: dict = {}
    origins: dict[str, str] = {}
    extends = values.pop("extends", None)
    parents = [] if extends is None else listed(extends)  # an empty `extends:` counts as absent
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: extends should be the name of a config or a list of names, got {extends!r}")
    for parent in parents:
        beside = path.parent / parent
        parent_values, parent_origins = _read(beside if beside.is_file() else find_config(parent), (*chain, path.resolve()))
        base, origins = _merge(base, parent_values), origins | parent_origins
    own = {".".join(leaf): str(path) for leaf, _ in _leaves(values, ())}
    merged = _merge(base, values)
    kept = {".".join(leaf) for leaf, _ in _leaves(merged, ())}
    return merged, {key: origin for key, origin in (origins | own).items() if key in kept}


def _merge(base: Any, over: Any) -> Any:
    whole = isinstance(over, dict) and over.keys() & {"files", "hub"}  # a data set replaces the one of the same name
    if isinstance(base, dict) and isinstance(over, dict) and not whole:
        return base | {key: _merge(base.get(key), value) for key, value in over.items()}
    return over


def _set(values: dict, path: list[str], value: Any) -> str | None:
    """Set a value; returns the problem if the path leads through a plain value, unless that is a data set's short form."""
    for depth, key in enumerate(path[:-1], 1):
        if isinstance(values.get(key), str | list) and path[0] in ("data", "corpus"):
            values[key] = {"files": values[key]}
        elif values.get(key) is None:
            values[key] = {}
        elif not isinstance(values[key], dict):
            parent = ".".join(path[:depth])
            return f"{'.'.join(path)}: {parent} is {values[key]!r}, which has no keys; set {parent} itself"
        values = values[key]
    values[path[-1]] = value
    return None


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {text}" if mark else text
