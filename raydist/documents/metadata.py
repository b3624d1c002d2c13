"""Metadata: values of a few plain kinds, each in a column of its kind until the kinds of all files are known.

`year` may be a number in one file and a text in another. Parts are made independently, so a part keeps values in columns by
kind (`year:int`, `year:string`), and readers of all parts merge them into one column of a kind that fits all values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.rejected import WRONG_TYPE, Fault
from raydist.documents.decode import one_line
from raydist.documents.schema import METADATA_TYPES, PASSAGES
from raydist.errors import InputError

Value = str | int | float | bool | date | datetime
MOST_COLUMNS = 200
MOST_CHARACTERS = 10_000  # per text

# --- values ----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Value | None:
    """A value of one of the kinds; None if empty. Nested values become text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        return one_line(value)[:MOST_CHARACTERS] or None
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        return plain(", ".join(map(str, value)))
    if value is None or isinstance(value, bytes):
        return None
    return plain(json.dumps(value, ensure_ascii=False, default=str))


def kind_of(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, datetime):
        return "timestamp"
    return {int: "int", float: "float", date: "date"}.get(type(value), "string")


_INT = re.compile(r"-?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")


def _when(text: str) -> datetime:
    when = plain(datetime.fromisoformat(text))
    assert isinstance(when, datetime)
    return when


_PARSERS: dict[str, tuple[Callable[[str], Any], Callable[[str], Value]]] = {
    "int": (_INT.fullmatch, int),
    "float": (_FLOAT.fullmatch, float),
    "bool": (lambda text: text in ("true", "false", "True", "False"), lambda text: text in ("true", "True")),
    "date": (_DATE.fullmatch, date.fromisoformat),
    "timestamp": (lambda text: _TIME.fullmatch(text) or _DATE.fullmatch(text), _when),
}


def parsed(texts: Sequence[str | None]) -> list[Value | None]:
    """The cells of a text-only column, parsed as the first kind that fits them all."""
    given = {text for text in texts if text}
    for looks_so, parse in _PARSERS.values():
        if given and all(map(looks_so, given)):
            try:
                values = {text: parse(text) for text in given}
            except (ValueError, OverflowError):  # 2026-02-31
                continue
            return [plain(values[text]) if text else None for text in texts]
    return [plain(text) if text else None for text in texts]


def wanted(value: Value, kind: str, name: str) -> Value:
    """The value as the kind that the config gives its column; raises a Fault if impossible."""
    own = kind_of(value)
    if kind in ("auto", own):
        return value
    if kind == "string":
        return str(_cast(pa.array([value], METADATA_TYPES[own]), pa.string())[0].as_py())
    if kind == "float" and own == "int":
        return float(value)  # type: ignore[arg-type]
    if kind == "timestamp" and own == "date":
        return datetime(value.year, value.month, value.day, tzinfo=UTC)  # type: ignore[union-attr]
    if isinstance(value, str) and _PARSERS[kind][0](value):
        try:
            return _PARSERS[kind][1](value)
        except (ValueError, OverflowError):
            pass
    raise Fault(WRONG_TYPE, f"{name}: wanted {kind}, saw {own} {str(value)[:80]!r}")


def column_name(name: str) -> str:
    """The name of a metadata column, distinct from the passages' own columns."""
    name = one_line(name)[:100]
    return f"{name}_" if name in PASSAGES.names else name


def from_json(value: Any) -> Value:
    """A value written by `to_json`."""
    if isinstance(value, dict):
        (kind, text) = next(iter(value.items()))
        return date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text)
    return value


def to_json(value: Value) -> Any:
    """The value as a JSON value."""
    return {kind_of(value): value.isoformat()} if isinstance(value, date) else value


# --- columns ---------------------------------------------------------------------------------------------------------


def columns_by_kind(rows: Sequence[Mapping[str, Value]], where: str) -> dict[str, pa.Array]:
    """A column `name:kind` for each name and kind, with the values of that kind."""
    columns: dict[str, list[Value | None]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            column = columns.setdefault(f"{name}:{kind_of(value)}", [])
            column.extend([None] * (number - len(column)))
            column.append(value)
    check_number(names_and_kinds(columns), where)
    return {
        name: pa.array([*column, *[None] * (len(rows) - len(column))], METADATA_TYPES[name.rpartition(":")[2]])
        for name, column in sorted(columns.items())
    }


def check_number(names: Iterable[str], where: str) -> None:
    names = list(names)
    if len(names) > MOST_COLUMNS:
        raise InputError(
            f"{where}: {len(names):,} columns of metadata ({', '.join(names[:5])} ...), and there may be {MOST_COLUMNS}: name "
            f"those to keep in documents.metadata, such as {{{names[0]}: auto}}"
        )


def names_and_kinds(columns: Iterable[str]) -> dict[str, set[str]]:
    """The kinds of each name, from columns `name:kind`."""
    kinds: dict[str, set[str]] = {}
    for column in columns:
        name, _, kind = column.rpartition(":")
        if name and kind in METADATA_TYPES:
            kinds.setdefault(name, set()).add(kind)
    return kinds


def common_kind(kinds: Iterable[str]) -> str:
    """The kind that fits values of all these kinds."""
    kinds = set(kinds)
    if len(kinds) == 1:
        return next(iter(kinds))
    for pair in ({"int", "float"}, {"date", "timestamp"}):
        if kinds == pair:
            return max(pair, key=["int", "date", "float", "timestamp"].index)
    return "string"


def with_kinds(table: pa.Table, kinds: Mapping[str, str]) -> pa.Table:
    """Passages with one column per name, of the given kind."""
    columns = {name: table[name] for name in PASSAGES.names}
    for name, kind in kinds.items():
        wanted_type = METADATA_TYPES[kind]
        own = [_cast(table[f"{name}:{of}"], wanted_type) for of in METADATA_TYPES if f"{name}:{of}" in table.column_names]
        columns[name] = pc.coalesce(*own) if own else pa.nulls(len(table), wanted_type)
    return pa.table(columns)


def _cast(column: Any, wanted_type: pa.DataType) -> Any:
    """Cast a column; floats become text as in Python, where Arrow would write 3e+05 or 1."""
    if pa.types.is_floating(column.type) and pa.types.is_string(wanted_type):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(column.type) and pa.types.is_string(wanted_type):
        return pa.array([None if value is None else value.isoformat() for value in column.to_pylist()], pa.string())
    return column if column.type == wanted_type else column.cast(wanted_type)
