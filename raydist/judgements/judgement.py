"""A judgement: whether a text answers a question, as somebody said it.

A file of judgements has one JSON object in each line. It only grows: what is taken back has a line of its own, {"undo": id}.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from raydist.errors import InputError

WANTED = 'wanted {"question": text, "text": sentence or passage, "right": true or false}'
OPTIONAL_TEXTS = ("question_id", "text", "text_id", "document")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of a judgement's text: `text[start:end]`, in characters (code points)."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict."""

    question: str
    right: bool | None  # None: skipped
    text: str | None = None  # the sentence or passage; None: the verdict is on "not in these documents"
    question_id: str | None = None
    text_id: str | None = None
    document: str | None = None
    answer: Answer | None = None  # the span that was shown, if any
    source: str = ""  # where it was said
    time: str = field(default_factory=now)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def subject(self) -> tuple[Any, ...]:
        """What is judged: a later judgement of the same replaces this one."""
        span = (self.answer.start, self.answer.end) if self.answer else None
        return self.question_id or self.question, self.text_id or self.text, span

    @property
    def line(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The judgement of a row; raises InputError without naming its place."""
        question, right = row.get("question"), row.get("right")
        if not isinstance(question, str) or not question.strip():
            raise InputError(f"there is no question; {WANTED}")
        if not (right is None or isinstance(right, bool)) or "right" not in row:
            raise InputError(f"right is {right!r}; {WANTED}")
        texts: dict[str, Any] = {name: row.get(name) for name in OPTIONAL_TEXTS}
        for name, value in texts.items():
            if not isinstance(value, str | None):
                raise InputError(f"{name} is {value!r}, no text; {WANTED}")
        answer = _answer(row.get("answer"), texts["text"])
        known: dict[str, Any] = {name: str(row[name]) for name in ("source", "time", "id") if row.get(name)}
        return cls(question=question, right=right, answer=answer, **texts, **known)


def _answer(value: Any, text: str | None) -> Answer | None:
    if value is None:
        return None
    try:
        answer = Answer(str(value["text"]), int(value["start"]), int(value["end"]))
    except (KeyError, TypeError, ValueError):
        raise InputError(f"answer is {value!r}; wanted {{text, start, end}}") from None
    if text is None or not 0 <= answer.start < answer.end or text[answer.start : answer.end] != answer.text:
        raise InputError(f"the answer {answer.text!r} is not at [{answer.start}, {answer.end}) of the text")
    return answer
