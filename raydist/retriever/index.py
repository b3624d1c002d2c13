"""Dense index over shards: vectors and sentence ids on disk, memory-mapped; search by inner product, exact by default.

``flat`` is exact: block matrix products and a running list of the best. The product only proposes. How it rounds depends on
the shape of the block, so the final score of each proposed row is its dot product summed in float64 and rounded once to
float32: a pure function of the two vectors. Proposals go so far below the k-th score that rounding cannot hide a better
row. Hence the same rows and the same scores for any number of shards and any block size; ties go to the smaller sentence
id, in the order of code points.

``ivf``, ``hnsw`` and ``pq`` let faiss propose, from an index of each shard; scores and ties are as above, but a row that
faiss does not propose is not found, and what it proposes depends on the shards. A shard too small to train is searched exactly.

    INDEX/index.json      written last, by rename: names what is in force
    INDEX/shard-00000/    vectors, ids (rows sorted by id), faiss (not with flat), all .npy; shard.json

All folders appear by rename after they are whole. ``estimate_bytes`` says the size in advance. Searching takes memory for
one block of products and the running lists, beyond the mapped files; faiss holds its own part in memory.

Shapes: Q questions, D units of a vector, R rows of a block, K best so far, S strides of a block.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raydist.errors import InputError
from raydist.mining.bm25 import STRIDE, Hits, _load_strings, _refuse_repeated_ids, _string_arrays, _write_folder, compiled

FORMAT = 1
SMALL_SHARD = 2_000  # rows; below it faiss has too little to learn from, and an exact search is as fast
QUESTION_BLOCK, ROW_BLOCK = 256, 8_192  # of one matrix product

Kind = Literal["flat", "ivf", "hnsw", "pq"]


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """What is built; 0 means a number that suits the size."""

    kind: Kind = "flat"
    lists: int = 0  # ivf, pq: cells of a shard; 0: four times the root of its rows
    probes: int = 16  # ivf, pq: cells that a search looks into
    links: int = 32  # hnsw: neighbours of a row
    build_depth: int = 200  # hnsw
    search_depth: int = 128  # hnsw
    code_bytes: int = 0  # pq: of a vector's code; 0: one for eight units

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"unknown dense index {self.kind!r}; take one of {', '.join(get_args(Kind))}")
        if min(self.lists, self.code_bytes) < 0 or min(self.probes, self.links, self.build_depth, self.search_depth) < 1:
            raise InputError(f"a dense index wants positive sizes, got {asdict(self)}")

    def num_lists(self, rows: int) -> int:
        return self.lists or max(1, min(int(4 * math.sqrt(rows)), rows // 39))  # faiss wants 39 rows for a cell

    def num_code_bytes(self, dimension: int) -> int:
        return self.code_bytes or max(1, dimension // 8)


def estimate_bytes(num_rows: int, dimension: int, settings: DenseSettings | None = None, id_bytes: int = 24) -> dict[str, int]:
    """How large an index will be: ``disk`` for all files, ``memory`` for what faiss keeps beyond the mapped files."""
    settings = settings or DenseSettings()
    vector = 4 * dimension
    cells = settings.num_lists(num_rows) * vector + 8 * num_rows
    faiss_part = {
        "flat": 0,
        "ivf": num_rows * vector + cells,
        "hnsw": num_rows * (vector + 4 * (2 * settings.links + settings.links // 16) + 16),
        "pq": num_rows * settings.num_code_bytes(dimension) + cells + 256 * vector,
    }[settings.kind]
    return {"disk": num_rows * (vector + id_bytes + 8) + faiss_part, "memory": faiss_part}


# ---------------------------------------------------------------------------------------------------------------- build


def build_shard(folder: Path, ids: Iterable[str], vectors: np.ndarray, settings: DenseSettings | None = None) -> None:
    """Write one shard: ids and float32 vectors [rows, D], sorted by id. Needs no knowledge of the other shards."""
    settings = settings or DenseSettings()
    sentence_ids = pa.array(ids, pa.large_string())
    if vectors.ndim != 2 or len(vectors) != len(sentence_ids):
        raise InputError(f"{len(sentence_ids)} ids for vectors of shape {vectors.shape}: give one row for each id")
    by_id = pc.array_sort_indices(sentence_ids).to_numpy()
    sentence_ids = sentence_ids.take(pa.array(by_id))
    if len(sentence_ids) > 1:
        same = pc.equal(sentence_ids[1:], sentence_ids[:-1]).to_numpy(zero_copy_only=False)
        if same.any():
            raise InputError(f"the id {sentence_ids[int(same.argmax())].as_py()!r} is given to more than one row")
    vectors = np.ascontiguousarray(vectors[by_id], np.float32)
    norms = np.sqrt(np.einsum("rd,rd->r", vectors, vectors, dtype=np.float64))
    if not np.isfinite(norms).all():
        bad = np.flatnonzero(~np.isfinite(norms))
        raise InputError(f"{len(bad)} vectors are not finite, {sentence_ids[int(bad[0])].as_py()!r} for one; mend the encoder")
    arrays = {**_string_arrays("ids", sentence_ids), "vectors": vectors}
    if settings.kind != "flat" and len(vectors) >= SMALL_SHARD:
        arrays["faiss"] = _build_faiss(vectors, settings)
    facts = {
        "format": FORMAT,
        "rows": len(vectors),
        "dimension": vectors.shape[1],
        "largest_norm": float(norms.max(initial=0)),
        "settings": asdict(settings),
    }
    _write_folder(Path(folder), arrays, facts, "shard.json")


def _build_faiss(vectors: np.ndarray, settings: DenseSettings) -> np.ndarray:
    """A trained and filled faiss index as bytes."""
    import faiss

    rows, dimension = vectors.shape
    lists, code_bytes = settings.num_lists(rows), settings.num_code_bytes(dimension)
    if settings.kind == "pq" and dimension % code_bytes:
        raise InputError(f"vectors of {dimension} units cannot be cut into {code_bytes} equal parts; change code_bytes")
    # np: without a training for a kind of filter that is not used here, and which takes a hundred times as long.
    recipe = {"ivf": f"IVF{lists},Flat", "hnsw": f"HNSW{settings.links},Flat", "pq": f"IVF{lists},PQ{code_bytes}x8np"}
    index: Any = faiss.index_factory(dimension, recipe[settings.kind], faiss.METRIC_INNER_PRODUCT)
    threads = faiss.omp_get_max_threads()
    if settings.kind == "hnsw":
        index.hnsw.efConstruction = settings.build_depth
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
    _refuse_repeated_ids([], opened)  # type: ignore[arg-type]  # it looks at their ids alone
    index = {
        "format": FORMAT,
        "kind": "dense",
        "rows": sum(shard.num_rows for shard in opened),
        "dimension": opened[0].dimension,
        "settings": asdict(opened[0].settings),
        "shards": list(shards),
        "encoder": encoder or {},
    }
    building = folder / f".index.json.{os.getpid()}"
    building.write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    building.replace(folder / "index.json")


def build_index(
    folder: Path,
    ids: Sequence[str],
    vectors: np.ndarray,
    shards: int = 1,
    settings: DenseSettings | None = None,
    encoder: dict[str, Any] | None = None,
) -> None:
    """A whole index from rows at hand, in as many shards as asked for."""
    folder = Path(folder)
    bounds = [len(vectors) * at // shards for at in range(shards + 1)]
    names = [f"shard-{at:05d}" for at in range(shards)]
    (folder / "index.json").unlink(missing_ok=True)
    for name, start, end in zip(names, bounds, bounds[1:]):
        build_shard(folder / name, ids[start:end], vectors[start:end], settings)
    publish_index(folder, names, encoder)
    for old in folder.glob("shard-?????"):  # of an index that was here before
        if old.name not in names:
            shutil.rmtree(old)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"no dense index at {path.parent}: {path.name} is not there; build one with: raydist index")
    facts = json.loads(path.read_text())
    if facts.get("kind", "dense") != "dense" or facts.get("format") != FORMAT:
        raise InputError(
            f"{path} is of kind {facts.get('kind')} and format {facts.get('format')}, wanted dense and {FORMAT}; build it again"
        )
    return facts


# --------------------------------------------------------------------------------------------------------------- search


class _Shard:
    def __init__(self, folder: Path) -> None:
        facts = _read_json(folder / "shard.json")
        self.folder = folder
        self.num_rows: int = facts["rows"]
        self.dimension: int = facts["dimension"]
        self.largest_norm: float = facts["largest_norm"]
        self.settings = DenseSettings(**facts["settings"])
        self.ids = _load_strings(folder, "ids")
        # Copy-on-write: torch wants arrays that it could write to; nothing is written.
        self.vectors = np.load(folder / "vectors.npy", mmap_mode="c" if self.num_rows else None, allow_pickle=False)
        self.has_faiss = (folder / "faiss.npy").exists()

    def open_faiss(self, probes: int, depth: int) -> Any:
        import faiss

        index: Any = faiss.deserialize_index(np.load(self.folder / "faiss.npy", allow_pickle=False))
        if self.settings.kind == "hnsw":
            index.hnsw.efSearch = depth
            return index
        index.nprobe = probes
        return faiss.index_cpu_to_all_gpus(index) if faiss.get_num_gpus() else index


class DenseIndex:
    """A dense index, or some of its shards, open for search."""

    def __init__(
        self,
        folder: Path,
        shards: Sequence[int] | None = None,
        *,
        probes: int | None = None,
        search_depth: int | None = None,
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
        self.first_row = np.cumsum([0, *(shard.num_rows for shard in self.shards)])
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._dot = compiled(_dot_loops) or _dot_numpy
        depth = search_depth or self.settings.search_depth
        self._faiss = {
            at: shard.open_faiss(probes or self.settings.probes, depth)
            for at, shard in enumerate(self.shards)
            if shard.has_faiss
        }

    @classmethod
    def open(cls, folder: Path, shards: Sequence[int] | None = None, **options: Any) -> DenseIndex:
        """Open all shards, or those of the given numbers."""
        return cls(folder, shards, **options)

    def sentence_ids(self, rows: np.ndarray) -> list[str]:
        """The ids of rows that ``search`` gave (none of them -1)."""
        return self._ids(np.asarray(rows).ravel()).to_pylist()

    def _ids(self, rows: np.ndarray) -> pa.Array:
        shard_of = np.searchsorted(self.first_row, rows, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        parts = [
            shard.ids.take(pa.array(rows[order[shard_of[order] == at]] - self.first_row[at]))
            for at, shard in enumerate(self.shards)
        ]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(order, kind="stable")))

    def search(
        self, queries: np.ndarray, k: int = 10, *, question_block: int = QUESTION_BLOCK, row_block: int = ROW_BLOCK
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
        waiting = np.arange(len(queries) if self.first_row[-1] else 0)
        width = k + max(16, k // 8)
        while len(waiting):
            scores, rows = self._propose(queries[waiting], min(width, int(self.first_row[-1])), question_block, row_block)
            # Of a product of D terms, each sum is off by at most D * 2^-24 * |q| |v|; 2 more for rounding at the end.
            norms = np.sqrt(np.einsum("qd,qd->q", queries[waiting], queries[waiting], dtype=np.float64))
            slack = 2 * (self.dimension + 2) * 2.0**-24 * norms * max((s.largest_norm for s in self.shards), default=0)
            is_settled = np.full(len(waiting), bool(self._faiss) or rows.shape[1] >= self.first_row[-1])
            if not is_settled.all():
                is_settled = scores[:, -1] < scores[:, k - 1] - slack
            settled = waiting[is_settled]
            self._settle(hits, settled, queries[settled], rows[is_settled], k)
            waiting, width = waiting[~is_settled], width * 4  # many rows with nearly the same score
        return hits

    def _propose(self, queries: np.ndarray, width: int, question_block: int, row_block: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are likely the best and their rounded scores, best first, [Q, width]; row -1 where there are fewer."""
        queries_QD = torch.from_numpy(queries).to(self.device)
        scores_QK = torch.full((len(queries), width), -torch.inf, device=self.device)
        rows_QK = torch.full((len(queries), width), -1, dtype=torch.int64, device=self.device)
        for first_row, block_RD in self._exact_blocks(row_block):
            for start in range(0, len(queries), question_block):
                mine = slice(start, start + question_block)
                products_QR = queries_QD[mine] @ block_RD.T
                scores_QK[mine], rows_QK[mine] = _merge_block(scores_QK[mine], rows_QK[mine], products_QR, first_row)
        scores, rows = scores_QK.cpu().numpy(), rows_QK.cpu().numpy()
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
                for start in range(0, shard.num_rows, row_block):
                    block_RD = torch.from_numpy(shard.vectors[start : start + row_block]).to(self.device)
                    yield int(self.first_row[at]) + start, block_RD

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
        bounds = [len(queries) * at // threads for at in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            for at, shard in enumerate(self.shards):
                given = (np.asarray(shard.vectors), int(self.first_row[at]), queries, rows, scores_QK)
                list(pool.map(lambda first, last: self._dot(*given, first, last), bounds, bounds[1:]))  # noqa: B023
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
