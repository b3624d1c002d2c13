"""From files to ranked lists: files -> tables of a corpus -> sentences -> indexes -> hits.

A block is `mining.part_questions` questions: the unit of work of every stage over questions. What a block holds depends on the
questions alone, so results do not depend on workers or nodes (the last bits of a model that is not packed, see models/packed.py,
do on the threads of an actor, which `cluster.threads_per_worker` fixes). What grows with the corpus: the sentence table and the
indexes, all mapped; with the questions: one file of hits per block.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.corpus.duplicates import count_duplicates
from raydist.corpus.formats import open_corpus
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.draws import draw_questions
from raydist.errors import InputError
from raydist.files.stage import ASIDE, LATER, Line, Made, Part, Stage, Worker
from raydist.files.storage import Place, Storage, read_between, read_parquet, read_rows
from raydist.models.loading import tower_folder
from raydist.models.located import Model
from raydist.records import name_rejected, rejected_table
from raydist.retrieval.bm25 import Formula, WordRules
from raydist.retrieval.candidates import hit_table
from raydist.retrieval.dense import FAISS_FILE, DenseSearch, DenseSettings

if TYPE_CHECKING:
    from raydist.retrieval.encode import TextEncoder

VERSION = 4  # of all stages here; raise when an output changes
ROW_GROUP = 4096  # rows of a corpus table; a block reads the groups that hold its questions, and no others


# --- a corpus --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus as its tables are known by it."""

    name: str
    digest: str
    language: str | None = field(default=None, metadata=LATER)  # where sentences are split by it


