"""Faiss indexes of shards: settings for building and searching, building, opening."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from raydist.errors import InputError

FAISS_FILE = "faiss.index"
SMALL_SHARD = 2_000  # rows; below it faiss has too little to learn from, and an exact search is as fast

Kind = Literal["flat", "ivf", "hnsw", "pq"]


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """Build settings of a shard, in faiss's terms; None: chosen by its size. ``pq`` is ivf with short codes."""

    kind: Kind = "flat"
    nlist: int | None = None  # ivf, pq: cells; None: four times the root of the rows
    hnsw_m: int = 32  # hnsw: neighbours of a row
    ef_construction: int = 200  # hnsw: rows examined to find them
    pq_m: int | None = None  # pq: parts of a vector; None: of eight units, or the next size that divides the units
    pq_bits: int = 8  # pq: bits per part

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"unknown dense index {self.kind!r}; take one of {', '.join(get_args(Kind))}")
        sizes = (self.nlist, self.ef_construction, self.pq_m)
        if min(size for size in sizes if size is not None) < 1 or self.hnsw_m < 2 or not 4 <= self.pq_bits <= 12:
            raise InputError(
                f"a dense index needs sizes of 1 or more, hnsw_m of 2 or more and pq_bits from 4 to 12, got {asdict(self)}"
            )

    def num_lists(self, rows: int) -> int:
        return self.nlist or max(1, min(int(4 * math.sqrt(rows)), rows // 39))  # faiss wants 39 rows per cell

    def num_parts(self, dimension: int) -> int:
        return self.pq_m or max(m for m in range(1, max(1, dimension // 8) + 1) if dimension % m == 0)

    def is_trained(self, rows: int) -> bool:
        """Whether a shard of this size gets a faiss index; others are searched exactly."""
        least = {"flat": math.inf, "ivf": self.nlist or 0, "hnsw": 0, "pq": max(self.nlist or 0, 2**self.pq_bits)}[self.kind]
        return rows >= max(SMALL_SHARD, least)

    def check(self, rows: int, dimension: int) -> None:
        """Refuse settings that cannot be built; ``rows`` are those of the largest shard."""
        if self.kind in ("ivf", "pq") and (self.nlist or 0) > rows:
            raise InputError(
                f"index.ivf.nlist {self.nlist} is more than the {rows:,} vectors of a shard, and each cell needs some: "
                f"lower it, leave it out (it is {replace(self, nlist=None).num_lists(rows)} then), or raise index.shard_rows "
                f"where the corpus is larger"
            )
        if self.kind == "pq" and dimension % self.num_parts(dimension):
            parts = ", ".join(str(m) for m in range(1, dimension + 1) if dimension % m == 0)
            raise InputError(
                f"vectors of {dimension} units cannot be cut into {self.pq_m} equal parts: set index.pq.m to one of {parts}"
            )
        if self.kind == "pq" and SMALL_SHARD <= rows < 2**self.pq_bits:
            raise InputError(
                f"index.pq.bits {self.pq_bits} needs {2**self.pq_bits:,} vectors to learn as many codes, and a shard has "
                f"{rows:,}: set it to {int(math.log2(rows))} or less"
            )


@dataclass(frozen=True, slots=True)
class DenseSearch:
    """Search-time settings: none of them is baked into the files. ``flat`` uses none."""

    nprobe: int | None = None  # ivf, pq: cells searched; None: one in 32 of the shard's, at least 16
    ef_search: int = 128  # hnsw: candidates kept during a search

    def __post_init__(self) -> None:
        if (self.nprobe is not None and self.nprobe < 1) or self.ef_search < 1:
            raise InputError(f"a search needs nprobe and ef_search of 1 or more, got {asdict(self)}")

    def num_probes(self, nlist: int) -> int:
        return min(nlist, self.nprobe or max(16, nlist // 32))


def build_faiss(vectors: np.ndarray, settings: DenseSettings) -> np.ndarray:
    """A trained and filled faiss index as bytes."""
    import faiss

    rows, dimension = vectors.shape
    settings.check(rows, dimension)
    cells, parts = f"IVF{settings.num_lists(rows)}", f"PQ{settings.num_parts(dimension)}x{settings.pq_bits}"
    # np: skip the training of a filter that is not used here and takes a hundred times as long.
    recipe = {"ivf": f"{cells},Flat", "hnsw": f"HNSW{settings.hnsw_m},Flat", "pq": f"{cells},{parts}np"}
    index: Any = faiss.index_factory(dimension, recipe[settings.kind], faiss.METRIC_INNER_PRODUCT)
    threads = faiss.omp_get_max_threads()
    if settings.kind == "hnsw":
        index.hnsw.efConstruction = settings.ef_construction
        faiss.omp_set_num_threads(1)  # with more, the graph differs from one run to the next
    try:
        index.train(vectors)
        index.add(vectors)
    finally:
        faiss.omp_set_num_threads(threads)
    return faiss.serialize_index(index)


def open_faiss(folder: Path, settings: DenseSettings, search: DenseSearch) -> Any:
    """The faiss index of a shard, mapped; on all GPUs if there are any that can search it."""
    import faiss

    knows = settings.kind == "ivf" or (settings.kind == "pq" and settings.pq_bits == 8)  # kinds that a GPU can search
    on_gpu = knows and faiss.get_num_gpus() > 0
    mapped = 0 if on_gpu else getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # older versions read it into memory
    index: Any = faiss.read_index(str(folder / FAISS_FILE), mapped)
    if settings.kind == "hnsw":
        index.hnsw.efSearch = search.ef_search
        return index
    index.nprobe = search.num_probes(index.nlist)
    return faiss.index_cpu_to_all_gpus(index) if on_gpu else index
