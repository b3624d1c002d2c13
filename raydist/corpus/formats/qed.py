"""QED: JSON Lines {"question_text", "paragraph_text", "original_nq_answers": [[{"start", "string"}]]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.rejected import WRONG_TYPE, Fault


class Qed(ReaderFormat):
    """Every span of every annotator counts as right, even the parts of a multi-span answer."""

    keys: ClassVar[tuple[str, ...]] = ("question_text", "paragraph_text", "original_nq_answers", "example_id", "title_text")

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "question_text" in row and "paragraph_text" in row

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        try:
            spans = [(span["string"], span["start"]) for answer in row.get("original_nq_answers") or () for span in answer]
        except (TypeError, KeyError) as error:
            raise Fault(WRONG_TYPE, f"original_nq_answers is no list of lists of spans: {error}") from None
        question, context = needed(row, "question_text"), needed(row, "paragraph_text")
        checks.add(line, row.get("example_id"), question, context, spans, title=row.get("title_text"))
