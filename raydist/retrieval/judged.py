"""Judgements as pairs of a corpus: what was accepted is gold, what was rejected is a negative and no silver pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.schemas import GOLD_SCHEMA
from raydist.corpus.sentence_table import SentenceTable
from raydist.corpus.sentences import split_sentences
from raydist.files.stage import ASIDE, Made, Part, Stage, Worker
from raydist.files.storage import fingerprint, read_parquet
from raydist.judgements.judgement import Judgement
from raydist.retrieval.corpus_stages import ROW_GROUP, open_sentences, question_keys

Pair = tuple[str, str]  # question, sentence


@dataclass(frozen=True)
class JudgedCounts:
    """Counts of judged pairs."""

    gold: int  # of the corpus, with the accepted pairs
    accepted: int  # that were not gold before
    rejected: int
    contradicted: int  # gold pairs that were rejected, and stay gold
    unknown: int  # about a question or a text that the corpus does not have


@dataclass(frozen=True)
class JudgedPairs(Stage):
    """Judgements -> the gold pairs of a corpus with the accepted ones, and beside them the rejected ones."""

    name: ClassVar[str] = "judged_pairs"

    tables: Made  # of the questions, and gold
    sentences: Made
    digest: str  # of the judgements
    judgements: tuple[Judgement, ...] = field(metadata=ASIDE, repr=False)

    @property
    def parts(self) -> int:
        return 1

    def open(self, worker: Worker) -> Callable[[int], Part]:
        return lambda number: self.part()

    def part(self) -> Part:
        questions, gold = (read_parquet(self.tables.folder, f"{name}-00000.parquet") for name in ("questions", "gold"))
        verdicts, unknown = resolve(self.judgements, questions, open_sentences(self.sentences.folder))
        known = set(zip(gold["question_id"].to_pylist(), gold["sentence_id"].to_pylist()))
        accepted = {pair for pair, right in verdicts.items() if right} - known
        rejected = {pair for pair, right in verdicts.items() if not right}
        whole = pa.concat_tables([gold, _gold_table(accepted, 1)])
        order = [("question_id", "ascending"), ("sentence_id", "ascending")]
        beside = {"gold": whole.sort_by(order), "wrong": _gold_table(rejected - known, 0).sort_by(order)}
        counts = JudgedCounts(len(whole), len(accepted), len(rejected - known), len(rejected & known), unknown)
        return Part(pa.table({"pairs": [len(verdicts)]}), beside, counts, ROW_GROUP)


def judgements_digest(judgements: Sequence[Judgement]) -> str:
    """What judgements say, whoever said it, in whatever order."""
    told = ("question", "question_id", "text", "text_id", "right")
    return fingerprint({"judgements": sorted([[str(getattr(each, name)) for name in told] for each in judgements])})


def resolve(judgements: Sequence[Judgement], questions: pa.Table, sentences: SentenceTable) -> tuple[dict[Pair, bool], int]:
    """The verdict on each pair of a corpus, and how many judgements concern other questions or texts.

    An id counts where its text in the corpus is the judgement's; otherwise the text does.
    """
    texts = questions["text"].to_pylist()
    keys, ids = question_keys(texts).tolist(), questions["question_id"].to_pylist()
    by_id, by_key = dict(zip(ids, keys)), dict[int, list[str]]()
    for id, key in zip(ids, keys):
        by_key.setdefault(key, []).append(id)
    verdicts: dict[Pair, bool] = {}
    unknown = 0
    for judgement in judgements:
        key = duplicate_keys(judgement.question)[0]
        asked = [judgement.question_id] if by_id.get(judgement.question_id or "") == key else by_key.get(key, [])
        sentence = _sentence(judgement, sentences)
        unknown += not asked or sentence is None
        if sentence is not None and judgement.right is not None:
            verdicts |= {(str(question), sentence): judgement.right for question in asked}
    return verdicts, unknown


def _sentence(judgement: Judgement, sentences: SentenceTable) -> str | None:
    """The id of the judged sentence in a corpus. Of a passage, it is the sentence that holds the answer."""
    if judgement.text is None:
        return None
    found = _row_of(judgement.text, judgement.text_id, sentences)
    if found < 0 and (answer := judgement.answer):
        spans = split_sentences(judgement.text)
        around = next((judgement.text[start:end] for start, end in spans if start <= answer.start < answer.end <= end), None)
        found = _row_of(around, None, sentences) if around else -1
    return str(sentences.ids(np.array([found]))[0]) if found >= 0 else None


def _row_of(text: str, id: str | None, sentences: SentenceTable) -> int:
    """The row of a sentence, -1 if there is none with this text."""
    text_key, bag_key = duplicate_keys(text)
    row = int(sentences.find([id])[0]) if id else -1
    if row >= 0 and sentences.text_keys[row] == text_key:
        return row
    rows = sentences.with_words(bag_key)
    rows = rows[sentences.text_keys[rows] == text_key]
    return int(rows[0]) if len(rows) else -1


def _gold_table(pairs: set[Pair], relevance: int) -> pa.Table:
    rows = [{"question_id": question, "sentence_id": sentence, "relevance": relevance} for question, sentence in pairs]
    return pa.Table.from_pylist(rows, GOLD_SCHEMA)
