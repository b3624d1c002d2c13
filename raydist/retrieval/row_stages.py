"""From pairs to training rows: tokens of labelled pairs, and of gold and silver pairs (docs/methods.md 5.3, 5.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.sentence_table import SentenceTable
from raydist.draws import text_hashes
from raydist.files.stage import LATER, Made, Part, Worker
from raydist.models.folders import tower_folder
from raydist.models.located import Model
from raydist.records import SILVER_SCHEMA
from raydist.retrieval.corpus_stages import VERSION, BlockStage, paragraphs
from raydist.retrieval.positives import Positives, repeated_positives
from raydist.retrieval.rows import Negative, tokenize_cross_pairs, tokenize_pairs
from raydist.retrieval.silver import training_pairs, with_texts


@dataclass(frozen=True)
class CrossTrainingRows(BlockStage):
    """Labelled pairs -> tokens for the cross-encoder: of the questions for training, or of those held out."""

    name: ClassVar[str] = "cross_rows"
    version: ClassVar[int] = VERSION
    kind: ClassVar[str] = "arrow"

    labelled: Made
    tokenizer: Model
    max_question_length: int
    max_length: int
    dev: bool
    context: bool = field(default=False, metadata=LATER)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.tokenizer.folder())

        def make(number: int) -> Part:
            pairs, table = self.labelled.table(number), self.corpus.sentence_table()
            pairs = pairs.filter(pc.equal(pairs["is_dev"], self.dev))
            pairs = with_texts(pairs, self.corpus.questions(number), table)
            rows = table.rows_of(pairs["sentence_id"], "the sentence")
            tokens = tokenize_cross_pairs(
                tokenizer,
                pairs["question"].to_pylist(),
                pairs["sentence"].to_pylist(),
                contexts=paragraphs(table, rows) if self.context else None,
                labels=pairs["label"].to_pylist(),
                question_keys=text_hashes(pairs["question_id"].to_pylist()).tolist(),
                sentence_keys=text_hashes(pairs["sentence_id"].to_pylist()).tolist(),
                max_question_length=self.max_question_length,
                max_length=self.max_length,
            )
            return Part(tokens)

        return make


@dataclass(frozen=True)
class PairCounts:
    """Row counts of a block."""

    gold: int
    silver: int


@dataclass(frozen=True)
class DualTrainingRows(BlockStage):
    """Gold and silver pairs -> tokens for the dual encoder.

    `weighting`: "gold" (no silver pair), "none" (silver pairs of weight 1), "silver" (their own weights).
    """

    name: ClassVar[str] = "pair_rows"
    version: ClassVar[int] = 6
    kind: ClassVar[str] = "arrow"

    tokenizer: Model
    context: bool  # answers come with their paragraphs
    max_question_length: int
    max_answer_length: int
    question_prefix: str
    answer_prefix: str
    weighting: str
    hard_negatives: int
    negative_p: float
    silver: Made | None
    gold_scores: Made | None

    def open(self, worker: Worker) -> Callable[[int], Part]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tower_folder(self.tokenizer.folder(), "query"))
        repeated = repeated_positives(self.corpus, self.silver if self.weighting != "gold" else None)

        def make(number: int) -> Part:
            questions, table = self.corpus.questions(number), self.corpus.sentence_table()
            pairs = self._pairs(number, questions, table, repeated)
            asked = [duplicate_keys(text)[0] for text in pairs["question"].to_pylist()]  # one text may have two ids
            rows = table.rows_of(pairs["sentence_id"], "the sentence")
            bags = table.bag_keys[rows].tolist()
            positives = repeated.join(asked, bags)
            tokens = tokenize_pairs(
                tokenizer,
                [self.question_prefix + text for text in pairs["question"].to_pylist()],
                [self.answer_prefix + text for text in pairs["sentence"].to_pylist()],
                contexts=paragraphs(table, rows) if self.context else None,
                weights=pairs["weight"].to_pylist() if self.weighting == "silver" else [1.0] * pairs.num_rows,
                question_keys=asked,
                bag_keys=bags,
                positives=[sorted(positives[question]) for question in asked],
                negatives=self._negatives(pairs, table),
                logits=pairs["logit"].to_pylist(),
                max_question_length=self.max_question_length,
                max_answer_length=self.max_answer_length,
            )
            gold = int(pc.sum(pairs["is_gold"]).as_py() or 0)
            return Part(tokens, counts=PairCounts(gold, pairs.num_rows - gold))

        return make

    def _pairs(self, number: int, questions: pa.Table, table: SentenceTable, repeated: Positives) -> pa.Table:
        pairs = training_pairs(
            self.corpus.gold(questions),
            self.silver.table(number) if self.silver else SILVER_SCHEMA.empty_table(),
            table,
            hard_negatives=self.hard_negatives,
            negative_p=self.negative_p,
            gold_scored=self.gold_scores.table(number) if self.gold_scores else None,
            known=repeated.of(questions) if self.hard_negatives or self.corpus.judged else {},
            wrong=self.corpus.wrong(questions),
        )
        if self.weighting == "gold":
            pairs = pairs.filter(pairs["is_gold"])
        return with_texts(pairs, questions, table)

    def _negatives(self, pairs: pa.Table, table: SentenceTable) -> list[list]:

        def of_pair(ids: list[str], logits: list[float]) -> list[Negative]:
            rows = table.rows_of(ids, "the negative")
            contexts = paragraphs(table, rows) if self.context else [""] * len(rows)
            texts, bags = table.texts(rows).to_pylist(), table.bag_keys[rows].tolist()
            return [
                Negative(self.answer_prefix + text, bag, context, logit)
                for text, bag, context, logit in zip(texts, bags, contexts, logits)
            ]

        return [of_pair(*mined) for mined in zip(pairs["negatives"].to_pylist(), pairs["negative_logits"].to_pylist())]
