"""MRQA: JSON Lines {"context", "qas": [{"detected_answers": [{"char_spans": [[first, last]]}]}]}, with or without header.

The hub's rows are {"context", "qid", "question", "detected_answers": {"text", "char_spans": [{"start", "end"}]}}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.formats.flat import answer_pairs
from raydist.corpus.rejected import WRONG_TYPE, Fault


class Mrqa(ReaderFormat):
    """`detected_answers` are the answers found in the passage, the labels; `answers` are all aliases, the golds."""

    keys: ClassVar[tuple[str, ...]] = ("qas", "qid", "detected_answers")

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return ("qas" in row or "detected_answers" in row) if "context" in row else ("header" in row)

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        if "header" in row and "context" not in row:
            return
        context = needed(row, "context")
        qas = [row] if "detected_answers" in row else needed(row, "qas")  # the hub has a row per question
        if not isinstance(qas, list) or not all(isinstance(qa, dict) for qa in qas):
            raise Fault(WRONG_TYPE, "qas is no list of objects")
        for qa in qas:
            id, question, impossible = qa.get("qid") or qa.get("id"), qa.get("question"), qa.get("is_impossible")
            try:
                aliases = answer_pairs(qa.get("answers"), None)
                answers = [_span_answer(context, *span) for span in _detected(qa.get("detected_answers"))] or aliases
                golds = [text for text, _ in aliases] or None
                checks.add(line, id, question, context, answers, impossible=impossible, golds=golds)
            except Fault as fault:
                checks.refuse_row(line, id, fault)
            except (TypeError, KeyError, ValueError) as error:
                checks.refuse_row(line, id, Fault(WRONG_TYPE, f"detected_answers: {error!r}"))


def _detected(answers: Any) -> Iterator[tuple[Any, ...]]:
    """(text, first, last) of every span of `detected_answers`: a list of objects or, on the hub, parallel lists."""
    if isinstance(answers, dict):
        answers = [
            {"text": text, "char_spans": zip(spans["start"], spans["end"], strict=True)}
            for text, spans in zip(answers["text"], answers["char_spans"], strict=True)
        ]
    for answer in answers or ():
        yield from ((answer["text"], *span) for span in answer["char_spans"])


def _span_answer(context: Any, text: Any, first: Any, last: Any) -> tuple[Any, Any]:
    """A span, both ends inclusive, in the passage's spelling if only case differs."""
    if isinstance(context, str) and isinstance(text, str) and type(first) is type(last) is int and 0 <= first <= last:
        there = context[first : last + 1]
        if there.lower() == text.lower():
            return there, first
    return text, first
