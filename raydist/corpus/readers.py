"""Files of questions -> Example rows, every row checked.

    splits = plan_splits(["data/*.json.gz"])            # pieces that can be read alone, anywhere
    examples, rejected, counts = read_split(splits[0])  # plain Python; the cluster layer maps this over the splits

A format is recognised by content:

    squad     {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}; v1.1, v2, and with a language XQuAD and MLQA
    mrqa      JSON Lines {"context", "qas": [{"detected_answers": [{"char_spans": [[first, last]]}]}]}, header or not; the
              hub's rows {"context", "qid", "question", "detected_answers": {"text", "char_spans": [{"start", "end"}]}}
    hotpotqa  {"context": [[title, [sentence, ...]], ...]}, a list or JSON Lines
    qed       JSON Lines {"question_text", "paragraph_text", "original_nq_answers": [[{"start", "string"}]]}
    qa        flat rows {"context", "question", "answer" or "answers"}, with offsets or without, a list, JSON Lines or one row
    parquet, csv   the same flat rows as a table

`squad_v2` is never guessed: it says of a squad file or of flat rows that a question without answers is impossible.
Elsewhere a question without answers is unlabelled, good for prediction: it is accepted, with no answers and
`is_impossible` false, unless `labelled` says that answers are needed. Offsets count code points.

What is wrong with a row goes to `Rejected` under one of the phrases below; an answer is refused alone, its question
only when no valid answer is left. For each split, questions read = examples + questions rejected + not extractive.
What is wrong with a file raises InputError. Memory grows with the split: a piece of a JSON Lines file or some row
groups of a Parquet file; but a gzipped file, a CSV file and a JSON document are one split each.
"""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import io
import json
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.errors import InputError
from raydist.records import Answer, Example, ReadCounts, Rejected

NOT_AT_OFFSET = "answer not at its offset"
EMPTY_ANSWER = "answer text empty"
NOT_IN_PASSAGE = "answer does not occur in the passage"
NO_ANSWER_LEFT = "no valid answer left"
UNLABELLED = "neither an answer nor is_impossible"
IMPOSSIBLE_ANSWERED = "impossible question with answers"
EMPTY_QUESTION = "empty question"
EMPTY_PASSAGE = "empty passage"
DUPLICATE_ID = "duplicate id"
WRONG_TYPE = "wrong type"
MISSING_KEY = "missing key"
WRONG_WIDTH = "wrong number of columns"
INVALID_UTF8 = "invalid UTF-8"
LONE_SURROGATE = "lone surrogate"
BROKEN_JSON = "broken JSON"

FORMATS = ("squad", "squad_v2", "mrqa", "hotpotqa", "qed", "qa", "parquet", "csv")
COLUMNS = ("id", "question", "context", "answer", "answers", "answer_start", "title", "language", "is_impossible")
_OTHER_KEYS = (
    "_id",
    "qas",
    "qid",
    "detected_answers",
    "question_text",
    "paragraph_text",
    "original_nq_answers",
    "example_id",
    "title_text",
)

_HEAD_BYTES = 1 << 18
_SQUAD_START = re.compile(r'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')
_LANGUAGES = frozenset(
    "ar bn cs da de el en es fa fi fr he hi hu it ja ko nl pl pt ro ru sv sw te th tr uk ur vi zh".split()  # noqa: SIM905
)
_LANGUAGE_IN_NAME = re.compile(  # the hub's mlqa.ar.de is of Arabic passages; its mlqa-translate-test.de is English by now
    r"(?:xquad|mlqa|mlqa-translate-train)\.([a-z]{2})\b|(?<!translate-test-)context-([a-z]{2})-question-[a-z]{2}\b"
    rf"|squad[-_]({'|'.join(sorted(_LANGUAGES))})(?![a-z0-9])",
    re.IGNORECASE,
)
_OTHER_FORMATS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PK\x03\x04": "a ZIP archive",
    b"%PDF": "a PDF document",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"<": "HTML or XML",
}
_WANTED = "wanted SQuAD, MRQA, HotpotQA or QED JSON, rows with a question and a context, Parquet or CSV"

UNITS = {"lines": "line", "csv": "line", "parquet": "row", "document": "question"}  # what is counted in each layout

Read = tuple[list[Example], list[Rejected], ReadCounts]


@dataclass(frozen=True)
class Split:
    """One piece of a data set that can be read alone; plain values, so that it travels."""

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


# Which files, and how to cut them


def expand_paths(patterns: Sequence[str]) -> list[str]:
    """The files that paths and globs stand for, sorted, each once."""
    found: set[str] = set()
    for pattern in patterns:
        path = os.path.expanduser(pattern)
        if os.path.isdir(path):
            names = sorted(os.listdir(path))
            raise InputError(f"{pattern} is a directory ({_some(names)}); wanted files: give {pattern.rstrip('/')}/* or names")
        if os.path.exists(path):  # also a file whose name holds [ or *
            found.add(os.path.normpath(path))
            continue
        files = [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)] if glob.has_magic(path) else []
        if not files:
            raise InputError(_nothing_at(pattern, path))
        found.update(map(os.path.normpath, files))
    return sorted(found)


