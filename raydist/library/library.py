"""A library of passages, open for search: by words, by vectors, or both; with conditions on metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import pyarrow as pa

from raydist.documents.schema import PASSAGES
from raydist.errors import InputError
from raydist.files.shards import BestRows
from raydist.files.storage import Storage
from raydist.library import versions
from raydist.library.segments import with_headings
from raydist.library.where import parse
from raydist.retrieval.bm25 import Index

if TYPE_CHECKING:
    from raydist.library.vectors import OpenVectors
    from raydist.retrieval.scoring import CrossScorer

Kind = Literal["hybrid", "bm25", "dense"]
TRIES = 5  # to open a version, while a writer puts others in force


@dataclass(frozen=True)
class PassageHit:
    """A passage found by a search, with its source, metadata and scores.

    >>> import raydist
    >>> found = raydist.Library.open("runs/guide").search("When did it fall?", k=1, kind="bm25")[0]
    >>> found.text, found.line, list(found.scores)
    ('It fell in 1911.', 3, ['bm25'])
    """

    passage_id: str
    document_id: str
    score: float  # for ranking
    text: str
    title: str
    headings: tuple[str, ...]  # above it, outermost first
    page: int | None
    line: int | None
    language: str
    metadata: Mapping[str, Any] = field(default_factory=dict)  # without nulls
    scores: Mapping[str, float] = field(default_factory=dict)  # by bm25, dense, cross_encoder, if in their lists


class Library:
    """A snapshot of passages with their words and vectors: later writes do not disturb it.

    >>> import raydist
    >>> library = raydist.Library.open("runs/guide")                            # a run of `raydist index`, a folder, or a URI
    >>> found = library.search("Who built the bridge?", k=2)[0]
    >>> found.passage_id, found.headings, found.metadata["year"]
    ('bridge.md#0', ('The bridge',), 1894)
    >>> [hit.passage_id for hit in library.search("Who built it?", where="year < 1900 and language = 'en'")]
    ['bridge.md#0']
    >>> both = library.search(["Who built the bridge?", "When did it fall?"], k=1, kind="bm25")     # a list for each question
    >>> [hits[0].document_id for hits in both]
    ['bridge.md', 'fall.md']
    """

    @classmethod
    def open(cls, folder: Path | str, *, cross_encoder: str | Path | CrossScorer | None = None) -> Library:
        """Open the library in a folder, of a run, or under a URI (its files are copied to the local cache, each once).

        `cross_encoder` replaces the library's own in searches that rerank.
        """
        storage = find_library(folder)
        for _ in range(TRIES - 1):
            try:
                return cls(versions.read_version(storage), cross_encoder)
            except FileNotFoundError:  # a writer has just put another version in force, and swept this one
                continue
        return cls(versions.read_version(storage), cross_encoder)

    def __init__(self, version: versions.Version, cross_encoder: str | Path | CrossScorer | None = None) -> None:
        self.version, self.settings = version.number, version.settings
        self.segments, self.schema = version.segments, version.schema
        self.passages, self.documents = version.passages, version.documents
        self._cross_encoder = cross_encoder or self.settings.cross_encoder
        assert version.statistics is not None
        shards = [segment.words for segment in self.segments]
        self._words = Index(shards, version.statistics, self.settings.rules(), self.settings.formula())
        has_dead = any(len(segment.dead) for segment in self.segments)
        self._left = np.concatenate([segment.left for segment in self.segments]) if has_dead else None

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a condition may name, with their types."""
        return {item.name: str(item.type) for item in self.schema}

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The supported kinds of search."""
        return get_args(Kind) if self.settings.encoder else ("bm25",)

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is a sequence, too
        self, questions: str, k: int = 10, *, kind: Kind | None = None, where: str | None = None, rerank: int = 0
    ) -> list[PassageHit]: ...
    @overload
    def search(
        self, questions: Sequence[str], k: int = 10, *, kind: Kind | None = None, where: str | None = None, rerank: int = 0
    ) -> list[list[PassageHit]]: ...
    def search(
        self,
        questions: str | Sequence[str],
        k: int = 10,
        *,
        kind: Kind | None = None,
        where: str | None = None,
        rerank: int = 0,
    ) -> list[PassageHit] | list[list[PassageHit]]:
        """The k best passages for a question, or for each of several, of all that pass the condition `where`.

        `kind`: hybrid (the default, if there are vectors), bm25 or dense. `rerank`: how many passages a cross-encoder reranks
        (at least k).
        """
        if isinstance(questions, str):
            return self._search([questions], k, kind, where, rerank)[0]
        return self._search(list(questions), k, kind, where, rerank)

    def _search(
        self, questions: list[str], k: int, kind: Kind | None, where: str | None, rerank: int
    ) -> list[list[PassageHit]]:
        kind = kind or self.kinds[0]
        if kind not in self.kinds:
            raise InputError(f"this library is searched by {' or '.join(self.kinds)}, not by {kind!r}")
        if k < 1 or rerank < 0:
            raise InputError(f"search needs k of 1 or more and rerank of 0 or more, got {k} and {rerank}")
        k, rerank, deep = (min(number, max(1, self.passages)) for number in (k, rerank, self.settings.depth))
        within, wanted = self.rows_where(where), max(k, rerank)
        depth = max(wanted, deep) if kind == "hybrid" else wanted
        if not self.segments:
            return [[] for _ in questions]
        hits: dict[str, BestRows] = {}
        if kind != "dense":
            hits["bm25"] = self._words.search(questions, depth, within=within)
        if kind != "bm25":
            hits["dense"] = self._vectors.search(questions, depth, within)
        lists = [self._ranked(kind, hits, place, wanted) for place in range(len(questions))]
        if rerank:
            lists = [self._reranked(question, found) for question, found in zip(questions, lists)]
        return [found[:k] for found in lists]

    def _ranked(self, kind: Kind, hits: Mapping[str, BestRows], place: int, wanted: int) -> list[PassageHit]:
        """The results for one question, best first."""
        row_of: dict[str, int] = {}
        scores: dict[str, dict[str, float]] = {}
        lists: dict[str, list[tuple[str, float]]] = {"bm25": [], "dense": []}
        for name, found in hits.items():
            rows = found.rows[place][found.rows[place] >= 0]
            for id, row, score in zip(self._words.sentence_ids(rows), rows.tolist(), found.scores[place].tolist()):
                row_of[id] = row
                scores.setdefault(id, {})[name] = score
                lists[name].append((id, score))
        order = self.settings.fuse().fuse(lists["bm25"], lists["dense"]) if kind == "hybrid" else lists[kind]
        return [self._passage(row_of[id], score, scores[id]) for id, score in order[:wanted]]

    def _reranked(self, question: str, found: list[PassageHit]) -> list[PassageHit]:
        logits = self._scorer.score([question], [self._indexed(hit) for hit in found], [0] * len(found), range(len(found)))
        scored = [
            replace(hit, score=logit, scores={**hit.scores, "cross_encoder": logit})
            for hit, logit in zip(found, logits.tolist())
        ]
        return sorted(scored, key=lambda hit: (-hit.score, hit.passage_id))

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows_where(self, where: str | None) -> np.ndarray | None:
        """A mask of the rows, over all segments, that are left and pass; None if no row is excluded."""
        if where is None:
            return self._left
        condition = parse(where, {item.name: item.type for item in self.schema})
        schema = pa.schema([item for item in self.schema if item.name in condition.columns])
        masks = [np.zeros(0, bool)]
        for segment in self.segments:
            looked_at = versions.conformed(segment.passages, schema).append_column("", pa.array(np.arange(len(segment))))
            mask = np.zeros(len(segment), bool)
            mask[looked_at.filter(condition.expression)[""].to_numpy()] = True
            masks.append(mask & segment.left)
        return np.concatenate(masks)

    def _passage(self, row: int, score: float, scores: Mapping[str, float]) -> PassageHit:
        """A row of the segments as a search result."""
        at = int(np.searchsorted(self._words.first_row, row, side="right")) - 1
        (values,) = self.segments[at].passages.slice(row - int(self._words.first_row[at]), 1).to_pylist()
        known = {name: values.pop(name) for name in PASSAGES.names}
        known["headings"] = tuple(known["headings"] or ())
        known |= {name: known[name] or "" for name in ("title", "language")}
        return PassageHit(score=score, scores=scores, metadata={k: v for k, v in values.items() if v is not None}, **known)

    def _indexed(self, hit: PassageHit) -> str:
        return with_headings(hit.title, hit.headings, hit.text) if self.settings.headings else hit.text

    # --- models, opened on first use ---------------------------------------------------------------------------------

    @cached_property
    def _vectors(self) -> OpenVectors:
        return self._models.OpenVectors(self.segments, self.settings)

    @cached_property
    def _scorer(self) -> CrossScorer:
        if self._cross_encoder is None:
            raise InputError(
                "no cross-encoder to rerank with: give one (Library.open(..., cross_encoder=...), --cross-encoder), or "
                "index with library.cross_encoder"
            )
        if not isinstance(self._cross_encoder, str | Path):
            return self._cross_encoder
        return self._models.CrossScorer(self._cross_encoder)

    @property
    def _models(self) -> Any:
        from raydist.library import vectors

        return vectors


def find_library(folder: Path | str) -> Storage:
    """The storage of the library in a folder, of a run, or under a URI."""
    found = _library_in(Storage(str(folder)))
    if found is None:
        raise InputError(f"{folder} holds no library of passages; make one with `raydist index FOLDER`")
    return found


def is_library_at(storage: Storage) -> bool:
    """Whether a folder or a run has a library."""
    return _library_in(storage) is not None


def _library_in(storage: Storage) -> Storage | None:
    return next((there for there in (storage, storage.at("index")) if versions.is_library(there)), None)
