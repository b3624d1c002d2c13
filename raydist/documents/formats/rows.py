"""Rows of JSON Lines, CSV, TSV and Parquet: each is a document; columns besides id, text, title, language are metadata."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.corpus.checks import is_writable, text_problem
from raydist.corpus.messages import some
from raydist.corpus.rejected import DAMAGED, DUPLICATE_ID, EMPTY_DOCUMENT, MISSING_KEY, TOO_LARGE, UNREADABLE, Fault
from raydist.corpus.rows import Row, is_gzip, table_rows
from raydist.documents.decode import one_line
from raydist.documents.document import Document, File
from raydist.documents.formats.text import paragraphs
from raydist.documents.metadata import Value, column_name, parsed, plain
from raydist.errors import InputError

IDS = ("document_id", "id", "_id")
ROW_BYTES = 200  # minimum per row, in memory
BLOCK = 1 << 20


@dataclass(frozen=True)
class Problem:
    """A rejected row."""

    line: int
    id: str
    fault: Fault


@dataclass
class Columns:
    """The column names of a file."""

    text: str
    id: str | None
    title: str | None
    language: str | None
    others: list[str] = field(default_factory=list)


def read(file: File, names: Mapping[str, str] | None = None) -> Iterator[Document | Problem]:
    """The documents of a file, and the Problems of bad rows; `names`: our columns -> the file's."""
    check_size(file)
    rows = list(_rows(file))
    whole = [row for row in rows if row.fault is None]
    if not whole:
        yield from (Problem(row.line, "", row.fault) for row in rows if row.fault)
        return
    columns = find_columns(whole, names or {})
    metadata = _metadata(whole, columns, are_texts=is_csv(file.name))
    seen: set[str] = set()
    number = iter(range(len(whole)))
    for row in rows:
        if row.fault:
            yield Problem(row.line, "", row.fault)
            continue
        at = next(number)
        try:
            document = _document(file, row, columns)
            if document.id in seen:
                raise Fault(DUPLICATE_ID, "an earlier row has it, too")
        except Fault as fault:
            yield Problem(row.line, _id(row, columns), fault)
            continue
        seen.add(document.id)
        document.metadata = {name: value for name, values in metadata.items() if (value := values[at]) is not None}
        yield document


def check_size(file: File) -> None:
    """Reject a packed file that would unpack to too much."""
    if not is_gzip(file.path):
        return
    size = 0
    try:
        with gzip.open(file.path) as stream:
            while block := stream.read(BLOCK):
                size += len(block)
                if size > file.max_bytes:
                    raise Fault(TOO_LARGE, f"unpacks to more than {file.max_bytes:,} bytes")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Fault(DAMAGED, f"a gzip file cut short or damaged ({error}); copy it again") from None


def _rows(file: File) -> Iterator[Row]:
    """The rows, limited in total size: few bytes of Parquet may unpack to many."""
    size = 0
    try:
        for row in table_rows(file.path):
            size += ROW_BYTES + sum(len(value) for value in (row.value or {}).values() if isinstance(value, str))
            if size > 4 * file.max_bytes:
                raise Fault(TOO_LARGE, f"unpacks to more than {4 * file.max_bytes:,} bytes; cut the file")
            yield row
    except InputError as error:
        raise Fault(UNREADABLE, str(error).replace(str(file.path), file.name)) from None


def find_columns(rows: list[Row], names: Mapping[str, str]) -> Columns:
    """The roles of columns; mapped columns and the text are required."""
    seen: dict[str, None] = {}
    for row in rows:
        seen |= dict.fromkeys(row.value)
    seen.pop(None, None)  # type: ignore[call-overload]  # cells beyond the header
    wanted = {"text": "text"} | dict(names)
    for ours, theirs in wanted.items():
        if theirs not in seen:
            raise Fault(
                MISSING_KEY,
                f"no column {theirs!r} for the {ours} among {some(seen)}; map it: documents.columns={{{ours}: NAME}}",
            )
    id = wanted.get("id") or next((name for name in IDS if name in seen), None)
    title, language = (wanted.get(name) or (name if name in seen else None) for name in ("title", "language"))
    columns = Columns(wanted["text"], id, title, language)
    taken = (columns.text, id, title, language)
    columns.others = [name for name in seen if name not in taken and name]
    return columns


def _document(file: File, row: Row, columns: Columns) -> Document:
    text = row.value.get(columns.text)
    if problem := text_problem(text, absent=EMPTY_DOCUMENT):
        raise Fault(problem, f"{columns.text}: {str(text)[:80]!r}")
    blocks = list(paragraphs(text.replace("\r\n", "\n"), None))
    if not blocks:
        raise Fault(EMPTY_DOCUMENT, repr(text[:20]))
    for block in blocks:
        block.line = row.line
    title, language = (_text(row.value.get(name)) if name else "" for name in (columns.title, columns.language))
    return Document(blocks, title, language, {}, _id(row, columns) or f"{file.name}:{row.line}", row.line)


def _id(row: Row, columns: Columns) -> str:
    return _text(row.value.get(columns.id)) if columns.id else ""


def _text(value: Any) -> str:
    """An id, a title or a language, possibly given as a number."""
    value = plain(value)
    return value if isinstance(value, str) and is_writable(value) else "" if value is None else str(value)


def _metadata(rows: list[Row], columns: Columns, *, are_texts: bool) -> dict[str, list[Value | None]]:
    """The values of all other columns; text-only cells are parsed by column."""
    found: dict[str, list[Value | None]] = {}
    for name in columns.others:
        values = [row.value.get(name) for row in rows]
        if are_texts:
            found[column_name(name)] = parsed([one_line(value) if value else None for value in values])
        else:
            found[column_name(name)] = [_writable(plain(value)) for value in values]
    return found


def _writable(value: Value | None) -> Value | None:
    return value if not isinstance(value, str) or is_writable(value) else value.encode("utf-8", "replace").decode()


def is_csv(name: str) -> bool:
    """Whether a file's cells are text only."""
    return name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
