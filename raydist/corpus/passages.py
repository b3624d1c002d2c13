"""Documents -> passages -> sentences with stable ids, and the questions and gold answers that go with them.

    document   "Warsaw"              cut at blank lines into
    passage    "Warsaw#0003"         cut by ``split_sentences``, or by the boundaries of MultiReQA, into
    sentence   "Warsaw#0003#002"     text[start:end] of its passage

Tables are Arrow, schemas below. ``cut_documents`` and ``cut_passages`` are functions of one block, so that Ray Data can
map them over a corpus of any size. The readers of whole sets (``read_beir``, ``read_reqa``, ``read_answer_pairs``,
``read_set``, ``sentences_of_examples``) hold the set in memory, about twice its text: they are meant for sets with gold
answers. ``read_table`` streams.

What is wrong with a row goes to ``rejected`` under a fixed phrase and the rest goes on; what is wrong with a whole file
raises InputError. A question is given up when no gold sentence is left for it.

Duplicates are told by normalised text (NFKC, case folded, everything but letters, digits and marks a blank): ``text_key``
is equal for exact duplicates, ``bag_key`` for near ones, which have the same words equally often, in any order.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.corpus.readers import BROKEN_JSON, DUPLICATE_ID, EMPTY_QUESTION, MISSING_KEY, WRONG_TYPE, passage_id
from raydist.errors import InputError
from raydist.records import Example, Rejected

EMPTY_SENTENCE = "empty sentence"
NO_GOLD = "question with no gold sentence"
UNKNOWN_SENTENCE = "gold sentence not in the corpus"
UNKNOWN_QUESTION = "gold for an unknown question"
OUTSIDE_SENTENCES = "answer outside every sentence"
WRONG_BOUNDARY = "sentence boundaries do not fit the passage"

OF_ANOTHER_SPLIT = "questions that this split's gold says nothing of: left out"

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


@dataclass(slots=True)
class RetrievalSet:
    """A corpus cut into sentences, questions, and which sentences answer which question; consistent by construction."""

    passages: pa.Table
    sentences: pa.Table
    questions: pa.Table
    gold: pa.Table
    rejected: list[Rejected] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)  # what is not wrong, and yet should be known: a phrase and a count


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
    exact = len(sentences) - pc.count_distinct(sentences["text_key"]).as_py()
    return {"exact": exact, "near": len(sentences) - pc.count_distinct(sentences["bag_key"]).as_py() - exact}


# -------------------------------------------------------------------------------------------------------------- reading


def _open(path: Path) -> IO[str]:
    if not path.is_file():
        raise InputError(f"no file {path}; give a file that exists")
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, rejected: list[Rejected]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and row of a Parquet, CSV, TSV or JSON Lines file, told by its name; gzip is seen through."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in (".parquet", ".csv", ".tsv", ".jsonl", ".json", ".jsonlines", ".ndjson"):
        raise InputError(
            f"{path}: cannot tell what it holds from its name; wanted .parquet, .csv, .tsv or .jsonl (with or without .gz)"
        )
    try:
        if suffix == ".parquet":
            batches = pq.ParquetFile(path).iter_batches()
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
            return
        with _open(path) as file:
            if suffix in (".csv", ".tsv"):
                reader = csv.DictReader(file, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
                for row in reader:
                    yield reader.line_num, row
                return
            for line, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    row = json.loads(text)
                except ValueError as error:
                    rejected.append(Rejected(str(path), line, "", "row", BROKEN_JSON, str(error)))
                    continue
                if isinstance(row, dict):
                    yield line, row
                else:
                    rejected.append(Rejected(str(path), line, "", "row", WRONG_TYPE, f"wanted an object, saw {text[:80]!r}"))
    except (UnicodeDecodeError, csv.Error, pa.ArrowException, EOFError, OSError) as error:
        raise InputError(f"{path} cannot be read as {suffix[1:]}: {error}") from error


_OPTIONAL = {"title": "", "language": "en", "document_id": "", "relevance": 1}


def read_table(
    path: Path,
    wanted: Sequence[str],
    columns: Mapping[str, str] | None = None,
    *,
    what: str = "row",
    rejected: list[Rejected] | None = None,
    block_rows: int = 10_000,
) -> Iterator[pa.Table]:
    """Blocks of a Parquet, CSV, TSV or JSON Lines file with the wanted columns (``columns``: our name -> the file's), and line.

    A row without one of them, or with something else than text or a number there, is refused; title, language,
    document_id and relevance may be absent.
    """
    rejected = [] if rejected is None else rejected
    names = {name: (columns or {}).get(name, name) for name in wanted}
    schema = pa.schema([*((name, pa.int32() if name == "relevance" else pa.string()) for name in wanted), ("line", pa.int64())])
    block: list[dict[str, Any]] = []
    seen_columns = False
    for line, row in _rows(Path(path), rejected):
        if not seen_columns:
            missing = [column for name, column in names.items() if column not in row and name not in _OPTIONAL]
            if missing:
                raise InputError(
                    f"{path} has no column {missing[0]!r}, only {', '.join(map(str, row))}; map the names with columns"
                )
            seen_columns = True
        kept: dict[str, Any] = {"line": line}
        for name, column in names.items():
            value = row.get(column)
            if value is None and name in _OPTIONAL:
                value = _OPTIONAL[name]
            problem = MISSING_KEY if value is None else "" if isinstance(value, (str, int)) else WRONG_TYPE
            if name == "relevance" and not problem:
                problem = "" if re.fullmatch(r"-?\d+", str(value)) else WRONG_TYPE
            if problem:
                rejected.append(
                    Rejected(str(path), line, str(kept.get(wanted[0], "")), what, problem, f"{column}: {value!r}"[:200])
                )
                break
            kept[name] = int(str(value)) if name == "relevance" else str(value)
        else:
            block.append(kept)
        if len(block) == block_rows:
            yield pa.Table.from_pylist(block, schema)
            block = []
    if block:
        yield pa.Table.from_pylist(block, schema)


def read_set(
    corpus: Path,
    questions: Path,
    gold: Path,
    *,
    corpus_columns: Mapping[str, str] | None = None,
    question_columns: Mapping[str, str] | None = None,
    gold_columns: Mapping[str, str] | None = None,
    split_by_gold: bool = False,
) -> RetrievalSet:
    """Three tables with mapped columns: each row of the corpus {sentence_id, text, title?, ...} is one candidate.

    Questions are {question_id, text}, gold is {question_id, sentence_id, relevance?}; relevance 0 is no gold. With
    ``split_by_gold`` the questions may be those of several splits, and this one's are those that the gold has a line about.
    """
    rejected: list[Rejected] = []
    rows = []
    wanted = ("sentence_id", "text", "title", "document_id", "language")
    for block in read_table(corpus, wanted, corpus_columns, what="sentence", rejected=rejected):
        for row in block.to_pylist():
            text = f"{row['title']} {row['text']}".strip()  # as is usual for this layout: the title counts
            sentence = _sentence(row["sentence_id"], text, language=row["language"], document_id=row["document_id"])
            rows.append((str(corpus), row["line"], sentence))
    asked, judged, notes = _questions_and_gold(questions, gold, question_columns, gold_columns, rejected, split_by_gold)
    return _assemble(rows, asked, judged, rejected, str(corpus), notes=notes)


def _questions_and_gold(
    questions: Path,
    gold: Path,
    question_columns: Mapping[str, str] | None,
    gold_columns: Mapping[str, str] | None,
    rejected: list[Rejected],
    split_by_gold: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    asked = [
        {**row, "file": str(questions)}
        for block in read_table(
            questions, ("question_id", "text", "language"), question_columns, what="question", rejected=rejected
        )
        for row in block.to_pylist()
    ]
    lines = [
        {**row, "file": str(gold)}
        for block in read_table(gold, ("question_id", "sentence_id", "relevance"), gold_columns, what="gold", rejected=rejected)
        for row in block.to_pylist()
    ]
    about = {row["question_id"] for row in lines} | {row.id for row in rejected if row.what == "gold"}
    here = [row for row in asked if row["question_id"] in about]
    if asked and not here:
        raise InputError(f"{gold} is about none of the questions of {questions}; are the ids in the same columns of both?")
    judged = [row for row in lines if row["relevance"] > 0]
    if not split_by_gold:
        return asked, judged, {}
    # A queries file often serves several splits: those that no line is about, not even one that says 0, are of another.
    return here, judged, {OF_ANOTHER_SPLIT: len(asked) - len(here)} if len(here) < len(asked) else {}


def read_beir(folder: Path, split: str = "test") -> RetrievalSet:
    """A folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.

    A row of the corpus is one candidate, or, where it has ``sentences`` (their [start, end) in its text), a document of them:
    number n of document d is then ``d#n``.
    """
    folder = Path(folder)
    found = [next((f for f in (folder / name, folder / f"{name}.gz") if f.is_file()), folder / name) for name in
             ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")]  # fmt: skip
    question_columns = {"question_id": "_id"}
    gold_columns = {"question_id": "query-id", "sentence_id": "corpus-id", "relevance": "score"}
    rejected: list[Rejected] = []
    first = next(_rows(found[0], []), (0, {}))[1]
    if "sentences" not in first:
        return read_set(
            *found,
            corpus_columns={"sentence_id": "_id"},
            question_columns=question_columns,
            gold_columns=gold_columns,
            split_by_gold=True,
        )
    passages, rows = [], []
    seen: set[str] = set()
    for line, row in _rows(found[0], rejected):
        id, text, spans = row.get("_id"), row.get("text"), row.get("sentences") or []
        whole = isinstance(spans, list) and all(isinstance(s, list) and [type(x) for x in s] == [int, int] for s in spans)
        if not isinstance(id, str) or not isinstance(text, str) or not whole or not _fits(spans, len(text)):
            detail = f"wanted _id, text and sentences [[start, end], ...] within it, saw {str(row)[:150]}"
            rejected.append(Rejected(str(found[0]), line, str(id), "document", WRONG_BOUNDARY, detail))
            continue
        if id in seen:
            rejected.append(Rejected(str(found[0]), line, id, "document", DUPLICATE_ID, repr(text)[:200]))
            continue
        seen.add(id)
        language = row.get("language") or "en"
        passages.append(
            {"passage_id": id, "document_id": id, "title": row.get("title") or "", "text": text, "language": language}
        )
        for number, (start, end) in enumerate(spans):
            ids = {"passage_id": id, "document_id": id}
            rows.append((str(found[0]), line, _sentence(f"{id}#{number}", text[start:end], start, end, language, **ids)))
    asked, judged, notes = _questions_and_gold(found[1], found[2], question_columns, gold_columns, rejected, True)
    table = pa.Table.from_pylist(passages, PASSAGE_SCHEMA)
    return _assemble(rows, asked, judged, rejected, str(found[0]), table, notes)


def _json_lists(path: Path, keys: Sequence[str]) -> list[list[Any]]:
    try:
        with _open(path) as file:
            document = json.load(file)
    except (ValueError, EOFError, OSError) as error:
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
    sentences = [
        (str(path), line, _sentence(f"s{line - 1:08d}", text if isinstance(text, str) else ""))
        for line, text in enumerate(candidates, 1)
    ]
    asked, judged = [], []
    for line, (text, places) in enumerate(zip(questions, truths), 1):
        id = f"q{line - 1:08d}"
        where = {"file": str(path), "line": line, "question_id": id}
        asked.append({"text": text if isinstance(text, str) else "", "language": "en", **where})
        for place in places if isinstance(places, list) else [places]:
            if isinstance(place, int):
                judged.append({"sentence_id": f"s{place:08d}", "relevance": 1, **where})
            else:
                rejected.append(Rejected(str(path), line, id, "gold", WRONG_TYPE, f"wanted a place, saw {place!r}"[:200]))
    return _assemble(sentences, asked, judged, rejected, str(path))


def read_answer_pairs(path: Path) -> RetrievalSet:
    """A file {questions, answers, question_ids} of equally long lists. Equal answers are one sentence, known by its text."""
    path = Path(path)
    questions, answers, ids = _json_lists(path, ("questions", "answers", "question_ids"))
    if not len(questions) == len(answers) == len(ids):
        raise InputError(
            f"{path}: {len(questions)} questions, {len(answers)} answers, {len(ids)} question_ids; wanted as many of each"
        )
    sentences: dict[str, tuple[str, int, dict[str, Any]]] = {}
    asked: dict[str, dict[str, Any]] = {}
    judged, rejected = [], []
    for line, (question, answer, number) in enumerate(zip(questions, answers, ids), 1):
        id = str(number)
        if not isinstance(answer, str) or not answer.strip() or not isinstance(question, str):
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
        sentences.setdefault(sentence_id, (str(path), line, _sentence(sentence_id, answer)))
        judged.append({"sentence_id": sentence_id, "relevance": 1, **where})
    return _assemble(sentences.values(), asked.values(), judged, rejected, str(path))


def sentences_of_examples(examples: Iterable[Example], boundaries: Mapping[str, Spans] | None = None) -> RetrievalSet:
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
    rejected: list[Rejected] = []
    fitting: dict[str, Spans] = {}
    for id, spans in (boundaries or {}).items():
        if id in passages and _fits(spans, len(passages[id]["text"])):
            fitting[id] = sorted(spans)
        elif id in passages:
            rejected.append(
                Rejected("", 0, id, "boundaries", WRONG_BOUNDARY, f"{len(passages[id]['text'])} characters, {list(spans)[:5]}")
            )
    sentences = cut_passages(table, fitting).to_pylist()
    of_passage = defaultdict(list)
    for sentence in sentences:
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
    return _assemble([("", 0, row) for row in sentences], asked, judged, rejected, kept[0].file if kept else "the input", table)


def _fits(spans: Spans, length: int) -> bool:
    ordered = sorted(spans)
    return bool(ordered) and all(
        0 <= start < end <= after for (start, end), after in zip(ordered, [*(start for start, _ in ordered[1:]), length])
    )


def read_boundaries(path: Path, examples: Iterable[Example]) -> dict[str, list[tuple[int, int]]]:
    """Sentence spans by passage id from a MultiReQA file, joined to the examples of its contexts.

    Lines are {candidate_id: "<dataset>_<qid>/<qid>/.../_<n>", response_start, response_end}, or already one line per
    paragraph, {title, paragraph, sentences: [[start, end], ...]}, the n-th paragraph with questions under that title.
    """
    path = Path(path)
    passage_of_question: dict[str, str] = {}
    of_title: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for example in examples:
        passage_of_question[example.id] = example.passage_id
        of_title[example.title][example.passage_id] = None
    paragraphs = {title: list(ids) for title, ids in of_title.items()}
    rejected: list[Rejected] = []
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for line, row in _rows(path, rejected):
        try:
            if "candidate_id" in row:
                question_ids = row["candidate_id"].partition("_")[2].rpartition("_")[0].split("/")
                names = {passage_of_question[id] for id in question_ids if id in passage_of_question}
                for name in names:
                    spans[name].append((int(row["response_start"]), int(row["response_end"])))
            else:
                at, under = row["paragraph"], paragraphs.get(row["title"], [])
                if at < len(under):
                    spans[under[at]] += [(int(start), int(end)) for start, end in row["sentences"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}, line {line}: no MultiReQA boundaries ({error!r}): {str(row)[:200]}") from error
    if rejected:
        raise InputError(f"{path}, line {rejected[0].line}: {rejected[0].reason}: {rejected[0].detail}")
    if not spans:
        raise InputError(f"{path} is about none of these passages; is it the boundary file of the same split?")
    return {id: sorted(set(found)) for id, found in spans.items()}


def _assemble(
    sentences: Iterable[tuple[str, int, dict[str, Any]]],
    questions: Iterable[dict[str, Any]],
    gold: Iterable[dict[str, Any]],
    rejected: list[Rejected],
    source: str,
    passages: pa.Table | None = None,
    notes: dict[str, int] | None = None,
) -> RetrievalSet:
    """Keep what is whole and fits together; say of the rest why not."""
    corpus: dict[str, dict[str, Any]] = {}
    for file, line, row in sentences:
        id = row["sentence_id"]
        if not row["text"].strip():
            rejected.append(Rejected(file, line, id, "sentence", EMPTY_SENTENCE, repr(row["text"])))
        elif id in corpus:
            rejected.append(Rejected(file, line, id, "sentence", DUPLICATE_ID, repr(row["text"])[:200]))
        else:
            corpus[id] = row
    if not corpus:
        raise InputError(f"{source}: the corpus is empty; wanted at least one sentence with text")
    asked: dict[str, dict[str, Any]] = {}
    for row in questions:
        id = row["question_id"]
        if not row["text"].strip():
            rejected.append(Rejected(row["file"], row["line"], id, "question", EMPTY_QUESTION, repr(row["text"])))
        elif id in asked:
            rejected.append(Rejected(row["file"], row["line"], id, "question", DUPLICATE_ID, repr(row["text"])[:200]))
        else:
            asked[id] = row
    refused = {row.id for row in rejected if row.what == "question"}
    judged: dict[tuple[str, str], dict[str, Any]] = {}
    for row in gold:
        pair = (row["question_id"], row["sentence_id"])
        if row["sentence_id"] not in corpus:
            rejected.append(Rejected(row["file"], row["line"], pair[0], "gold", UNKNOWN_SENTENCE, pair[1]))
        elif row["question_id"] not in asked and row["question_id"] not in refused:
            rejected.append(Rejected(row["file"], row["line"], pair[0], "gold", UNKNOWN_QUESTION, pair[1]))
        elif row["question_id"] in asked:
            judged[pair] = row
    answered = Counter(question for question, _ in judged)
    for id, row in asked.items():
        if not answered[id]:
            rejected.append(Rejected(row["file"], row["line"], id, "question", NO_GOLD, row["text"][:200]))
    return RetrievalSet(
        PASSAGE_SCHEMA.empty_table() if passages is None else passages,
        pa.Table.from_pylist(list(corpus.values()), SENTENCE_SCHEMA),
        pa.Table.from_pylist([row for id, row in asked.items() if answered[id]], QUESTION_SCHEMA),
        pa.Table.from_pylist(list(judged.values()), GOLD_SCHEMA),
        rejected,
        notes or {},
    )