def recognise_format(path: str) -> str:
    """One of FORMATS (never squad_v2), told by the content of the file; gzip is seen through."""
    return _recognise(path, _column_names(None))[0]


def plan_splits(
    paths: Sequence[str],
    *,
    format: str = "auto",
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
    repair_offsets: bool = False,
    labelled: bool = False,
    max_bytes: int = 64 << 20,
) -> list[Split]:
    """Cut files (globs too) into pieces of about max_bytes; the cuts depend on nothing but the files and max_bytes.

    JSON Lines are cut at line ends, which takes one pass over the file to number the lines, and Parquet between row groups.
    """
    _check_format(format)
    if max_bytes < 1:
        raise InputError(f"max_bytes is {max_bytes}; wanted 1 or more")
    names = _column_names(columns)
    splits = []
    for path in expand_paths(paths):
        seen, layout = _recognise(path, names)
        if not (format in ("auto", seen) or seen in ("parquet", "csv") or (format, seen) in _ALSO_READ_AS):
            raise InputError(f"{path} looks like {seen}, the format asked for is {format}; leave it out or say {seen}")
        pieces = [(0, -1, 1)]
        if layout == "parquet":
            pieces = _cut_parquet(path, names, columns or {}, max_bytes)
        elif layout == "csv":
            _check_columns(path, next(_csv_records(path, _read(path, _HEAD_BYTES)))[1], names, columns or {})
        elif layout == "lines" and not _is_gzip(path):
            pieces = _cut_lines(path, max_bytes)
        whole = Split(
            path=path,
            format=seen if format == "auto" else format,
            layout=layout,
            language=language or language_of(path),
            columns=tuple(sorted((columns or {}).items())),
            repair_offsets=repair_offsets,
            labelled=labelled,
        )
        splits += [replace(whole, start=start, end=end, first_line=line) for start, end, line in pieces]
    return splits


_ALSO_READ_AS = {("squad_v2", "squad"), ("squad_v2", "qa"), ("squad", "qa")}  # hub rows of SQuAD are flat


def _cut_lines(path: str, max_bytes: int) -> list[tuple[int, int, int]]:
    if os.path.getsize(path) <= max_bytes:
        return [(0, -1, 1)]
    pieces, start, line = [], 0, 1
    with open(path, "rb") as stream:
        while block := stream.read(max_bytes):
            block += stream.readline()
            pieces.append((start, start + len(block), line))
            start, line = start + len(block), line + block.count(b"\n")
    return pieces


def _cut_parquet(path: str, names: dict[str, str], columns: Mapping[str, str], max_bytes: int) -> list[tuple[int, int, int]]:
    with _open_parquet(path) as file:
        seen = file.schema_arrow.names
        if _format_of(dict.fromkeys(seen), names) not in ("qed", "mrqa"):
            _check_columns(path, seen, names, columns)
        groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    if not sum(group.num_rows for group in groups):
        raise InputError(f"{path} is a table without rows; {_WANTED}")
    if _is_gzip(path):
        return [(0, -1, 1)]
    pieces, start, size, line, rows = [], 0, 0, 1, 0
    for number, group in enumerate(groups):
        if size and size + group.total_byte_size > max_bytes:
            pieces.append((start, number, line))
            start, size, line, rows = number, 0, line + rows, 0
        size, rows = size + group.total_byte_size, rows + group.num_rows
    return [*pieces, (start, len(groups), line)]


# Reading


def read_split(split: Split, named: str | None = None) -> Read:
    """The examples of one split, what was left out of it, and the counts; rows say `named` where the path is but a copy's."""
    reader = _Reader(named or split.path, split.format, split.language, split.columns, split.repair_offsets, split.labelled)
    if split.layout == "document":
        reader.read_document(_load_document(split.path))
    elif split.layout == "lines":
        reader.read_lines(_read(split.path, start=split.start, end=split.end), split.first_line)
    elif split.layout == "csv":
        reader.read_csv(_read(split.path))
    else:
        reader.read_table(_read_groups(split, list(reader.names.values())), split.first_line)
    counts = reader.counts
    if split.start == 0 and split.end == -1:
        if not counts.questions:
            raise InputError(f"{split.path} holds no question (read as {split.format}); {_WANTED}")
        if counts.reasons.get(BROKEN_JSON, 0) == counts.questions:
            first = reader.rejected[0]
            raise InputError(f"{split.path}: no line is valid JSON; line {first.line}: {first.detail}")
    return reader.examples, reader.rejected, counts


