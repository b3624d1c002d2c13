"""All answers to a question text under any of its ids: a question may be asked twice, with different gold answers.

An answer to the text under any id is never its negative: not of the cross-encoder, not a mined one, not a column of a
batch; nor is it a candidate, since it is already known.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.files.stage import Made
from raydist.retrieval.candidates import of_questions
from raydist.retrieval.corpus_stages import Corpus, batches, question_keys


class Positives(NamedTuple):
    """Sorted (question key, bag key) pairs: the answers of questions whose text has several ids."""

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

    def of(self, questions: pa.Table) -> dict[str, list[int]]:
        """The bags that answer each of these questions under any id; only for texts with several ids."""
        if not len(self.questions):
            return {}
        keys = question_keys(questions["text"].to_pylist()).tolist()
        first, last = (np.searchsorted(self.questions, keys, side) for side in ("left", "right"))
        spans = zip(questions["question_id"].to_pylist(), first.tolist(), last.tolist())
        return {id: self.bags[start:end].tolist() for id, start, end in spans if end > start}


@lru_cache(maxsize=1)
def repeated_positives(corpus: Corpus, silver: Made | None) -> Positives:
    """All gold and kept silver pairs of questions whose text has several ids.

    Thus a row's mask does not depend on the blocks of the other ids. Memory: 8 bytes per question, and for the repeated ones
    their ids and 16 bytes per pair; the tables are read in batches.
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
    """Ids and keys of the questions whose text has several ids."""
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
