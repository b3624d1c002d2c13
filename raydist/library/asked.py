"""Searches from the command line, in an index of documents or of sentences."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.library.library import Kind, Library, PassageHit, is_library_at
from raydist.retrieval.searcher import Hit, Searcher
from raydist.terminal import plain, shown_json

SHOWN = 300  # characters of a passage


def search_index(
    index: str,
    question: str,
    k: int,
    as_json: bool,
    *,
    kind: str | None = None,
    where: str | None = None,
    rerank: int = 0,
    cross_encoder: str | None = None,
) -> str:
    """Search an index; return the results as text or JSON."""
    found: list[PassageHit | Hit]
    place = Storage(index)
    place.check_reachable()
    if is_library_at(place):
        library = Library.open(index, cross_encoder=cross_encoder)
        found = [*library.search(question, k, kind=cast(Kind, kind), where=where, rerank=rerank)]
    elif kind or where or rerank or cross_encoder:
        raise InputError(f"{index} is not an index of documents: --kind, --where and --rerank need one")
    else:
        found = [*Searcher(index).search(question, k)]
    if as_json:
        values = [asdict(hit) if isinstance(hit, PassageHit) else hit._asdict() for hit in found]
        return shown_json(values)
    return "\n".join(_shown(rank, hit) for rank, hit in enumerate(found, 1))


def _shown(rank: int, hit: PassageHit | Hit) -> str:
    if isinstance(hit, Hit):
        return plain(f"{rank:3}  {hit.score:9.4f}  {hit.sentence_id}  {hit.text}")
    text = hit.text if len(hit.text) <= SHOWN else hit.text[:SHOWN].rsplit(" ", 1)[0] + " ..."
    return f"{rank:3}  {hit.score:9.4f}  {plain(source_line(hit))}\n     {plain(text)}"


def source_line(hit: PassageHit) -> str:
    """The location of a passage: `docs/cluster.md > Storage, line 41`, `report.pdf, page 7`."""
    place = " > ".join([hit.document_id, *hit.headings])
    if hit.page is not None:
        return f"{place}, page {hit.page}"
    return place if hit.line is None else f"{place}, line {hit.line}"
