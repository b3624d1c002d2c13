"""BM25 over texts in memory: the index of retrieval/bm25.py in a temporary folder, deleted with the object."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, overload

from raydist.errors import InputError
from raydist.retrieval.bm25 import Formula, Idf, Index, WordRules, build_index, stop_words


class TextHit(NamedTuple):
    """One of the searched texts."""

    number: int  # its position, from 0
    score: float
    text: str


class BM25:
    """BM25 search over a list of texts. Scores equal those of a run's BM25 index with the same settings.

    >>> import raydist
    >>> texts = ["Mina Orlov built the bridge in 1894.", "The river is wide.", "It fell in 1911."]
    >>> bm25 = raydist.BM25(texts)
    >>> bm25.search("Who built the bridge?", k=1)
    [TextHit(number=0, score=1.189..., text='Mina Orlov built the bridge in 1894.')]
    >>> [[hit.number for hit in hits] for hits in bm25.search(["a wide river", "nothing of the kind"])]
    [[1], [1, 0]]
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        idf: Idf = "lucene",
        min_chars: int = 2,
        stop_words: str | Sequence[str] = "none",
        stemmer: str = "",
    ) -> None:
        """`stop_words` is none, english, or a list of words; `stemmer` a Snowball language such as english (PyStemmer)."""
        if not len(texts) or isinstance(texts, str):
            raise InputError("no texts to search in; give at least one")
        self.texts = list(texts)
        folder = Path(tempfile.mkdtemp(prefix="raydist-bm25-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        numbers = [f"{number:010d}" for number in range(len(self.texts))]  # ids: among equal scores the first text wins
        rules = WordRules(min_chars, _words(stop_words), stemmer)
        build_index(folder / "index", numbers, self.texts, 1, rules, Formula(k1, b, idf))
        self._index = Index.open(folder / "index")

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def search(self, questions: str, k: int = 10) -> list[TextHit]: ...  # type: ignore[overload-overlap]  # a str is a sequence, too
    @overload
    def search(self, questions: Sequence[str], k: int = 10) -> list[list[TextHit]]: ...
    def search(self, questions: str | Sequence[str], k: int = 10) -> list[TextHit] | list[list[TextHit]]:
        """The k best texts for a question, or for each of several; texts that share no word with it are left out."""
        if isinstance(questions, str):
            return self._search([questions], k)[0]
        return self._search(list(questions), k)

    def _search(self, questions: list[str], k: int) -> list[list[TextHit]]:
        hits = self._index.search(questions, k)
        return [
            [TextHit(int(row), float(score), self.texts[row]) for row, score in zip(rows, scores) if row >= 0]
            for rows, scores in zip(hits.rows, hits.scores)
        ]


def _words(given: str | Sequence[str]) -> frozenset[str]:
    return frozenset(stop_words(given))
