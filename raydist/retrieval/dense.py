"""Dense index over shards: vectors and sentence ids on disk, memory-mapped; search by inner product, exact by default.

``flat`` is exact: block matrix products and a running list of the best. The product only proposes: in bf16 where the processor
has instructions for it, else in float32. How it rounds depends on that and on the shape of the block, so the final score of
each proposed row is its dot product summed in float64 and rounded once to float32: a pure function of the two vectors.
Proposals go so far below the k-th score that rounding cannot hide a better row; a question with too many rows so near is asked
again, in float32, then with more room. Hence the same rows and the same scores on any processor, for any number of shards and
any block size; ties go to the smaller sentence id, in the order of code points.

``ivf``, ``hnsw`` and ``pq`` let faiss propose, from an index of each shard; scores and ties are as above, but a row that
faiss does not propose is not found, and what it proposes depends on the shards. A shard too small to train is searched exactly.

    INDEX/index.json      names what is in force (raydist/shards.py)
    INDEX/shard-00000/    vectors and ids (.npy, rows sorted by id), faiss.index (not with flat), shard.json

``estimate_bytes`` says the size in advance. Searching takes memory for one block of products and the running lists, beyond the
mapped files, which faiss maps as well; a GPU holds the vectors (or faiss's index) while the index is open.

Shapes: Q questions, D units of a vector, R rows of a block, K best so far, S strides of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raydist.cores import bf16_instructions
from raydist.errors import InputError
from raydist.files.shards import (
    STRIDE,
    Hits,
    OpenShards,
    build_shards,
    compiled,
    load_strings,
    order_by_id,
    put_in_force,
    read_facts,
    refuse_repeated_ids,
    string_arrays,
    write_folder,
)

FORMAT = 2
FAISS_FILE = "faiss.index"
SMALL_SHARD = 2_000  # rows; below it faiss has too little to learn from, and an exact search is as fast
SMALL_BLOCK = 1_024, 1_024  # questions and rows of a matrix product that stays in the cache until compiled loops have read it
LARGE_BLOCK = 256, 8_192  # where each block costs calls of its own, or there are few questions
MANY_QUESTIONS = 64  # from so many on, products in bf16 are worth rounding the vectors for
COARSE_NORMS = 1e-15, 1e15  # of vectors whose products in bf16 neither overflow nor vanish
OVERFLOW, UNDERFLOW = 1e37, 2.0**-126  # of products and sums in float32
LIST_ROWS = 2**23  # proposed at once, for all questions

Kind = Literal["flat", "ivf", "hnsw", "pq"]


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """What is built of each shard, in faiss's words; None: a number that suits its size. ``pq`` is ivf with short codes."""

    kind: Kind = "flat"
    nlist: int | None = None  # ivf, pq: cells; None: four times the root of the rows
    hnsw_m: int = 32  # hnsw: neighbours of a row
    ef_construction: int = 200  # hnsw: how many are looked at for them
    pq_m: int | None = None  # pq: parts that a vector is cut into; None: of eight units, or as near to it as the units divide
    pq_bits: int = 8  # pq: of the code of a part

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"unknown dense index {self.kind!r}; take one of {', '.join(get_args(Kind))}")
        sizes = (self.nlist, self.ef_construction, self.pq_m)
        if min(size for size in sizes if size is not None) < 1 or self.hnsw_m < 2 or not 4 <= self.pq_bits <= 12:
            raise InputError(
                f"a dense index wants sizes of 1 or more, hnsw_m of 2 or more and pq_bits from 4 to 12, got {asdict(self)}"
            )

    def num_lists(self, rows: int) -> int:
        return self.nlist or max(1, min(int(4 * math.sqrt(rows)), rows // 39))  # faiss wants 39 rows for a cell

    def num_parts(self, dimension: int) -> int:
        return self.pq_m or max(m for m in range(1, max(1, dimension // 8) + 1) if dimension % m == 0)

    def is_trained(self, rows: int) -> bool:
        """Whether a shard of so many rows gets a faiss index; another is searched exactly."""
        least = {"flat": math.inf, "ivf": self.nlist or 0, "hnsw": 0, "pq": max(self.nlist or 0, 2**self.pq_bits)}[self.kind]
        return rows >= max(SMALL_SHARD, least)

    def check(self, rows: int, dimension: int) -> None:
        """Refuse what cannot be built, ``rows`` being those of the largest shard."""
        if self.kind in ("ivf", "pq") and (self.nlist or 0) > rows:
            raise InputError(
                f"index.ivf.nlist {self.nlist} is more than the {rows:,} vectors of a shard, and a cell wants some of its own: "
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
                f"index.pq.bits {self.pq_bits} wants {2**self.pq_bits:,} vectors to learn as many codes from, and a shard has "
                f"{rows:,}: set it to {int(math.log2(rows))} or less"
            )


@dataclass(frozen=True, slots=True)
class DenseSearch:
    """What may change from one search to the next: nothing here is baked into the files. No part of ``flat``."""

    nprobe: int | None = None  # ivf, pq: cells looked into; None: one in 32 of the shard's, and 16 or more
    ef_search: int = 128  # hnsw: rows kept in view

    def __post_init__(self) -> None:
        if (self.nprobe is not None and self.nprobe < 1) or self.ef_search < 1:
            raise InputError(f"a search wants nprobe and ef_search of 1 or more, got {asdict(self)}")

    def num_probes(self, nlist: int) -> int:
        return min(nlist, self.nprobe or max(16, nlist // 32))


def estimate_bytes(
    num_rows: int, dimension: int, settings: DenseSettings | None = None, *, shards: int = 1, id_bytes: int = 24
) -> int:
    """How large the files of an index will be."""
    settings = settings or DenseSettings()
    vector = 4 * dimension
    cells = shards * settings.num_lists(num_rows // shards) * vector + 8 * num_rows
    code = (settings.num_parts(dimension) * settings.pq_bits + 7) // 8
    links = 4 * (2 * settings.hnsw_m + settings.hnsw_m // 16)
    faiss_part = {
        "flat": 0,
        "ivf": num_rows * vector + cells,
        "hnsw": num_rows * (vector + links + 16),
        "pq": num_rows * code + cells + shards * 2**settings.pq_bits * vector,
    }[settings.kind]
    return num_rows * (vector + id_bytes + 8) + faiss_part


# ---------------------------------------------------------------------------------------------------------------- build


def build_shard(folder: Path, ids: Iterable[str], vectors: np.ndarray, settings: DenseSettings | None = None) -> None:
    """Write one shard: ids and float32 vectors [rows, D], sorted by id. Needs no knowledge of the other shards."""
    settings = settings or DenseSettings()
    sentence_ids = pa.array(ids, pa.large_string())
    if vectors.ndim != 2 or len(vectors) != len(sentence_ids):
        raise InputError(f"{len(sentence_ids)} ids for vectors of shape {vectors.shape}: give one row for each id")
    sentence_ids, by_id = order_by_id(sentence_ids)
    in_order = bool((by_id[1:] > by_id[:-1]).all())  # as rows of a sentence table are: then there is no second copy
    vectors = np.ascontiguousarray(vectors if in_order else vectors[by_id], np.float32)
    norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors, dtype=np.float64))
    if not np.isfinite(norms).all():
        bad = np.flatnonzero(~np.isfinite(norms))
        raise InputError(f"{len(bad)} vectors are not finite, {sentence_ids[int(bad[0])].as_py()!r} for one; mend the encoder")
    arrays = {**string_arrays("ids", sentence_ids), "vectors": vectors}
    raw = {FAISS_FILE: _build_faiss(vectors, settings)} if settings.is_trained(len(vectors)) else {}
    facts = {
        "format": FORMAT,
        "rows": len(vectors),
        "dimension": vectors.shape[1],
        "largest_norm": float(norms.max(initial=0)),
        "settings": asdict(settings),
    }
    write_folder(Path(folder), arrays, facts, "shard.json", raw)


def _build_faiss(vectors: np.ndarray, settings: DenseSettings) -> np.ndarray:
    """A trained and filled faiss index as bytes."""
    import faiss

    rows, dimension = vectors.shape
    settings.check(rows, dimension)
    cells, parts = f"IVF{settings.num_lists(rows)}", f"PQ{settings.num_parts(dimension)}x{settings.pq_bits}"
    # np: without a training for a kind of filter that is not used here, and which takes a hundred times as long.
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


def publish_index(folder: Path, shards: Sequence[str], encoder: dict[str, Any] | None = None) -> None:
    """Put the named shards of this folder in force, all at once; ``encoder`` says what made the vectors."""
    folder = Path(folder)
    opened = [_Shard(folder / name) for name in shards]
    if not sum(shard.num_rows for shard in opened):
        raise InputError(f"nothing to index in {folder}: the corpus is empty")
    for name, shard in zip(shards, opened):
        if (shard.dimension, shard.settings) != (opened[0].dimension, opened[0].settings):
            raise InputError(f"{folder / name} has another dimension or other settings than {shards[0]}; build it again")
    before = _read_json(folder / "index.json") if (folder / "index.json").exists() else {}
    known = set(before.get("shards", ()))
    refuse_repeated_ids(
        [shard.ids for name, shard in zip(shards, opened) if name in known],
        [shard.ids for name, shard in zip(shards, opened) if name not in known],
    )
    index = {
        "format": FORMAT,
        "kind": "dense",
        "rows": sum(shard.num_rows for shard in opened),
        "dimension": opened[0].dimension,
        "settings": asdict(opened[0].settings),
        "search": before.get("search", {}),
        "shards": list(shards),
        "encoder": encoder or {},
    }
    put_in_force(folder, index)


def build_index(
    folder: Path,
    ids: Sequence[str],
    vectors: np.ndarray,
    shards: int = 1,
    settings: DenseSettings | None = None,
    encoder: dict[str, Any] | None = None,
) -> None:
    """A whole index from rows at hand, in as many shards as asked for."""
    folder, settings = Path(folder), settings or DenseSettings()
    if len(vectors):
        settings.check(-(-len(vectors) // shards), vectors.shape[1])
    build_shards(
        folder,
        len(vectors),
        shards,
        lambda shard, rows: build_shard(shard, ids[rows], vectors[rows], settings),
        lambda names: publish_index(folder, names, encoder),
    )


def _read_json(path: Path) -> dict[str, Any]:
    return read_facts(path, "dense", FORMAT)


# --------------------------------------------------------------------------------------------------------------- search


class _Shard:
    def __init__(self, folder: Path) -> None:
        facts = _read_json(folder / "shard.json")
        self.folder = folder
        self.num_rows: int = facts["rows"]
        self.dimension: int = facts["dimension"]
        self.largest_norm: float = facts["largest_norm"]
        self.settings = DenseSettings(**facts["settings"])
        self.ids = load_strings(folder, "ids")
        # Copy-on-write: torch wants arrays that it could write to; nothing is written.
        self.vectors = np.load(folder / "vectors.npy", mmap_mode="c" if self.num_rows else None, allow_pickle=False)
        self.has_faiss = (folder / FAISS_FILE).exists()

    def open_faiss(self, search: DenseSearch) -> Any:
        import faiss

        knows = self.settings.kind == "ivf" or (self.settings.kind == "pq" and self.settings.pq_bits == 8)  # what a GPU can do
        on_gpu = knows and faiss.get_num_gpus() > 0
        mapped = 0 if on_gpu else getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # older ones read it into memory
        index: Any = faiss.read_index(str(self.folder / FAISS_FILE), mapped)
        if self.settings.kind == "hnsw":
            index.hnsw.efSearch = search.ef_search
            return index
        index.nprobe = search.num_probes(index.nlist)
        return faiss.index_cpu_to_all_gpus(index) if on_gpu else index


class DenseIndex(OpenShards):
    """A dense index, or some of its shards, open for search; without ``search`` as index.json says, else by the size."""

    def __init__(
        self,
        folder: Path,
        shards: Sequence[int] | None = None,
        *,
        search: DenseSearch | None = None,
        device: str | None = None,
    ) -> None:
        folder = Path(folder)
        facts = _read_json(folder / "index.json")
        self.settings = DenseSettings(**facts["settings"])
        self.encoder: dict[str, Any] = facts["encoder"]
        self.num_rows: int = facts["rows"]  # of the whole index, also where some shards only are open
        self.dimension: int = facts["dimension"]
        chosen = range(len(facts["shards"])) if shards is None else shards
        self.shards = [_Shard(folder / facts["shards"][at]) for at in chosen]
        super().__init__(shard.ids for shard in self.shards)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._dot = compiled(_dot_loops) or _dot_numpy
        self._keep = compiled(_keep_loops) if torch.device(self.device).type == "cpu" else None
        self._has_bf16 = self._keep is not None and torch.backends.mkldnn.is_available() and bf16_instructions() is not None
        self._largest_norm = max((shard.largest_norm for shard in self.shards), default=0.0)
        search = search or DenseSearch(**facts["search"])
        self._faiss = {at: shard.open_faiss(search) for at, shard in enumerate(self.shards) if shard.has_faiss}
        self._vectors: dict[int, Tensor] = {}

    @classmethod
    def open(cls, folder: Path, shards: Sequence[int] | None = None, **options: Any) -> DenseIndex:
        """Open all shards, or those of the given numbers."""
        return cls(folder, shards, **options)

    def search(
        self, queries: np.ndarray, k: int = 10, *, question_block: int | None = None, row_block: int | None = None
    ) -> Hits:
        """The k best rows of the open shards for each query vector, best first; ties by sentence id."""
        queries = np.ascontiguousarray(queries, np.float32)
        if k < 1:
            raise InputError(f"search wants k of 1 or more, got {k}")
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise InputError(f"queries of shape {queries.shape} for an index of {self.dimension} units: give one row for each")
        if not np.isfinite(queries).all():
            raise InputError(f"query {int(np.flatnonzero(~np.isfinite(queries).all(1))[0])} is not finite")
        hits = Hits(np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k), np.float32))
        total = int(self.first_row[-1])
        norms = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype=np.float64))
        pending = [(np.arange(len(queries) if total else 0), self._can_be_coarse(norms), k + max(16, k // 8))]
        while pending:
            waiting, is_coarse, width = pending.pop()
            default = SMALL_BLOCK if self._keep and len(waiting) >= MANY_QUESTIONS else LARGE_BLOCK
            block = question_block or default[0], row_block or default[1]
            is_coarse = is_coarse and min(len(waiting), block[0]) >= MANY_QUESTIONS
            room = min(total, k + max(64, k) if is_coarse else width)
            at_once = max(1, LIST_ROWS // room)
            if len(waiting) > at_once:
                parts = np.split(waiting, range(at_once, len(waiting), at_once))
                pending += [(part, is_coarse, width) for part in parts]
                continue
            asked, dtype = queries[waiting], torch.bfloat16 if is_coarse else torch.float32
            scores, rows = self._propose(asked, room, block, dtype)
            if self._faiss or room >= total:
                is_settled = np.ones(len(waiting), bool)
            else:
                kth, last = scores[:, k - 1 : k], scores[:, -1:]
                slack = 2 * _product_error(asked, norms[waiting], dtype)[:, None] * self._largest_norm
                slack += 2 * (self.dimension + 2) * UNDERFLOW
                if is_coarse:  # the product itself is rounded, too
                    slack += 2 * 2.0**-8 * np.maximum(abs(kth), abs(last))
                is_settled = (last < kth - slack)[:, 0] & (norms[waiting] * self._largest_norm < OVERFLOW)
                rows = np.where(scores < kth - slack, -1, rows)  # too far below to be among the best
                rows = rows[:, : max(k, int((rows[is_settled] >= 0).sum(1).max(initial=0)))]
            self._settle(hits, waiting[is_settled], asked[is_settled], rows[is_settled], k)
            if not is_settled.all():  # many rows with nearly the same score
                pending.append((waiting[~is_settled], False, width if is_coarse else width * 4))
        return hits

    def _can_be_coarse(self, norms: np.ndarray) -> bool:
        """Whether products in bf16 may propose. With faiss they may not: what it proposes is taken without a second look."""
        given = [self._largest_norm, *(found(norms[norms > 0], initial=1) for found in (np.min, np.max))]
        return self._has_bf16 and not self._faiss and all(COARSE_NORMS[0] < norm < COARSE_NORMS[1] for norm in given)

    def products(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The score of one row for each query vector, as ``search`` would give it."""
        return self._final_scores(np.ascontiguousarray(queries, np.float32), np.asarray(rows, np.int64)[:, None])[:, 0]

    def _propose(
        self, queries: np.ndarray, width: int, block: tuple[int, int], dtype: torch.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are likely the best and their rounded scores, best first, [Q, width]; row -1 where there are fewer."""
        device, threads = torch.device(self.device), torch.get_num_threads()
        queries_QD = torch.from_numpy(queries).to(device, dtype)
        blocks = max(1, -(-len(queries) // block[0]))
        bounds = [len(queries) * at // blocks for at in range(blocks + 1)]
        with ThreadPoolExecutor(threads) as pool, torch.autocast(device.type, enabled=False):
            keep = partial(_in_threads, pool, threads, self._keep) if self._keep else None
            best = _CompiledBest(len(queries), width, dtype, keep) if keep else _Best(len(queries), width, device)
            for first_row, block_RD in self._exact_blocks(block[1]):
                block_RD = block_RD.to(dtype)
                for start, end in pairwise(bounds):
                    best.add(slice(start, end), queries_QD[start:end] @ block_RD.T, first_row)
        scores, rows = best.in_order()
        for at, index in self._faiss.items():
            found_scores, found = index.search(queries, min(width, self.shards[at].num_rows))
            scores = np.concatenate([scores, np.where(found >= 0, found_scores, -np.inf)], axis=1)
            rows = np.concatenate([rows, np.where(found >= 0, found + self.first_row[at], -1)], axis=1)
        if self._faiss:
            order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
            scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        return scores, rows

    def _exact_blocks(self, row_block: int) -> Iterator[tuple[int, Tensor]]:
        for at, shard in enumerate(self.shards):
            if at not in self._faiss:
                if at not in self._vectors:
                    self._vectors[at] = self._resident(torch.from_numpy(shard.vectors))
                for start in range(0, shard.num_rows, row_block):
                    yield int(self.first_row[at]) + start, self._vectors[at][start : start + row_block].to(self.device)

    def _resident(self, vectors: Tensor) -> Tensor:
        """On a GPU while the index is open, where they fit and leave as much again free; else as they are, mapped."""
        if torch.device(self.device).type != "cuda" or 2 * vectors.nbytes > torch.cuda.mem_get_info(self.device)[0]:
            return vectors
        return vectors.to(self.device)

    def _settle(self, hits: Hits, questions: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int) -> None:
        """Final scores of proposed rows, and the best of them in order."""
        scores_QK = self._final_scores(queries, rows)
        order = self._order(scores_QK, rows)[:, :k]
        best, best_scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores_QK, order, 1)
        hits.rows[questions, : order.shape[1]] = best
        hits.scores[questions, : order.shape[1]] = np.where(best >= 0, best_scores, 0)

    def _final_scores(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scores_QK = np.full(rows.shape, -np.inf, np.float32)
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            for at, shard in enumerate(self.shards):
                given = (np.asarray(shard.vectors), int(self.first_row[at]), queries, rows, scores_QK)
                _in_threads(pool, threads, self._dot, len(queries), *given)
        return scores_QK

    def _order(self, scores_QK: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
        """Best first, equal scores by id. Rows of one shard are in the order of their ids, so one shard needs no ids."""
        order = np.lexsort((rows_QK, -scores_QK), axis=1)
        if len(self.shards) == 1:
            return order
        ranked = np.take_along_axis(scores_QK, order, 1)
        is_same = (ranked[:, 1:] == ranked[:, :-1]) & np.isfinite(ranked[:, 1:])
        is_tied = np.zeros(ranked.shape, bool)
        is_tied[:, 1:] |= is_same
        is_tied[:, :-1] |= is_same
        if not is_tied.any():
            return order
        place = np.zeros(ranked.shape, np.int64)  # of an id among those of all tied rows
        ids = self._ids(np.take_along_axis(rows_QK, order, 1)[is_tied])
        place[is_tied] = np.argsort(pc.array_sort_indices(ids).to_numpy(), kind="stable")
        return np.take_along_axis(order, np.lexsort((place, -ranked), axis=1), 1)


def _in_threads(pool: ThreadPoolExecutor, threads: int, loops: Callable[..., None], questions: int, *given: Any) -> None:
    """Call it for all questions, a share of them in each thread."""
    bounds = [questions * at // threads for at in range(threads + 1)]
    list(pool.map(lambda first, last: loops(*given, first, last), bounds, bounds[1:]))


def _dot_numpy(
    vectors: np.ndarray, first_row: int, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray, first: int, last: int
) -> None:
    """Scores of rows [Q, K] that are in this shard, for the questions from ``first`` to ``last``. The sum is of eight sums that
    go on side by side, then the rest: an order that a processor can follow eight at a time, and that is always the same.
    """
    whole = vectors.shape[1] // 8 * 8
    for question in range(first, last):
        here = np.flatnonzero((rows[question] >= first_row) & (rows[question] < first_row + len(vectors)))
        found = vectors[rows[question, here] - first_row].astype(np.float64)
        products = found * queries[question]  # exact: 24 + 24 < 53 bits
        side = np.add.reduce(products[:, :whole].reshape(len(here), -1, 8), axis=1)
        half = (side[:, 0] + side[:, 1]) + (side[:, 2] + side[:, 3])
        other = (side[:, 4] + side[:, 5]) + (side[:, 6] + side[:, 7])
        rest = np.zeros(len(here))
        for unit in range(whole, vectors.shape[1]):
            rest += products[:, unit]
        scores[question, here] = half + other + rest


def _dot_loops(
    vectors: np.ndarray, first_row: int, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray, first: int, last: int
) -> None:
    """The same, to be compiled."""
    units = vectors.shape[1]
    whole = units // 8 * 8
    query = np.empty(units, np.float64)
    for question in range(first, last):
        for unit in range(units):
            query[unit] = queries[question, unit]
        for k in range(rows.shape[1]):
            row = rows[question, k] - first_row
            if row < 0 or row >= vectors.shape[0]:
                continue
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
            for d in range(0, whole, 8):
                s0 += vectors[row, d] * query[d]
                s1 += vectors[row, d + 1] * query[d + 1]
                s2 += vectors[row, d + 2] * query[d + 2]
                s3 += vectors[row, d + 3] * query[d + 3]
                s4 += vectors[row, d + 4] * query[d + 4]
                s5 += vectors[row, d + 5] * query[d + 5]
                s6 += vectors[row, d + 6] * query[d + 6]
                s7 += vectors[row, d + 7] * query[d + 7]
            rest = 0.0
            for d in range(whole, units):
                rest += vectors[row, d] * query[d]
            scores[question, k] = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)) + rest


class _Best:
    """The best products of each question so far."""

    def __init__(self, questions: int, width: int, device: torch.device) -> None:
        self.scores_QK = torch.full((questions, width), -torch.inf, device=device)
        self.rows_QK = torch.full((questions, width), -1, dtype=torch.int64, device=device)

    def add(self, mine: slice, products_QR: Tensor, first_row: int) -> None:
        """Products of some of the questions with a block of rows."""
        self.scores_QK[mine], self.rows_QK[mine] = _merge_block(
            self.scores_QK[mine], self.rows_QK[mine], products_QR, first_row
        )

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows, best first."""
        return self.scores_QK.cpu().numpy(), self.rows_QK.cpu().numpy()


def _merge_block(scores_QK: Tensor, rows_QK: Tensor, products_QR: Tensor, first_row: int) -> tuple[Tensor, Tensor]:
    """The best of those so far and of a block's products. Few products beat the worst so far: most strides are left unread."""
    questions, width = scores_QK.shape
    if rows_QK[0, 0] < 0 and products_QR.shape[1] >= width:  # the first block: nothing to beat yet
        best = products_QR.topk(width)
        return best.values, best.indices + first_row
    missing = -products_QR.shape[1] % STRIDE
    if missing:
        products_QR = torch.nn.functional.pad(products_QR, (0, missing), value=-torch.inf)
    strides_QSR = products_QR.view(questions, -1, STRIDE)
    least_Q1 = scores_QK[:, -1:]
    question, stride = (strides_QSR.amax(2) > least_Q1).nonzero(as_tuple=True)
    if not len(question):
        return scores_QK, rows_QK
    looked_at = strides_QSR[question, stride]
    at, place = (looked_at > least_Q1[question]).nonzero(as_tuple=True)
    question, row = question[at], first_row + stride[at] * STRIDE + place
    num_new_Q = torch.bincount(question, minlength=questions)
    column = width + torch.arange(len(question), device=row.device) - (num_new_Q.cumsum(0) - num_new_Q)[question]
    more = int(num_new_Q.max())
    all_scores = torch.nn.functional.pad(scores_QK, (0, more), value=-torch.inf)
    all_rows = torch.nn.functional.pad(rows_QK, (0, more), value=-1)
    all_scores[question, column] = looked_at[at, place]
    all_rows[question, column] = row
    best = all_scores.topk(width)
    return best.values, all_rows.gather(1, best.indices)


class _CompiledBest:
    """The same on a CPU: there is room for twice as many, and when it is full the worse half goes.

    Products are compared as the integers that their bits are, in an order that is that of the numbers.
    """

    def __init__(self, questions: int, width: int, dtype: torch.dtype, keep: Callable[..., None]) -> None:
        self.width, self.dtype, self.keep = width, dtype, keep
        self.integers = torch.int16 if dtype == torch.bfloat16 else torch.int32
        self.codes = torch.full((questions, 2 * width), torch.iinfo(self.integers).min, dtype=self.integers).numpy()
        self.rows = np.full((questions, 2 * width), -1, np.int64)
        self.filled = np.zeros(questions, np.int64)
        self.least = self.codes[:, 0].copy()  # what one must be above

    def add(self, mine: slice, products_QR: Tensor, first_row: int) -> None:
        codes = products_QR.view(self.integers).numpy()
        kept = self.codes[mine], self.rows[mine], self.filled[mine], self.least[mine]
        self.keep(len(codes), codes, first_row, *kept, self.width)

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        best = torch.from_numpy(self.codes).topk(self.width)
        rows = np.take_along_axis(self.rows, best.indices.numpy(), 1)
        flip = torch.iinfo(self.integers).max
        scores = torch.where(best.values < 0, best.values ^ flip, best.values).view(self.dtype).float().numpy()
        return np.where(rows >= 0, scores, -np.inf), rows


def _keep_loops(
    products: np.ndarray,
    first_row: int,
    codes: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    least: np.ndarray,
    width: int,
    first: int,
    last: int,
) -> None:
    """Put products [Q, R] that may be among the best ``width`` beside those of before, for the questions from ``first`` to
    ``last``. When codes[q] is full, the best ``width`` of them stay, and the ``least`` of these is the new bar. To be compiled.
    """
    lowest = np.iinfo(products.dtype).min
    flip = np.iinfo(products.dtype).max  # of a negative number all bits but the sign, so that larger numbers are larger codes
    for question in range(first, last):
        of = products[question]
        n = filled[question]
        bar = least[question]
        for start in range(0, len(of), STRIDE):
            end = min(start + STRIDE, len(of))
            top = lowest
            for at in range(start, end):
                code = of[at] ^ flip if of[at] < 0 else of[at]
                top = max(top, code)
            if top <= bar:
                continue
            for at in range(start, end):
                code = of[at] ^ flip if of[at] < 0 else of[at]
                if code <= bar:
                    continue
                codes[question, n] = code
                rows[question, n] = first_row + at
                n += 1
                if n < codes.shape[1]:
                    continue
                low, high = 0, n - 1  # the best to the front, in no order
                while low < high:
                    middle = codes[question, (low + high) // 2]
                    i, j = low, high
                    while i <= j:
                        while codes[question, i] > middle:
                            i += 1
                        while codes[question, j] < middle:
                            j -= 1
                        if i <= j:
                            codes[question, i], codes[question, j] = codes[question, j], codes[question, i]
                            rows[question, i], rows[question, j] = rows[question, j], rows[question, i]
                            i += 1
                            j -= 1
                    if width - 1 <= j:
                        high = j
                    elif width - 1 >= i:
                        low = i
                    else:
                        break
                n = width
                bar = codes[question, width - 1]
        filled[question], least[question] = n, bar


def _product_error(queries: np.ndarray, norms: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """By how much a product with a vector of norm 1 may be off, for each query, before it is rounded itself."""
    # Of D terms, each sum is off by at most D * 2^-24 * |q| |v|; 2 more for rounding at the end.
    summed = (queries.shape[1] + 2) * 2.0**-24 * norms
    if dtype == torch.float32:
        return summed
    # |qv - q'v'| <= |q - q'| |v| + |q'| |v - v'|, and no unit of v' is off by more than 2^-8 of itself. Sums: with room.
    lost = torch.from_numpy(queries) - torch.from_numpy(queries).to(dtype).float()
    return lost.double().norm(dim=1).numpy() + 2.0**-8 * (1 + 2.0**-8) * norms + 4 * summed
