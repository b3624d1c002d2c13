"""SQuAD: {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}; v1.1, v2, and with a language XQuAD and MLQA.

`squad_v2` is never guessed: it makes questions without answers impossible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks
from raydist.corpus.formats.flat import Flat
from raydist.corpus.formats.newsqa import STORY_KEY, has_stories
from raydist.corpus.messages import kind, nearest, some
from raydist.corpus.rejected import Fault
from raydist.errors import InputError

_START = re.compile(r'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')


class Squad(Flat):
    """Articles of paragraphs of questions. The hub's rows are flat."""

    also_reads: ClassVar[frozenset[str]] = frozenset({"qa"})

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return False

    def recognises_document(self, document: Mapping[str, Any], as_row: str) -> bool:
        if "data" not in document or has_stories(document):
            return False
        return as_row in ("", "mrqa")  # a row, too, may have a key `data`

    def begins(self, text: str) -> bool:
        return bool(_START.match(text)) and STORY_KEY not in text

    def add_document(self, document: dict[str, Any], checks: ExampleChecks) -> None:
        ordinal = 0
        for a, article in enumerate(_members(checks.file, document, "data")):
            for p, paragraph in enumerate(_members(checks.file, article, "paragraphs", a)):
                for q, qa in enumerate(_members(checks.file, paragraph, "qas", a, p)):
                    ordinal += 1
                    try:
                        context, question = paragraph["context"], qa["question"]
                        id, impossible = qa.get("id"), qa.get("is_impossible")
                        answers = [(answer["text"], answer["answer_start"]) for answer in qa.get("answers") or ()]
                    except (KeyError, TypeError, AttributeError):
                        raise _wrong_question(checks.file, paragraph, qa, a, p, q) from None
                    try:
                        checks.add(ordinal, id, question, context, answers, title=article.get("title"), impossible=impossible)
                    except Fault as fault:
                        checks.refuse_row(ordinal, id, fault)


class SquadV2(Squad):
    """SQuAD in which questions without answers are impossible."""

    also_reads: ClassVar[frozenset[str]] = frozenset({"squad", "qa"})
    unanswered_is_impossible: ClassVar[bool] = True


def _members(file: str, parent: Any, key: str, *place: int) -> list[Any]:
    """The list parent[key] of a document; raises an error that locates any problem."""
    if isinstance(parent, dict) and isinstance(parent.get(key), list):
        return parent[key]
    raise _wrong_member(file, parent, key, *place)


def _wrong_question(file: str, paragraph: dict[str, Any], qa: Any, *place: int) -> InputError:
    """The error for a bad question or passage."""
    if "context" not in paragraph:
        return _wrong_member(file, paragraph, "context", *place[:2])
    if not isinstance(qa, dict) or "question" not in qa:
        return _wrong_member(file, qa, "question", *place)
    if not isinstance(qa["answers"], list):
        return _wrong_member(file, qa, "answers", *place)
    bad = ((i, answer, key) for i, answer in enumerate(qa["answers"]) for key in ("text", "answer_start"))
    i, answer, key = next(one for one in bad if not isinstance(one[1], dict) or one[2] not in one[1])
    return _wrong_member(file, answer, key, *place, i)


def _wrong_member(file: str, parent: Any, key: str, *place: int) -> InputError:
    where = ".".join(f"{name}[{i}]" for name, i in zip(("data", "paragraphs", "qas", "answers"), place)) or "the document"
    if not isinstance(parent, dict):
        return InputError(f"{file}: {where} is {kind(parent)}, wanted an object with {key!r}")
    if key in parent:
        return InputError(f"{file}: {key!r} of {where} is {kind(parent[key])}, wanted a list")
    return InputError(f"{file}: {where} has no {key!r} (it has {some(parent)}){nearest(key, parent)}; mend the file")
