"""The elements of sections: keys with a default, a description, a range and an effect, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from raydist.errors import InputError


class ConfigError(InputError):
    """The configuration is wrong; the message lists every problem."""


class Affects(StrEnum):
    """The first result that a key's value changes. Later ones change with it."""

    nothing = "nothing"  # location and speed of the work, logging
    rows = "rows"  # stages before training: examples, windows, indexes, hits, pairs
    weights = "weights"  # the trained model
    scores = "scores"  # predictions, ranked lists, metrics


NOTHING, ROWS, WEIGHTS, SCORES = Affects


def key(
    default: Any,
    description: str,
    affects: Affects,
    *,
    unit: str | None = None,
    shared: bool | None = None,
    later: bool | None = None,
    before: Any = None,
    **limits: Any,
) -> Any:
    """A key of a section.

    `shared`: whether trials of a retriever's sweep share its results; by default, if it affects rows.
    `later`: the key is newer than finished runs. At its default it is left out of names, so that these runs keep theirs.
    `before`: the behaviour of versions without the key, if not its default.
    `limits` are pydantic's: ge, gt, le, lt, pattern, min_length.
    """
    extra = {"affects": affects.value, "unit": unit, "shared": shared, "later": later, "before": before}
    return _field(default, description, extra, **limits)


def section(default: Any, description: str, *, shared: bool | None = None, tasks: tuple[str, ...] | None = None) -> Any:
    """A section that always exists. `shared` applies to all its keys; `tasks` are those that use it, by default all."""
    return _field(default, description, {"shared": shared, "tasks": list(tasks) if tasks else None})


def _field(default: Any, description: str, extra: dict[str, Any], **limits: Any) -> Any:
    known = {name: value for name, value in extra.items() if value is not None}
    return Field(default, description=description, json_schema_extra=known or None, **limits)


class Section(BaseModel):
    """A closed, immutable part of a run's configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def _problems(self) -> Iterator[str]:
        """Conflicts between keys that are valid on their own."""
        yield from ()

    @model_validator(mode="after")
    def _report_all_problems(self) -> Self:
        problems: list[InitErrorDetails] = [
            {"type": "value_error", "input": None, "ctx": {"error": ValueError(text)}} for text in self._problems()
        ]
        if problems:  # a ValueError could carry only one of them
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self


class OneOf:
    """A text that is one of some names, or a key of a table elsewhere, loaded on demand:
    ``Annotated[str, OneOf("auto", table="raydist.corpus.formats:READER_FORMATS")]``.
    """

    def __init__(self, *names: str, table: str) -> None:
        self.first, self.table = names, table

    @property
    def names(self) -> list[str]:
        module, _, name = self.table.partition(":")
        return [*self.first, *getattr(import_module(module), name)]

    def check(self, name: str) -> str:
        if name in self.first or name in self.names:
            return name
        *others, last = map(repr, self.names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return handler(schema) | {"enum": self.names}


def cut(text: str, most: int = 200) -> str:
    """The beginning of a long text, for a message."""
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text):,} characters)"


def listed(value: Any) -> Any:
    """A single text as a list of one."""
    return [value] if isinstance(value, str) else value


LONGEST_NAME = 180  # bytes; a folder's name may have 255, and ours are given endings


def is_plain_name(name: str) -> bool:
    """Whether a test set may have this name."""
    return name.replace("_", "").replace("-", "").isalnum() and len(name.encode()) <= LONGEST_NAME
