"""Dense index over shards: vectors and sentence ids on disk, memory-mapped; search by inner product, exact by default.

``flat`` is exact: block matrix products and a running list of the best. The products only propose rows, in bf16 if the
processor has instructions for it, else in float32. Their rounding depends on that and on the shape of the block, so the final
score of each proposed row is its dot product summed in float64 and rounded once to float32: a pure function of the two vectors.
Proposals reach so far below the k-th score that rounding cannot hide a better row; a question with too many rows that close
is searched again, in float32, then with longer lists. Hence the same rows and scores on any processor, for any number of
shards and any block size; ties go to the smaller sentence id, in the order of code points.

With ``ivf``, ``hnsw`` and ``pq``, faiss proposes rows from an index of each shard; scores and ties are as above, but rows that
faiss misses are not found, and its proposals depend on the shards. A shard too small to train is searched exactly.

    INDEX/index.json      names the shards in force (files/shards.py)
    INDEX/shard-00000/    vectors and ids (.npy, rows sorted by id), faiss.index (not with flat), shard.json

``estimate_bytes`` predicts the size. Searching takes memory for one block of products and the running lists, beyond the
mapped files, which faiss maps as well; a GPU holds the vectors (or faiss's index) while the index is open.

Shapes: Q questions, D units of a vector, R rows of a block, K best so far, S strides of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raydist.cores import bf16_instructions
from raydist.errors import InputError
from raydist.files.shards import (
    BestRows,
    OpenShards,
    build_shards,
    load_strings,
    order_by_id,
    put_in_force,
    read_facts,
    refuse_repeated_ids,
    string_arrays,
    write_folder,
)
from raydist.kernels.compiled import compiled, in_threads
from raydist.kernels.dot_products import dot_loops, dot_numpy
from raydist.kernels.running_best import Best, CompiledBest, keep_loops
from raydist.retrieval.faiss_shards import FAISS_FILE, DenseSearch, DenseSettings, build_faiss, open_faiss

FORMAT = 2
SMALL_BLOCK = 1_024, 1_024  # questions and rows of a matrix product that stays in the cache until compiled loops have read it
LARGE_BLOCK = 256, 8_192  # if each block costs extra calls, or for few questions
MANY_QUESTIONS = 64  # the least number for which bf16 products repay rounding the vectors
COARSE_NORMS = 1e-15, 1e15  # of vectors whose bf16 products neither overflow nor vanish
OVERFLOW, UNDERFLOW = 1e37, 2.0**-126  # of products and sums in float32
LIST_ROWS = 2**23  # proposals held at once, over all questions


def estimate_bytes(
    num_rows: int, dimension: int, settings: DenseSettings | None = None, *, shards: int = 1, id_bytes: int = 24
) -> int:
    """The size of an index's files, before it is built."""
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
    """Write one shard: ids and float32 vectors [rows, D], sorted by id. Independent of the other shards."""
    settings = settings or DenseSettings()
    sentence_ids = pa.array(ids, pa.large_string())
    if vectors.ndim != 2 or len(vectors) != len(sentence_ids):
        raise InputError(f"{len(sentence_ids)} ids for vectors of shape {vectors.shape}: give one row for each id")
    sentence_ids, by_id = order_by_id(sentence_ids)
    in_order = bool((by_id[1:] > by_id[:-1]).all())  # as rows of a sentence table are; saves a second copy
    vectors = np.ascontiguousarray(vectors if in_order else vectors[by_id], np.float32)
    norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors, dtype=np.float64))
    if not np.isfinite(norms).all():
        bad = np.flatnonzero(~np.isfinite(norms))
        raise InputError(f"{len(bad)} vectors are not finite, {sentence_ids[int(bad[0])].as_py()!r} for one; mend the encoder")
    arrays = {**string_arrays("ids", sentence_ids), "vectors": vectors}
    raw = {FAISS_FILE: build_faiss(vectors, settings)} if settings.is_trained(len(vectors)) else {}
    facts = {
        "format": FORMAT,
        "rows": len(vectors),
        "dimension": vectors.shape[1],
        "largest_norm": float(norms.max(initial=0)),
        "settings": asdict(settings),
    }
    write_folder(Path(folder), arrays, facts, "shard.json", raw)


