"""Documents -> passages -> sentences with stable ids, and the questions and gold answers that go with them.

    document   "Warsaw"              cut at blank lines into
    passage    "Warsaw#0003"         cut by ``split_sentences``, or by the boundaries of MultiReQA, into
    sentence   "Warsaw#0003#002"     text[start:end] of its passage

Tables are Arrow, schemas below. ``cut_documents`` and ``cut_passages`` are functions of one block. A corpus of any size is
opened (``open_beir``, ``open_tables``, ``open_documents``) and gone through in blocks; a set that is one JSON file, or reader
files, is read whole (``read_reqa``, ``read_answer_pairs``, ``sentences_of_examples``). Both have ``blocks`` and
``questions_and_gold``.

What is wrong with a row goes to ``rejected`` under a fixed phrase and the rest goes on; what is wrong with a whole file
raises InputError. A question is given up when no gold sentence is left for it.

Duplicates are told by normalised text (NFKC, case folded, everything but letters, digits and marks a blank): ``text_key``
is equal for exact duplicates, ``bag_key`` for near ones, which have the same words equally often, in any order.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist.corpus.known_ids import KnownIds
from raydist.corpus.readers import (
    DUPLICATE_ID,
    EMPTY_QUESTION,
    INVALID_UTF8,
    LONE_SURROGATE,
    MISSING_KEY,
    WRONG_TYPE,
    WRONG_WIDTH,
    parse_line,
    passage_id,
)
from raydist.errors import InputError
from raydist.records import Example, Rejected, name_rejected

EMPTY_SENTENCE = "empty sentence"
EMPTY_DOCUMENT = "empty document"
NO_GOLD = "question with no gold sentence"
UNKNOWN_SENTENCE = "gold sentence not in the corpus"
UNKNOWN_QUESTION = "gold for an unknown question"
OUTSIDE_SENTENCES = "answer outside every sentence"
WRONG_BOUNDARY = "sentence boundaries do not fit the passage"

OF_ANOTHER_SPLIT = "questions that this split's gold says nothing of: left out"
CUT_BY_RULE = "passages without boundaries: cut by rule"
OF_NO_PASSAGE = "lines of boundaries that are about none of these passages: left out"

PASSAGE_SCHEMA = pa.schema(
    [
        ("passage_id", pa.string()),
        ("document_id", pa.string()),  # empty where nothing is known of documents
        ("title", pa.string()),
        ("text", pa.string()),
        ("language", pa.string()),
    ]
)

SENTENCE_SCHEMA = pa.schema(
    [
        ("sentence_id", pa.string()),
        ("text", pa.string()),
        ("passage_id", pa.string()),  # its context is the text of that passage; empty where there is none
        ("document_id", pa.string()),
        ("start", pa.int32()),  # characters of the passage, [start, end); -1 where there is no passage
        ("end", pa.int32()),
        ("language", pa.string()),
        ("text_key", pa.int64()),  # equal for exact duplicates
        ("bag_key", pa.int64()),  # equal for near duplicates
    ]
)

QUESTION_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("text", pa.string()),
        ("language", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
    ]
)

GOLD_SCHEMA = pa.schema([("question_id", pa.string()), ("sentence_id", pa.string()), ("relevance", pa.int32())])

Spans = Sequence[tuple[int, int]]
T = TypeVar("T")

BLOCK_ROWS = 1024  # of a file, read and handed on together


class Block(NamedTuple):
    """Some rows of a corpus file, unchecked."""

    file: str
    lines: Sequence[int]  # of each sentence
    sentences: pa.Table
    passages: pa.Table  # that they stand in


@dataclass(slots=True)
class Judged:
    """Questions and gold answers as they were read."""

    questions: Iterable[dict[str, Any]] = ()
    gold: Iterable[dict[str, Any]] = ()
    notes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RetrievalSet:
    """A corpus cut into sentences, questions, and which sentences answer which question; consistent by construction."""

    passages: pa.Table
    sentences: pa.Table
    questions: pa.Table
    gold: pa.Table
    rejected: list[Rejected] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)  # what is not wrong, and yet should be known: a phrase and a count

    def blocks(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Sentences and passages, as ``OpenSet`` gives them."""
        yield self.sentences, self.passages

    def questions_and_gold(self) -> tuple[pa.Table, pa.Table]:
        return self.questions, self.gold


