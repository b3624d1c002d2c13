"""Files of questions -> Example rows, every row checked.

    splits = plan_splits(["data/*.json.gz"])            # independently readable pieces, on any node
    examples, rejected, counts = read_split(splits[0])  # plain Python; a stage does this for each split

Formats are recognised by content (``formats``). `squad_v2` is never guessed: in a squad file or flat rows, it makes questions
without answers impossible. Elsewhere a question without answers is unlabelled, usable for prediction: it is accepted, with no
answers and `is_impossible` false, unless `labelled` requires answers. `scored` keeps questions with a gold text, even if no
answer is a piece of the passage. Offsets count code points.

A bad row goes to `Rejected` (``checks``), a bad file raises InputError. Memory grows with the examples of a split: a piece of a
JSON Lines file or some row groups of a Parquet file; but a gzipped file, a CSV file and a JSON document, which is read whole,
are one split each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydist.corpus.checks import ExampleChecks
from raydist.corpus.columns import COLUMNS, check_columns, column_names, printed_value
from raydist.corpus.formats import READER_FORMATS, check_format
from raydist.corpus.formats.base import Container, ReaderFormat
from raydist.corpus.messages import kind
from raydist.corpus.paths import expand_paths
from raydist.corpus.recognise import WANTED, document_format, language_of, recognise, row_format, unknown_rows
from raydist.corpus.rejected import BROKEN_JSON, INVALID_UTF8, LONE_SURROGATE, WRONG_TYPE, Fault
from raydist.corpus.rows import (
    Row,
    csv_header,
    csv_table,
    cut_lines,
    is_gzip,
    json_lines,
    load_document,
    parquet_facts,
    parquet_groups,
)
from raydist.errors import InputError
from raydist.files.given import parse_json
from raydist.records import Example, ReadCounts, Rejected

UNITS = {"lines": "line", "csv": "line", "parquet": "row", "document": "question"}  # unit of `line` in each layout

Read = tuple[list[Example], list[Rejected], ReadCounts]


@dataclass(frozen=True)
class Split:
    """An independently readable piece of a data set; plain values, so that it can be sent to workers."""

    path: str
    format: str
    layout: str  # "lines", "document", "parquet" or "csv"
    start: int = 0  # bytes of a JSON Lines file, or row groups of a Parquet file: [start, end)
    end: int = -1  # -1: to the end
    first_line: int = 1
    language: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    repair_offsets: bool = False
    labelled: bool = False
    scored: bool = False
    split: str = ""  # of the questions of a file that has several


# --- files and their splits ------------------------------------------------------------------------------------------


def plan_splits(
    paths: Sequence[str],
    *,
    format: str = "auto",
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
    repair_offsets: bool = False,
    labelled: bool = False,
    scored: bool = False,
    split: str = "",
    max_bytes: int = 64 << 20,
) -> list[Split]:
    """Cut files (globs too) into pieces of about max_bytes; the cuts depend only on the files and max_bytes.

    JSON Lines files are cut at line ends, which takes one pass over the file to number the lines, Parquet between row groups.
    """
    check_format(format, READER_FORMATS, "auto")
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}; wanted 1 or more")
    names = column_names(columns)
    splits = []
    for path in expand_paths(paths):
        seen, layout = recognise(path, names)
        if not _is_read_as(seen, format):
            raise InputError(f"{path} looks like {seen}, the format asked for is {format}; leave it out or say {seen}")
        whole = Split(
            path=path,
            format=seen if format == "auto" else format,
            layout=layout,
            language=language or language_of(path),
            columns=tuple(sorted((columns or {}).items())),
            repair_offsets=repair_offsets,
            labelled=labelled,
            scored=scored,
            split=split,
        )
        READER_FORMATS[whole.format].check_beside(Path(path))
        pieces = _pieces(path, layout, columns or {}, max_bytes)
        splits += [replace(whole, start=start, end=end, first_line=line) for start, end, line in pieces]
    return splits


def _is_read_as(seen: str, format: str) -> bool:
    """Whether a file recognised as `seen` may be read as `format`."""
    if format in ("auto", seen) or isinstance(READER_FORMATS[seen], Container):
        return True
    return seen in READER_FORMATS[format].also_reads


def _pieces(path: str, layout: str, columns: Mapping[str, str], max_bytes: int) -> list[tuple[int, int, int]]:
    """Start, end and first line of the pieces of a file."""
    if layout == "parquet":
        return _cut_parquet(path, columns, max_bytes)
    if layout == "csv":
        header = csv_header(path)
        if not _has_own_columns(header, columns):
            check_columns(path, header, columns)
    elif layout == "lines" and not is_gzip(path):
        return cut_lines(path, max_bytes)
    return [(0, -1, 1)]


def _has_own_columns(seen: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Whether columns are those of a format that names them itself."""
    format = row_format(dict.fromkeys(seen), column_names(columns))
    return bool(format) and READER_FORMATS[format].own_columns


