"""Files -> rows with a line: the only place that opens gzip, UTF-8, CSV, JSON Lines, JSON and Parquet.

    json_lines, csv_table, parquet_groups    files of questions, whole or in pieces; their type was recognised by content
    table_rows                               files of a corpus; their type follows from the name
    load_document, load_lists                one JSON document

All but documents are streamed. An unreadable row yields a ``Fault`` in its place; an unreadable file raises InputError. gzip is
unpacked, a byte order mark is skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.corpus.checks import is_writable
from raydist.corpus.messages import some
from raydist.corpus.paths import check_there
from raydist.corpus.rejected import BROKEN_JSON, INVALID_UTF8, WRONG_TYPE, WRONG_WIDTH, Fault
from raydist.errors import InputError
from raydist.files.given import check_regular, parse_json

HEAD_BYTES = 1 << 18
BATCH_ROWS = 1024  # rows of a Parquet file unpacked together
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".json", ".jsonlines", ".ndjson")


class Row(NamedTuple):
    """A raw row of a file, or its Fault."""

    line: int  # or the number of the row, if the file has no lines
    value: Any
    fault: Fault | None = None


# --- bytes -----------------------------------------------------------------------------------------------------------


def is_gzip(path: Path | str) -> bool:
    """Whether a file is gzipped, whatever its name."""
    check_regular(path)
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


@contextmanager
def _unpacked(path: Path | str) -> Iterator[IO[bytes]]:
    is_packed = is_gzip(path)
    with open(path, "rb") as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_packed else file


def _after_mark(stream: IO[bytes], start: int = 0) -> IO[bytes]:
    stream.seek(start)
    if stream.read(3) != _BYTE_ORDER_MARK:
        stream.seek(start)
    return stream


@contextmanager
def _naming_damage(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a gzip file cut short or damaged ({error}); copy or download it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def read_bytes(path: Path | str, size: int = -1) -> bytes:
    """The content, or its first bytes, including a byte order mark."""
    with _naming_damage(path), _unpacked(path) as stream:
        return stream.read(size)


# --- JSON ------------------------------------------------------------------------------------------------------------


def load_document(path: Path | str) -> Any:
    """The content of a JSON file."""
    data = read_bytes(path).removeprefix(_BYTE_ORDER_MARK)
    try:
        return parse_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: byte {error.start + 1} is {data[error.start]:#04x}; save it as such") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}; is it cut short? copy or make it again") from error


def load_lists(path: Path, keys: Sequence[str]) -> list[list[Any]]:
    """The lists under these keys of a JSON object."""
    check_there(path)
    try:
        with _unpacked(path) as stream:
            document = parse_json(_after_mark(stream).read().decode("utf-8"))
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(key), list) for key in keys):
        seen = some(document) if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{path}: wanted an object with the lists {', '.join(keys)}, saw {seen}")
    return [document[key] for key in keys]


def json_lines(path: Path | str, start: int = 0, end: int = -1, first_line: int = 1) -> Iterator[Row]:
    """The rows of JSON Lines, or of the bytes [start, end) of a file that is not gzipped; skips blank lines."""
    with _naming_damage(path), _unpacked(path) as stream:
        at = _after_mark(stream, start).tell()
        for line, raw in enumerate(stream, first_line):
            if not raw.isspace():
                yield _parsed(line, raw.removesuffix(b"\n"))
            at += len(raw)
            if at >= end >= 0:
                break


def cut_lines(path: Path | str, max_bytes: int) -> list[tuple[int, int, int]]:
    """Pieces of about max_bytes, cut at line ends: first byte, byte after the last, first line."""
    if os.path.getsize(path) <= max_bytes:
        return [(0, -1, 1)]
    pieces, start, line = [], 0, 1
    with open(path, "rb") as stream:
        while block := stream.read(max_bytes):
            block += stream.readline()
            pieces.append((start, start + len(block), line))
            start, line = start + len(block), line + block.count(b"\n")
    return pieces


def _parsed(line: int, raw: bytes) -> Row:
    try:
        return Row(line, parse_json(raw.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Row(line, None, Fault(INVALID_UTF8, f"byte {error.start + 1} is {raw[error.start]:#04x}"))
    except ValueError as error:
        return Row(line, None, Fault(BROKEN_JSON, str(error)))


# --- CSV -------------------------------------------------------------------------------------------------------------


class _BrokenRecord(csv.Error):
    def __init__(self, line: int, error: csv.Error) -> None:
        super().__init__(str(error))
        self.line = line  # its first line


def _text(stream: IO[bytes]) -> io.TextIOWrapper:
    """Bytes that are not UTF-8 become surrogates."""
    return io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")


def _records(text: Iterable[str], **dialect: Any) -> Iterator[tuple[int, int, list[str]]]:
    """The first and last line of each record, and its cells; a blank line is a record without cells."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))  # passages are longer than the default of 128 kB
    records, line = csv.reader(text, **dialect), 1
    try:
        for cells in records:
            yield line, records.line_num, cells
            line = records.line_num + 1
    except csv.Error as error:
        raise _BrokenRecord(line, error) from error


