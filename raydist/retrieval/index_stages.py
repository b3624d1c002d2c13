"""Indexes of a corpus and their hits: sentences -> BM25 or vectors -> hits.

The indexes grow with the corpus and are mapped; the hits grow with the questions, one file per block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.cores import use_cores
from raydist.files.stage import ASIDE, Line, Made, Part, Stage, Worker
from raydist.files.storage import Storage
from raydist.models.folders import tower_folder
from raydist.models.located import Model
from raydist.records import HIT_SCHEMA
from raydist.retrieval import bm25, dense
from raydist.retrieval.bm25 import Formula, WordRules
from raydist.retrieval.candidates import hit_table, ranked_lists
from raydist.retrieval.corpus_stages import VERSION, BlockStage, build_into, open_sentences
from raydist.retrieval.dense import FAISS_FILE, DenseIndex, DenseSearch, DenseSettings
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.fusion import Fusion

# --- encoders --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderModel:
    """A model that makes vectors, and its settings."""

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
        """An index's record of the encoder that made its vectors."""
        return {"where": self.model.location.plain(), **self.known_by}

    def open(self, text: str, threads: int) -> TextEncoder:
        """Its tower for a "question" or an "answer"."""

        use_cores(threads, keep_all=False)
        return TextEncoder(
            tower_folder(self.model.folder(), {"question": "query", "answer": "answer"}[text]),
            pooling=self.pooling,
            prefix=self.prefixes[text],
            max_length=self.lengths[text],
            precision=self.precision,
        )

    def units(self) -> int:
        """The dimension of its vectors, without reading the weights."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(tower_folder(self.model.folder(), "answer")).hidden_size


# --- indexes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexStage(Stage):
    """Rows of a sentence table -> one shard of an index per part; statistics over all shards come last."""

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
        (local / "index.json").unlink(missing_ok=True)  # left by an attempt that was cut off before the manifest
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
    """A BM25 index, in shards that share the statistics of the whole."""

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

        rules = WordRules(self.min_chars, frozenset(self.stop_words), self.stemmer)
        table, rows = open_sentences(self.sentences.folder), self.shard(number)
        ids, texts = table.ids(rows).to_pylist(), table.texts(rows).to_pylist()
        build_into(folder, shard_name(number), lambda target: bm25.build_shard(target, ids, texts, rules))
        return Part(pa.table({"rows": [len(rows)]}))

    def publish(self, folder: Path, shards: list[str]) -> None:

        bm25.publish_index(folder, shards)


@dataclass(frozen=True)
class Vectors(IndexStage):
    """A dense index: the vectors of all sentences."""

    name: ClassVar[str] = "vectors"
    uses_model: ClassVar[bool] = True

    encoder: EncoderModel
    settings: Mapping[str, Any]  # fields of DenseSettings that its kind uses

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

        rows, settings = self.shard(number), DenseSettings(**self.settings)
        ids = open_sentences(self.sentences.folder).ids(rows).to_pylist()
        build_into(folder, shard_name(number), lambda target: dense.build_shard(target, ids, vectors, settings))
        return Part(pa.table({"rows": [len(rows)]}))

    def publish(self, folder: Path, shards: list[str]) -> None:

        dense.publish_index(folder, shards, self.encoder.facts)


def open_tower(encoder: EncoderModel, text: str, threads: int) -> TextEncoder:
    return encoder.open(text, threads)


# --- hits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bm25Hits(BlockStage):
    """Questions -> the k best sentences for each by BM25, over all shards."""

    name: ClassVar[str] = "bm25_hits"
    reads_gold: ClassVar[bool] = False
    version: ClassVar[int] = VERSION

    index: Made
    formula: Formula
    k: int
    deeper: Made | None = field(default=None, metadata=ASIDE)  # hits of a deeper search, reused in place of this one

    @property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"formula": asdict(self.formula)}

    def open(self, worker: Worker) -> Callable[[int], Part]:

        if self.deeper:
            return lambda number: Part(top_hits(self.deeper, number, self.k))
        index = bm25.Index.open(self.index.folder.local_copy(""), formula=self.formula)

        def make(number: int) -> Part:
            questions = self.corpus.questions(number)
            hits = index.search(questions["text"].to_pylist(), self.k, threads=worker.threads)
            return Part(hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids))

        return make


@dataclass(frozen=True)
class DenseHits(BlockStage):
    """Questions -> the k best sentences for each by a dense index, over all shards."""

    name: ClassVar[str] = "dense_hits"
    reads_gold: ClassVar[bool] = False
    version: ClassVar[int] = VERSION
    uses_model: ClassVar[bool] = True

    index: Made
    encoder: EncoderModel = field(metadata=ASIDE)  # part of the index's fingerprint
    search: Mapping[str, Any]  # fields of DenseSearch that the index's kind uses
    k: int
    deeper: Made | None = field(default=None, metadata=ASIDE)

    def read(self, number: int) -> pa.Table:
        return top_hits(self.deeper, number, self.k) if self.deeper else self.corpus.questions(number)

    def open(self, worker: Worker) -> Callable[[pa.Table], Part]:

        if self.deeper:
            return Part
        tower = worker.keep(open_tower, self.encoder, "question", worker.threads)
        index = DenseIndex.open(self.index.folder.local_copy(""), search=DenseSearch(**self.search))

        def make(questions: pa.Table) -> Part:
            hits = index.search(tower.encode(questions["text"].to_pylist()), self.k)
            return Part(hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids))

        return make


@dataclass(frozen=True)
class FusedHits(BlockStage):
    """Hits of BM25 and of vectors -> one list for each question."""

    name: ClassVar[str] = "fused_hits"
    reads_gold: ClassVar[bool] = False

    bm25: Made
    dense: Made
    fusion: Fusion
    k: int

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            asked = self.corpus.questions(number)["question_id"].to_pylist()
            by_words, by_vectors = (ranked_lists(hits.table(number)) for hits in (self.bm25, self.dense))
            lists = {id: self.fusion.fuse(by_words.get(id, []), by_vectors.get(id, []))[: self.k] for id in asked}
            rows = [
                dict(zip(HIT_SCHEMA.names, (id, sentence, rank, score)))
                for id, hits in lists.items()
                for rank, (sentence, score) in enumerate(hits, 1)
            ]
            return Part(pa.Table.from_pylist(rows, HIT_SCHEMA))

        return make


@dataclass(frozen=True)
class TopHits(BlockStage):
    """Hits -> the first `depth` of each question."""

    name: ClassVar[str] = "top_hits"
    reads_gold: ClassVar[bool] = False
    version: ClassVar[int] = VERSION

    hits: Made
    depth: int

    def open(self, worker: Worker) -> Callable[[int], Part]:
        return lambda number: Part(top_hits(self.hits, number, self.depth))


def top_hits(hits: Made | None, number: int, depth: int) -> pa.Table:
    """The first `depth` hits of each question of a block, from deeper lists."""
    assert hits is not None
    table = hits.table(number)
    return table.filter(pc.less_equal(table["rank"], depth))