def publish_index(folder: Path, shards: Sequence[str], encoder: dict[str, Any] | None = None) -> None:
    """Put the named shards of this folder in force, all at once; ``encoder`` describes the encoder of the vectors."""
    folder = Path(folder)
    opened = [Shard(folder / name) for name in shards]
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
    """Build an index from rows in memory, in the given number of shards."""
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


class Shard:
    """A shard with mapped arrays."""

    def __init__(self, folder: Path) -> None:
        facts = _read_json(folder / "shard.json")
        self.folder = folder
        self.num_rows: int = facts["rows"]
        self.dimension: int = facts["dimension"]
        self.largest_norm: float = facts["largest_norm"]
        self.settings = DenseSettings(**facts["settings"])
        self.ids = load_strings(folder, "ids")
        # Copy-on-write, since torch wants writable arrays; nothing is written.
        self.vectors = np.load(folder / "vectors.npy", mmap_mode="c" if self.num_rows else None, allow_pickle=False)
        self.has_faiss = (folder / FAISS_FILE).exists()


class DenseIndex(OpenShards):
    """A dense index, or some of its shards, open for search; ``search`` defaults to index.json's, then to the size's."""

    def __init__(
        self,
        shards: Sequence[Shard],
        facts: Mapping[str, Any],
        *,
        search: DenseSearch | None = None,
        device: str | None = None,
    ) -> None:
        self.settings = DenseSettings(**facts["settings"])
        self.encoder: dict[str, Any] = facts["encoder"]
        self.num_rows: int = facts["rows"]  # of the whole index, even if only some shards are open
        self.dimension: int = facts["dimension"]
        self.shards = list(shards)
        super().__init__(shard.ids for shard in self.shards)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._dot = compiled(dot_loops) or dot_numpy
        self._keep = compiled(keep_loops) if torch.device(self.device).type == "cpu" else None
        self._has_bf16 = self._keep is not None and torch.backends.mkldnn.is_available() and bf16_instructions() is not None
        self._largest_norm = max((shard.largest_norm for shard in self.shards), default=0.0)
        search = search or DenseSearch(**facts["search"])
        self._faiss = {
            at: open_faiss(shard.folder, shard.settings, search) for at, shard in enumerate(self.shards) if shard.has_faiss
        }
        self._vectors: dict[int, Tensor] = {}

    @classmethod
    def open(cls, folder: Path, shards: Sequence[int] | None = None, **options: Any) -> DenseIndex:
        """Open all shards, or those of the given numbers."""
        folder = Path(folder)
        facts = _read_json(folder / "index.json")
        names = facts["shards"] if shards is None else [facts["shards"][at] for at in shards]
        return cls([Shard(folder / name) for name in names], facts, **options)

    def search(
        self,
        queries: np.ndarray,
        k: int = 10,
        *,
        question_block: int | None = None,
        row_block: int | None = None,
        within: np.ndarray | None = None,
    ) -> BestRows:
        """The k best rows of the open shards for each query vector, best first; ties by sentence id. ``within``: a mask of the
        rows to search (exact shards only).
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if k < 1:
            raise InputError(f"search needs k of 1 or more, got {k}")
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise InputError(f"queries of shape {queries.shape} for an index of {self.dimension} units: give one row for each")
        if not np.isfinite(queries).all():
            raise InputError(f"query {int(np.flatnonzero(~np.isfinite(queries).all(1))[0])} is not finite")
        hits = BestRows(np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k), np.float32))
        kept = None if within is None or within.all() else np.flatnonzero(within)
        if kept is not None and self._faiss:
            raise InputError(f"some rows of a dense index of kind {self.settings.kind} cannot be searched; take kind flat")
        total = int(self.first_row[-1]) if kept is None else len(kept)
        if not total:
            return hits
        norms = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype=np.float64))
        pending = [(np.arange(len(queries)), self._can_be_coarse(norms), k + max(16, k // 8))]
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
            scores, rows = self._propose(asked, room, block, kept, dtype)
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
        """Whether bf16 products may propose rows. Not with faiss, whose proposals are accepted without a second search."""
        given = [self._largest_norm, *(found(norms[norms > 0], initial=1) for found in (np.min, np.max))]
        return self._has_bf16 and not self._faiss and all(COARSE_NORMS[0] < norm < COARSE_NORMS[1] for norm in given)

    def products(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The score of one row for each query vector, as ``search`` would give it."""
        return self._final_scores(np.ascontiguousarray(queries, np.float32), np.asarray(rows, np.int64)[:, None])[:, 0]

    def _propose(
        self, queries: np.ndarray, width: int, block: tuple[int, int], kept: np.ndarray | None, dtype: torch.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        """The likely best rows and their rounded scores, best first, [Q, width]; row -1 fills short lists."""
        device, threads = torch.device(self.device), torch.get_num_threads()
        queries_QD = torch.from_numpy(queries).to(device, dtype)
        blocks = max(1, -(-len(queries) // block[0]))
        bounds = [len(queries) * at // blocks for at in range(blocks + 1)]
        with ThreadPoolExecutor(threads) as pool, torch.autocast(device.type, enabled=False):
            keep = partial(in_threads, pool, threads, self._keep) if self._keep else None
            best = CompiledBest(len(queries), width, dtype, keep) if keep else Best(len(queries), width, device)
            for first_row, block_RD in self._exact_blocks(block[1], kept):
                block_RD = block_RD.to(dtype)
                for start, end in pairwise(bounds):
                    best.add(slice(start, end), queries_QD[start:end] @ block_RD.T, first_row)
        scores, rows = best.in_order()
        if kept is not None:
            rows = np.where(rows >= 0, kept[rows], -1)
        for at, index in self._faiss.items():
            found_scores, found = index.search(queries, min(width, self.shards[at].num_rows))
            scores = np.concatenate([scores, np.where(found >= 0, found_scores, -np.inf)], axis=1)
            rows = np.concatenate([rows, np.where(found >= 0, found + self.first_row[at], -1)], axis=1)
        if self._faiss:
            order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
            scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
        return scores, rows

    def _exact_blocks(self, row_block: int, kept: np.ndarray | None = None) -> Iterator[tuple[int, Tensor]]:
        """Blocks of vectors, each with the number of its first row; if rows are ``kept``, with its position among those."""
        for at, shard in enumerate(self.shards):
            if at in self._faiss:
                continue
            if at not in self._vectors:
                self._vectors[at] = self._resident(torch.from_numpy(shard.vectors))
            vectors = self._vectors[at]
            if kept is None:
                for start in range(0, shard.num_rows, row_block):
                    yield int(self.first_row[at]) + start, vectors[start : start + row_block].to(self.device)
                continue
            first, last = np.searchsorted(kept, self.first_row[at : at + 2])
            for start in range(first, last, row_block):
                rows = torch.from_numpy(kept[start : min(start + row_block, last)] - self.first_row[at])
                yield int(start), vectors[rows.to(vectors.device)].to(self.device)

    def _resident(self, vectors: Tensor) -> Tensor:
        """Vectors on a GPU while the index is open, if they fit and leave as much free again; else mapped, as they are."""
        if torch.device(self.device).type != "cuda" or 2 * vectors.nbytes > torch.cuda.mem_get_info(self.device)[0]:
            return vectors
        return vectors.to(self.device)

    def _settle(self, hits: BestRows, questions: np.ndarray, queries: np.ndarray, rows: np.ndarray, k: int) -> None:
        """Score proposed rows exactly; write the best of them, in order."""
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
                in_threads(pool, threads, self._dot, len(queries), *given)
        return scores_QK

    def _order(self, scores_QK: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
        """Best first, equal scores by id. Rows of a shard are sorted by id, so a single shard needs no ids."""
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
        place = np.zeros(ranked.shape, np.int64)  # of an id among the ids of all tied rows
        ids = self._ids(np.take_along_axis(rows_QK, order, 1)[is_tied])
        place[is_tied] = np.argsort(pc.array_sort_indices(ids).to_numpy(), kind="stable")
        return np.take_along_axis(order, np.lexsort((place, -ranked), axis=1), 1)


def _product_error(queries: np.ndarray, norms: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Upper bound on the rounding error of a query's product with a unit vector, before the product itself is rounded."""
    # A sum of D terms is off by at most D * 2^-24 * |q| |v|; 2 more for rounding at the end.
    summed = (queries.shape[1] + 2) * 2.0**-24 * norms
    if dtype == torch.float32:
        return summed
    # |qv - q'v'| <= |q - q'| |v| + |q'| |v - v'|, and no unit of v' is off by more than 2^-8 of itself. Sums get a margin.
    lost = torch.from_numpy(queries) - torch.from_numpy(queries).to(dtype).float()
    return lost.double().norm(dim=1).numpy() + 2.0**-8 * (1 + 2.0**-8) * norms + 4 * summed
