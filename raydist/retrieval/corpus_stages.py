"""A corpus as stages: files -> tables -> sentences; and the common base of all stages over its questions.

A block is `mining.part_questions` questions: the unit of work of every stage over questions. Its content depends on the
questions alone, so results do not depend on workers or nodes (except the last bits of a model that is not packed, see
models/packed.py: they depend on the threads of an actor, which `cluster.threads_per_worker` fixes). The sentence table
grows with the corpus; it is mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.corpus.duplicates import count_duplicates, duplicate_keys
from raydist.corpus.formats import CORPUS_FORMATS, open_corpus
from raydist.corpus.formats.base import CorpusOfRows
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.corpus.schemas import GOLD_SCHEMA, PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.draws import draw_questions, keyed_uniform
from raydist.errors import InputError
from raydist.files.stage import ASIDE, LATER, Made, Part, Stage, Worker
from raydist.files.storage import Place, Storage, read_between, read_parquet, read_rows
from raydist.records import name_rejected, rejected_table

if TYPE_CHECKING:
    pass

VERSION = 4  # of retrieval stages that state none; raise when an output changes
CHECKED_BYTES = 16 << 20  # of files that are read twice, at first to see whether they are right
ROW_GROUP = 4096  # rows of a corpus table; a block reads only the groups that hold its questions


# --- a corpus --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus, as part of its tables' fingerprint."""

    name: str
    digest: str
    language: str | None = field(default=None, metadata=LATER)  # if sentences are split by it


@dataclass(frozen=True)
class CorpusCounts:
    """Counts of a corpus as read, and the digests of its sentences and passages."""

    rows: int  # sentences
    questions: int
    questions_read: int  # before sampling
    gold: int
    passages: int
    rejected: int
    notes: Mapping[str, int]
    duplicates: Mapping[str, int]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class CorpusTables(Stage):
    """Files -> sentences and passages, written as they are read; questions, gold answers and rejected rows.

    Memory: a block of rows, about 50 bytes per sentence, and all questions and gold.
    """

    name: ClassVar[str] = "retrieval_set"
    version: ClassVar[int] = VERSION

    format: str
    split: str
    columns: Mapping[str, Any]
    questions: int | None  # the size of a seeded sample
    seed: int
    files: tuple[CorpusFile, ...]
    places: tuple[Place, ...] = field(metadata=ASIDE)
    boundaries: Place | None = field(metadata=ASIDE)
    language: str | None = field(default=None, metadata=LATER)  # of rows that state none

    @property
    def parts(self) -> int:
        return 1

    def open(self, worker: Worker) -> Callable[[int], OpenSet | RetrievalSet]:
        return lambda number: self.open_set()

    def open_set(self) -> OpenSet | RetrievalSet:
        """The corpus by its format; large tables are read during iteration."""
        return open_corpus(
            self.format,
            [place.fetch() for place in self.places],
            split=self.split,
            columns=self.columns,
            boundaries=self.boundaries.fetch() if self.boundaries else None,
            language=self.language,
        )

    def check(self, size: int) -> None:
        """Raise what reading will raise, before workers are asked for: of small files as a whole, of large ones as far as the
        first block of the corpus shows. `size`: of all files, in bytes.
        """
        if size > CHECKED_BYTES and not isinstance(CORPUS_FORMATS[self.format], CorpusOfRows):
            return  # read whole or not at all
        opened = self.open_set()
        if size > CHECKED_BYTES:
            next(iter(opened.blocks()))
            return
        for _ in opened.blocks():
            pass
        self._require(opened.questions_and_gold()[0], opened)

    def _require(self, questions: pa.Table, opened: OpenSet | RetrievalSet) -> None:
        if not questions.num_rows and self.format != "documents":
            names = ", ".join(place.name for place in self.places)
            raise InputError(
                f"{names or 'sample:'}: no question has a gold sentence in the corpus; wanted gold whose ids are those of "
                f"questions and sentences{name_rejected(opened.rejected)}"
            )

    def store(self, opened: OpenSet | RetrievalSet, number: int, folder: Storage) -> Part:
        sentences, passages, keys = _write_sentences(opened, folder)
        questions, gold = opened.questions_and_gold()
        read = questions.num_rows
        self._require(questions, opened)
        questions, gold = self._chosen(questions, gold)
        order = [("question_id", "ascending")]
        counts = CorpusCounts(
            rows=sentences.rows,
            questions=questions.num_rows,
            questions_read=read,
            gold=gold.num_rows,
            passages=passages.rows,
            rejected=len(opened.rejected),
            notes=opened.notes,
            duplicates=count_duplicates(keys),
            digests={"sentences": sentences.digest.hexdigest(), "passages": passages.digest.hexdigest()},
        )
        beside = {
            "questions": questions.sort_by(order),
            "gold": gold.sort_by([*order, ("sentence_id", "ascending")]),
            "rejected": rejected_table(opened.rejected),
        }
        return Part(pa.table({"sentences": [sentences.rows]}), beside, counts, ROW_GROUP)

    def _chosen(self, questions: pa.Table, gold: pa.Table) -> tuple[pa.Table, pa.Table]:
        if self.questions is None or self.questions >= questions.num_rows:
            return questions, gold
        draws = draw_questions(questions["question_id"].to_pylist(), self.seed)
        questions = questions.take(np.sort(np.argsort(draws, kind="stable")[: self.questions]))
        return questions, gold.filter(pc.is_in(gold["question_id"], value_set=questions["question_id"].combine_chunks()))


