"""Chinese data sets: CMRC 2018 in its own layout, and DuReader 2 as its baseline reads it. Their SQuAD layouts are `squad`.

CMRC      [{"context_id", "context_text", "title", "qas": [{"query_id", "query_text", "answers": [text]}]}]
DuReader  {"question_id", "question", "documents": [{"paragraphs", "segmented_paragraphs", "most_related_para",
           "is_selected"}], "answers": [text], "answer_docs": [n], "answer_spans": [[first, last]]}, a line each
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.formats.flat import answer_pairs
from raydist.corpus.rejected import WRONG_TYPE, Fault


class Cmrc(ReaderFormat):
    """A passage and its questions per row; answers are searched in the passage."""

    keys: ClassVar[tuple[str, ...]] = ("context_id", "context_text", "title", "qas")

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "context_text" in row and "qas" in row

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        context, questions = needed(row, "context_text"), needed(row, "qas")
        if not isinstance(questions, list) or not all(isinstance(one, dict) for one in questions):
            raise Fault(WRONG_TYPE, "qas is no list of objects")
        for one in questions:
            try:
                answers = answer_pairs(list(dict.fromkeys(one.get("answers") or ())), None)
                title = row.get("title")
                checks.add(line, one.get("query_id"), one.get("query_text"), context, answers, title=title, language="zh")
            except Fault as fault:
                checks.refuse_row(line, one.get("query_id"), fault)
            except TypeError as error:
                checks.refuse_row(line, one.get("query_id"), Fault(WRONG_TYPE, f"answers: {error}"))


class DuReader(ReaderFormat):
    """A question and its search results per row.

    The passage is the paragraph that was matched with the answers (`answer_docs`, `most_related_para`), which is also where
    `answer_spans` count tokens; the people's own answers are accepted, too. Questions without such a paragraph are left out.
    """

    keys: ClassVar[tuple[str, ...]] = ("question_id", "question", "documents", "answers", "answer_docs", "answer_spans")

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "documents" in row and "question" in row and ("question_type" in row or "answer_docs" in row)

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        try:
            if not row.get("answer_docs"):
                checks.leave_out()
                return
            document = row["documents"][row["answer_docs"][0]]
            tokens = document["segmented_paragraphs"][document["most_related_para"]]
            answers: list[tuple[Any, Any]] = [
                ("".join(tokens[first : last + 1]), len("".join(tokens[:first])))
                for first, last in row.get("answer_spans") or ()
            ]
            texts = [text for text, _ in answers] + [text for text in row.get("answers") or () if text]
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            raise Fault(WRONG_TYPE, f"no documents and answers as DuReader has them: {error!r}") from None
        id, question, title = row.get("question_id"), needed(row, "question"), document.get("title")
        checks.add(line, id, question, "".join(tokens), answers, title=title, language="zh", golds=texts or None)