def _cut_parquet(path: str, columns: Mapping[str, str], max_bytes: int) -> list[tuple[int, int, int]]:
    seen, groups = parquet_facts(path)
    if not _has_own_columns(seen, columns):
        check_columns(path, seen, columns)
    if not sum(rows for rows, _ in groups):
        raise InputError(f"{path} is a table without rows; {WANTED}")
    if is_gzip(path):
        return [(0, -1, 1)]
    pieces, start, size, line, rows = [], 0, 0, 1, 0
    for number, (more, num_bytes) in enumerate(groups):
        if size and size + num_bytes > max_bytes:
            pieces.append((start, number, line))
            start, size, line, rows = number, 0, line + rows, 0
        size, rows = size + num_bytes, rows + more
    return [*pieces, (start, len(groups), line)]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_split(split: Split, named: str | None = None) -> Read:
    """The examples of one split, its rejected rows, and the counts; rows name the file `named` if the path is only a copy's."""
    is_csv = split.layout == "csv"
    checks = _checks(
        named or split.path,
        split.format,
        dict(split.columns),
        language=split.language,
        repair_offsets=split.repair_offsets,
        labelled=split.labelled,
        scored=split.scored,
        unit=UNITS[split.layout],
        path=split.path,
        split=split.split,
        surrogate=INVALID_UTF8 if is_csv else LONE_SURROGATE,  # undecodable bytes of CSV arrive as surrogates
    )
    if split.layout == "document":
        _add_document(load_document(split.path), split.format, checks)
    else:
        _add_rows(_rows(split, checks), split.format, checks)
    counts = checks.counts
    if split.start == 0 and split.end == -1:
        if not counts.questions:
            raise InputError(f"{split.path} holds no question (read as {split.format}); {WANTED}")
        if counts.reasons.get(BROKEN_JSON, 0) == counts.questions:
            first = checks.rejected[0]
            raise InputError(f"{split.path}: no line is valid JSON; line {first.line}: {first.detail}")
    return checks.examples, checks.rejected, counts


def read_files(paths: Sequence[str], language: str | None = None) -> tuple[list[Example], list[Rejected]]:
    """The examples and rejected rows of whole files (globs too), each in its recognised format."""
    examples, rejected = [], []
    for split in plan_splits(paths, language=language):
        read, bad, _ = read_split(split)
        examples += read
        rejected += bad
    return examples, rejected


def read_rows(
    rows: Iterable[dict[str, Any]],
    *,
    file: str,
    format: str = "auto",
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
    repair_offsets: bool = False,
    labelled: bool = False,
    scored: bool = False,
    first_line: int = 1,
) -> Read:
    """The same for rows in memory, such as those of `datasets`; `file` names their source."""
    check_format(format, READER_FORMATS, "auto")
    checks = _checks(
        file,
        format,
        columns or {},
        language=language,
        repair_offsets=repair_offsets,
        labelled=labelled,
        scored=scored,
        unit="row",
    )
    _add_rows((Row(*row) for row in enumerate(rows, first_line)), format, checks)
    return checks.examples, checks.rejected, checks.counts


def _checks(file: str, format: str, columns: Mapping[str, str], **settings: Any) -> ExampleChecks:
    is_impossible = format != "auto" and READER_FORMATS[format].unanswered_is_impossible
    names = column_names(columns)
    return ExampleChecks(file, names, mapped=columns, unanswered_is_impossible=is_impossible, **settings)


def _rows(split: Split, checks: ExampleChecks) -> Iterator[Row]:
    if split.layout == "lines":
        return json_lines(split.path, split.start, split.end, split.first_line)
    if split.layout == "csv":
        return _opened_cells(csv_table(split.path, checks.file), checks.names)
    keys = {key for format in READER_FORMATS.values() for key in format.keys}
    wanted = keys | {checks.names[name] for name in COLUMNS}
    return parquet_groups(split.path, checks.file, wanted, split.start, split.end, split.first_line)


def _opened_cells(rows: Iterable[Row], names: Mapping[str, str]) -> Iterator[Row]:
    """Rows of CSV, whose cells may hold a JSON list or object, or a number."""
    for row in rows:
        for name in ("answer", "answers", "answer_start"):
            if row.value and names[name] in row.value:
                row.value[names[name]] = _cell_value(row.value[names[name]], is_number=name == "answer_start")
        yield row


def _cell_value(cell: Any, *, is_number: bool) -> Any:
    if isinstance(cell, str) and (cell[:1] in ("[", "{") or is_number):
        try:
            return parse_json(cell) if cell else None
        except ValueError:
            return printed_value(cell) if cell[:1] == "{" else cell
    return cell


def _add_document(document: Any, format: str, checks: ExampleChecks) -> None:
    seen = document_format(document, checks.names)
    if isinstance(document, list):
        _add_rows((Row(*row) for row in enumerate(document, 1)), format, checks)
    elif seen and _is_read_as(seen, format):
        READER_FORMATS[format].add_document(document, checks)
    elif isinstance(document, dict) and row_format(document, checks.names):
        _add_rows([Row(1, document)], format, checks)  # a single row, spread over several lines
    else:
        raise InputError(f"{checks.file}: read as {format}, wanted a list of objects, saw {kind(document)}")


def _add_rows(rows: Iterable[Row], format: str, checks: ExampleChecks) -> None:
    of_rows: ReaderFormat | None = None
    for line, row, fault in rows:
        if fault:
            checks.refuse_row(line, None, fault)
            continue
        of_rows = of_rows or _format_of_rows(format, row, checks)
        try:
            if not isinstance(row, dict):
                raise Fault(WRONG_TYPE, f"{kind(row)} where an object was wanted")
            of_rows.add(row, line, checks)
        except Fault as problem:
            checks.refuse_row(line, _id_of(row, checks.names), problem)


def _format_of_rows(format: str, first: Any, checks: ExampleChecks) -> ReaderFormat:
    """The reader of rows in this format, or under "auto" in the format of the first row."""
    if format == "auto" or isinstance(READER_FORMATS[format], Container):
        format = row_format(first, checks.names) if isinstance(first, dict) else "qa"
        if not format:
            raise unknown_rows(checks.file, first, checks.names)
    return READER_FORMATS[format]


def _id_of(row: Any, names: Mapping[str, str]) -> Any:
    keys = (names["id"], "_id", "example_id") if isinstance(row, dict) else ()
    return next((row[key] for key in keys if key in row), None)
