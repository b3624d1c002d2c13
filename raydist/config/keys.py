"""Dotted keys: their names and metadata."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from raydist.config.run import Config
from raydist.config.section import Affects, ConfigError


@dataclass(frozen=True)
class Key:
    """A key or section of the config: its dotted name and, from the outermost in, the fields that lead to it."""

    name: str
    fields: tuple[FieldInfo, ...]
    annotation: Any
    _default: Any

    @property
    def info(self) -> FieldInfo:
        return self.fields[-1]

    @property
    def description(self) -> str:
        return self.info.description or ""

    @property
    def is_required(self) -> bool:
        return self._default is PydanticUndefined

    @cached_property
    def default(self) -> Any:
        """The default as in YAML and JSON; None if a value is required."""
        return None if self.is_required else to_jsonable_python(self._default)

    @property
    def section(self) -> type[BaseModel] | None:
        """The section's class, if it is a section."""
        return None if self.is_mapping else next(inner_sections(self.annotation), None)

    @property
    def is_always_there(self) -> bool:
        """Whether it is a section that exists with its defaults when nothing is set."""
        return self.section is not None and self.default is not None

    @property
    def is_mapping(self) -> bool:
        """Whether the names below it are chosen by the user, like those of test sets."""
        return get_origin(self.annotation) is dict

    @property
    def unit(self) -> str | None:
        return self._says("unit")

    @property
    def affects(self) -> Affects | None:
        """None for a section whose keys differ."""
        role = self._says("affects")
        return Affects(role) if role else None

    @property
    def is_later(self) -> bool:
        return bool(self._says("later"))

    @property
    def before(self) -> Any:
        """The behaviour of runs made before the key existed."""
        said = self._says("before")
        return self.default if said is None else said

    @property
    def is_shared(self) -> bool:
        """Whether trials share its results: declared by the outermost field, else true of keys that affect rows."""
        said = [extra["shared"] for info in self.fields if "shared" in (extra := _extra(info))]
        return said[0] if said else self.affects is Affects.rows

    @property
    def tasks(self) -> Sequence[str] | None:
        """The tasks that use it; None: all."""
        return _extra(self.fields[0]).get("tasks")

    def _says(self, what: str) -> Any:
        return _extra(self.info).get(what)


def _extra(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) else {}


@cache
def find_key(name: str, root: type[BaseModel] = Config) -> Key | None:
    """The key of a dotted name; for names below a plain mapping (`sweep.space.optim.lr`), the mapping's. None: no such key."""
    owner: type[BaseModel] | None = root
    usual: Any = None  # the default section, if there is one
    fields: tuple[FieldInfo, ...] = ()
    found: list[str] = []
    steps = name.split(".")
    while steps:
        if owner is None or steps[0] not in owner.model_fields:
            return None
        found.append(step := steps.pop(0))
        info = owner.model_fields[step]
        fields = (*fields, info)
        default = info.get_default(call_default_factory=True) if usual is None else getattr(usual, step)
        key = Key(".".join(found), fields, info.annotation, default)
        owner, usual = next(inner_sections(info.annotation), None), default
        if key.is_mapping and steps:
            if owner is None:
                return key
            found.append(steps.pop(0))
            usual = None
            if not steps:
                return Key(".".join(found), fields, get_args(info.annotation)[1], PydanticUndefined)
    return key


def known_key(name: str) -> Key:
    """The key of exactly this name; otherwise a ConfigError suggests similar ones."""
    key = find_key(name)
    if key is None or key.name != name:
        near = nearest_names(name, 3)
        hint = f"did you mean {either(near)}?" if near else "`raydist config explain` lists the sections"
        raise ConfigError(f"{name}: unknown key; {hint}")
    return key


def known_names(section: type[BaseModel], path: tuple[str, ...] = (), asked: Sequence[str] = ()) -> Iterator[str]:
    """Dotted names in a section; in mappings, such as test sets, those below the name in `asked`."""
    for name, info in section.model_fields.items():
        here = (*path, name)
        yield ".".join(here)
        if get_origin(info.annotation) is not dict:
            for inner in inner_sections(info.annotation):
                yield from known_names(inner, here, asked)
        elif tuple(asked[: len(here)]) == here and len(asked) > len(here):
            for inner in inner_sections(info.annotation):
                yield from known_names(inner, (*here, asked[len(here)]), asked)


def inner_sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a key holds, directly or under names chosen by the user."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated):
        for part in get_args(annotation):
            yield from inner_sections(part)
    elif get_origin(annotation) is dict:
        yield from inner_sections(get_args(annotation)[1])


def nearest_names(name: str, count: int = 1) -> list[str]:
    """Known names like an unknown one: among its siblings, else the same word elsewhere, else any."""
    path = name.split(".")
    known = list(known_names(Config, asked=path))
    parent, last = ".".join(path[:-1]), path[-1]
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
    near = difflib.get_close_matches(last, siblings, n=count, cutoff=0.6)  # by last names: the rest of the path is equal
    if near:
        return [siblings[key] for key in near]
    if same_name := [key for key in known if key.rpartition(".")[2] == last]:
        return sorted(same_name, key=lambda key: key.count("."))[:count]
    return difflib.get_close_matches(name, known, n=count, cutoff=0.75)


def either(names: Sequence[str]) -> str:
    """'a, b or c'."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
