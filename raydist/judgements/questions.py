"""Judgements -> questions with known answers, for an evaluation or a calibration of answers from documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raydist.judgements.judgement import Judgement


@dataclass
class Known:
    """A question, and what was judged right: its answers. None: no document answers it."""

    id: str
    question: str
    answers: list[str] = field(default_factory=list)
    documents: set[str] = field(default_factory=set)


def known_questions(judgements: Iterable[Judgement]) -> list[Known]:
    """The questions with an answer that is right, and those that are rightly said to have none in the documents.

    A question of which only wrong answers are known has no known answer: it is left out.
    """
    found: dict[str, Known] = {}
    for judgement in judgements:
        if judgement.right and (judgement.answer or judgement.text is None):
            known = found.setdefault(judgement.question, Known(judgement.question_id or judgement.id, judgement.question))
            if judgement.answer and judgement.answer.text not in known.answers:
                known.answers.append(judgement.answer.text)
            if judgement.answer and judgement.document:
                known.documents.add(judgement.document)
    return list(found.values())