def read_rows(
    rows: Iterable[dict[str, Any]],
    *,
    file: str,
    format: str = "auto",
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
    repair_offsets: bool = False,
    labelled: bool = False,
    first_line: int = 1,
) -> Read:
    """The same checks for rows that are in memory already, such as those of `datasets`; `file` says where they came from."""
    _check_format(format)
    reader = _Reader(file, format, language, tuple((columns or {}).items()), repair_offsets, labelled)
    reader.read_rows(rows, first_line)
    return reader.examples, reader.rejected, reader.counts


def load_hub(name: str, split: str, config: str | None = None) -> Any:
    """A split of a data set known to `datasets` by hub name or local folder; no code from the data set is ever run."""
    import datasets  # seconds to import, and only needed here

    try:
        return datasets.load_dataset(name, config, split=split)
    except ConnectionError as error:
        raise InputError(
            f"data set {name!r} is neither a local folder nor to be had from the hub, which cannot be reached ({error}); "
            "go online once to fill the cache, or give local files"
        ) from error
    except (FileNotFoundError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"data set {name!r}, config {config!r}, split {split!r} cannot be loaded: {error}") from error


def hub_format(name: str, format: str = "auto") -> str:
    """In the hub's squad_v2 a question without answers is impossible, which its rows do not say."""
    return "squad_v2" if format == "auto" and name.rstrip("/").endswith("squad_v2") else format


def hub_language(name: str, config: str | None = None) -> str | None:
    """The language that a data set's config or its own name tells, by the rule for names of files and folders."""
    names = [part for part in (config, os.path.basename(name.rstrip("/"))) if part]
    return next(filter(None, (language_of(place) for part in names for place in (part, f"{part}/"))), None)


def read_hub(
    name: str,
    split: str,
    config: str | None = None,
    *,
    format: str = "auto",
    language: str | None = None,
    columns: Mapping[str, str] | None = None,
    repair_offsets: bool = False,
) -> Read:
    """Examples of a data set known to `datasets`."""
    format, language = hub_format(name, format), language or hub_language(name, config)
    where = "/".join(part for part in (name, config, split) if part)
    rows = load_hub(name, split, config)
    return read_rows(
        rows, file=f"hub:{where}", format=format, language=language, columns=columns, repair_offsets=repair_offsets
    )


def passage_id(context: str) -> str:
    """A short name for a passage, equal for equal text up to Unicode composition and blanks."""
    return _digest(" ".join(unicodedata.normalize("NFC", context).split()))


def parse_line(raw: bytes) -> tuple[Any, str, str]:
    """What a line of JSON Lines holds; else None, and why: one of the phrases above and what was seen."""
    try:
        return json.loads(raw.decode("utf-8")), "", ""
    except UnicodeDecodeError as error:
        return None, INVALID_UTF8, f"byte {error.start + 1} is {raw[error.start]:#04x}"
    except (ValueError, RecursionError) as error:
        return None, BROKEN_JSON, str(error)


