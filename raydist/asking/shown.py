"""A reply as text for a terminal, and as JSON. Text of documents is data: no control character gets through."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any

from raydist.asking.asker import Reply
from raydist.asking.merge import Candidate
from raydist.asking.retriever import Passage
from raydist.terminal import plain

AROUND = 240  # characters shown before and after an answer
MARKS = {True: ("\x1b[1;7m", "\x1b[0m"), False: ("[[", "]]")}  # on a terminal, and elsewhere


def shown_reply(reply: Reply, *, n_best: int = 1, colour: bool = False) -> str:
    """The answer with its probability, its passage with the answer marked, and its location; then the next best."""
    if reply.source is None:
        return "not found: no passage has anything to do with it"
    lines = []
    if not reply.answered:
        lines.append(f"not found (p {reply.probability:.2f}, below {reply.threshold:.2f}); the nearest:")
    best, *others = reply.candidates[:n_best]
    lines += [f"{plain(reply.text)}  (p {reply.probability:.2f}{'' if reply.calibrated else ', not calibrated'})"]
    lines += _passage(reply, best, colour)
    for rank, other in enumerate(others, 2):
        lines += ["", f"{rank}. {plain(other.text)}", *_passage(reply, other, colour)]
    return "\n".join(lines)


def one_line(reply: Reply) -> str:
    """The answer, a tab and its place; empty if not found."""
    return f"{plain(reply.text)}\t{place_of(reply.source)}" if reply.answered else ""


def _passage(reply: Reply, candidate: Candidate, colour: bool) -> list[str]:
    passage = reply.passages[candidate.passage]
    return [f"  {marked(passage.text, candidate.start, candidate.end, colour=colour)}", f"  {place_of(passage)}"]


def marked(text: str, start: int, end: int, *, colour: bool = False) -> str:
    """The text around an answer, on one line, with the answer marked."""
    first, last = max(0, start - AROUND), min(len(text), end + AROUND)
    before, after = MARKS[colour]
    head, tail = "… " * (first > 0), " …" * (last < len(text))
    return f"{head}{plain(text[first:start])}{before}{plain(text[start:end])}{after}{plain(text[end:last])}{tail}"


def place_of(passage: Passage) -> str:
    """`docs/cluster.md > Storage, line 41` or `report.pdf, page 7`."""
    headings = [plain(heading) for heading in passage.headings or ()]
    where = f", page {passage.page}" if passage.page is not None else ""
    where = where or (f", line {passage.line}" if passage.line is not None else "")
    return " > ".join([plain(passage.document_id), *headings]) + where


# --- for programs ----------------------------------------------------------------------------------------------------


def reply_json(reply: Reply, *, n_best: int = 1) -> str:
    """One line of JSON, in ASCII, which is safe on any terminal."""
    return json.dumps(reply_dict(reply, n_best=n_best), default=str)


def reply_dict(reply: Reply, *, n_best: int = 1) -> dict[str, Any]:
    """A reply as plain values, with the best candidates, each with its passage."""
    return {
        "question": reply.question,
        "answered": reply.answered,
        "text": reply.text,
        "probability": reply.probability,
        "calibrated": reply.calibrated,
        "threshold": reply.threshold,
        "start": reply.start,
        "end": reply.end,
        "source": _passage_dict(reply.source),
        "candidates": [_candidate_dict(reply, candidate) for candidate in reply.candidates[:n_best]],
        "seconds": dict(reply.seconds),
    }


def _candidate_dict(reply: Reply, candidate: Candidate) -> dict[str, Any]:
    found = {name: getattr(candidate, name) for name in ("text", "start", "end", "score", "passages")}
    return found | {"source": _passage_dict(reply.passages[candidate.passage])}


def _passage_dict(passage: Any) -> dict[str, Any] | None:
    return asdict(passage) if is_dataclass(passage) and not isinstance(passage, type) else passage
