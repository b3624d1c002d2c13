"""From hits to silver pairs: labelled pairs, candidates, scores, selection (docs/methods.md 5.2 to 5.5).

Every stage has one part, and so one file, for each block of questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.cores import use_cores
from raydist.files.stage import LATER, Made, Part, Worker
from raydist.models.located import Model
from raydist.records import SCORED_SCHEMA
from raydist.retrieval.candidates import find_candidates
from raydist.retrieval.corpus_stages import VERSION, BlockStage, paragraphs
from raydist.retrieval.cross_encoder import sigmoid
from raydist.retrieval.dense import DenseIndex
from raydist.retrieval.index_stages import EncoderModel, open_tower
from raydist.retrieval.negatives import draw_negatives
from raydist.retrieval.positives import repeated_positives
from raydist.retrieval.scoring import CrossScorer
from raydist.retrieval.silver import select_silver

# --- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledPairs(BlockStage):
    """Questions and their hits -> training pairs of the cross-encoder: gold, and negatives of three sources."""

    name: ClassVar[str] = "labelled_pairs"
    version: ClassVar[int] = 5

    bm25: Made
    dense: Made
    seed: int
    negatives_per_source: int
    dev_share: float

    def open(self, worker: Worker) -> Callable[[int], Part]:
        repeated = repeated_positives(self.corpus, None)

        def make(number: int) -> Part:
            questions = self.corpus.questions(number)
            pairs = draw_negatives(
                questions,
                self.corpus.gold(questions),
                self.bm25.table(number),
                self.dense.table(number),
                self.corpus.sentence_table(),
                seed=self.seed,
                negatives_per_source=self.negatives_per_source,
                dev_share=self.dev_share,
                known=repeated.of(questions),
                wrong=self.corpus.wrong(questions),
            )
            return Part(pairs)

        return make


@dataclass(frozen=True)
class Candidates(BlockStage):
    """Questions and their hits -> candidates for the cross-encoder: both lists merged, gold left out."""

    name: ClassVar[str] = "candidates"
    version: ClassVar[int] = 5

    bm25: Made
    dense: Made
    top: int
    same_doc: int
    seed: int

    def open(self, worker: Worker) -> Callable[[int], Part]:
        repeated = repeated_positives(self.corpus, None)

        def make(number: int) -> Part:
            questions = self.corpus.questions(number)
            pairs = find_candidates(
                questions,
                self.corpus.gold(questions),
                self.bm25.table(number),
                self.dense.table(number),
                self.corpus.sentence_table(),
                top=self.top,
                same_doc=self.same_doc,
                seed=self.seed,
                known=repeated.of(questions),
            )
            return Part(pairs)

        return make


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossEncoderModel:
    """A model that scores pairs, and its settings."""

    model: Model
    max_question_length: int
    max_length: int
    token_budget: int | None
    precision: str
    context: bool = field(default=False, metadata=LATER)  # it reads the sentence's paragraph, too


class PairTexts(NamedTuple):
    """Pairs of a block with their texts, each text once."""

    pairs: pa.Table
    questions: list[str]
    sentences: list[str]
    question_of: np.ndarray
    sentence_of: np.ndarray
    contexts: list[str] | None


@dataclass(frozen=True)
class PairScores(BlockStage):
    """Pairs of a block -> the cross-encoder's logits."""

    version: ClassVar[int] = VERSION
    uses_model: ClassVar[bool] = True

    cross_encoder: CrossEncoderModel

    def pairs_of(self, number: int, questions: pa.Table) -> pa.Table:
        """The pairs of a block to score."""
        raise NotImplementedError

    def read(self, number: int) -> PairTexts:
        questions, table = self.corpus.questions(number), self.corpus.sentence_table()
        pairs = self.pairs_of(number, questions)
        question_of = pc.index_in(pairs["question_id"], value_set=questions["question_id"].combine_chunks()).to_numpy()
        rows, sentence_of = np.unique(table.rows_of(pairs["sentence_id"], "the candidate"), return_inverse=True)
        contexts = paragraphs(table, rows) if self.cross_encoder.context else None
        texts = table.texts(rows).to_pylist()
        return PairTexts(pairs, questions["text"].to_pylist(), texts, question_of, sentence_of, contexts)

    def open(self, worker: Worker) -> Callable[[PairTexts], Part]:
        score = worker.keep(open_cross_encoder, self.cross_encoder, worker.threads)

        def make(read: PairTexts) -> Part:
            pairs, *texts = read
            return Part(self.scored(pairs, score(*texts)))

        return make

    def scored(self, pairs: pa.Table, logits: np.ndarray) -> pa.Table:
        """The pairs with their logits, which is all that a ranking needs."""
        return pairs.append_column("logit", pa.array(logits, pa.float32()))


