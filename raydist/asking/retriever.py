"""An asker's interface to a library: passages for questions, best first. `raydist.library` implements it, as may your code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Passage(Protocol):
    """A passage of a search, with its location and scores."""

    @property
    def passage_id(self) -> str: ...

    @property
    def document_id(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def headings(self) -> Sequence[str]: ...

    @property
    def page(self) -> int | None: ...

    @property
    def line(self) -> int | None: ...

    @property
    def score(self) -> float: ...

    @property
    def scores(self) -> Mapping[str, float]:
        """By `bm25`, `dense`, `cross_encoder`: the known ones."""
        ...


class Retriever(Protocol):
    """Finds passages."""

    def search(
        self, questions: Sequence[str], k: int = 10, *, kind: str | None = None, where: str | None = None
    ) -> Sequence[Sequence[Any]]:
        """The k best passages for each question, best first; without a kind, by the library's default."""
        ...
