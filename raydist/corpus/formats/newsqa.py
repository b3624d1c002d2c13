"""NewsQA, as its tool writes it: combined-newsqa-data-v1.json {"data": [{"storyId", "text", "type", "questions"}]}, the same as
CSV {story_id, question, answer_char_ranges, validated_answers, story_text}, and its tokenized splits {answer_token_ranges}.

The answer is the span that most agreed on: the consensus, where it is given, else that of the validators, else that of those
who marked answers. A question that most say has no answer is impossible; a bad question is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.rejected import WRONG_TYPE, Fault
from raydist.errors import InputError

NO_ANSWER, BAD_QUESTION = "none", "badQuestion"
Mark = tuple[int, int] | str  # a span, or one of these
STORY_KEY = '"storyId"'  # stands in no text: there its quotes are escaped


def has_stories(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object has NewsQA's stories under `data`, where SQuAD has articles."""
    stories = document.get("data")
    return isinstance(stories, list) and bool(stories) and isinstance(stories[0], dict) and "storyId" in stories[0]


class NewsQa(ReaderFormat):
    """Stories with questions in one JSON object, whose stories have splits; or a question per row."""

    has_splits: ClassVar[bool] = True
    keys: ClassVar[tuple[str, ...]] = (
        *("story_id", "story_text", "question", "answer_char_ranges", "answer_token_ranges", "validated_answers"),
        "is_question_bad",
    )

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "story_text" in row and ("answer_char_ranges" in row or "answer_token_ranges" in row)

    def recognises_document(self, document: Mapping[str, Any], as_row: str) -> bool:
        return has_stories(document)

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        text = needed(row, "story_text")
        try:
            mark = _mark_of_row(row, text)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise Fault(WRONG_TYPE, f"no ranges as NewsQA has them: {error!r}") from None
        _add(checks, line, needed(row, "question"), text, mark, row.get("story_id"))

    def add_document(self, document: dict[str, Any], checks: ExampleChecks) -> None:
        ordinal = 0
        seen = Counter(str(story.get("type")) for story in document["data"] if isinstance(story, dict))
        if checks.split and set(seen) != {"None"} and checks.split not in seen:
            raise InputError(
                f"{checks.file} has no split {checks.split!r}; its stories are of {', '.join(sorted(seen))}: set `split`"
            )
        for story in document["data"]:
            try:
                text, id, questions, type = story["text"], story["storyId"], story["questions"], story.get("type")
            except (TypeError, KeyError, AttributeError) as error:
                raise InputError(f"{checks.file}: a story without {error}; wanted storyId, text and questions") from None
            if checks.split and type and type != checks.split:
                continue
            for question in questions:
                ordinal += 1
                try:
                    _add(checks, ordinal, question["q"], text, _mark_of_question(question), id)
                except Fault as fault:
                    checks.refuse_row(ordinal, None, fault)
                except (TypeError, KeyError, ValueError, AttributeError) as error:
                    checks.refuse_row(ordinal, None, Fault(WRONG_TYPE, f"no question as NewsQA has them: {error!r}"))


def _add(checks: ExampleChecks, line: int, question: Any, text: Any, mark: Mark | None, story: Any) -> None:
    if mark == BAD_QUESTION:
        checks.leave_out()
        return
    answers: list[tuple[Any, Any]] = []
    if isinstance(mark, tuple):
        answers = [(text[mark[0] : mark[1]].rstrip(), mark[0])]  # the end may be of the blank behind a word
    checks.add(line, None, question, text, answers, title=story, impossible=True if mark == NO_ANSWER else None)


def _mark_of_question(question: Mapping[str, Any]) -> Mark | None:
    if question.get("consensus"):
        return _mark(question["consensus"])
    votes: Counter[Mark] = Counter()
    for one in question.get("validatedAnswers") or ():
        votes[_mark(one)] += one.get("count", 1)
    if not votes:
        votes.update(_mark(one) for by in question.get("answers") or () for one in by["sourcerAnswers"][:1])
    return votes.most_common(1)[0][0] if votes else None


def _mark(one: Mapping[str, Any]) -> Mark:
    if one.get("badQuestion"):
        return BAD_QUESTION
    return NO_ANSWER if one.get("noAnswer") else (int(one["s"]), int(one["e"]))


def _mark_of_row(row: Mapping[str, Any], text: str) -> Mark | None:
    if "answer_token_ranges" in row:
        ranges = str(row["answer_token_ranges"] or "")
        return _characters(text, _range(ranges.split(",")[0])) if ranges else None
    votes: Counter[Mark] = Counter()
    validated = row.get("validated_answers")
    for shown, count in (json.loads(validated) if validated else {}).items():
        votes[_range(shown)] += count
    if not votes:
        votes.update(_range(by.split(",")[0]) for by in str(row["answer_char_ranges"] or "").split("|") if by)
    return votes.most_common(1)[0][0] if votes else None


def _range(shown: str) -> Mark:
    if shown.lower() in ("none", "noanswer"):
        return NO_ANSWER
    if shown == BAD_QUESTION:
        return BAD_QUESTION
    start, _, end = shown.partition(":")
    return int(start), int(end)


def _characters(text: str, mark: Mark) -> Mark:
    """The characters of a span of tokens, which are what stands between blanks."""
    if isinstance(mark, str):
        return mark
    tokens = text.split(" ")
    start = len(" ".join(tokens[: mark[0]])) + bool(mark[0])
    return start, start + len(" ".join(tokens[mark[0] : mark[1]]))