class _Blocks:
    """A table written block by block: its number of rows so far, and their digest."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer, self.rows, self.digest = writer, 0, hashlib.blake2b(digest_size=16)

    def add(self, block: pa.Table) -> None:
        for batch in block.combine_chunks().to_batches():
            if batch.num_rows:
                self.writer.write_batch(batch)
                self.digest.update(batch.serialize())
                self.rows += batch.num_rows


def _write_sentences(opened: OpenSet | RetrievalSet, folder: Storage) -> tuple[_Blocks, _Blocks, pa.Table]:
    """Write sentences and passages; return both, and the duplicate keys of all sentences."""
    keys = [SENTENCE_SCHEMA.empty_table().select(["text_key", "bag_key"])]
    with (
        _writing(folder, "sentences-00000.parquet", SENTENCE_SCHEMA) as sentences,
        _writing(folder, "passages-00000.parquet", PASSAGE_SCHEMA) as passages,
    ):
        for block, around in opened.blocks():
            sentences.add(block)
            passages.add(around)
            keys.append(block.select(["text_key", "bag_key"]))
    return sentences, passages, pa.concat_tables(keys)


@contextlib.contextmanager
def _writing(folder: Storage, name: str, schema: pa.Schema) -> Iterator[_Blocks]:
    with folder.writing(name) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield _Blocks(writer)


@dataclass(frozen=True)
class CorpusShare(Stage):
    """Tables of a corpus -> the questions and gold answers of one side: training or held out.

    The text decides the side, so that one text under two ids is on one side. Memory: all questions and gold.
    """

    name: ClassVar[str] = "corpus_share"

    tables: Made
    seed: int
    share: float
    dev: bool

    @property
    def parts(self) -> int:
        return 1

    def open(self, worker: Worker) -> Callable[[int], Part]:
        return lambda number: self.part()

    def part(self) -> Part:
        questions, gold = (read_parquet(self.tables.folder, f"{name}-00000.parquet") for name in ("questions", "gold"))
        keys = question_keys(questions["text"].to_pylist())
        chosen = questions.filter(pa.array((keyed_uniform(self.seed, 0, "corpus dev", keys) < self.share) == self.dev))
        if not chosen.num_rows:
            way = "raise it, or set it to 0" if self.dev else "lower it"
            raise InputError(
                f"corpus.dev_share {self.share:g} of {questions.num_rows:,} questions leaves none to "
                f"{'choose a model by' if self.dev else 'train on'}: {way}, or give more questions"
            )
        gold = gold.filter(pc.is_in(gold["question_id"], value_set=chosen["question_id"].combine_chunks()))
        counts = ShareCounts(chosen.num_rows, gold.num_rows)
        return Part(pa.table({"questions": [chosen.num_rows]}), {"questions": chosen, "gold": gold}, counts, ROW_GROUP)


@dataclass(frozen=True)
class ShareCounts:
    """Counts of one side of a corpus."""

    questions: int
    gold: int


def question_keys(texts: list[str]) -> np.ndarray:
    """Keys that are equal for questions of equal normalised text."""
    return np.array([duplicate_keys(text)[0] for text in texts], np.int64)


@dataclass(frozen=True)
class Sentences(Stage):
    """All sentences and passages of a corpus -> a memory-mapped table of them. Memory: about 100 bytes a sentence.

    Identified by its sentences, so that corpora with the same sentences share the table and its indexes.
    """

    name: ClassVar[str] = "sentences"
    version: ClassVar[int] = VERSION

    sentences: str  # digests
    passages: str
    tables: Made = field(metadata=ASIDE)

    @property
    def parts(self) -> int:
        return 1

    def open(self, worker: Worker) -> Callable[[int], int]:
        return lambda number: number

    def store(self, made: int, number: int, folder: Storage) -> Part:
        def build(target: Path) -> None:
            build_sentence_table(target, self._batches("sentences"), self._batches("passages"))

        build_into(folder, "table", build)
        return Part(pa.table({"sentences": [len(open_sentences(folder))]}))

    def _batches(self, name: str) -> Iterator[pa.Table]:
        with self.tables.folder.open_input(f"{name}-00000.parquet") as file:
            for batch in pq.ParquetFile(file).iter_batches():
                yield pa.Table.from_batches([batch])


@lru_cache(maxsize=4)
def open_sentences(folder: Storage) -> SentenceTable:
    """The sentence table of a stage's folder."""
    return SentenceTable(folder.local_copy("") / "table")