def csv_records(path: Path | str, stream: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """The first line of each record and its cells, header first; separator: the most frequent in the header of , tab ;"""
    text = _text(stream)
    first = []
    for line in text:
        first.append(line)
        if line.endswith("\n") and not line.isspace():
            break
    header = "".join(first).lstrip().split("\n", 1)[0]
    is_header = True
    try:
        for start, _, cells in _records(chain(first, text), delimiter=max(",\t;", key=header.count), strict=True):
            if cells and is_header:
                check_columns_differ(path, cells := [cell.strip() for cell in cells])
            if cells:
                yield start, cells
                is_header = False
    except _BrokenRecord as error:
        raise InputError(
            f"{path}: the CSV record that starts in line {error.line} is broken ({error}); mend its quotes"
        ) from error


def csv_header(path: Path | str) -> list[str]:
    """The columns of a file recognised as CSV."""
    return next(csv_records(path, io.BytesIO(read_bytes(path, HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK))))[1]


def csv_table(path: Path | str, shown: str) -> Iterator[Row]:
    """The rows of a CSV file by its columns; a row of another width is a Fault. Messages name the file `shown`."""
    with _naming_damage(path), _unpacked(path) as stream:
        records = csv_records(shown, _after_mark(stream))
        header = next(records)[1]
        for line, cells in records:
            if len(cells) == len(header):
                yield Row(line, dict(zip(header, cells)))
            else:
                yield Row(line, None, Fault(WRONG_WIDTH, f"{len(cells)} cells, the header has {len(header)}"))


# --- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet(path: Path | str) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(read_bytes(path)) if is_gzip(path) else path)


@contextmanager
def _whole_parquet(path: Path | str) -> Iterator[pq.ParquetFile]:
    try:
        with _parquet(path) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is a damaged Parquet file ({error}); copy or make it again") from error


def check_columns_differ(path: Path | str, names: Sequence[str]) -> None:
    """Refuse a table with a column twice, where one would hide the other."""
    if twice := [name for name, number in Counter(names).items() if name and number > 1]:
        raise InputError(f"{path} has the column {twice[0]!r} twice; rename or remove one of them")


class ParquetFacts(NamedTuple):
    """Metadata of a Parquet file."""

    columns: list[str]
    groups: list[tuple[int, int]]  # rows and bytes of each row group


def parquet_facts(path: Path | str) -> ParquetFacts:
    """The columns and row groups of a Parquet file."""
    with _whole_parquet(path) as file:
        check_columns_differ(path, file.schema_arrow.names)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        return ParquetFacts(file.schema_arrow.names, [(group.num_rows, group.total_byte_size) for group in groups])


def parquet_groups(
    path: Path | str, shown: str, wanted: Container[str], start: int = 0, end: int = -1, first_line: int = 1
) -> Iterator[Row]:
    """The rows of some row groups, [start, end), with the wanted columns. Messages name the file `shown`."""
    line = first_line
    with _whole_parquet(path) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted]
        groups = range(start, file.metadata.num_row_groups if end < 0 else end)
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
            try:
                values = batch.to_pylist()
            except UnicodeDecodeError as error:
                raise InputError(f"{shown}: not UTF-8 in rows {line} to {line + BATCH_ROWS - 1} ({error})") from error
            yield from (Row(*row) for row in enumerate(values, line))
            line += batch.num_rows


# --- files of a corpus -----------------------------------------------------------------------------------------------


def table_rows(path: Path) -> Iterator[Row]:
    """The rows of a Parquet, CSV, TSV or JSON Lines file, recognised by its name."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{path}: its name does not show what it holds; wanted .parquet, .csv, .tsv or .jsonl (with or without .gz)"
        )
    check_there(path)
    try:
        if suffix == ".parquet":
            with _parquet(path) as table:
                check_columns_differ(path, table.schema_arrow.names)
                batches = table.iter_batches(BATCH_ROWS)
                yield from (Row(*row) for row in enumerate((row for batch in batches for row in batch.to_pylist()), 1))
            return
        with _unpacked(path) as stream:
            file = _after_mark(stream)
            yield from _cells(path, file, is_tsv=suffix == ".tsv") if suffix in (".csv", ".tsv") else _objects(file)
    except (UnicodeDecodeError, csv.Error, pa.ArrowException, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} cannot be read as {suffix[1:]}: {error}") from error


def _objects(file: IO[bytes]) -> Iterator[Row]:
    for line, raw in enumerate(file, 1):
        if raw.isspace():
            continue
        row = _parsed(line, raw)
        if row.fault or isinstance(row.value, dict):
            yield row
        else:
            yield Row(line, None, Fault(WRONG_TYPE, f"wanted an object, saw {raw.decode()[:80]!r}"))


def text_lines(path: Path) -> Iterator[Row]:
    """The lines of a text file; skips blank ones."""
    with _naming_damage(path), _unpacked(path) as stream:
        for line, raw in enumerate(_after_mark(stream), 1):
            if raw.isspace():
                continue
            try:
                yield Row(line, raw.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                yield Row(line, "", Fault(INVALID_UTF8, f"byte {error.start + 1} is {raw[error.start]:#04x}"))


def _cells(path: Path, file: IO[bytes], *, is_tsv: bool) -> Iterator[Row]:
    """Rows by their last line; cells may be missing (None). TSV is lines split at tabs: a quote is an ordinary character."""
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    header: list[str] | None = None
    for _, line, cells in _records(_text(file), **dialect):
        if header is None:
            check_columns_differ(path, header := cells)
        elif cells:
            yield _by_column(line, header, cells)


def _by_column(line: int, header: list[str], cells: list[str]) -> Row:
    more = cells[len(header) :]
    row: dict[str | None, Any] = dict(zip_longest(header, cells[: len(header)]))
    if more:
        row[None] = more
    if not is_writable("".join(map(str, (*row, *row.values())))):
        return Row(line, None, Fault(INVALID_UTF8, f"in {row}"[:200]))
    if any(more):
        return Row(line, None, Fault(WRONG_WIDTH, f"{len(header) + len(more)} cells, the header has {len(header)}"))
    return Row(line, row)
