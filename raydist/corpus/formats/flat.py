"""Flat rows {"context", "question", "answer" or "answers"}, with or without offsets; columns may be mapped.

Answers without an offset are searched in the passage: the first occurrence is the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.rejected import WRONG_TYPE, Fault


class Flat(ReaderFormat):
    """One question per row."""

    own_columns: ClassVar[bool] = False

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return names["question"] in row and names["context"] in row

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        names = checks.names
        for name in checks.mapped:  # by hand, so required
            needed(row, names[name])
        question, context = needed(row, names["question"]), needed(row, names["context"])
        one, starts = row.get(names["answer"]), row.get(names["answer_start"])
        answers = answer_pairs(row.get(names["answers"]), starts)
        if not answers:
            answers = answer_pairs(one, starts)
        elif isinstance(one, str) and all(text != one for text, _ in answers):
            answers.insert(0, (one, None))
        checks.add(
            line,
            row.get(names["id"]),
            question,
            context,
            answers,
            title=row.get(names["title"]),
            language=row.get(names["language"]),
            impossible=row.get(names["is_impossible"]),
        )


def answer_pairs(answers: Any, starts: Any) -> list[tuple[Any, Any]]:
    """(text, offset or None) from any usual shape: a text, a list of texts or objects, {"text", "answer_start"}."""
    if answers is None:
        return []
    if isinstance(answers, dict):
        return answer_pairs(needed(answers, "text"), answers.get("answer_start"))
    if not isinstance(answers, list):
        answers = [answers]
    if not isinstance(starts, list):
        starts = [starts] * (len(answers) if starts is None else 1)
    if len(starts) != len(answers):
        raise Fault(WRONG_TYPE, f"{len(answers)} answers, {len(starts)} offsets")
    return [
        (needed(answer, "text"), answer.get("answer_start")) if isinstance(answer, dict) else (answer, start)
        for answer, start in zip(answers, starts)
    ]