def open_cross_encoder(used: CrossEncoderModel, threads: int) -> Callable[..., np.ndarray]:
    """The model's `CrossScorer.score`."""

    use_cores(threads, keep_all=False)
    return CrossScorer(
        used.model.folder(),
        max_question_length=used.max_question_length,
        max_length=used.max_length,
        token_budget=used.token_budget,
        precision=used.precision,
    ).score


@dataclass(frozen=True)
class CandidateScores(PairScores):
    """Candidates -> scores, stored so that threshold, power and calibration can change without a model call."""

    name: ClassVar[str] = "scores"

    candidates: Made

    def pairs_of(self, number: int, questions: pa.Table) -> pa.Table:
        return self.candidates.table(number)

    def scored(self, pairs: pa.Table, logits: np.ndarray) -> pa.Table:
        scored = super().scored(pairs, logits)
        scored = scored.append_column("p", pa.array(sigmoid(logits), pa.float32()))
        digest = self.cross_encoder.model.digest
        scored = scored.append_column("cross_encoder", pa.array([digest] * len(logits), pa.string()))
        return scored.select(SCORED_SCHEMA.names).cast(SCORED_SCHEMA)


@dataclass(frozen=True)
class HeldOutScores(PairScores):
    """Held-out labelled pairs -> scores, for judging the cross-encoder."""

    name: ClassVar[str] = "held_out_scores"

    labelled: Made

    def pairs_of(self, number: int, questions: pa.Table) -> pa.Table:
        return held_out(self.labelled, number)


@dataclass(frozen=True)
class GoldScores(PairScores):
    """Gold pairs -> scores, for losses that distil the cross-encoder."""

    name: ClassVar[str] = "gold_scores"

    def pairs_of(self, number: int, questions: pa.Table) -> pa.Table:
        return self.corpus.gold(questions)


@dataclass(frozen=True)
class RerankScores(PairScores):
    """Hits -> scores, for reranking."""

    name: ClassVar[str] = "rerank_scores"

    hits: Made

    def pairs_of(self, number: int, questions: pa.Table) -> pa.Table:
        return self.hits.table(number)


@dataclass(frozen=True)
class HeldOutCosines(BlockStage):
    """Held-out pairs -> cosines of both vectors, by the encoder of a dense index that holds all sentences."""

    name: ClassVar[str] = "held_out_cosines"
    version: ClassVar[int] = VERSION
    uses_model: ClassVar[bool] = True

    labelled: Made
    index: Made
    encoder: EncoderModel

    def open(self, worker: Worker) -> Callable[[int], Part]:
        tower = worker.keep(open_tower, self.encoder, "question", worker.threads)
        index = DenseIndex.open(self.index.folder.local_copy(""))

        def make(number: int) -> Part:
            pairs, questions = held_out(self.labelled, number), self.corpus.questions(number)
            asked = pc.unique(pairs["question_id"])
            texts = questions["text"].take(pc.index_in(asked, value_set=questions["question_id"].combine_chunks()))
            rows = self.corpus.sentence_table().rows_of(pairs["sentence_id"], "the pair's sentence")
            cosines = np.zeros(0, np.float32)
            if len(rows):
                question_of = pc.index_in(pairs["question_id"], value_set=asked).to_numpy()
                cosines = index.products(tower.encode(texts.to_pylist())[question_of], rows)
            return Part(pairs.select(["label"]).append_column("cosine", pa.array(cosines, pa.float32())))

        return make


def held_out(labelled: Made, number: int) -> pa.Table:
    """The labelled pairs of a block that are held out from training."""
    pairs = labelled.table(number)
    return pairs.filter(pairs["is_dev"])


# --- silver pairs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Silver(BlockStage):
    """Scored candidates -> all of them with their weights, kept or with the reason why not. Calls no model."""

    name: ClassVar[str] = "silver"
    version: ClassVar[int] = 4

    scores: Made
    threshold: float
    power: float
    weighting: Any  # silver.Weighting
    temperature: float | None
    shift: float = field(default=0.0, metadata=LATER)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            selected = select_silver(
                self.scores.table(number),
                sentences=self.corpus.sentence_table(),
                wrong=self.corpus.wrong(self.corpus.questions(number)),
                threshold=self.threshold,
                power=self.power,
                weighting=self.weighting,
                temperature=self.temperature,
                shift=self.shift,
            )
            return Part(selected)

        return make