class _Fault(Exception):
    """What is wrong with a row or an answer."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, detail


class _Reader:
    """Takes rows of one source; keeps the examples, what was left out, and the counts."""

    def __init__(
        self,
        file: str,
        format: str,
        language: str | None,
        columns: Iterable[tuple[str, str]],
        repair_offsets: bool,
        labelled: bool,
    ) -> None:
        self.file, self.format, self.language, self.repair_offsets = file, format, language, repair_offsets
        self.labelled = labelled
        self.columns = dict(columns)
        self.names = _column_names(self.columns)
        self.examples: list[Example] = []
        self.rejected: list[Rejected] = []
        self.counts = ReadCounts()
        self.index_of: dict[tuple[str, str], int] = {}  # (id, language): the translations of a question share its id
        self.bad_text = LONE_SURROGATE  # what it means that a text cannot be written as UTF-8
        self.passage: tuple[Any, str] = (object(), "")  # the last one and its id; none yet, and no row holds this one
        self.unit = "row"  # what is counted where it says line

    # layouts

    def read_document(self, document: Any) -> None:
        self.unit = UNITS["document"]
        if isinstance(document, dict) and not _is_squad(document, self.names) and _format_of(document, self.names):
            document = [document]  # one row, written over several lines
        if self.format in ("squad", "squad_v2") and isinstance(document, dict):
            self.read_squad(document)
        elif isinstance(document, list):
            self.read_rows(document, 1)
        else:
            raise InputError(f"{self.file}: read as {self.format}, wanted a list of objects, saw {_kind(document)}")

    def read_lines(self, data: bytes, first_line: int) -> None:
        self.unit = UNITS["lines"]
        add_row = None
        for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), first_line):
            if not raw or raw.isspace():
                continue
            row, reason, detail = parse_line(raw)
            if reason:
                self.refuse_row(line, None, _Fault(reason, detail))
            else:
                add_row = add_row or self.row_function(row)
                self.add_checked(add_row, row, line)

    def read_rows(self, rows: Iterable[Any], first_line: int) -> None:
        add_row = None
        for line, row in enumerate(rows, first_line):
            add_row = add_row or self.row_function(row)
            self.add_checked(add_row, row, line)

    def read_table(self, table: pa.Table, first_line: int) -> None:
        try:
            for batch in table.to_batches(max_chunksize=1024):
                self.read_rows(batch.to_pylist(), first_line)
                first_line += batch.num_rows
        except UnicodeDecodeError as error:
            raise InputError(f"{self.file}: not UTF-8 in rows {first_line} to {first_line + 1023} ({error})") from error

    def read_csv(self, data: bytes) -> None:
        self.unit = UNITS["csv"]
        self.bad_text = INVALID_UTF8  # undecodable bytes arrive as surrogates
        records = _csv_records(self.file, data)
        header = next(records)[1]
        add_row = self.row_function(dict.fromkeys(header, ""))
        nested = [self.names[name] for name in ("answer", "answers", "answer_start")]
        for line, cells in records:
            if len(cells) != len(header):
                self.refuse_row(line, None, _Fault(WRONG_WIDTH, f"{len(cells)} cells, the header has {len(header)}"))
                continue
            row: dict[str, Any] = dict(zip(header, cells))
            for name in nested:
                if name in row:
                    row[name] = _cell_value(row[name], is_number=name == self.names["answer_start"])
            self.add_checked(add_row, row, line)

    def row_function(self, first: Any) -> Callable[[dict[str, Any], int], None]:
        """How to read rows of this format, or of rows like this first one."""
        format = self.format
        if format in ("auto", "parquet", "csv"):
            format = _format_of(first, self.names) if isinstance(first, dict) else "qa"
            if not format:
                raise _unknown_rows(self.file, first, self.names)
        return {"mrqa": self.add_mrqa, "hotpotqa": self.add_hotpotqa, "qed": self.add_qed}.get(format, self.add_flat)

    # formats

    def read_squad(self, document: dict[str, Any]) -> None:
        ordinal = 0
        for a, article in enumerate(self.members(document, "data")):
            for p, paragraph in enumerate(self.members(article, "paragraphs", a)):
                for q, qa in enumerate(self.members(paragraph, "qas", a, p)):
                    ordinal += 1
                    try:
                        context, question = paragraph["context"], qa["question"]
                        id, impossible = qa.get("id"), qa.get("is_impossible")
                        answers = [(answer["text"], answer["answer_start"]) for answer in qa.get("answers") or ()]
                    except (KeyError, TypeError, AttributeError):
                        raise self.squad_error(paragraph, qa, a, p, q) from None
                    try:
                        self.add(ordinal, id, question, context, answers, title=article.get("title"), impossible=impossible)
                    except _Fault as fault:
                        self.refuse_row(ordinal, id, fault)

    def members(self, parent: Any, key: str, *place: int) -> list[Any]:
        """The list parent[key] of a SQuAD document, or the error that says what is wrong where."""
        if isinstance(parent, dict) and isinstance(parent.get(key), list):
            return parent[key]
        raise self.wrong_member(parent, key, *place)

    def squad_error(self, paragraph: dict[str, Any], qa: Any, *place: int) -> InputError:
        """What is wrong with a question of a SQuAD document or with its passage."""
        if "context" not in paragraph:
            return self.wrong_member(paragraph, "context", *place[:2])
        if not isinstance(qa, dict) or "question" not in qa:
            return self.wrong_member(qa, "question", *place)
        if not isinstance(qa["answers"], list):
            return self.wrong_member(qa, "answers", *place)
        bad = ((i, answer, key) for i, answer in enumerate(qa["answers"]) for key in ("text", "answer_start"))
        i, answer, key = next(one for one in bad if not isinstance(one[1], dict) or one[2] not in one[1])
        return self.wrong_member(answer, key, *place, i)

    def wrong_member(self, parent: Any, key: str, *place: int) -> InputError:
        where = ".".join(f"{name}[{i}]" for name, i in zip(("data", "paragraphs", "qas", "answers"), place)) or "the document"
        if not isinstance(parent, dict):
            return InputError(f"{self.file}: {where} is {_kind(parent)}, wanted an object with {key!r}")
        if key in parent:
            return InputError(f"{self.file}: {key!r} of {where} is {_kind(parent[key])}, wanted a list")
        return InputError(f"{self.file}: {where} has no {key!r} (it has {_some(parent)}){_nearest(key, parent)}; mend the file")

    def add_mrqa(self, row: dict[str, Any], line: int) -> None:
        """`detected_answers` are the answers that stand in the passage; other `answers` (aliases) cannot be spans."""
        if "header" in row and "context" not in row:
            return
        context = _needed(row, "context")
        qas = [row] if "detected_answers" in row else _needed(row, "qas")  # the hub has a row per question
        if not isinstance(qas, list) or not all(isinstance(qa, dict) for qa in qas):
            raise _Fault(WRONG_TYPE, "qas is no list of objects")
        for qa in qas:
            id, question, impossible = qa.get("qid") or qa.get("id"), qa.get("question"), qa.get("is_impossible")
            try:
                answers = [_span_answer(context, *span) for span in _detected(qa.get("detected_answers"))]
                self.add(line, id, question, context, answers or _pairs(qa.get("answers"), None), impossible=impossible)
            except _Fault as fault:
                self.refuse_row(line, id, fault)
            except (TypeError, KeyError, ValueError) as error:
                self.refuse_row(line, id, _Fault(WRONG_TYPE, f"detected_answers: {error!r}"))

    def add_hotpotqa(self, row: dict[str, Any], line: int) -> None:
        """The passage is every paragraph in order: its title, a line end, its sentences as they are, a line end."""
        paragraphs = _needed(row, "context")
        try:
            if isinstance(paragraphs, dict):  # the hub's shape
                paragraphs = list(zip(paragraphs["title"], paragraphs["sentences"], strict=True))
            context = "\n".join(f"{title}\n{''.join(sentences).strip()}" for title, sentences in paragraphs)
        except (TypeError, ValueError, KeyError) as error:
            raise _Fault(WRONG_TYPE, f"context is no list of [title, [sentence, ...]]: {error}") from None
        answer = row.get("answer")
        is_span = not (isinstance(answer, str) and answer.strip().lower() in ("yes", "no"))
        self.add(line, row.get("_id", row.get("id")), _needed(row, "question"), context, _pairs(answer, None), is_span=is_span)

    def add_qed(self, row: dict[str, Any], line: int) -> None:
        """Every span of every annotator counts as right, also the parts of an answer of several spans."""
        try:
            spans = [(span["string"], span["start"]) for answer in row.get("original_nq_answers") or () for span in answer]
        except (TypeError, KeyError) as error:
            raise _Fault(WRONG_TYPE, f"original_nq_answers is no list of lists of spans: {error}") from None
        question, context = _needed(row, "question_text"), _needed(row, "paragraph_text")
        self.add(line, row.get("example_id"), question, context, spans, title=row.get("title_text"))

    def add_flat(self, row: dict[str, Any], line: int) -> None:
        names = self.names
        for name in self.columns:  # mapped by hand, so it is meant to be there
            _needed(row, names[name])
        question, context = _needed(row, names["question"]), _needed(row, names["context"])
        one, starts = row.get(names["answer"]), row.get(names["answer_start"])
        answers = _pairs(row.get(names["answers"]), starts)
        if not answers:
            answers = _pairs(one, starts)
        elif isinstance(one, str) and all(text != one for text, _ in answers):
            answers.insert(0, (one, None))
        self.add(
            line,
            row.get(names["id"]),
            question,
            context,
            answers,
            title=row.get(names["title"]),
            language=row.get(names["language"]),
            impossible=row.get(names["is_impossible"]),
        )

    # checks

    def add_checked(self, add_row: Callable[[dict[str, Any], int], None], row: Any, line: int) -> None:
        try:
            if not isinstance(row, dict):
                raise _Fault(WRONG_TYPE, f"{_kind(row)} where an object was wanted")
            add_row(row, line)
        except _Fault as fault:
            ids = [row[key] for key in (self.names["id"], "_id", "example_id") if key in row] if isinstance(row, dict) else []
            self.refuse_row(line, ids[0] if ids else None, fault)

    def refuse_row(self, line: int, id: Any, fault: _Fault) -> None:
        """A row that cannot be taken apart counts as one question."""
        self.counts.questions += 1
        self.reject(line, id, "question", fault)

    def reject(self, line: int, id: Any, what: str, fault: _Fault) -> None:
        if what == "question":
            self.counts.questions_rejected += 1
        else:
            self.counts.answers_rejected += 1
        self.counts.reasons[fault.reason] = self.counts.reasons.get(fault.reason, 0) + 1
        id = "" if id is None else _writable(str(id))
        self.rejected.append(Rejected(self.file, line, id, what, fault.reason, _writable(fault.detail), self.unit))

    def add(
        self,
        line: int,
        id: Any,
        question: Any,
        context: Any,
        answers: list[tuple[Any, Any]],
        *,
        title: Any = "",
        language: Any = None,
        impossible: Any = None,
        is_span: bool = True,
    ) -> None:
        """Check one question with its (text, offset or None) answers; keep it or say why not. A _Fault is raised first."""
        self.check_text(question, "question", EMPTY_QUESTION)
        if context is not self.passage[0]:
            self.check_text(context, "passage", EMPTY_PASSAGE)
            self.passage = (context, passage_id(context))
        id = self.id_text(id, question)
        is_impossible = _truth(impossible)
        if is_impossible is None:
            is_impossible = self.format == "squad_v2" and not answers
        if is_impossible and answers:
            raise _Fault(IMPOSSIBLE_ANSWERED, f"{len(answers)} answers, the first {_short(answers[0][0])}")
        counts = self.counts
        counts.questions += 1
        if not is_span:
            counts.answers += len(answers)
            counts.not_extractive += 1
            return
        if self.labelled and not answers and not is_impossible:
            self.reject(line, id, "question", _Fault(UNLABELLED, _short(question)))
            return
        valid: list[Answer] = []
        for text, start in answers:
            if start is None and any(text == answer.text for answer in valid):
                continue
            counts.answers += 1
            try:
                valid.append(self.checked_answer(context, text, start))
            except _Fault as fault:
                self.reject(line, id, "answer", fault)
        if answers and not valid:
            self.reject(line, id, "question", _Fault(NO_ANSWER_LEFT, f"{len(answers)} given: {_short(question)}"))
            return
        language = self.language or (_writable(language) if isinstance(language, str) and language else "en")
        first = self.index_of.setdefault((id, language), len(self.examples))
        if first < len(self.examples):
            detail = f"first at {self.unit} {self.examples[first].line}: {_short(question)}"
            self.reject(line, id, "question", _Fault(DUPLICATE_ID, detail))
            return
        counts.impossible += is_impossible
        counts.unlabelled += not (answers or is_impossible)
        self.examples.append(
            Example(
                id=id,
                question=question,
                context=context,
                answers=valid,
                passage_id=self.passage[1],
                title=_writable(title) if isinstance(title, str) else "",
                language=language,
                is_impossible=is_impossible,
                file=self.file,
                line=line,
            )
        )

    def checked_answer(self, context: str, text: Any, start: Any) -> Answer:
        self.check_text(text, "answer", EMPTY_ANSWER)
        if start is None:
            text = text.strip()
            start = context.find(text)
            if start < 0:
                raise _Fault(NOT_IN_PASSAGE, _short(text))
            if context.find(text, start + 1) >= 0:
                self.counts.several_occurrences += 1
            return Answer(text, start)
        if isinstance(start, float) and start.is_integer():  # a table column that also holds nulls
            start = int(start)
        if type(start) is not int:
            raise _Fault(WRONG_TYPE, f"the offset of {_short(text)} is {_kind(start)}")
        if start >= 0 and context.startswith(text, start):
            return Answer(text, start)
        found = context.find(text)
        if self.repair_offsets and found >= 0 and context.find(text, found + 1) < 0:
            self.counts.answers_repaired += 1
            return Answer(text, found)
        there = _short(context[start : start + len(text)]) if start >= 0 else "nothing"
        raise _Fault(NOT_AT_OFFSET, f"{_short(text)} at {start}, where there is {there}")

    def check_text(self, text: Any, name: str, empty: str) -> None:
        if text is None:
            raise _Fault(empty, "null")
        if type(text) is not str:
            raise _Fault(WRONG_TYPE, f"{name} is {_kind(text)}")
        if not text or text.isspace():
            raise _Fault(empty, repr(text[:20]))
        if _writable(text) is not text:
            raise _Fault(self.bad_text, f"in the {name}: {_short(text)}")

    def id_text(self, id: Any, question: str) -> str:
        """The id as text; where there is none, one made of question and passage."""
        if id is None or id == "":
            return _digest(f"{question}\0{self.passage[1]}")
        if type(id) is int:
            return str(id)
        self.check_text(id, "id", WRONG_TYPE)
        return id


# Values


def _needed(row: dict[str, Any], key: str) -> Any:
    if key not in row:
        raise _Fault(MISSING_KEY, f"no {key!r} among {_some(row)}")
    return row[key]


def _pairs(answers: Any, starts: Any) -> list[tuple[Any, Any]]:
    """(text, offset or None) from any usual shape: a text, a list of texts or objects, {"text", "answer_start"}."""
    if answers is None:
        return []
    if isinstance(answers, dict):
        return _pairs(_needed(answers, "text"), answers.get("answer_start"))
    if not isinstance(answers, list):
        answers = [answers]
    if not isinstance(starts, list):
        starts = [starts] * (len(answers) if starts is None else 1)
    if len(starts) != len(answers):
        raise _Fault(WRONG_TYPE, f"{len(answers)} answers, {len(starts)} offsets")
    return [
        (_needed(answer, "text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, start)
        for answer, start in zip(answers, starts)
    ]


def _detected(answers: Any) -> Iterator[tuple[Any, ...]]:
    """(text, first, last) of every span of MRQA's `detected_answers`: a list of objects or, on the hub, parallel lists."""
    if isinstance(answers, dict):
        answers = [
            {"text": text, "char_spans": zip(spans["start"], spans["end"], strict=True)}
            for text, spans in zip(answers["text"], answers["char_spans"], strict=True)
        ]
    for answer in answers or ():
        yield from ((answer["text"], *span) for span in answer["char_spans"])


