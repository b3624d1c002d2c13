"""Reading a config: YAML, `extends:` and dotted overrides. All problems are reported at once.

The command line overrides a file, a file overrides those it extends, and these override the defaults.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from raydist.config.explain import explained, problems_beside
from raydist.config.run import Config
from raydist.config.section import ConfigError, Section, cut, listed
from raydist.files.given import check_regular
from raydist.files.yaml_text import YamlError, load_yaml

MOST_LEVELS = 16  # of a key's name, and of configs that extend each other
MOST_PROBLEMS = 50  # that a message lists


def shipped_configs() -> Path:
    """The folder of the configs that come with the package."""
    package = Path(__file__).parents[1]
    packed = package / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """A config's file, by its path or, for a shipped one, by its name (`quickstart`, `paper/infomax`)."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    check_regular(path)
    folder = shipped_configs()
    shipped = folder / (name.removeprefix("configs/").removesuffix(".yaml") + ".yaml")
    if os.path.isfile(shipped) and shipped.resolve().is_relative_to(folder.resolve()):
        return shipped
    known = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml") if "cluster" not in p.parts)
    near = difflib.get_close_matches(path.stem, known, n=1)
    usual = [name for name in known if "/" not in name]
    of_these = f"give a file, or one of these that ship with raydist: {', '.join(usual)}, and those of {folder}"
    hint = f"did you mean {near[0]}?" if near else of_these
    what = "is a folder, not a YAML file" if os.path.isdir(path) else "no such config"
    raise ConfigError(f"{cut(name)}: {what}; {hint}")


@dataclass(frozen=True)
class Loaded:
    """A config and, for each dotted key that was set, the source of its value."""

    config: Config
    origins: dict[str, str]


def load_config(name: str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a config, apply `extends:` and the overrides, and check the whole."""
    path = find_config(name)
    values, origins = _read(path, (), {})
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
        raise ValueError(f"{cut(override)}: an override is key=value")
    try:
        value = load_yaml(text)
    except YamlError as error:
        raise ValueError(f"{cut(key)}: not YAML: {cut(repr(text))} ({error})") from None
    if isinstance(value, dict) and not text.lstrip().startswith("{"):
        value = text  # `prefix=query: ` is a text; command-line mappings need braces
    path = tuple(key.split("."))
    if len(path) > MOST_LEVELS:
        raise ValueError(f"{cut(key)}: unknown key; no key has {len(path)} names")
    if blocked := _set(values, list(path), value):
        raise ValueError(blocked)
    return [key, *(".".join(leaf) for leaf, _ in _leaves(value, path))]


def _report(path: Path, overrides: int, problems: Sequence[str]) -> str:
    count = f"{len(problems)} problem" + "s" * (len(problems) > 1) if len(problems) <= MOST_PROBLEMS else "many problems"
    beside = f" with {overrides} override" + "s" * (overrides > 1) if overrides else ""
    more = ["and others"] * (len(problems) > MOST_PROBLEMS)
    return f"{path}{beside}: {count}\n  " + "\n  ".join([*problems[:MOST_PROBLEMS], *more])


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


Values = tuple[dict, dict[str, str]]  # and the origin of each


def _read(path: Path, chain: tuple[Path, ...], known: dict[Path, Values]) -> Values:
    """A config over those it extends. `known`: what was read before, so that a file extended many times is read once."""
    place = path.resolve()
    if place in chain:
        raise ConfigError(f"{path} extends itself: " + " -> ".join(map(str, (*chain, path))))
    if len(chain) >= MOST_LEVELS:
        raise ConfigError(f"{chain[0]}: more than {MOST_LEVELS} configs extend each other, the last one {path}")
    if place not in known:
        known[place] = _merged(path, (*chain, place), known)
    return known[place]


def _merged(path: Path, chain: tuple[Path, ...], known: dict[Path, Values]) -> Values:
    values = _load(path)
    base: dict = {}
    origins: dict[str, str] = {}
    extends = values.pop("extends", None)
    parents = [] if extends is None else listed(extends)  # an empty `extends:` counts as absent
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: extends should be the name of a config or a list of names, got {extends!r}")
    for parent in parents:
        beside = path.parent / parent
        parent_values, parent_origins = _read(beside if os.path.isfile(beside) else find_config(parent), chain, known)
        base, origins = _merge(base, parent_values), origins | parent_origins
    own = {".".join(leaf): str(path) for leaf, _ in _leaves(values, ())}
    merged = _merge(base, values)
    kept = {".".join(leaf) for leaf, _ in _leaves(merged, ())}
    return merged, {key: origin for key, origin in (origins | own).items() if key in kept}


def _load(path: Path) -> dict:
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: not readable as YAML: {why}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {type(values).__name__}")
    return values


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
