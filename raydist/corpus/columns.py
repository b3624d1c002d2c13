"""Column names of files: our names -> the file's."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from raydist.corpus.checks import cell_problem
from raydist.corpus.messages import nearest, some
from raydist.corpus.rows import table_rows
from raydist.errors import InputError
from raydist.records import Rejected

T = TypeVar("T")

# --- files of questions ----------------------------------------------------------------------------------------------

COLUMNS = ("id", "question", "context", "answer", "answers", "answer_start", "title", "language", "is_impossible")


def column_names(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The file's name of each of COLUMNS."""
    for name in columns or {}:
        if name not in COLUMNS:
            raise InputError(f"columns: unknown name {name!r}; wanted some of {', '.join(COLUMNS)}{nearest(name, COLUMNS)}")
    return {name: name for name in COLUMNS} | dict(columns or {})


def check_columns(path: str, seen: Sequence[str], columns: Mapping[str, str]) -> None:
    """Require question, passage and every column mapped by hand."""
    names = column_names(columns)
    for name in dict.fromkeys(("question", "context", *columns)):
        if names[name] not in seen:
            raise InputError(
                f"{path} has no column {names[name]!r} for the {name}; it has {some(seen)}{nearest(names[name], seen)}"
                f"; map it with columns: {{{name}: NAME}}"
            )


def printed_value(cell: str) -> Any:
    """The value of a cell where `datasets.to_csv` printed an object: {'text': array(['1894'], dtype=object)}; else the cell."""
    try:
        return _printed(ast.parse(cell, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return cell


def _printed(node: ast.expr) -> Any:
    if isinstance(node, ast.Dict):
        return {_printed(key): _printed(value) for key, value in zip(node.keys, node.values) if key is not None}
    if isinstance(node, ast.List | ast.Tuple):
        return [_printed(item) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "array" and node.args:
        return _printed(node.args[0])
    return ast.literal_eval(node)


# --- files of a corpus -----------------------------------------------------------------------------------------------

BLOCK_ROWS = 1024  # rows of a file per block
_OPTIONAL = {"title": "", "language": "en", "document_id": "", "relevance": 1}


def read_table(
    path: Path,
    wanted: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    what: str = "row",
    rejected: list[Rejected] | None = None,
    block_rows: int | None = None,
    language: str | None = None,
) -> Iterator[pa.Table]:
    """Blocks of a Parquet, CSV, TSV or JSON Lines file with the wanted columns (``columns``: our name -> the file's), and line.

    A row that lacks one of them, or has neither text nor a number there, is rejected; title, language, document_id and
    relevance are optional, unless first of the wanted, which is the row's id.
    """
    rejected = [] if rejected is None else rejected
    schema = pa.schema([*((name, pa.int32() if name == "relevance" else pa.string()) for name in wanted), ("line", pa.int64())])
    for block in in_blocks(wanted_rows(Path(path), wanted, columns, what, rejected, language), block_rows):
        yield pa.Table.from_pylist([kept for kept, _ in block], schema)


def in_blocks(rows: Iterable[T], size: int | None = None) -> Iterator[list[T]]:
    """Rows in lists of this size, by default BLOCK_ROWS."""
    rows = iter(rows)
    while block := list(islice(rows, size or BLOCK_ROWS)):
        yield block


def wanted_rows(
    path: Path,
    wanted: Sequence[str],
    columns: Mapping[str, str] | None,
    what: str,
    rejected: list[Rejected],
    language: str | None = None,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The wanted columns of each row under our names, with line; and the raw row. `language`: of rows that state none."""
    names = {name: (columns or {}).get(name, name) for name in wanted}
    optional = {name: value for name, value in _OPTIONAL.items() if name != wanted[0]}
    if language and "language" in optional:
        optional["language"] = language
    seen_columns = False
    for line, row, fault in table_rows(path):
        if fault:
            rejected.append(Rejected(str(path), line, "", "row", fault.reason, fault.detail))
            continue
        if not seen_columns:
            _check_wanted(path, row, [column for name, column in names.items() if name not in optional])
            seen_columns = True
        kept: dict[str, Any] = {"line": line}
        for name, column in names.items():
            value = row.get(column)
            if value is None or (name == wanted[0] and value == ""):
                value = optional.get(name)
            if problem := cell_problem(name, value):
                id = str(kept.get(wanted[0], ""))
                rejected.append(Rejected(str(path), line, id, what, problem, f"{column}: {value!r}"[:200]))
                break
            kept[name] = int(str(value)) if name == "relevance" else str(value)
        else:
            yield kept, row


def _check_wanted(path: Path, row: Mapping[str, Any], columns: Iterable[str]) -> None:
    missing = [column for column in columns if column not in row]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r}, only {some(row)}; map the names with columns")