def _span_answer(context: Any, text: Any, first: Any, last: Any) -> tuple[Any, Any]:
    """An MRQA span, both ends inclusive: as the passage spells it where only upper and lower case differ."""
    if isinstance(context, str) and isinstance(text, str) and type(first) is type(last) is int and 0 <= first <= last:
        there = context[first : last + 1]
        if there.lower() == text.lower():
            return there, first
    return text, first


def _truth(value: Any) -> bool | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower(), value)
    if value in (0, 1):
        return bool(value)
    raise _Fault(WRONG_TYPE, f"is_impossible is {_kind(value)} {_short(value)}")


def _cell_value(cell: str, *, is_number: bool) -> Any:
    """A CSV cell that may hold a JSON list or object, or a number."""
    if cell[:1] in ("[", "{") or is_number:
        try:
            return json.loads(cell) if cell else None
        except ValueError:
            pass
    return cell


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=10).hexdigest()


def _writable(text: str) -> str:
    """The very same text if UTF-8 can hold it, else with question marks for what it cannot."""
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _some(names: Iterable[Any]) -> str:
    names = [str(name) for name in names]
    return (", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")) or "nothing"


def _nearest(name: str, known: Iterable[Any]) -> str:
    close = difflib.get_close_matches(name, [str(one) for one in known], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


# Formats and columns


def _check_format(format: str) -> None:
    if format not in ("auto", *FORMATS):
        raise InputError(f"unknown format {format!r}; wanted auto or one of {', '.join(FORMATS)}{_nearest(format, FORMATS)}")


def _column_names(columns: Mapping[str, str] | None) -> dict[str, str]:
    """What each of COLUMNS is called in the file."""
    for name in columns or {}:
        if name not in COLUMNS:
            raise InputError(f"columns: unknown name {name!r}; wanted some of {', '.join(COLUMNS)}{_nearest(name, COLUMNS)}")
    return {name: name for name in COLUMNS} | dict(columns or {})


def _check_columns(path: str, seen: Sequence[str], names: dict[str, str], mapped: Mapping[str, str]) -> None:
    """Question and passage must be there, and every column that was mapped by hand."""
    for name in dict.fromkeys(("question", "context", *mapped)):
        if names[name] not in seen:
            raise InputError(
                f"{path} has no column {names[name]!r} for the {name}; it has {_some(seen)}{_nearest(names[name], seen)}"
                f"; map it with columns: {{{name}: NAME}}"
            )


def _format_of(row: dict[str, Any], names: dict[str, str]) -> str:
    """The format of a row with these keys; empty if it is none."""
    if "question_text" in row and "paragraph_text" in row:
        return "qed"
    if ("qas" in row or "detected_answers" in row) if "context" in row else ("header" in row):
        return "mrqa"
    if names["question"] in row and names["context"] in row:
        return "hotpotqa" if isinstance(row[names["context"]], list | dict) else "qa"
    return ""


def _is_squad(document: dict[str, Any], names: dict[str, str]) -> bool:
    """Articles under `data`; a row, too, may have a key `data`."""
    return "data" in document and _format_of(document, names) in ("", "mrqa")


def _unknown_rows(path: str, row: Any, names: dict[str, str]) -> InputError:
    if not isinstance(row, dict):
        return InputError(f"{path}: a JSON list of {_kind(row)}; {_WANTED}")
    near = "".join(_nearest(names[name], row) for name in ("question", "context") if names[name] not in row)
    return InputError(
        f"{path}: rows with the keys {_some(row)}; {_WANTED}{near}"
        "; where question and context have other names, map them with columns: {question: NAME, context: NAME}"
    )


def language_of(path: str) -> str | None:
    """The language of the passages: the name follows XQuAD's, MLQA's or SQuAD-es's pattern, or the folder is called es/."""
    match = _LANGUAGE_IN_NAME.search(os.path.basename(path))
    if match and match.lastindex:
        return match[match.lastindex].lower()
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder in _LANGUAGES else None


# Files


def _nothing_at(pattern: str, path: str) -> str:
    if "://" in pattern:
        return f"{pattern} is a remote address; wanted local files: copy or mount it, or load it by its hub name"
    folder, name = os.path.split(path)
    if glob.has_magic(folder) or not os.path.isdir(folder or "."):
        return f"no file at {pattern}: there is no folder {folder}; check the path"
    names = sorted(os.listdir(folder or "."))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
    what = "no file matches" if glob.has_magic(path) else "no file at"
    return f"{what} {pattern}; {'nearest there' if close else 'the folder holds'}: {_some(close or names)}"


def _is_gzip(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _read(path: str, size: int = -1, *, start: int = 0, end: int = -1) -> bytes:
    """The content, unpacked: the first `size` bytes, or those from start to end of a file that is not packed."""
    try:
        if _is_gzip(path):
            with gzip.open(path) as packed:
                return packed.read(size)
        with open(path, "rb") as stream:
            stream.seek(start)
            return stream.read(size if end < 0 else end - start)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a gzip file cut short or damaged ({error}); copy or download it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _load_document(path: str) -> Any:
    data = _read(path).removeprefix(b"\xef\xbb\xbf")
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: byte {error.start + 1} is {data[error.start]:#04x}; save it as such") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}; is it cut short? copy or make it again") from error


def _recognise(path: str, names: dict[str, str]) -> tuple[str, str]:
    """Format and layout, from the first bytes where they tell, else from the whole file."""
    head = _read(path, _HEAD_BYTES)
    is_whole = len(head) < _HEAD_BYTES
    if head.startswith(b"PAR1"):
        return "parquet", "parquet"
    for magic, name in _OTHER_FORMATS.items():
        if head.lstrip().startswith(magic):
            raise InputError(f"{path} is {name}; {_WANTED}; plain or gzipped")
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if not text:
        raise InputError(f"{path} is empty; {_WANTED}")
    if text[0] == "[":
        try:
            first = json.JSONDecoder().raw_decode(text, len(text) - len(text[1:].lstrip()))[0]
        except (ValueError, RecursionError):
            document = _load_document(path)
            if not document:
                raise InputError(f"{path} holds no question, only an empty list; {_WANTED}") from None
            first = document[0]
        format = _format_of(first, names) if isinstance(first, dict) else ""
        if not format:
            raise _unknown_rows(path, first, names)
        return format, "document"
    if text[0] == "{":
        return _recognise_object(path, text, is_whole, names)
    records = _csv_records(path, head)
    header = next(records)[1]
    second = next(records, None) if is_whole else None
    is_ours = names["question"] in header and names["context"] in header  # a row of another width is then that row's fault
    if len(header) < 2 or not all(header) or (second and len(second[1]) != len(header) and not is_ours):
        raise InputError(f"{path} starts with {_short(text[:60])}, which is plain text or unknown; {_WANTED}")
    return "csv", "csv"


def _recognise_object(path: str, text: str, is_whole: bool, names: dict[str, str]) -> tuple[str, str]:
    """JSON Lines, if at least half of the first lines are objects; else a document. Lines, too, may have a key `data`."""
    if _SQUAD_START.match(text) and not ("\n" in text.rstrip() and _is_object(text.split("\n", 1)[0])):
        return "squad", "document"
    if not is_whole and "\n" not in text:  # a first line longer than the head
        text, is_whole = _read(path).decode("utf-8", "replace").lstrip("\ufeff \t\r\n"), True
    lines = text.split("\n") if is_whole else text.split("\n")[:-1]
    lines = [line for line in lines if line and not line.isspace()][:20]
    objects = []
    for line in lines:
        try:
            objects.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    rows = [row for row in objects if isinstance(row, dict)]
    if 2 * len(rows) < len(lines) or not rows or (len(lines) == 1 and "data" in rows[0] and not _format_of(rows[0], names)):
        document = _load_document(path)
        if _is_squad(document, names):
            return "squad", "document"
        if format := _format_of(document, names):
            return format, "document"
        raise _unknown_rows(path, document, names)
    format = next(filter(None, (_format_of(row, names) for row in rows)), "")
    if not format:
        raise _unknown_rows(path, rows[0], names)
    return format, "lines"


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _csv_records(path: str, data: bytes) -> Iterator[tuple[int, list[str]]]:
    """(line where it starts, cells) of each record; bytes that are not UTF-8 become surrogates."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))  # passages are longer than the default of 128 kB
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    header = text.lstrip().split("\n", 1)[0]
    records = csv.reader(io.StringIO(text, newline=""), delimiter=max(",\t;", key=header.count), strict=True)
    line, is_header = 1, True
    try:
        for cells in records:
            if cells:
                yield line, [cell.strip() for cell in cells] if is_header else cells
                is_header = False
            line = records.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}: the CSV record that starts in line {line} is broken ({error}); mend its quotes") from error


def _open_parquet(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(io.BytesIO(_read(path)) if _is_gzip(path) else path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is a damaged Parquet file ({error}); copy or make it again") from error


def _read_groups(split: Split, wanted: list[str]) -> pa.Table:
    with _open_parquet(split.path) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted or name in _OTHER_KEYS]
        end = file.metadata.num_row_groups if split.end < 0 else split.end
        try:
            return file.read_row_groups(range(split.start, end), columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{split.path} is a damaged Parquet file ({error}); copy or make it again") from error
