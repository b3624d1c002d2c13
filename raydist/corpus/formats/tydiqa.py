"""TyDi QA's primary task: JSON Lines {"document_plaintext", "passage_answer_candidates", "annotations", "language"}.

Offsets count bytes. The passage is the candidate that annotators chose, its minimal answers are the answers; questions without
one are left out, yes and no are no pieces of the passage. The hub's rows have lists in place of objects. Its gold passages have
the layout of SQuAD, and their ids begin with the language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.annotators import Choice, Span, agreed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.languages import language_code
from raydist.corpus.rejected import WRONG_TYPE, Fault


class TydiQa(ReaderFormat):
    """One page and its question per row."""

    keys: ClassVar[tuple[str, ...]] = (
        *("example_id", "document_plaintext", "document_title", "document_url", "language", "question_text"),
        *("annotations", "passage_answer_candidates"),
    )

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "document_plaintext" in row and "passage_answer_candidates" in row

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        question, page = needed(row, "question_text"), needed(row, "document_plaintext")
        try:
            chosen = agreed(_choices(row))
            if not chosen:
                checks.leave_out()
                return
            data, (first, last) = page.encode(), chosen[0].passage
            text = data[first:last].decode()
            spans = list(dict.fromkeys(span for choice in chosen for span in choice.answers))
            answers: list[tuple[Any, Any]] = [
                (data[start:end].decode(), len(data[first:start].decode())) for start, end in spans
            ]
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise Fault(WRONG_TYPE, f"no page with annotations as TyDi QA has them: {error!r}") from None
        is_span = bool(spans)
        if not is_span:
            answers = [(choice.yes_no, None) for choice in chosen]
        language = language_code(row.get("language")) or row.get("language")
        id = row.get("example_id")
        checks.add(line, id, question, text, answers, title=row.get("document_title"), language=language, is_span=is_span)


def _choices(row: dict[str, Any]) -> Sequence[Choice]:
    candidates, marks = row["passage_answer_candidates"], row["annotations"]
    if isinstance(candidates, dict):  # the hub's
        starts, ends = candidates["plaintext_start_byte"], candidates["plaintext_end_byte"]
        passages = list(zip(starts, ends, strict=True))
        columns = ("passage_answer_candidate_index", "minimal_answers_start_byte", "minimal_answers_end_byte", "yes_no_answer")
        marked = list(zip(*(marks[name] for name in columns), strict=True))
    else:
        passages = [_span(one) for one in candidates]
        marked = [
            (one["passage_answer"]["candidate_index"], *_span(one["minimal_answer"]), one["yes_no_answer"]) for one in marks
        ]
    return [
        Choice(passages[number], [(start, end)] * (start >= 0), {"YES": "yes", "NO": "no"}.get(yes_no, ""))
        for number, start, end, yes_no in marked
        if number >= 0
    ]


def _span(one: Mapping[str, Any]) -> Span:
    return one["plaintext_start_byte"], one["plaintext_end_byte"]
