"""Exact dense search: ours against faiss flat with BLAS switched on, in interleaved rounds.

    python benchmarks/dense_search.py [--rows 200000] [--queries 1000] [--k 100] [--rounds 5] [--threads 2]

Unit vectors of 384 units around seeded centres. The peer is IndexFlatIP with BLAS at the best of several settings: how many
queries and how many rows are multiplied at once, and whether the best are kept in a heap or a reservoir; the wheel's default,
which seldom uses BLAS, is shown too. Ours reads the vectors from its memory-mapped files and settles ties by id. Scores are
compared at every place, and rows where a score stands apart from its neighbours. --wait-policy: benchmarks/waiting.py. Exit
status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from itertools import product
from pathlib import Path

from waiting import add_option, wait_policy

os.environ.update(wait_policy())  # before torch starts its threads

import faiss
import numpy as np
import torch
from agreement import assert_agreement
from scoring import rounds_of, seconds

from raydist.retrieval.dense import DenseIndex, build_index

TARGET, DIMENSION = 1.0, 384
RTOL, ATOL = 0.0, 1e-5  # of scores
# of faiss with BLAS: queries and rows of a product; the k from which a reservoir takes the place of a heap
SETTINGS = list(product((256, 1024, 4096), (1024, 4096, 16384), (1, 10_000)))
TRIES = 2  # the best of these speaks for a setting


def vectors_like_sentences(rng: np.random.Generator, rows: int, centres: np.ndarray) -> np.ndarray:
    noise = rng.standard_normal((rows, DIMENSION), dtype=np.float32)
    vectors = centres[rng.integers(len(centres), size=rows)] + noise
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((500, DIMENSION), dtype=np.float32)
    vectors, queries = (vectors_like_sentences(rng, rows, centres) for rows in (options.rows, options.queries))
    peer = faiss.IndexFlatIP(DIMENSION)
    peer.add(vectors)

    with tempfile.TemporaryDirectory() as folder:
        build_index(Path(folder), [f"{row:09d}" for row in range(options.rows)], vectors)
        index = DenseIndex.open(Path(folder), device="cpu")

        def theirs(setting: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
            faiss.cvar.distance_compute_blas_query_bs, faiss.cvar.distance_compute_blas_database_bs = setting[:2]
            faiss.cvar.distance_compute_min_k_reservoir = setting[2]
            return peer.search(queries, options.k)

        default_s = seconds(lambda: peer.search(queries, options.k))
        faiss.cvar.distance_compute_blas_threshold = 1
        best = min(SETTINGS, key=lambda setting: min(seconds(lambda: theirs(setting)) for _ in range(TRIES)))
        their_scores, their_rows = theirs(best)
        hits = index.search(queries, options.k)
        compared = assert_agreement(hits, (their_rows, their_scores), rtol=RTOL, atol=ATOL)
        their_s, our_s, ratio, said = rounds_of(lambda: theirs(best), lambda: index.search(queries, options.k), options.rounds)

    block = torch.from_numpy(vectors[:8192])
    some = torch.from_numpy(queries[:256])
    limit = 2 * len(some) * len(block) * DIMENSION / min(seconds(lambda: some @ block.T) for _ in range(10))
    rate = 2 * options.queries * options.rows * DIMENSION / our_s
    num = options.queries
    print(
        f"{options.rows} x {DIMENSION}, {num} queries, k {options.k}, {options.rounds} interleaved rounds, "
        f"{options.threads} threads, "
        f"waiting: {options.wait_policy}\n"
        f"  ours {num / our_s:.1f} q/s, faiss flat tuned (products of {best[0]} queries and {best[1]} rows, "
        f"{'reservoir' if options.k >= best[2] else 'heap'}) {num / their_s:.1f} q/s, "
        f"as it comes {num / default_s:.1f} q/s\n"
        f"  {said}\n"
        f"  scores equal to {ATOL:g}, and rows at the {compared:.1%} of places without a near tie\n"
        f"  {rate / 1e9:.0f} GFLOP/s of {limit / 1e9:.0f} in matrix products ({rate / limit:.0%})\n"
        f"target ({TARGET} x) {'met' if ratio >= TARGET else 'MISSED'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
