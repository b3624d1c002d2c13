"""Changes to a library: added, replaced and deleted passages, put in force together."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from raydist.errors import InputError
from raydist.files.lease import Lease, Owner
from raydist.files.shards import order_by_id, put_in_force
from raydist.files.storage import Storage
from raydist.library.building import PassageEncoder, build_segment, encode_passages
from raydist.library.segments import Segment, check_passages
from raydist.library.settings import LibrarySettings
from raydist.library.versions import (
    GRACE_SECONDS,
    Version,
    common_schema,
    conformed,
    is_library,
    read_version,
    write_version,
)

SMALL_SHARE = 0.5  # of a segment's usual rows: smaller ones are joined by a compaction


class LibraryWriter:
    """The only writer of a library, in a `with`: all changes come into force at once when the block ends without an error.

    Readers keep the version that they opened. A second writer waits `wait` seconds, then is refused with the name of the
    first; a writer's lock dies with it.
    """

    def __init__(self, folder: Path | str, settings: LibrarySettings | None = None, *, wait: float = 0.0) -> None:
        """Without settings, those of the existing library, else of words alone."""
        self.folder = Path(folder)
        self._given, self._stack = settings, ExitStack()
        self._lease = Lease(Storage(str(folder)), "writer", self._refusal, wait=wait)
        self._segments: list[Segment] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(self._lease)
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self._stack.close()

    def _refusal(self, other: Owner) -> str:
        return f"{self.folder} is being written by {other}: run this again when that is done; readers are not disturbed"

    def _begin(self) -> None:
        storage = Storage(str(self.folder))
        if storage.exists("index.json") and not is_library(storage):
            raise InputError(f"{self.folder} holds an index of another kind; give the run another name")
        there = storage.exists("index.json")
        self._before = read_version(storage) if there else Version(0, (), self._given or LibrarySettings())
        self.settings = self._given or self._before.settings
        made, wanted = self._before.settings.made_with(), self.settings.made_with()
        if changed := [name for name in made if made[name] != wanted[name] and self._before.segments]:
            raise InputError(
                f"{self.folder} was made with another {', '.join(changed)}: give the run another name, or delete the folder to "
                "index anew"
            )
        self._segments = list(self._before.segments)

    # --- changes -----------------------------------------------------------------------------------------------------

    def add(self, passages: pa.Table, vectors: np.ndarray | None = None) -> int:
        """Add passages whose ids are new, with their vectors if at hand."""
        passages = check_passages(passages)
        if not len(passages):
            return 0
        ids = pa.concat_arrays(passages["passage_id"].chunks)
        order_by_id(ids.cast(pa.large_string()))  # refuses repeated ids
        self._refuse_known(ids)
        common_schema([*(segment.passages.schema for segment in self._segments if segment.num_left), passages.schema])
        for first in range(0, len(passages), self.settings.segment_rows):
            block = passages.slice(first, self.settings.segment_rows)
            own = (
                encode_passages(block, self.settings, self._encoder) if vectors is None else vectors[first : first + len(block)]
            )
            self._segments.append(self._build(block, own))
        return len(passages)

    def replace(self, passages: pa.Table) -> int:
        """Put passages in place of all earlier ones of their documents."""
        passages = check_passages(passages)
        self.delete(passages["document_id"].unique().to_pylist())
        return self.add(passages)

    def delete(self, document_ids: Iterable[str]) -> int:
        """Delete all passages of some documents; return their number."""
        return self._remove("document_id", pa.array(document_ids, pa.string()))

    def _remove(self, column: str, values: pa.Array) -> int:
        before = sum(segment.num_left for segment in self._segments)
        if len(values):
            self._segments = [segment.without(column, values) for segment in self._segments]
        return before - sum(segment.num_left for segment in self._segments)

    def _refuse_known(self, ids: pa.Array) -> None:
        for segment in self._segments:
            known = segment.find("passage_id", ids)
            if len(known):
                first = segment.passages["passage_id"][int(known[0])].as_py()
                raise InputError(f"{len(known)} of these passages are in the library already, {first!r} for one; replace them")

    # --- compaction --------------------------------------------------------------------------------------------------

    @property
    def dead_share(self) -> float:
        """The share of deleted and replaced rows in all segments."""
        rows = sum(map(len, self._segments))
        return sum(len(segment.dead) for segment in self._segments) / rows if rows else 0.0

    @property
    def passages(self) -> int:
        """The number of passages in force."""
        return self._before.passages

    @property
    def documents(self) -> int:
        return self._before.documents

    @property
    def num_segments(self) -> int:
        return len(self._segments)

    def compact(self) -> None:
        """Rewrite segments with dead rows, and small ones, without the dead rows and in as few as possible."""
        small = [len(segment) < SMALL_SHARE * self.settings.segment_rows for segment in self._segments]
        several = sum(small) > 1
        poor = [segment for segment, is_small in zip(self._segments, small) if len(segment.dead) or (is_small and several)]
        kept = [segment for segment in self._segments if segment not in poor]
        schema = common_schema([segment.passages.schema for segment in poor]) if poor else None
        self._segments = kept + [self._build(*block) for block in self._blocks(poor, schema)]

    def _blocks(self, segments: Sequence[Segment], schema: pa.Schema | None) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """The rows left in some segments, in new blocks."""
        tables: list[pa.Table] = []
        vectors: list[np.ndarray] = []
        size = self.settings.segment_rows
        for segment in segments:
            tables.append(conformed(segment.kept_passages(), schema))
            if self.settings.encoder:
                vectors.append(segment.kept_vectors())
            while (rows := sum(table.num_rows for table in tables)) >= size or (rows and segment is segments[-1]):
                table = pa.concat_tables(tables)
                both = np.concatenate(vectors) if vectors else None
                yield table.slice(0, size), None if both is None else both[:size]
                tables, vectors = [table.slice(size)], [] if both is None else [both[size:]]

    # --- files -------------------------------------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> PassageEncoder | None:
        return PassageEncoder(self.settings.encoder) if self.settings.encoder else None

    def _build(self, passages: pa.Table, vectors: np.ndarray | None) -> Segment:
        folder = self._new_folder()
        build_segment(folder, passages, vectors, self.settings)
        return Segment(folder)

    def _new_folder(self) -> Path:
        return self.folder / f"segment-{uuid.uuid4().hex[:12]}"

    def commit(self) -> None:
        """Put the changes so far in force."""
        if self._before.number and self._segments == list(self._before.segments) and self.settings == self._before.settings:
            return
        facts = write_version(self.folder, self._before, self._segments, self.settings)
        old = {name for name, since in facts["retired"].items() if time.time() - since > GRACE_SECONDS}
        facts["retired"] = {name: since for name, since in facts["retired"].items() if name not in old}
        with self._lease.held() as is_mine:
            if not is_mine:
                raise InputError(
                    f"{self.folder}: another writer took over, because this one had shown no sign of life; run this again"
                )
            put_in_force(self.folder, facts)
        self._sweep({*facts["segments"], facts["statistics"], *facts["retired"]})
        self._before = read_version(Storage(str(self.folder)))
        self._segments = list(self._before.segments)

    def _sweep(self, wanted: set[str]) -> None:
        """Delete folders long out of force, and leftovers of dead writers."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name.lstrip(".").startswith(("segment-", "version-")) and path.name not in wanted:
                shutil.rmtree(path, ignore_errors=True)
