"""Explains the problems of a config, one line each with the nearest key, and the meaning of keys."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from raydist.config.keys import Key, either, inner_sections, known_key, nearest_names
from raydist.config.run import Config
from raydist.config.section import ConfigError, OneOf, Section, cut

AnySection = TypeVar("AnySection", bound=Section)

MOST_EXPLAINED = 100  # problems; a config with more of them is something else
# in the place of a problem: which alternative it is of
SHAPES = ("function-", "tuple[", "constrained-", "literal[", "list[", "dict[")


# --- problems --------------------------------------------------------------------------------------------------------


def explained(error: ValidationError, section: str = "") -> list[str]:
    """A line for each problem of the config, or of one section. Alternatives each report their own problems: if one of them has
    the shape of the value, those of other shapes are left out."""
    above = tuple(section.split(".")) if section else ()
    first = error.errors()[:MOST_EXPLAINED]
    errors: list[Any] = [{**problem, "loc": (*above, *problem["loc"])} for problem in first]
    problems = [(tuple(_path(problem)), problem) for problem in errors]

    def is_of_shape(problem: Any) -> bool:
        return not problem["type"].endswith(("_type", "literal_error"))

    def has_a_better(path: tuple[str, ...]) -> bool:
        alike = [(other, problem) for other, problem in problems if other[: len(path)] == path]
        return any(len(other) > len(path) or is_of_shape(problem) for other, problem in alike)

    return [_line(problem) for path, problem in problems if is_of_shape(problem) or not has_a_better(path)]


def checked_section(kind: type[AnySection], name: str, values: Mapping[str, Any]) -> AnySection:
    """A section with these values, checked as in a config; a ConfigError lists the problems by key."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(explained(error, name))) from None


def problems_beside(values: dict, error: ValidationError) -> list[str]:
    """Problems between keys, hidden by errors in single keys: the values are checked again without the wrong keys. A problem
    that names one of those may be due to its absence, and is left out.
    """
    kinds = {tuple(_present_part(values, _path(problem))): problem["type"] for problem in error.errors()}
    wrong = {path: kind for path, kind in kinds.items() if path and kind != "value_error"}
    names = [path[-1] for path, kind in wrong.items() if kind != "extra_forbidden"]
    try:
        Config.model_validate(_without(values, list(wrong)))
    except ValidationError as left:
        lines = [_line(problem) for problem in left.errors() if problem["type"] == "value_error"]
        return [text for text in lines if not any(name in text for name in names)]
    return []


def _without(values: dict, paths: list[tuple[str, ...]]) -> dict:
    values = copy.deepcopy(values)
    for path in sorted(paths, key=len, reverse=True):
        section = values
        for name in path[:-1]:
            section = section[name]
        del section[path[-1]]
    return values


def _path(problem: Any) -> list[str]:
    path = [str(part) for part in problem["loc"] if not str(part).startswith(SHAPES)]
    return path[:-1] if problem["type"] == "string_type" and path[-1:] == ["str"] else path  # `str` is an alternative as well


def _present_part(values: Any, path: list[str]) -> Iterator[str]:
    """The leading names of a path that exist in the values."""
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return
        yield name
        values = values[name]


def _line(problem: Any) -> str:
    """One line about a validation error: the full key, the expected value, the actual one."""
    name = ".".join(_path(problem)) or "the config"
    if problem["type"] == "extra_forbidden":
        near = nearest_names(name)
        return f"{name}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    if problem["type"] == "value_error":
        return f"{name}: {problem['ctx']['error']}"
    message = problem["msg"].replace("Input should", "should")
    return f"{name}: {message[0].lower() + message[1:]}, got {cut(repr(problem['input']))}"


# --- keys ------------------------------------------------------------------------------------------------------------

PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def explain_key(name: str) -> str:
    """The description of a key, line by line, and the keys in a section. '' is the whole config."""
    key = known_key(name) if name else None
    lines = [] if key is None else [name, f"  {key.description}", *(f"  {label:8} {text}" for label, text in _facts(key))]
    section = Config if key is None else key.section
    if key and section is None and key.is_mapping:
        section = next(inner_sections(key.annotation), None)
        name += ".NAME"
    return "\n".join(lines + (_contents(section, name, bool(lines)) if section else []))


def _facts(key: Key) -> Iterator[tuple[str, str]]:
    if not (key.is_required or key.is_always_there):
        yield "default", _yaml(key.default)
    if key.section is None:
        yield "values", describe_values(key.annotation, key.info.metadata)
    if key.unit:
        yield "unit", key.unit
    if key.affects:
        yield "affects", key.affects.value
    if key.tasks:
        yield "task", either(list(key.tasks))


def _contents(section: type[BaseModel], name: str, indent: bool) -> list[str]:
    """A line for each key of a section."""
    names = {field: f"{name}.{field}" if name else field for field in section.model_fields}
    width = max(map(len, names.values()))
    lines = [f"{names[field]:{width}}  {info.description}" for field, info in section.model_fields.items()]
    return ["", *(f"  {line}" for line in lines)] if indent else lines


def describe_values(annotation: Any, metadata: Any = ()) -> str:
    """The values that a key accepts, with limits: 'integer (at least 1); or null'."""
    if names := [name for item in metadata if isinstance(item, OneOf) for name in item.names]:
        return either(names)
    limited = ", ".join(text for item in metadata for text in _limits(item))
    limits = f" ({limited})" if limited else ""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_values(parts[0], parts[1:])
    if origin is Literal:
        return either([str(part) for part in parts])
    if origin in (Union, types.UnionType):
        kinds = [part for part in parts if part is not type(None)]
        described = [describe_values(part, metadata if len(kinds) == 1 else ()) for part in kinds]
        return "; or ".join(described + ["null"] * (len(kinds) < len(parts)))
    if origin is list:
        return f"list of {describe_values(parts[0])}{limits}"
    if origin is tuple:
        return "[" + ", ".join(describe_values(part) for part in parts) + "]"
    if origin is dict:
        return f"mapping of names to {describe_values(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return PLAIN.get(annotation, str(annotation)) + limits


def _limits(item: Any) -> Iterator[str]:
    """Limits from annotated_types and pydantic: objects with one or more limits as attributes."""
    if isinstance(item, FieldInfo):
        yield from (text for inner in item.metadata for text in _limits(inner))
        return
    for name, words in LIMITS.items():
        if (limit := getattr(item, name, None)) is not None:
            yield f"{words} {limit:g}"
    if pattern := getattr(item, "pattern", None):
        yield f"matching {pattern}"


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
