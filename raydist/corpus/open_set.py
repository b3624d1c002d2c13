"""A corpus with questions and gold answers, the result of opening any format.

A corpus of any size is an ``OpenSet``, streamed during iteration; one read whole is a ``RetrievalSet``. Both have ``blocks``
and ``questions_and_gold``, and list rejected rows in ``rejected``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from raydist.corpus.checks import answered, asked_once, gold_of, whole_and_new
from raydist.corpus.ids import KnownIds
from raydist.corpus.rejected import EMPTY_SENTENCE
from raydist.corpus.schemas import GOLD_SCHEMA, QUESTION_SCHEMA
from raydist.errors import InputError
from raydist.records import Rejected, name_rejected


class Block(NamedTuple):
    """Some rows of a corpus file, unchecked."""

    file: str
    lines: Sequence[int]  # of each sentence
    sentences: pa.Table
    passages: pa.Table  # of the sentences


@dataclass(slots=True)
class Judged:
    """Questions and gold answers, unchecked."""

    questions: Iterable[dict[str, Any]] = ()
    gold: Iterable[dict[str, Any]] = ()
    notes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RetrievalSet:
    """A corpus cut into sentences, questions, and gold pairs of question and sentence; consistent by construction."""

    passages: pa.Table
    sentences: pa.Table
    questions: pa.Table
    gold: pa.Table
    rejected: list[Rejected] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)  # remarks on valid input: a phrase and a count

    def blocks(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Sentences and passages, as in ``OpenSet``."""
        yield self.sentences, self.passages

    def questions_and_gold(self) -> tuple[pa.Table, pa.Table]:
        """All questions and gold."""
        return self.questions, self.gold


class OpenSet:
    """A set streamed during iteration: ``blocks`` first, to the end, then ``questions_and_gold``.

    Keeps complete and consistent rows; ``rejected`` has the others with reasons. Memory: one block, eight bytes per sentence,
    and the questions with their gold.
    """

    def __init__(self, source: str, blocks: Iterable[Block], judged: Callable[[], Judged], rejected: list[Rejected]) -> None:
        self.rejected = rejected  # shared with the readers of blocks and questions
        self.notes: dict[str, int] = {}
        self._source, self._blocks, self._judged = source, blocks, judged
        self._known = KnownIds()
        self._at_end = False

    def blocks(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The sentences with a text and a unique id, and their passages."""
        for file, lines, sentences, passages in self._blocks:
            yield whole_and_new(sentences, "sentence", EMPTY_SENTENCE, file, lines, self._known, self.rejected), passages
        if not len(self._known):
            rejected = name_rejected(self.rejected)
            raise InputError(f"{self._source}: the corpus is empty; wanted at least one sentence with text{rejected}")
        self._at_end = True

    def questions_and_gold(self) -> tuple[pa.Table, pa.Table]:
        """Questions with gold in the corpus, and that gold."""
        assert self._at_end, "which sentences there are is known at the end of the blocks"
        judged = self._judged()
        self.notes = judged.notes
        asked = asked_once(judged.questions, self.rejected)
        gold = gold_of(judged.gold, asked, self._known, self.rejected)
        questions = answered(asked, gold, self.rejected)
        return pa.Table.from_pylist(questions, QUESTION_SCHEMA), pa.Table.from_pylist(gold, GOLD_SCHEMA)

    def whole(self) -> RetrievalSet:
        """The whole set, in memory."""
        sentences, passages = zip(*self.blocks())
        questions, gold = self.questions_and_gold()
        return RetrievalSet(pa.concat_tables(passages), pa.concat_tables(sentences), questions, gold, self.rejected, self.notes)


def read_whole(
    source: str,
    block: Block,
    questions: Iterable[dict[str, Any]],
    gold: Iterable[dict[str, Any]],
    rejected: list[Rejected],
    notes: dict[str, int] | None = None,
) -> RetrievalSet:
    """A set with a single block of sentences."""
    return OpenSet(source, [block], lambda: Judged(questions, gold, notes or {}), rejected).whole()
