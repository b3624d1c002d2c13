"""Natural Questions: pages as tokens, and what annotators marked in them; one page per line.

Original {"document_tokens": [{"token", "html_token"}], ...}, simplified {"document_text": "tokens and tags", ...}, and the
hub's rows {"document": {"tokens": {"token", "is_html"}}, ...}. The passage is the long answer without tags, its tokens joined
by blanks; its short answers are the answers. Questions whose annotators marked no short answer are left out; yes and no are no
pieces of the passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.annotators import Choice, Span, agreed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.rejected import WRONG_TYPE, Fault

_TAG = re.compile(r"<[^<>\s]+[^<>]*>")
_TITLE = re.compile(r"[?&]title=([^&]+)")
_YES_NO = {"YES": "yes", "NO": "no", 1: "yes", 0: "no"}  # the hub has numbers, -1 for neither


@dataclass(frozen=True)
class _Page:
    id: Any
    question: Any
    title: str
    tokens: Sequence[str]
    is_tag: Sequence[bool]
    choices: Sequence[Choice]


class NaturalQuestions(ReaderFormat):
    """One page and its question per row."""

    keys: ClassVar[tuple[str, ...]] = (
        *("example_id", "document_text", "document_tokens", "document_title", "document_url", "question_text"),
        *("annotations", "long_answer_candidates", "document"),
    )

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "long_answer_candidates" in row and any(key in row for key in ("document_text", "document_tokens", "document"))

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        try:
            page = _hub_page(row) if "document" in row else _page(row)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            raise Fault(WRONG_TYPE, f"no page with annotations as Natural Questions has them: {error!r}") from None
        chosen = agreed(page.choices)
        if not chosen:
            checks.leave_out()
            return
        text, places = _plain(page, chosen[0].passage)
        spans = list(dict.fromkeys(span for choice in chosen for span in choice.answers))
        pieces = [[places[token] for token in range(*span) if token in places] for span in spans]
        answers: list[tuple[Any, Any]] = [(text[own[0][0] : own[-1][1]], own[0][0]) for own in pieces if own]
        is_span = bool(spans)
        if not is_span:
            answers = [(choice.yes_no, None) for choice in chosen]
        checks.add(line, page.id, page.question, text, answers, title=page.title, is_span=is_span)


def _page(row: Mapping[str, Any]) -> _Page:
    if "document_tokens" in row:
        tokens = [token["token"] for token in row["document_tokens"]]
        is_tag = [bool(token["html_token"]) for token in row["document_tokens"]]
    else:
        tokens = row["document_text"].split(" ")
        is_tag = [bool(_TAG.fullmatch(token)) for token in tokens]
    choices = [
        Choice(
            _span(one["long_answer"]), [_span(short) for short in one["short_answers"]], _YES_NO.get(one["yes_no_answer"], "")
        )
        for one in row.get("annotations") or ()
    ]
    title = row.get("document_title") or _title_of(row.get("document_url"))
    return _Page(row.get("example_id"), needed(row, "question_text"), title, tokens, is_tag, choices)


def _hub_page(row: Mapping[str, Any]) -> _Page:
    """The hub's row: lists of columns in place of lists of objects."""
    document, marks = row["document"], row["annotations"]
    shorts = [list(zip(one["start_token"], one["end_token"], strict=True)) for one in marks["short_answers"]]
    choices = [
        Choice(_span(long), own, _YES_NO.get(yes_no, ""))
        for long, own, yes_no in zip(marks["long_answer"], shorts, marks["yes_no_answer"], strict=True)
    ]
    tokens = document["tokens"]
    return _Page(
        row.get("id"), row["question"]["text"], document.get("title") or "", tokens["token"], tokens["is_html"], choices
    )


def _span(marked: Mapping[str, Any]) -> Span:
    return int(marked["start_token"]), int(marked["end_token"])


def _title_of(url: Any) -> str:
    match = _TITLE.search(url) if isinstance(url, str) else None
    return unquote(match[1]).replace("_", " ") if match else ""


def _plain(page: _Page, passage: Span) -> tuple[str, dict[int, Span]]:
    """The tokens of a passage without its tags, joined by blanks; and the characters of each."""
    places: dict[int, Span] = {}
    kept: list[str] = []
    at = 0
    for token in _within(range(*passage), page.tokens):
        if not page.is_tag[token]:
            places[token] = (at, at + len(page.tokens[token]))
            kept.append(page.tokens[token])
            at += len(page.tokens[token]) + 1
    return " ".join(kept), places


def _within(numbers: Iterable[int], tokens: Sequence[str]) -> Iterable[int]:
    return (number for number in numbers if number < len(tokens))
