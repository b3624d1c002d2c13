"""Passages in memory as a library searches them: by their words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from raydist.retrieval.bm25_texts import BM25


@dataclass(frozen=True)
class Found:
    """As a library gives it."""

    passage_id: str
    document_id: str
    text: str
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    score: float = 0.0
    title: str = ""
    language: str = "en"
    metadata: Mapping[str, object] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


BRIDGES = (
    Found("bridges.md#0", "bridges.md", "Mina Orlov built the Orla bridge in 1894.", ("Bridges", "Orla"), line=7),
    Found("bridges.md#1", "bridges.md", "The Orla bridge fell in 1911. Nobody was on it.", ("Bridges", "Orla"), line=12),
    Found("towers.pdf#0", "towers.pdf", "The tower of Veld was built by Jon Haas in 1790.", page=3),
    Found("ships.txt#0", "ships.txt", "Ships of the line pass below the tower at noon.", line=1),
)


class InMemory:
    """Finds passages by BM25; `where` is the id of a document."""

    def __init__(self, passages: Sequence[Found] = BRIDGES) -> None:
        self.passages = list(passages)
        self.index = BM25([passage.text for passage in passages])

    def search(
        self, questions: Sequence[str], k: int = 10, *, kind: str | None = None, where: str | None = None
    ) -> list[list[Found]]:
        lists = self.index.search(list(questions), len(self.passages))
        return [[found for found in map(self._found, hits) if where in (None, found.document_id)][:k] for hits in lists]

    def _found(self, hit) -> Found:
        return replace(self.passages[hit.number], score=hit.score, scores={"bm25": hit.score})
