"""Questions one after another: at a terminal's prompt, or from a pipe, with one line of answer for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydist.asking.asker import Asker
from raydist.asking.retriever import Retriever
from raydist.asking.shown import one_line, reply_json, shown_reply
from raydist.errors import InputError
from raydist.terminal import complain

PROMPT = "question: "


@dataclass(frozen=True)
class Showing:
    """The filter of passages, and the form of replies."""

    where: str | None = None
    n_best: int = 1
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.n_best < 1:
            raise InputError(f"n_best is {self.n_best}; wanted 1 or more")


def ask_library(library: Path | str | Retriever, question: str | None, settings: Mapping[str, Any], showing: Showing) -> None:
    """Print the reply to a question, or to each question of standard input."""
    asker = Asker.open(library, **settings)
    for note in asker.notes:
        complain(f"note: {note}")
    if question is not None:
        print_reply(asker, question, showing)
    elif sys.stdin.isatty():
        hold_session(asker, showing)
    else:
        answer_lines(asker, showing)


def print_reply(asker: Asker, question: str, showing: Showing) -> None:
    reply = asker.ask(question, where=showing.where)
    in_json = reply_json(reply, n_best=showing.n_best) if showing.as_json else ""
    print(in_json or shown_reply(reply, n_best=showing.n_best, colour=sys.stdout.isatty()), flush=True)


def hold_session(asker: Asker, showing: Showing) -> None:
    """Answer questions at a prompt, until Ctrl-D. A wrong one is reported and does not end the session."""
    for question in _typed():
        try:
            print_reply(asker, question, showing)
        except InputError as error:
            complain(f"error: {error}")
        print()


def answer_lines(asker: Asker, showing: Showing) -> None:
    """Print one line per question of a pipe: JSON, or the answer, a tab and its place; an empty line if not found."""
    for question in filter(None, map(str.strip, sys.stdin)):
        reply = asker.ask(question, where=showing.where)
        print(reply_json(reply, n_best=showing.n_best) if showing.as_json else one_line(reply), flush=True)


def _typed() -> Iterator[str]:
    import readline  # noqa: F401  # gives input() line editing

    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            print()
            return
        if line:
            yield line
