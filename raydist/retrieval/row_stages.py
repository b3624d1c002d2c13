"""From pairs to rows that training reads: tokens of labelled pairs, and of gold and silver pairs (docs/methods.md 5.3, 5.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.sentence_table import SentenceTable
from raydist.draws import text_hashes
from raydist.files.stage import LATER, Made, Part, Worker
from raydist.models.folders import tower_folder
from raydist.models.located import Model
from raydist.records import SILVER_SCHEMA
from raydist.retrieval.candidates import of_questions
from raydist.retrieval.corpus_stages import VERSION, BlockStage, Corpus, batches, paragraphs, question_keys
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
    """Of the rows of a block."""

    gold: int
    silver: int


@dataclass(frozen=True)
class DualTrainingRows(BlockStage):
    """Gold and silver pairs -> tokens for the dual encoder.

    `weighting`: "gold" (no silver pair), "none" (silver pairs of weight 1), "silver" (of the weight they have).
    """

    name: ClassVar[str] = "pair_rows"
    version: ClassVar[int] = 5
    kind: ClassVar[str] = "arrow"

    tokenizer: Model
    context: bool  # an answer has its paragraph
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
            pairs = self._pairs(number, questions, table)
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

    def _pairs(self, number: int, questions: pa.Table, table: SentenceTable) -> pa.Table:
        pairs = training_pairs(
            self.corpus.gold(questions),
            self.silver.table(number) if self.silver else SILVER_SCHEMA.empty_table(),
            table,
            hard_negatives=self.hard_negatives,
            negative_p=self.negative_p,
            gold_scored=self.gold_scores.table(number) if self.gold_scores else None,
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


# --- positives of questions that are asked twice ---------------------------------------------------------------------


class Positives(NamedTuple):
    """(question key, bag key), in order, of the answers of questions whose text more than one id has."""

    questions: np.ndarray
    bags: np.ndarray

    def join(self, asked: list[int], bags: list[int]) -> dict[int, set[int]]:
        """The bags that answer each question: those of its own pairs, and those of other ids with its text."""
        positives: dict[int, set[int]] = {}
        for question, bag in zip(asked, bags):
            positives.setdefault(question, set()).add(bag)
        for question, known in positives.items():
            first, last = (np.searchsorted(self.questions, question, side) for side in ("left", "right"))
            known.update(self.bags[first:last].tolist())
        return positives


@lru_cache(maxsize=1)
def repeated_positives(corpus: Corpus, silver: Made | None) -> Positives:
    """All gold and kept silver pairs of questions whose text more than one id has.

    So what a row masks does not depend on which block the other ids are in. Memory: 8 bytes for each question, and of the
    repeated ones their ids and 16 bytes for each pair; the tables are read in pieces.
    """
    asked, keys = _repeated_questions(corpus)
    if not len(asked):
        return Positives(np.zeros(0, np.int64), np.zeros(0, np.int64))
    sentences = corpus.sentence_table()
    pairs = [np.zeros((0, 2), np.int64)]
    for batch in _answers(corpus, silver):
        known = of_questions(batch, asked)
        known = known.filter(known["kept"]) if "kept" in known.column_names else known
        place = pc.index_in(known["question_id"].cast(asked.type), value_set=asked).to_numpy()
        bags = sentences.bag_keys[sentences.rows_of(known["sentence_id"], "the sentence")]
        pairs.append(np.stack([keys[place], bags], axis=1))
    positives = np.unique(np.concatenate(pairs), axis=0)
    return Positives(positives[:, 0], positives[:, 1])


def _repeated_questions(corpus: Corpus) -> tuple[pa.Array, np.ndarray]:
    """Ids and keys of the questions whose text more than one id has."""
    texts = corpus.batches("questions", ["text"])
    keys = np.concatenate([*(question_keys(batch["text"].to_pylist()) for batch in texts), np.zeros(0, np.int64)])
    distinct, times = np.unique(keys, return_counts=True)
    repeated = distinct[times > 1]
    ids, keys_of_ids = [pa.array([], pa.string())], [np.zeros(0, np.int64)]
    for batch in corpus.batches("questions", ["question_id", "text"]) if len(repeated) else ():
        keys = question_keys(batch["text"].to_pylist())
        again = np.isin(keys, repeated)
        ids.append(batch["question_id"].filter(pa.array(again)).cast(pa.string()))
        keys_of_ids.append(keys[again])
    return pa.chunked_array(ids).combine_chunks(), np.concatenate(keys_of_ids)


def _answers(corpus: Corpus, silver: Made | None) -> Iterator[pa.Table]:
    for batch in corpus.batches("gold"):
        yield pa.Table.from_batches([batch])
    if silver is None:
        return
    for line in silver.manifest.parts:
        for batch in batches(silver.folder, line.name, ["question_id", "sentence_id", "kept"]):
            yield pa.Table.from_batches([batch])
