"""One line per stage: progress, speed, time left. On a terminal it is redrawn; elsewhere a plain line every 30 s."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

QUIET_SECONDS = 30.0
LONG_SECONDS = 3.0
REDRAW_SECONDS = 1.0  # on a terminal, without updates
MOST_COMPLAINT = 20_000  # characters


# --- text that a terminal does not obey ------------------------------------------------------------------------------

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")  # change the direction of later text


def is_harmless(char: str) -> bool:
    """Whether a character only shows itself: no control character, no override of the writing direction, no half of one."""
    return char.isprintable() or (unicodedata.category(char) not in ("Cc", "Cs", "Co", "Cn") and char not in TURNING)


def plain(text: str) -> str:
    """Text of documents on one line: breaks become blanks, and what is not harmless is dropped (the marks that right-to-left
    writing needs stay).
    """
    return "".join(char for char in re.sub(r"\s", " ", text) if is_harmless(char))


def escaped(text: str) -> str:
    """Lines of a message, in which names and data may stand: what is not harmless is shown as in Python, like \\x1b."""
    return "".join(c if c in "\n\t" or is_harmless(c) else c.encode("unicode_escape").decode() for c in text)


def shown_json(value: Any) -> str:
    """JSON in which the same characters are escapes of JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return "".join(c if c == "\n" or is_harmless(c) else json.dumps(c)[1:-1] for c in text)


# --- lines -----------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a plain line for the user."""
    print(escaped(text), flush=True)


def complain(text: str) -> None:
    """Print lines on standard error; the end of a very long text is left out."""
    cut = f"\n... ({len(text) - MOST_COMPLAINT:,} more characters)" if len(text) > MOST_COMPLAINT else ""
    print(escaped(text[:MOST_COMPLAINT]) + cut, file=sys.stderr, flush=True)


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with fitted columns, the first aligned left and the others right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        say("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))


@contextmanager
def said_if_long(text: str) -> Iterator[None]:
    """Print a plain line if a step without countable parts takes more than a moment."""
    timer = threading.Timer(LONG_SECONDS, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def duration(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


class Progress:
    """Progress of one stage. Use as a context manager; call `update` as often as you like. Between rare updates, a thread
    prints on its own."""

    def __init__(self, name: str, total: float, unit: str, done: float = 0) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.first, self.done, self.note = done, done, ""
        self.started = self.spoken = time.monotonic()
        self.live = sys.stdout.isatty()
        self.over, self.turn = threading.Event(), threading.Lock()  # the lock prints one line at a time
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        if self.live:
            self._draw()
        self.thread.start()
        return self

    def update(self, done: float, note: str = "", total: float | None = None) -> None:
        """Set the number done and, if it has become known, the total."""
        with self.turn:
            if done < self.done:  # work was lost and is done again
                self.first, self.started = done, time.monotonic()
            self.done, self.note, self.total = done, note, self.total if total is None else total
        self._speak(0.2 if self.live else QUIET_SECONDS)

    def say(self, text: str) -> None:
        """Print a plain line above."""
        with self.turn:
            print(("\r\x1b[K" if self.live else "") + escaped(text), flush=True)

    def __exit__(self, kind: object, *_: object) -> None:
        self.over.set()
        self.thread.join()
        took = time.monotonic() - self.started
        if kind is None:
            rate = (self.done - self.first) / max(took, 1e-9)
            end = f"{self.name}: {_number(self.done)} {self.unit} in {duration(took)} ({_number(rate)}/s)"
            print(("\r\x1b[K" if self.live else "") + escaped(end + (f" {self.note}" if self.note else "")), flush=True)
        elif self.live:
            print(flush=True)

    def _beat(self) -> None:
        pause = REDRAW_SECONDS if self.live else QUIET_SECONDS
        while not self.over.wait(max(0.0, self.spoken + pause - time.monotonic())):
            self._speak(pause)

    def _speak(self, pause: float) -> None:
        """Draw, unless that happened less than `pause` seconds ago."""
        with self.turn:
            if time.monotonic() - self.spoken >= pause:
                self._draw()
                self.spoken = time.monotonic()

    def _draw(self) -> None:
        took = time.monotonic() - self.started
        rate = (self.done - self.first) / max(took, 1e-9)
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 and self.total else ""
        speed = f"{_number(rate)}/s{left}" if rate > 0 else f"for {duration(took)}"
        of = f"/{_number(self.total)}" if self.total else ""
        text = escaped(f"{self.name}: {_number(self.done)}{of} {self.unit}, {speed} {self.note}".rstrip())
        print(f"\r\x1b[K{text}" if self.live else text, end="" if self.live else "\n", flush=True)
