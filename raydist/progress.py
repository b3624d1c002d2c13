"""One line per stage: how far, how fast, how long still. On a terminal it is redrawn; elsewhere a plain line every 30 s."""

from __future__ import annotations

import sys
import time
from typing import Self

QUIET_SECONDS = 30.0


def say(text: str) -> None:
    """A plain line for the user."""
    print(text, flush=True)


def duration(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


class Progress:
    """Progress of one stage. Use as a context manager; call `update` as often as you like."""

    def __init__(self, name: str, total: float, unit: str, done: float = 0) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.first, self.done, self.note = done, done, ""
        self.started = self.spoken = time.monotonic()
        self.live = sys.stdout.isatty()

    def __enter__(self) -> Self:
        if self.live:
            self._draw("\r")
        return self

    def update(self, done: float, note: str = "") -> None:
        """So many are done by now."""
        if done < self.done:  # work was lost and is done again
            self.first, self.started = done, time.monotonic()
        self.done, self.note = done, note
        now = time.monotonic()
        if self.live and now - self.spoken >= 0.2:
            self._draw("\r")
            self.spoken = now
        elif not self.live and now - self.spoken >= QUIET_SECONDS:
            self._draw("\n")
            self.spoken = now

    def say(self, text: str) -> None:
        """A plain line above."""
        say(("\r\x1b[K" if self.live else "") + text)

    def __exit__(self, kind: object, *_: object) -> None:
        took = time.monotonic() - self.started
        if kind is None:
            rate = (self.done - self.first) / max(took, 1e-9)
            end = f"{self.name}: {_number(self.done)} {self.unit} in {duration(took)} ({_number(rate)}/s)"
            print(("\r\x1b[K" if self.live else "") + end + (f" {self.note}" if self.note else ""), flush=True)
        elif self.live:
            print(flush=True)

    def _draw(self, end: str) -> None:
        took = time.monotonic() - self.started
        rate = (self.done - self.first) / max(took, 1e-9)
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 and self.total else ""
        of = f"/{_number(self.total)}" if self.total else ""
        text = f"{self.name}: {_number(self.done)}{of} {self.unit}, {_number(rate)}/s{left} {self.note}".rstrip()
        print(("\r\x1b[K" if end == "\r" else "") + text, end="" if end == "\r" else end, flush=True)