class OpenSet:
    """A set that is read while it is gone through: ``blocks`` first, to the end, then ``questions_and_gold``.

    What is whole and fits together is kept; ``rejected`` says of the rest why not. Memory: one block, eight bytes for each
    sentence, and the questions with their gold.
    """

    def __init__(self, source: str, blocks: Iterable[Block], judged: Callable[[], Judged], rejected: list[Rejected]) -> None:
        self.rejected = rejected  # the list that the readers of blocks and questions add to, too
        self.notes: dict[str, int] = {}
        self._source, self._blocks, self._judged = source, blocks, judged
        self._known = KnownIds()
        self._at_end = False

    def blocks(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The sentences that have a text and an id of their own, and the passages that they stand in."""
        for block in self._blocks:
            kept = _whole_and_new(
                block.sentences, "sentence", EMPTY_SENTENCE, block.file, block.lines, self._known, self.rejected
            )
            yield kept, block.passages
        if not len(self._known):
            rejected = name_rejected(self.rejected)
            raise InputError(f"{self._source}: the corpus is empty; wanted at least one sentence with text{rejected}")
        self._at_end = True

    def questions_and_gold(self) -> tuple[pa.Table, pa.Table]:
        """Questions that have gold in the corpus, and that gold."""
        assert self._at_end, "which sentences there are is known at the end of the blocks"
        judged = self._judged()
        self.notes = judged.notes
        asked: dict[str, dict[str, Any]] = {}
        for row in judged.questions:
            id = row["question_id"]
            if not row["text"].strip():
                self.rejected.append(Rejected(row["file"], row["line"], id, "question", EMPTY_QUESTION, repr(row["text"])))
            elif id in asked:
                detail = repr(row["text"])[:200]
                self.rejected.append(Rejected(row["file"], row["line"], id, "question", DUPLICATE_ID, detail))
            else:
                asked[id] = row
        refused = {row.id for row in self.rejected if row.what == "question"}
        pairs: dict[tuple[str, str], dict[str, Any]] = {}
        gold = list(judged.gold)
        for row, is_there in zip(gold, self._known.find([row["sentence_id"] for row in gold])):
            pair = (row["question_id"], row["sentence_id"])
            if not is_there:
                self.rejected.append(Rejected(row["file"], row["line"], pair[0], "gold", UNKNOWN_SENTENCE, pair[1]))
            elif pair[0] in asked:
                pairs[pair] = row
            elif pair[0] not in refused:
                self.rejected.append(Rejected(row["file"], row["line"], pair[0], "gold", UNKNOWN_QUESTION, pair[1]))
        answered = {question for question, _ in pairs}
        for id, row in asked.items():
            if id not in answered:
                self.rejected.append(Rejected(row["file"], row["line"], id, "question", NO_GOLD, row["text"][:200]))
        return (
            pa.Table.from_pylist([row for id, row in asked.items() if id in answered], QUESTION_SCHEMA),
            pa.Table.from_pylist(list(pairs.values()), GOLD_SCHEMA),
        )

    def whole(self) -> RetrievalSet:
        """All of it, in memory."""
        sentences, passages = zip(*self.blocks())
        questions, gold = self.questions_and_gold()
        return RetrievalSet(pa.concat_tables(passages), pa.concat_tables(sentences), questions, gold, self.rejected, self.notes)


def _whole_and_new(
    rows: pa.Table, what: str, empty: str, file: str, lines: Sequence[int], known: KnownIds, rejected: list[Rejected]
) -> pa.Table:
    """The rows that have a text, and an id that has not come before; of the others is said why not."""
    ids, texts = rows[f"{what}_id"].to_pylist(), rows["text"].to_pylist()
    is_kept = np.array([bool(text.strip()) for text in texts], bool)
    with_text = np.flatnonzero(is_kept)
    is_kept[with_text] = known.add([ids[at] for at in with_text])
    for at in np.flatnonzero(~is_kept).tolist():
        reason = DUPLICATE_ID if texts[at].strip() else empty
        rejected.append(Rejected(file, lines[at], ids[at], what, reason, repr(texts[at])[:200]))
    return rows if is_kept.all() else rows.filter(pa.array(is_kept))


# ------------------------------------------------------------------------------------------------------------ sentences

# A run of stops, then whatever closes quotes and brackets.
_STOPS = re.compile(r"""([.!?…。！？｡؟۔।॥։።။។]+)["'”’»›)\]}」』》）】]*""")
_GREEK_STOPS = re.compile(_STOPS.pattern.replace("[.!?", "[.!?;;", 1))
_NEEDS_NO_BLANK = frozenset("。！？｡।॥")  # scripts that write the next sentence right after the stop
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«„-]*$")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # also a single initial
_ROMAN_OR_NUMBER = re.compile(r"\d{1,2}|[IVX]+")
_OPENERS = "\"'“‘«„([{¿¡"

