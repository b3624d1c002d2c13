"""What answers behind the HTTP API: its interface, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, or a search, as a client puts it."""

    question: str
    where: str | None = None
    k: int | None = None
    kind: str | None = None
    n_best: int = 1


class Service(Protocol):
    """Answers questions. Wrong input raises InputError, and what cannot be answered now a Refusal."""

    async def ask(self, asked: Asked) -> dict[str, Any]:
        """The dictionary of `raydist.asking.shown.reply_dict`, with `library`: {version}."""
        ...

    async def search(self, asked: Asked) -> dict[str, Any]:
        """`passages`, best first, `seconds`, and `library`: {version}."""
        ...

    async def describe(self) -> dict[str, Any]:
        """The library and the models in force: see `raydist.serving.answering.Answering.describe`."""
        ...


class Refusal(Exception):
    """A request that is not answered, with its HTTP status and a sentence for the client."""

    status = 500

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthorized(Refusal):
    status = 401


class Misdirected(Refusal):
    status = 421


class SlowClient(Refusal):
    status = 408


class TooLarge(Refusal):
    status = 413


class TooMany(Refusal):
    status = 429


class Unavailable(Refusal):
    status = 503


class OutOfTime(Refusal):
    status = 504
