"""Vectors of passages as a stage, for a cluster's devices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.cores import use_cores
from raydist.files.stage import Made, Part, Stage, Worker
from raydist.library.building import PassageEncoder
from raydist.library.segments import indexed_texts
from raydist.library.settings import EncoderFacts

DIGEST = pa.binary(16)


@dataclass(frozen=True)
class PassageVectors(Stage):
    """Passages -> a vector for each indexed text, keyed by its digest."""

    name: ClassVar[str] = "passage_vectors"
    uses_model: ClassVar[bool] = True

    passages: Made
    encoder: EncoderFacts
    headings: bool

    @property
    def parts(self) -> int:
        return len(self.passages.manifest.parts)

    def read(self, number: int) -> list[str]:
        table = self.passages.table(number, ["title", "headings", "text"])
        return list(dict.fromkeys(indexed_texts(table, self.headings)))

    def open(self, worker: Worker) -> Callable[[list[str]], Part]:
        encoder = worker.keep(_open, self.encoder, worker.threads)

        def make(texts: list[str]) -> Part:
            vectors = encoder.encode(texts)
            flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
            return Part(pa.table({"digest": pa.array(digests(texts), DIGEST), "vector": flat}))

        return make


def _open(facts: EncoderFacts, threads: int) -> PassageEncoder:
    use_cores(threads, keep_all=False)
    return PassageEncoder(facts)


def digests(texts: Sequence[str]) -> list[bytes]:
    return [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]


class MadeVectors:
    """The vectors of a stage, for tables that come in the order of its parts. In memory: one part."""

    def __init__(self, made: Made) -> None:
        self._parts: Iterator[pa.Table] = made.tables()
        self._part: pa.Table = next(self._parts)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of some texts, all of one part."""
        while True:
            places = pc.index_in(pa.array(digests(texts), DIGEST), value_set=self._part["digest"])
            if not places.null_count:
                column = self._part["vector"].combine_chunks()
                units: Any = column.type.list_size
                return column.values.to_numpy().reshape(-1, units)[places.to_numpy()]
            self._part = next(self._parts)