# Before a full stop that ends no sentence. Those of the second set count only before a digit or a Roman number.
_ABBREVIATIONS = {
    "en": "mr mrs ms dr prof rev hon gen col lt sgt capt cmdr adm maj gov sen rep pres st mt ft jr sr messrs vs cf al approx "
    "dept e.g i.e viz univ ave blvd",
    "de": "dr prof hr fr st bzw z.b d.h u.a z.t vgl ca nr bd usw evtl ggf inkl zzgl geb gest jh v.chr n.chr",
    "es": "sr sra srta dr dra d dña prof lic ing gral p.ej ud uds ee.uu av núm pág vol aprox",
    "fr": "m mm mme mlle dr pr st ste cf p.ex env av",
    "it": "sig sigg dott prof ing avv on st ca cfr p.es pag",
    "pt": "sr sra dr dra prof eng av p.ex",
    "ru": "г гг в вв т.е т.д т.п т.к им ул д др руб тыс млн млрд см рис",
    "vi": "ts ths gs pgs tp q p",
}
_BEFORE_NUMBERS = frozenset(
    "no nos nr p pp vol fig figs sec art ch eq op ca c jan feb mar apr jun jul aug sep sept oct nov dec n núm pág".split()  # noqa: SIM905
)
# Languages that write "3." for "third".
_ORDINALS = frozenset("de da nb nn no fi cs sk hu hr sl sr tr et lv".split())  # noqa: SIM905
# After "U.S." these begin a sentence; any other capital may go on with the name.
_STARTERS = frozenset(
    "The A An In On At It He She They We I This That These Those But And However If When While After Before As For "  # noqa: SIM905
    "His Her Its Their There Most Some Many".split()
)


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Spans [start, end) of the sentences: slices of the text, in order, that hold every character that is not blank."""
    ends = [match.end() for match in _BLANK_LINE.finditer(text)]
    for match in (_GREEK_STOPS if language == "el" else _STOPS).finditer(text):
        if _ends_sentence(text, match.start(), match.group(1), match.end(), language):
            ends.append(match.end())
    spans, start = [], 0
    for end in [*sorted(ends), len(text)]:
        piece = text[start:end]
        if kept := piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            spans.append((first, first + len(kept)))
        start = end
    return spans


def _ends_sentence(text: str, at: int, stops: str, end: int, language: str) -> bool:
    if stops[-1] in _NEEDS_NO_BLANK:
        return True
    if end < len(text) and not text[end].isspace():
        return False  # 3.5, example.org, "Yes!"-men
    rest = text[end : end + 80].lstrip().lstrip(_OPENERS)
    if not rest:
        return True
    if rest[0].islower():
        return False  # "Why?" he asked; ... and so on; Yahoo! is
    if stops != ".":
        return True
    word = _LAST_WORD.search(text, max(0, at - 40), at).group()  # type: ignore[union-attr]
    folded = word.casefold()
    if folded in _abbreviations(language) or (folded in _BEFORE_NUMBERS and rest[0].isdigit()):
        return False
    if language in _ORDINALS and _ROMAN_OR_NUMBER.fullmatch(word):
        return False
    if _ACRONYM.fullmatch(word) and (word[-1].isupper() or "." in word):  # J. Smith; the U.S. Senate; U.S. The
        return "." in word and re.split(r"\W", rest, maxsplit=1)[0] in _STARTERS
    return True


def _abbreviations(language: str) -> frozenset[str]:
    if language not in _FOLDED:
        _FOLDED[language] = frozenset(_ABBREVIATIONS.get(language, "").split()) | frozenset(_ABBREVIATIONS["en"].split())
    return _FOLDED[language]


_FOLDED: dict[str, frozenset[str]] = {}


def cut_documents(documents: pa.Table) -> pa.Table:
    """Passages of documents {document_id, text, title?, language?}: what stands between blank lines."""
    rows = []
    for document in documents.to_pylist():
        parts = [part.strip() for part in _BLANK_LINE.split(document["text"])]
        for number, part in enumerate(part for part in parts if part):
            rows.append(
                {
                    "passage_id": f"{document['document_id']}#{number:04d}",
                    "document_id": document["document_id"],
                    "title": document.get("title") or "",
                    "text": part,
                    "language": document.get("language") or "en",
                }
            )
    return pa.Table.from_pylist(rows, PASSAGE_SCHEMA)


def cut_passages(passages: pa.Table, boundaries: Mapping[str, Spans] | None = None) -> pa.Table:
    """Sentences of passages; a passage that ``boundaries`` names by id is cut there and all others by rule."""
    rows = []
    for passage in passages.to_pylist():
        spans = (boundaries or {}).get(passage["passage_id"])
        for number, (start, end) in enumerate(spans or split_sentences(passage["text"], passage["language"])):
            text = passage["text"][start:end]
            ids = {"passage_id": passage["passage_id"], "document_id": passage["document_id"]}
            rows.append(_sentence(f"{passage['passage_id']}#{number:03d}", text, start, end, passage["language"], **ids))
    return pa.Table.from_pylist(rows, SENTENCE_SCHEMA)


def _sentence(
    id: str, text: str, start: int = -1, end: int = -1, language: str = "en", passage_id: str = "", document_id: str = ""
) -> dict[str, Any]:
    text_key, bag_key = duplicate_keys(text)
    return {
        "sentence_id": id,
        "text": text,
        "passage_id": passage_id,
        "document_id": document_id,
        "start": start,
        "end": end,
        "language": language,
        "text_key": text_key,
        "bag_key": bag_key,
    }


# ----------------------------------------------------------------------------------------------------------- duplicates


def normalise_text(text: str) -> str:
    """NFKC, case folded, everything but letters, digits and marks a blank, blanks collapsed."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded).split())