def build_into(folder: Storage, name: str, build: Callable[[Path], Any]) -> None:
    """Let `build` write a folder into a stage's folder: in place on a disk, else in a scratch folder, then uploaded."""
    if folder.is_local:
        build(Path(folder.path(name)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch) / name)
        folder.upload(Path(scratch) / name, name)


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk: its tables, its sentences by number, and its questions in blocks."""

    name: str
    tables: Made
    sentences: Made
    num_questions: int
    num_sentences: int
    num_gold: int
    block_questions: int
    dev: Corpus | None = None  # of the questions for model selection
    judged: Made | None = None  # gold with accepted pairs, and rejected pairs (judged.py)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_questions // self.block_questions)

    def questions(self, number: int) -> pa.Table:
        """A block of questions; the table is sorted by id."""
        first = number * self.block_questions
        last = min(first + self.block_questions, self.num_questions)
        return read_rows(self.tables.folder, "questions-00000.parquet", first, last)

    def gold(self, questions: pa.Table) -> pa.Table:
        """The gold answers of a block of questions."""
        return self._between("gold", questions)

    def wrong(self, questions: pa.Table) -> pa.Table:
        """The pairs of a block of questions that somebody judged wrong."""
        return self._between("wrong", questions) if self.judged else GOLD_SCHEMA.empty_table()

    def _between(self, name: str, questions: pa.Table) -> pa.Table:
        ids = questions["question_id"]
        return read_between(self._holding(name), f"{name}-00000.parquet", "question_id", ids[0].as_py(), ids[-1].as_py())

    def _holding(self, name: str) -> Storage:
        return self.judged.folder if self.judged and name != "questions" else self.tables.folder

    def read(self, name: str) -> pa.Table:
        """A whole table: questions or gold, never sentences."""
        return read_parquet(self._holding(name), f"{name}-00000.parquet")

    def batches(self, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same in batches."""
        return batches(self._holding(name), f"{name}-00000.parquet", columns)

    def sentence_table(self) -> SentenceTable:
        return open_sentences(self.sentences.folder)


def batches(folder: Storage, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A Parquet file in batches."""
    with folder.open_input(name) as file:
        yield from pq.ParquetFile(file).iter_batches(columns=columns)


@dataclass(frozen=True)
class DevQuestions:
    """The held-out questions of a corpus, in the form that training reads."""

    corpus: Corpus
    seed: int  # for sampling questions and sentences, if only a part is used

    @property
    def rows(self) -> int:
        return self.corpus.num_questions

    @property
    def identity(self) -> dict[str, Any]:
        return {"questions": self.corpus.tables.fingerprint, "sentences": self.corpus.sentences.fingerprint, "seed": self.seed}


@dataclass(frozen=True)
class BlockStage(Stage):
    """A stage with one part for each block of questions of a corpus."""

    reads_gold: ClassVar[bool] = True  # false: made of the questions alone, so judgements do not matter

    corpus: Corpus

    @property
    def parts(self) -> int:
        return self.corpus.num_blocks

    @property
    def identity(self) -> dict[str, Any]:
        corpus = {"set": self.corpus.tables.fingerprint, "block": self.corpus.block_questions}
        if self.corpus.judged and self.reads_gold:
            corpus["judged"] = self.corpus.judged.fingerprint
        return {key: value for key, value in super().identity.items() if key != "corpus"} | corpus


def paragraphs(table: SentenceTable, rows: np.ndarray) -> list[str]:
    """The passage of each sentence, empty where it has none."""
    return [text or "" for text in table.passage_texts(rows).to_pylist()]


@dataclass(frozen=True)
class QuestionKeys(BlockStage):
    """Questions -> hashes of their normalised texts."""

    name: ClassVar[str] = "question_keys"
    reads_gold: ClassVar[bool] = False

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            keys = question_keys(self.corpus.questions(number)["text"].to_pylist())
            return Part(pa.table({"question": keys, "passage": pa.nulls(len(keys), pa.int64())}))

        return make
