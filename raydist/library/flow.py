"""Updates of a library from changed documents.

documents -> changed passages -> vectors -> segments, put in force together
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from raydist.config import Config
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.library.building import known_encoder
from raydist.library.segments import check_passages, indexed_texts
from raydist.library.settings import LibrarySettings
from raydist.library.stages import MadeVectors, PassageVectors
from raydist.library.versions import common_schema, conformed, is_library
from raydist.library.writer import LibraryWriter
from raydist.retrieval.bm25 import stop_words
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say

MANY_SEGMENTS = 8  # beyond this number, small ones are joined


class Update(Protocol):
    """Changes to documents (documents/flow.py)."""

    @property
    def added(self) -> Sequence[str]: ...
    @property
    def changed(self) -> Sequence[str]: ...
    @property
    def removed(self) -> Sequence[str]: ...
    @property
    def made(self) -> Made | None: ...

    def passages(self) -> Iterator[pa.Table]: ...


def index(run: Run) -> Path:
    """Update the library of the run's documents, in the run's folder `index`, with the changes since the last time."""
    import raydist.documents.flow as documents

    if not run.folder.is_local:
        raise InputError(f"an index is written to a disk, and storage is {run.config.storage}: set storage to a folder")
    if not is_made(run):
        run.folder.delete(documents.FILE)  # without an index, a record of its documents is void
    update = documents.read_documents(run)
    target = put_in(run, update)
    documents.keep(run, update)
    return target


def put_in(run: Run, update: Update) -> Path:
    """Apply an update to the run's library. Added documents may already be there, from an interrupted command."""
    target, settings = Path(run.folder.path("index")), library_settings(run.config)
    vectors = _vectors(run, update, settings)
    with LibraryWriter(target, settings, wait=run.config.library.wait) as writer, said_if_long("index: writing"):
        writer.delete([*update.added, *update.changed, *update.removed])
        for block in _blocks(update, settings, vectors):
            writer.add(*block)
        if writer.dead_share > run.config.library.dead_share or writer.num_segments > MANY_SEGMENTS:
            writer.compact()
        writer.commit()
        say(f"index: {writer.documents:,} documents, {writer.passages:,} passages")
    return target


def is_made(run: Run) -> bool:
    """Whether the run has a library."""
    return is_library(run.folder.at("index"))


def library_settings(config: Config) -> LibrarySettings:
    """The library settings of a config."""
    library, words, kind = config.library, config.index, config.library.fusion.kind
    encoder = library.encoder and known_encoder(
        library.encoder,
        pooling=library.pooling,
        question_length=library.max_question_length,
        passage_length=library.max_passage_length,
        question_prefix=library.question_prefix,
        passage_prefix=library.passage_prefix,
        precision=words.precision,
    )
    return LibrarySettings(
        encoder=encoder or None,
        headings=library.headings,
        k1=words.k1,
        b=words.b,
        idf=words.idf,
        min_chars=words.min_chars,
        stop_words=tuple(stop_words(words.stop_words)),
        stemmer=words.stemmer,
        fusion="rrf" if kind == "auto" else kind,
        dense_weight=library.fusion.dense_weight,
        depth=library.depth,
        cross_encoder=library.cross_encoder,
        segment_rows=words.shard_rows,
    )


def _vectors(run: Run, update: Update, settings: LibrarySettings) -> MadeVectors | None:
    if not update.made or not update.made.rows or not settings.encoder:
        return None
    stage = PassageVectors(update.made, settings.encoder, settings.headings)
    return MadeVectors(run.make(stage, "vectors of passages", "encode"))


def _blocks(
    update: Update, settings: LibrarySettings, vectors: MadeVectors | None
) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
    """Passages and their vectors, in blocks of a segment's size."""
    tables: list[pa.Table] = []
    found: list[np.ndarray] = []
    for table in map(check_passages, update.passages()):
        tables.append(table)
        if vectors:
            found.append(vectors.of(indexed_texts(table, settings.headings)))
        if sum(table.num_rows for table in tables) >= settings.segment_rows:
            yield _joined(tables), np.concatenate(found) if found else None
            tables, found = [], []
    if tables:
        yield _joined(tables), np.concatenate(found) if found else None


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    schema = common_schema([table.schema for table in tables])
    return pa.concat_tables([conformed(table, schema) for table in tables])