def duplicate_keys(text: str) -> tuple[int, int]:
    """A key that exact duplicates share, and one that near duplicates share: the same words in any order."""
    normal = normalise_text(text) or text  # texts of punctuation alone are equal only to themselves
    return _key(normal), _key(" ".join(sorted(normal.split())))


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def count_duplicates(sentences: pa.Table) -> dict[str, int]:
    """How many sentences repeat an earlier one: word for word, and with the same words in another order."""
    texts, bags = (len(np.unique(sentences[name].to_numpy())) for name in ("text_key", "bag_key"))
    return {"exact": len(sentences) - texts, "near": texts - bags}


# -------------------------------------------------------------------------------------------------------------- reading


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """The content, unpacked, after the byte order mark if there is one."""
    if not path.is_file():
        raise InputError(f"no file {path}; give a file that exists")
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        content = cast(IO[bytes], gzip.GzipFile(fileobj=file) if is_gzip else file)
        if content.read(3) != b"\xef\xbb\xbf":
            content.seek(0)
        yield content


def _rows(path: Path, rejected: list[Rejected]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and row of a Parquet, CSV, TSV or JSON Lines file, told by its name; gzip is seen through."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in (".parquet", ".csv", ".tsv", ".jsonl", ".json", ".jsonlines", ".ndjson"):
        raise InputError(
            f"{path}: cannot tell what it holds from its name; wanted .parquet, .csv, .tsv or .jsonl (with or without .gz)"
        )
    try:
        if suffix == ".parquet":
            batches = pq.ParquetFile(path).iter_batches(BLOCK_ROWS)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
            return
        with _open(path) as file:
            if suffix in (".csv", ".tsv"):
                yield from _csv_rows(path, file, suffix == ".tsv", rejected)
            else:
                yield from _json_rows(path, file, rejected)
    except (UnicodeDecodeError, csv.Error, pa.ArrowException, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} cannot be read as {suffix[1:]}: {error}") from error


def _csv_rows(path: Path, file: IO[bytes], is_tsv: bool, rejected: list[Rejected]) -> Iterator[tuple[int, dict[str, Any]]]:
    """TSV is lines cut at tabs: a quote in them is a character like any other."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))  # documents are longer than the default of 128 kB
    text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")  # bytes that are not UTF-8 become surrogates
    reader = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE) if is_tsv else csv.DictReader(text, strict=True)
    for row in reader:
        reason = detail = ""
        if _problem("", "".join(map(str, (*row, *row.values())))):
            reason, detail = INVALID_UTF8, f"in {row}"[:200]
        elif any(more := row.get(None, ())):
            width = len(reader.fieldnames or ())
            reason, detail = WRONG_WIDTH, f"{width + len(more)} cells, the header has {width}"
        if reason:
            rejected.append(Rejected(str(path), reader.line_num, "", "row", reason, detail))
        else:
            yield reader.line_num, row


def _json_rows(path: Path, file: IO[bytes], rejected: list[Rejected]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, raw in enumerate(file, 1):
        if raw.isspace():
            continue
        row, reason, detail = parse_line(raw)
        if not reason and not isinstance(row, dict):
            reason, detail = WRONG_TYPE, f"wanted an object, saw {raw.decode()[:80]!r}"
        if reason:
            rejected.append(Rejected(str(path), line, "", "row", reason, detail))
        else:
            yield line, row


_OPTIONAL = {"title": "", "language": "en", "document_id": "", "relevance": 1}


def read_table(
    path: Path,
    wanted: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    what: str = "row",
    rejected: list[Rejected] | None = None,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[pa.Table]:
    """Blocks of a Parquet, CSV, TSV or JSON Lines file with the wanted columns (``columns``: our name -> the file's), and line.

    A row without one of them, or with something else than text or a number there, is refused; title, language,
    document_id and relevance may be absent, unless the first of the wanted, which is the row's id.
    """
    rejected = [] if rejected is None else rejected
    schema = pa.schema([*((name, pa.int32() if name == "relevance" else pa.string()) for name in wanted), ("line", pa.int64())])
    for block in _in_blocks(_mapped_rows(Path(path), wanted, columns, what, rejected), block_rows):
        yield pa.Table.from_pylist([kept for kept, _ in block], schema)


def _in_blocks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    rows = iter(rows)
    while block := list(islice(rows, size)):
        yield block


def _mapped_rows(
    path: Path, wanted: Sequence[str], columns: Mapping[str, str] | None, what: str, rejected: list[Rejected]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The wanted columns of each row under our names, and line; and the row as it is."""
    names = {name: (columns or {}).get(name, name) for name in wanted}
    optional = {name: value for name, value in _OPTIONAL.items() if name != wanted[0]}
    seen_columns = False
    for line, row in _rows(path, rejected):
        if not seen_columns:
            missing = [column for name, column in names.items() if column not in row and name not in optional]
            if missing:
                raise InputError(
                    f"{path} has no column {missing[0]!r}, only {', '.join(map(str, row))}; map the names with columns"
                )
            seen_columns = True
        kept: dict[str, Any] = {"line": line}
        for name, column in names.items():
            value = row.get(column)
            if value is None or (name == wanted[0] and value == ""):
                value = optional.get(name)
            if problem := _problem(name, value):
                rejected.append(
                    Rejected(str(path), line, str(kept.get(wanted[0], "")), what, problem, f"{column}: {value!r}"[:200])
                )
                break
            kept[name] = int(str(value)) if name == "relevance" else str(value)
        else:
            yield kept, row


def _problem(name: str, value: Any) -> str:
    if value is None:
        return MISSING_KEY
    if not isinstance(value, (str, int)) or (name == "relevance" and not _is_int32(str(value))):
        return WRONG_TYPE
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return LONE_SURROGATE
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not _problem("text", value)


def _is_int32(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d{1,10}", text)) and -(2**31) <= int(text) < 2**31


# --------------------------------------------------------------------------------------------------------- sets of files

_ROW = ("sentence_id", "text", "title", "document_id", "language")  # of a corpus
_JUDGEMENT = ("question_id", "sentence_id", "relevance")


def open_tables(
    corpus: Path,
    questions: Path,
    gold: Path,
    columns: Mapping[str, Mapping[str, str]] | None = None,
) -> OpenSet:
    """Three tables: each row of the corpus {sentence_id, text, title?, ...} is one candidate.

    Questions are {question_id, text}, gold is {question_id, sentence_id, relevance?}; relevance 0 is no gold. ``columns`` has
    for "corpus", "questions" and "gold" what a column is called there: our name -> the file's.
    """
    _check_there(corpus, questions, gold)
    rejected: list[Rejected] = []
    names = columns or {}
    judged = partial(_read_judged, questions, gold, names.get("questions"), names.get("gold"), rejected)
    return OpenSet(str(corpus), _row_blocks([Path(corpus)], names.get("corpus"), rejected), judged, rejected)


def open_beir(folder: Path, split: str = "test") -> OpenSet:
    """A folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.

    A row of the corpus is one candidate, or, where it has ``sentences`` (their [start, end) in its text), a document of them:
    number n of document d is then ``d#n``. Questions may be those of several splits: this one's are those that its gold has a
    line about, if only one that says 0.
    """
    folder = Path(folder)
    corpus, questions, gold = (
        next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), folder / name)
        for name in ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
    )
    _check_there(corpus, questions, gold)
    rejected: list[Rejected] = []
    gold_columns = {"question_id": "query-id", "sentence_id": "corpus-id", "relevance": "score"}
    judged = partial(_read_judged, questions, gold, {"question_id": "_id"}, gold_columns, rejected, split_by_gold=True)
    return OpenSet(str(corpus), _beir_blocks([corpus], rejected), judged, rejected)


def open_documents(paths: Sequence[Path], columns: Mapping[str, str] | None = None) -> OpenSet:
    """Documents {document_id or _id, text, title?, language?}, cut into passages and sentences; without questions."""
    _check_there(*paths)
    rejected: list[Rejected] = []
    return OpenSet(", ".join(map(str, paths)), _document_blocks(paths, columns or {}, rejected), Judged, rejected)


def open_additions(paths: Sequence[Path], format: str, columns: Mapping[str, str] | None = None) -> OpenSet:
    """More of a corpus, read as its own rows were: an index that grows by them is what one of all rows would be.

    The other formats have no rows of the corpus alone: what is added to them are documents.
    """
    if format not in ("beir", "tables"):
        return open_documents(paths, columns)
    _check_there(*paths)
    rejected: list[Rejected] = []
    blocks = _beir_blocks(paths, rejected) if format == "beir" else _row_blocks(paths, columns, rejected)
    return OpenSet(", ".join(map(str, paths)), blocks, Judged, rejected)


def _check_there(*paths: Path) -> None:
    """Now, and not when a long corpus has been read."""
    for path in paths:
        if not Path(path).is_file():
            raise InputError(f"no file {path}; give a file that exists")


def _corpus_rows(
    paths: Sequence[Path], columns: Mapping[str, str] | None, rejected: list[Rejected]
) -> Iterator[tuple[Path, list[tuple[dict[str, Any], dict[str, Any]]]]]:
    for path in map(Path, paths):
        for block in _in_blocks(_mapped_rows(path, _ROW, columns, "sentence", rejected), BLOCK_ROWS):
            yield path, block


def _row_blocks(paths: Sequence[Path], columns: Mapping[str, str] | None, rejected: list[Rejected]) -> Iterator[Block]:
    for path, block in _corpus_rows(paths, columns, rejected):
        rows = [_whole_row(kept) for kept, _ in block]
        sentences = pa.Table.from_pylist(rows, SENTENCE_SCHEMA)
        yield Block(str(path), [kept["line"] for kept, _ in block], sentences, PASSAGE_SCHEMA.empty_table())


def _whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as one candidate; as is usual for this layout, the title counts."""
    text = f"{row['title']} {row['text']}".strip()
    return _sentence(row["sentence_id"], text, language=row["language"], document_id=row["document_id"])


def _beir_blocks(paths: Sequence[Path], rejected: list[Rejected]) -> Iterator[Block]:
    documents = KnownIds()
    for path, block in _corpus_rows(paths, {"sentence_id": "_id"}, rejected):
        spans_of = [_named_spans(row, kept["text"]) for kept, row in block]
        is_new = iter(documents.add([kept["sentence_id"] for (kept, _), spans in zip(block, spans_of) if spans]))
        lines, rows, passages = [], [], []
        for (kept, row), spans in zip(block, spans_of):
            id, text, line, language = kept["sentence_id"], kept["text"], kept["line"], kept["language"] or "en"
            if spans is None:
                lines.append(line)
                rows.append(_whole_row(kept))
            elif not spans:
                detail = f"wanted sentences [[start, end], ...] within the text, saw {str(row)[:150]}"
                rejected.append(Rejected(str(path), line, id, "document", WRONG_BOUNDARY, detail))
            elif not next(is_new):
                rejected.append(Rejected(str(path), line, id, "document", DUPLICATE_ID, repr(text)[:200]))
            else:
                ids = {"passage_id": id, "document_id": id}
                passages.append({**ids, "title": kept["title"], "text": text, "language": language})
                for number, (start, end) in enumerate(spans):
                    lines.append(line)
                    rows.append(_sentence(f"{id}#{number}", text[start:end], start, end, language, **ids))
        yield Block(
            str(path), lines, pa.Table.from_pylist(rows, SENTENCE_SCHEMA), pa.Table.from_pylist(passages, PASSAGE_SCHEMA)
        )


def _document_blocks(paths: Sequence[Path], columns: Mapping[str, str], rejected: list[Rejected]) -> Iterator[Block]:
    known = KnownIds()
    for path in map(Path, paths):
        first = next((row for _, row in _rows(path, [])), {})
        names = {"document_id": "_id"} if "_id" in first and "document_id" not in first else {}
        wanted = ("document_id", "text", "title", "language")
        for block in read_table(path, wanted, names | dict(columns), what="document", rejected=rejected):
            lines = block["line"].to_pylist()
            documents = _whole_and_new(block, "document", EMPTY_DOCUMENT, str(path), lines, known, rejected)
            passages = cut_documents(documents)
            sentences = cut_passages(passages)
            line_of = dict(zip(documents["document_id"].to_pylist(), documents["line"].to_pylist()))
            yield Block(str(path), [line_of[id] for id in sentences["document_id"].to_pylist()], sentences, passages)


def _named_spans(row: Mapping[str, Any], text: str) -> Spans | None:
    """The sentences that a document names; none of them where they do not fit, None where it names none."""
    spans = row.get("sentences")
    if spans is None:
        return None
    are_pairs = isinstance(spans, list) and all(isinstance(s, list) and [type(x) for x in s] == [int, int] for s in spans)
    return spans if are_pairs and _fits(spans, len(text)) else []


def _read_judged(
    questions: Path,
    gold: Path,
    question_columns: Mapping[str, str] | None,
    gold_columns: Mapping[str, str] | None,
    rejected: list[Rejected],
    *,
    split_by_gold: bool = False,
) -> Judged:
    asked = [
        {**row, "file": str(questions)}
        for block in read_table(
            questions, ("question_id", "text", "language"), question_columns, what="question", rejected=rejected
        )
        for row in block.to_pylist()
    ]
    lines = [
        {**row, "file": str(gold)}
        for block in read_table(gold, _JUDGEMENT, gold_columns, what="gold", rejected=rejected)
        for row in block.to_pylist()
    ]
    about = {row["question_id"] for row in lines} | {row.id for row in rejected if row.what == "gold"}
    here = [row for row in asked if row["question_id"] in about]
    if asked and not here:
        raise InputError(f"{gold} is about none of the questions of {questions}; are the ids in the same columns of both?")
    judged = [row for row in lines if row["relevance"] > 0]
    if not split_by_gold:
        return Judged(asked, judged)
    return Judged(here, judged, {OF_ANOTHER_SPLIT: len(asked) - len(here)} if len(here) < len(asked) else {})


def _json_lists(path: Path, keys: Sequence[str]) -> list[list[Any]]:
    try:
        with _open(path) as file:
            document = json.loads(file.read().decode("utf-8"))
    except (ValueError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(key), list) for key in keys):
        seen = ", ".join(document) if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{path}: wanted an object with the lists {', '.join(keys)}, saw {seen}")
    return [document[key] for key in keys]


def read_reqa(path: Path) -> RetrievalSet:
    """A ReQA file {questions, candidates, ground_truths}, the last being places in candidates; ids are places too."""
    path = Path(path)
    questions, candidates, truths = _json_lists(path, ("questions", "candidates", "ground_truths"))
    if len(questions) != len(truths):
        raise InputError(f"{path} has {len(questions)} questions and {len(truths)} ground_truths; wanted one for each")
    rejected: list[Rejected] = []
    rows = [_sentence(f"s{place:08d}", text if _is_text(text) else "") for place, text in enumerate(candidates)]
    sentences = pa.Table.from_pylist(rows, SENTENCE_SCHEMA)
    asked, judged = [], []
    for line, (text, places) in enumerate(zip(questions, truths), 1):
        id = f"q{line - 1:08d}"
        where = {"file": str(path), "line": line, "question_id": id}
        asked.append({"text": text if _is_text(text) else "", "language": "en", **where})
        for place in places if isinstance(places, list) else [places]:
            if isinstance(place, int):
                judged.append({"sentence_id": f"s{place:08d}", "relevance": 1, **where})
            else:
                rejected.append(Rejected(str(path), line, id, "gold", WRONG_TYPE, f"wanted a place, saw {place!r}"[:200]))
    block = Block(str(path), range(1, len(rows) + 1), sentences, PASSAGE_SCHEMA.empty_table())
    return _in_memory(str(path), block, asked, judged, rejected)


def read_answer_pairs(path: Path) -> RetrievalSet:
    """A file {questions, answers, question_ids} of equally long lists. Equal answers are one sentence, known by its text."""
    path = Path(path)
    questions, answers, ids = _json_lists(path, ("questions", "answers", "question_ids"))
    if not len(questions) == len(answers) == len(ids):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(answers)} answers, {len(ids)} question_ids; wanted as many of each"
        )
    sentences: dict[str, tuple[int, dict[str, Any]]] = {}
    asked: dict[str, dict[str, Any]] = {}
    judged, rejected = [], []
    for line, (question, answer, number) in enumerate(zip(questions, answers, ids), 1):
        id = str(number)
        if not _is_text(answer) or not answer.strip() or not _is_text(question):
            rejected.append(Rejected(str(path), line, id, "question", WRONG_TYPE, f"{question!r}, {answer!r}"[:200]))
            continue
        where = {"file": str(path), "line": line, "question_id": id}
        if id in asked and asked[id]["text"] != question:
            rejected.append(
                Rejected(str(path), line, id, "question", DUPLICATE_ID, f"asks {question!r}, before {asked[id]['text']!r}")
            )
            continue
        asked.setdefault(id, {"text": question, "language": "en", **where})
        sentence_id = passage_id(answer)
        sentences.setdefault(sentence_id, (line, _sentence(sentence_id, answer)))
        judged.append({"sentence_id": sentence_id, "relevance": 1, **where})
    lines, rows = [line for line, _ in sentences.values()], [row for _, row in sentences.values()]
    block = Block(str(path), lines, pa.Table.from_pylist(rows, SENTENCE_SCHEMA), PASSAGE_SCHEMA.empty_table())
    return _in_memory(str(path), block, asked.values(), judged, rejected)


def sentences_of_examples(examples: Iterable[Example], boundaries: Boundaries | None = None) -> RetrievalSet:
    """The passages of SQuAD-shaped, MRQA and like files as sentences; gold is the sentence where an answer begins.

    ``raydist.corpus.readers`` makes the examples. methods 5.8: an answer across two sentences belongs to the one with its
    first character.
    """
    passages: dict[str, dict[str, Any]] = {}
    kept = list(examples)
    for example in kept:
        passage = {"text": example.context, "title": example.title, "language": example.language}
        ids = {"passage_id": example.passage_id, "document_id": example.title or example.passage_id}
        passages.setdefault(example.passage_id, {**ids, **passage})
    table = pa.Table.from_pylist(list(passages.values()), PASSAGE_SCHEMA)
    rejected = list(boundaries.rejected) if boundaries else []
    sentences = cut_passages(table, boundaries.spans if boundaries else None)
    of_passage = defaultdict(list)
    for sentence in sentences.to_pylist():
        of_passage[sentence["passage_id"]].append(sentence)
    asked, judged = [], []
    seen: set[str] = set()
    for example in kept:
        if example.id in seen:  # of another file: its answers are not those of the first
            detail = repr(example.question)[:200]
            rejected.append(Rejected(example.file, example.line, example.id, "question", DUPLICATE_ID, detail))
            continue
        seen.add(example.id)
        where = {"file": example.file, "line": example.line, "question_id": example.id}
        asked.append({"text": example.question, "language": example.language, **where})
        for answer in example.answers:
            for sentence in of_passage[example.passage_id]:
                if sentence["start"] <= answer.start < sentence["end"]:
                    judged.append({"sentence_id": sentence["sentence_id"], "relevance": 1, **where})
                    break
            else:
                detail = f"starts at {answer.start}: {answer.text!r}"[:200]
                rejected.append(Rejected(example.file, example.line, example.id, "answer", OUTSIDE_SENTENCES, detail))
    block = Block("", [0] * len(sentences), sentences, table)
    notes = {CUT_BY_RULE: len(passages) - len(boundaries.spans), OF_NO_PASSAGE: boundaries.unmatched} if boundaries else {}
    notes = {note: number for note, number in notes.items() if number}
    return _in_memory(kept[0].file if kept else "the input", block, asked, judged, rejected, notes)


def _fits(spans: Spans, length: int) -> bool:
    ordered = sorted(spans)
    return bool(ordered) and all(
        0 <= start < end <= after for (start, end), after in zip(ordered, [*(start for start, _ in ordered[1:]), length])
    )


@dataclass(slots=True)
class Boundaries:
    """Where passages are to be cut."""

    spans: dict[str, Spans]  # by passage id; they fit
    rejected: list[Rejected] = field(default_factory=list)
    unmatched: int = 0  # lines about other passages


def read_boundaries(path: Path, examples: Iterable[Example]) -> Boundaries:
    """Sentence spans from a MultiReQA file, joined to the passages of the examples.

    Lines are {candidate_id: "<dataset>_<qid>/<qid>/.../_<n>", response_start, response_end}, or already one line per
    paragraph, {title, paragraph, sentences: [[start, end], ...]}, the n-th paragraph with questions under that title. Where no
    question of a paragraph is left, the later ones have moved up: so a line is taken for the paragraph that it covers from the
    first character to the last, and for the n-th only if there is none, and its sentences could stand there.
    """
    path = Path(path)
    texts: dict[str, str] = {}
    passage_of_question: dict[str, str] = {}
    paragraphs: defaultdict[str, list[str]] = defaultdict(list)
    for example in examples:
        texts.setdefault(example.passage_id, example.context)
        passage_of_question.setdefault(example.id, example.passage_id)
        if paragraphs[example.title][-1:] != [example.passage_id]:  # a text that comes again further down is another paragraph
            paragraphs[example.title].append(example.passage_id)
    found: defaultdict[str, list[tuple[int, tuple[int, int]]]] = defaultdict(list)  # of a passage: line and span
    uncertain: list[tuple[int, list[str], list[tuple[int, int]]]] = []  # line, the n-th paragraph if there is one, spans
    unread: list[Rejected] = []
    unmatched = 0
    for line, row in _rows(path, unread):
        try:
            if "candidate_id" in row:
                question_ids = row["candidate_id"].partition("_")[2].rpartition("_")[0].split("/")
                names = {passage_of_question[id] for id in question_ids if id in passage_of_question}
                spans = [(int(row["response_start"]), int(row["response_end"]))]
            else:
                number, under = int(row["paragraph"]), paragraphs.get(row["title"], [])
                spans = [(int(start), int(end)) for start, end in row["sentences"]]
                nth = under[number : number + 1]
                names = _covered(spans, nth, texts) or _covered(spans, under, texts)
                if len(names) != 1:
                    uncertain.append((line, nth, spans))
                    continue
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}, line {line}: no MultiReQA boundaries ({error!r}): {str(row)[:200]}") from error
        unmatched += not names
        for name in names:
            found[name] += [(line, span) for span in spans]
    if unread:
        raise InputError(f"{path}, line {unread[0].line}: {unread[0].reason}: {unread[0].detail}")
    misfits: list[tuple[int, str, Spans]] = []
    for line, nth, spans in uncertain:
        if not nth or nth[0] in found:
            unmatched += 1
        elif _stand(spans, texts[nth[0]]):
            found[nth[0]] = [(line, span) for span in spans]
        else:
            misfits.append((line, nth[0], spans))
    if not found and not misfits:
        raise InputError(f"{path} is about none of these passages; is it the boundary file of the same split?")
    fitting: dict[str, Spans] = {}
    for id, cuts in found.items():
        spans = sorted({span for _, span in cuts})
        if _fits(spans, len(texts[id])):
            fitting[id] = spans
        else:
            misfits.append((cuts[0][0], id, spans))
    rejected = [
        Rejected(str(path), line, id, "boundaries", WRONG_BOUNDARY, f"{len(texts[id])} characters, {list(spans)[:5]}")
        for line, id, spans in misfits
    ]
    return Boundaries(fitting, rejected, unmatched)


def _stand(spans: Spans, text: str) -> bool:
    """Whether these could be sentences of the text: they fit, and none begins or ends with a blank."""
    return _fits(spans, len(text)) and all(text[start:end] == text[start:end].strip() for start, end in spans)


def _covered(spans: Spans, ids: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """The passages of which these could be all sentences: nothing but blanks is left over."""
    covered = set()
    for id in ids:
        ends = [0, *(place for span in sorted(spans) for place in span), None]
        left_over = (texts[id][start:end] for start, end in zip(ends[::2], ends[1::2]))
        if _stand(spans, texts[id]) and not any(map(str.strip, left_over)):
            covered.add(id)
    return covered


def _in_memory(
    source: str,
    block: Block,
    questions: Iterable[dict[str, Any]],
    gold: Iterable[dict[str, Any]],
    rejected: list[Rejected],
    notes: dict[str, int] | None = None,
) -> RetrievalSet:
    return OpenSet(source, [block], lambda: Judged(questions, gold, notes or {}), rejected).whole()