@dataclass(frozen=True)
class CorpusCounts:
    """What was read of a corpus, and what it is known by."""

    rows: int  # sentences
    questions: int
    questions_read: int  # before some were chosen
    gold: int
    passages: int
    rejected: int
    notes: Mapping[str, int]
    duplicates: Mapping[str, int]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class CorpusTables(Stage):
    """Files -> sentences and passages, written as they are read; questions, gold answers and rejected rows.

    Memory: a block of rows, about 50 bytes for each sentence, and all of the questions and gold.
    """

    name: ClassVar[str] = "retrieval_set"
    version: ClassVar[int] = VERSION

    format: str
    split: str
    columns: Mapping[str, Any]
    questions: int | None  # a seeded choice of this many
    seed: int
    files: tuple[CorpusFile, ...]
    places: tuple[Place, ...] = field(metadata=ASIDE)
    boundaries: Place | None = field(metadata=ASIDE)

    @property
    def parts(self) -> int:
        return 1

    def open(self, worker: Worker) -> Callable[[int], OpenSet | RetrievalSet]:
        return lambda number: self.open_set()

    def open_set(self) -> OpenSet | RetrievalSet:
        """The corpus by its format; what may be large is read while it is iterated over."""
        return open_corpus(
            self.format,
            [place.fetch() for place in self.places],
            split=self.split,
            columns=self.columns,
            boundaries=self.boundaries.fetch() if self.boundaries else None,
        )

    def store(self, opened: OpenSet | RetrievalSet, number: int, folder: Storage) -> Part:
        sentences, passages, keys = _write_sentences(opened, folder)
        questions, gold = opened.questions_and_gold()
        read = questions.num_rows
        questions, gold = self._chosen(questions, gold)
        if not questions.num_rows and self.format != "documents":
            names = ", ".join(place.name for place in self.places)
            raise InputError(
                f"{names or 'sample:'}: no question has a gold sentence in the corpus; wanted gold whose ids are those of "
                f"questions and sentences{name_rejected(opened.rejected)}"
            )
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
    """A table that is written block by block: its rows so far, and a digest of them."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer, self.rows, self.digest = writer, 0, hashlib.blake2b(digest_size=16)

    def add(self, block: pa.Table) -> None:
        for batch in block.combine_chunks().to_batches():
            if batch.num_rows:
                self.writer.write_batch(batch)
                self.digest.update(batch.serialize())
                self.rows += batch.num_rows


def _write_sentences(opened: OpenSet | RetrievalSet, folder: Storage) -> tuple[_Blocks, _Blocks, pa.Table]:
    """Write sentences and passages; return what was written, and the duplicate keys of all sentences."""
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
class Sentences(Stage):
    """All sentences and passages of a corpus -> a memory-mapped table of them. Memory: about 100 bytes a sentence.

    Known by what the sentences are, so that corpora with the same ones share the table and its indexes.
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
    """Let `build` write a folder into a stage's folder: in place on a disk, else beside and then sent there."""
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

    @property
    def num_blocks(self) -> int:
        return -(-self.num_questions // self.block_questions)

    def questions(self, number: int) -> pa.Table:
        """A block of questions; the table is in the order of their ids."""
        first = number * self.block_questions
        last = min(first + self.block_questions, self.num_questions)
        return read_rows(self.tables.folder, "questions-00000.parquet", first, last)

    def gold(self, questions: pa.Table) -> pa.Table:
        """The gold answers of a block of questions."""
        ids = questions["question_id"]
        return read_between(self.tables.folder, "gold-00000.parquet", "question_id", ids[0].as_py(), ids[-1].as_py())

    def read(self, name: str) -> pa.Table:
        """A whole table: questions or gold, never sentences."""
        return read_parquet(self.tables.folder, f"{name}-00000.parquet")

    def batches(self, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same in pieces."""
        return batches(self.tables.folder, f"{name}-00000.parquet", columns)

    def sentence_table(self) -> SentenceTable:
        return open_sentences(self.sentences.folder)


def batches(folder: Storage, name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """A Parquet file in pieces."""
    with folder.open_input(name) as file:
        yield from pq.ParquetFile(file).iter_batches(columns=columns)


@dataclass(frozen=True)
class BlockStage(Stage):
    """A stage with one part for each block of questions of a corpus."""

    corpus: Corpus

    @property
    def parts(self) -> int:
        return self.corpus.num_blocks

    @property
    def identity(self) -> dict[str, Any]:
        corpus = {"set": self.corpus.tables.fingerprint, "block": self.corpus.block_questions}
        return {key: value for key, value in super().identity.items() if key != "corpus"} | corpus


# --- encoders --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    """A model that makes vectors, and how it is used."""

    model: Model
    pooling: str
    context: bool  # an answer is encoded with its paragraph
    lengths: Mapping[str, int]  # of questions and answers, in tokens
    prefixes: Mapping[str, str]  # of questions and answers
    precision: str

    @property
    def known_by(self) -> dict[str, Any]:
        facts = {"model": self.model.digest, "pooling": self.pooling, "context": self.context, "lengths": dict(self.lengths)}
        facts |= {"prefixes": dict(self.prefixes)} if any(self.prefixes.values()) else {}
        return facts | ({"precision": self.precision} if self.precision != "fp32" else {})

    @property
    def facts(self) -> dict[str, Any]:
        """What an index says of the encoder that made its vectors."""
        return {"where": self.model.location.plain(), **self.known_by}

    def open(self, text: str, threads: int) -> TextEncoder:
        """Its tower for a "question" or an "answer"."""
        from raydist.cores import use_cores
        from raydist.retrieval.encode import TextEncoder

        use_cores(threads, keep_all=False)
        return TextEncoder(
            tower_folder(self.model.folder(), {"question": "query", "answer": "answer"}[text]),
            pooling=self.pooling,
            prefix=self.prefixes[text],
            max_length=self.lengths[text],
            precision=self.precision,
        )

    def units(self) -> int:
        """How long its vectors are; the weights are not read."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(tower_folder(self.model.folder(), "answer")).hidden_size


# --- indexes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexStage(Stage):
    """Some rows of a sentence table for each part -> a shard of an index; statistics over all of them come last."""

    version: ClassVar[int] = VERSION

    sentences: Made
    shard_rows: int
    rows: int = field(metadata=ASIDE)  # of the table

    @property
    def parts(self) -> int:
        return -(-self.rows // self.shard_rows)

    def publish(self, folder: Path, shards: list[str]) -> None:
        """Put the shards in force."""
        raise NotImplementedError

    def finish(self, folder: Storage, lines: list[Line]) -> list[Line]:
        local = folder.local_copy("")
        (local / "index.json").unlink(missing_ok=True)  # of an attempt that was cut off before the manifest
        before = {file: file.stat().st_mtime_ns for file in local.rglob("*") if file.is_file()}
        self.publish(local, [shard_name(number) for number in range(self.parts)])
        if not folder.is_local:
            for file in sorted(local.rglob("*"), key=lambda file: (file.name == "index.json", file)):
                if file.is_file() and before.get(file) != file.stat().st_mtime_ns:
                    folder.write_bytes(file.relative_to(local).as_posix(), file.read_bytes())
        return lines

    def shard(self, number: int) -> np.ndarray:
        """The rows of a part."""
        return np.arange(number * self.shard_rows, min((number + 1) * self.shard_rows, self.rows))


def shard_name(number: int) -> str:
    return f"shard-{number:05d}"


@dataclass(frozen=True)
class Bm25Shards(IndexStage):
    """A BM25 index, in shards whose statistics are those of the whole."""

    name: ClassVar[str] = "bm25"

    min_chars: int
    stop_words: tuple[str, ...]
    stemmer: str

    @property
    def identity(self) -> dict[str, Any]:
        names = ("min_chars", "stop_words", "stemmer")
        found = super().identity
        return {key: value for key, value in found.items() if key not in names} | {"rules": {key: found[key] for key in names}}

    def open(self, worker: Worker) -> Callable[[int], int]:
        return lambda number: number

    def store(self, made: int, number: int, folder: Storage) -> Part:
        from raydist.retrieval.bm25 import build_shard

        rules = WordRules(self.min_chars, frozenset(self.stop_words), self.stemmer)
        table, rows = open_sentences(self.sentences.folder), self.shard(number)
        ids, texts = table.ids(rows).to_pylist(), table.texts(rows).to_pylist()
        build_into(folder, shard_name(number), lambda target: build_shard(target, ids, texts, rules))
        return Part(pa.table({"rows": [len(rows)]}))

    def publish(self, folder: Path, shards: list[str]) -> None:
        from raydist.retrieval.bm25 import publish_index

        publish_index(folder, shards)


@dataclass(frozen=True)
class Vectors(IndexStage):
    """A dense index: the vectors of all sentences."""

    name: ClassVar[str] = "vectors"
    uses_model: ClassVar[bool] = True

    encoder: Encoder
    settings: Mapping[str, Any]  # of DenseSettings, those of its kind alone

    @property
    def identity(self) -> dict[str, Any]:
        return super().identity | ({} if self.settings["kind"] == "flat" else {"file": FAISS_FILE})

    def open(self, worker: Worker) -> Callable[[int], np.ndarray]:
        tower = worker.keep(open_tower, self.encoder, "answer", worker.threads)

        def encode(number: int) -> np.ndarray:
            table = open_sentences(self.sentences.folder)
            return tower.encode_sentences(table, self.shard(number), context=self.encoder.context)

        return encode

    def store(self, vectors: np.ndarray, number: int, folder: Storage) -> Part:
        from raydist.retrieval.dense import build_shard

        rows, settings = self.shard(number), DenseSettings(**self.settings)
        ids = open_sentences(self.sentences.folder).ids(rows).to_pylist()
        build_into(folder, shard_name(number), lambda target: build_shard(target, ids, vectors, settings))
        return Part(pa.table({"rows": [len(rows)]}))

    def publish(self, folder: Path, shards: list[str]) -> None:
        from raydist.retrieval.dense import publish_index

        publish_index(folder, shards, self.encoder.facts)


def open_tower(encoder: Encoder, text: str, threads: int) -> TextEncoder:
    return encoder.open(text, threads)


# --- hits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bm25Hits(BlockStage):
    """Questions -> the k best sentences for each by BM25, over all shards."""

    name: ClassVar[str] = "bm25_hits"
    version: ClassVar[int] = VERSION

    index: Made
    formula: Formula
    k: int
    deeper: Made | None = field(default=None, metadata=ASIDE)  # hits of a deeper search, which save this one

    @property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"formula": asdict(self.formula)}

    def open(self, worker: Worker) -> Callable[[int], Part]:
        from raydist.retrieval.bm25 import Index

        if self.deeper:
            return lambda number: Part(top_hits(self.deeper, number, self.k))
        index = Index.open(self.index.folder.local_copy(""), formula=self.formula)

        def make(number: int) -> Part:
            questions = self.corpus.questions(number)
            hits = index.search(questions["text"].to_pylist(), self.k, threads=worker.threads)
            return Part(hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids))

        return make


@dataclass(frozen=True)
class DenseHits(BlockStage):
    """Questions -> the k best sentences for each by a dense index, over all shards."""

    name: ClassVar[str] = "dense_hits"
    version: ClassVar[int] = VERSION
    uses_model: ClassVar[bool] = True

    index: Made
    encoder: Encoder = field(metadata=ASIDE)  # the index is known by it
    search: Mapping[str, Any]  # of DenseSearch, those of the index' kind alone
    k: int
    deeper: Made | None = field(default=None, metadata=ASIDE)

    def read(self, number: int) -> pa.Table:
        return top_hits(self.deeper, number, self.k) if self.deeper else self.corpus.questions(number)

    def open(self, worker: Worker) -> Callable[[pa.Table], Part]:
        from raydist.retrieval.dense import DenseIndex

        if self.deeper:
            return Part
        tower = worker.keep(open_tower, self.encoder, "question", worker.threads)
        index = DenseIndex.open(self.index.folder.local_copy(""), search=DenseSearch(**self.search))

        def make(questions: pa.Table) -> Part:
            hits = index.search(tower.encode(questions["text"].to_pylist()), self.k)
            return Part(hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids))

        return make


@dataclass(frozen=True)
class TopHits(BlockStage):
    """Hits -> the best of each question."""

    name: ClassVar[str] = "top_hits"
    version: ClassVar[int] = VERSION

    hits: Made
    depth: int

    def open(self, worker: Worker) -> Callable[[int], Part]:
        return lambda number: Part(top_hits(self.hits, number, self.depth))


def top_hits(hits: Made | None, number: int, depth: int) -> pa.Table:
    """The best hits of each question of a block, from deeper lists."""
    assert hits is not None
    table = hits.table(number)
    return table.filter(pc.less_equal(table["rank"], depth))
