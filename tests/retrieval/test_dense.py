"""The dense index: exact whatever the layout, ties by id, whole on disk, wrong input named."""

import json
import tracemalloc
from pathlib import Path

import faiss
import numpy as np
import pyarrow.compute as pc
import pytest
import torch

from raydist.errors import InputError
from raydist.retrieval import dense, faiss_shards
from raydist.retrieval.dense import (
    DenseIndex,
    DenseSearch,
    DenseSettings,
    _product_error,
    build_index,
    build_shard,
    estimate_bytes,
    publish_index,
)

K = 10


def unit(rng, rows, dimension):
    vectors = rng.normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def corpus():
    """Vectors in no order of their ids; 40 rows share one vector, so that ties cross every cut."""
    rng = np.random.default_rng(0)
    vectors = unit(rng, 700, 24)
    vectors[rng.choice(700, 40, replace=False)] = vectors[5]
    ids = [f"s{number}é" if number % 3 else f"s{number}" for number in rng.permutation(700).tolist()]
    queries = np.concatenate([unit(rng, 15, 24), vectors[5:6]])
    return ids, vectors, queries


def slow_search(ids, vectors, queries, k):
    """Ids and scores by sorting all rows."""
    found = []
    for query in queries.astype(np.float64):
        scores = [np.float32((row * query).sum()) for row in vectors.astype(np.float64)]
        found.append(sorted(zip((-score for score in scores), ids))[:k])
    return [[id for _, id in rows] for rows in found], -np.array([[score for score, _ in rows] for rows in found])


def found_ids(index, hits):
    return [index.sentence_ids(rows[rows >= 0]) for rows in hits.rows]


@pytest.mark.parametrize("k", [1, K, 60])
def test_search_is_that_of_a_full_sort_with_ties_by_id(corpus, tmp_path, k):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=3)
    index = DenseIndex.open(tmp_path)
    hits = index.search(queries, k)
    wanted, scores = slow_search(ids, vectors, queries, k)
    assert found_ids(index, hits) == wanted
    np.testing.assert_array_equal(hits.scores, scores)


def test_shards_and_blocks_change_no_bit(corpus, tmp_path):
    ids, vectors, queries = corpus
    seen = []
    for shards, questions, rows in [(1, 256, 8192), (2, 3, 64), (7, 1, 100), (7, 16, 1), (1, 5, 333)]:
        folder = tmp_path / f"{shards}-{questions}-{rows}"
        build_index(folder, ids, vectors, shards=shards)
        index = DenseIndex.open(folder)
        hits = index.search(queries, K, question_block=questions, row_block=rows)
        seen.append((found_ids(index, hits), hits.scores.tobytes()))
    assert all(one == seen[0] for one in seen)


def test_a_question_finds_the_same_alone_and_among_others(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=2)
    index = DenseIndex.open(tmp_path)
    together = index.search(queries, K)
    for at in range(len(queries)):
        alone = index.search(queries[at : at + 1], K)
        np.testing.assert_array_equal(alone.rows[0], together.rows[at])
        np.testing.assert_array_equal(alone.scores[0], together.scores[at])


def test_rows_that_rounding_cannot_tell_apart_are_all_looked_at(tmp_path):
    """Thousands of nearly equal scores: the proposals must grow until rounding cannot hide a better row."""
    rng = np.random.default_rng(1)
    query = unit(rng, 1, 32)
    vectors = np.repeat(query, 3000, axis=0)
    vectors[:, 0] = np.nextafter(vectors[:, 0], np.float32(np.inf) * rng.choice([-1, 1], 3000).astype(np.float32))
    ids = [f"{number:05d}" for number in rng.permutation(3000)]
    build_index(tmp_path, ids, vectors, shards=2)
    index = DenseIndex.open(tmp_path)
    hits = index.search(query, K, row_block=500)
    wanted, scores = slow_search(ids, vectors, query, K)
    assert found_ids(index, hits) == wanted
    np.testing.assert_array_equal(hits.scores, scores)


def coarse_and_fine(folder, queries, k, **options):
    """Hits with products in bf16 and in float32, and the types of the products that the first took."""
    coarse, fine = DenseIndex.open(folder, device="cpu"), DenseIndex.open(folder, device="cpu")
    coarse._has_bf16, fine._has_bf16 = True, False
    taken, propose = [], coarse._propose
    coarse._propose = lambda asked, room, *more: taken.append((len(asked), more[-1])) or propose(asked, room, *more)
    return coarse.search(queries, k, **options), fine.search(queries, k, **options), taken


@pytest.mark.parametrize("k", [1, K, 100])
def test_products_in_bf16_find_the_same_bits(tmp_path, k):
    rng = np.random.default_rng(3)
    centres = 0.5 * rng.standard_normal((20, 48))
    vectors = (centres[rng.integers(20, size=4000)] + rng.standard_normal((4000, 48))).astype(np.float32)
    queries = (centres[rng.integers(20, size=150)] + rng.standard_normal((150, 48))).astype(np.float32)
    queries[:10] = -queries[:10].mean(0)  # equal questions, and many scores below 0
    build_index(tmp_path, [f"{number:06d}" for number in range(4000)], vectors, shards=3)
    coarse, fine, taken = coarse_and_fine(tmp_path, queries, k, row_block=1000)
    np.testing.assert_array_equal(coarse.rows, fine.rows)
    np.testing.assert_array_equal(coarse.scores, fine.scores)
    assert taken[0] == (150, torch.bfloat16)
    assert sum(number for number, kind in taken if kind == torch.float32) < 75  # most needed no second look


def test_rows_that_only_bf16_cannot_tell_apart_are_looked_at_again_in_float32(tmp_path):
    rng = np.random.default_rng(4)
    query = unit(rng, 1, 32)
    vectors = np.repeat(query, 2000, axis=0) * (1 + 1e-5 * rng.permutation(2000)[:, None]).astype(np.float32)
    build_index(tmp_path, [f"{number:05d}" for number in range(2000)], vectors, shards=2)
    coarse, fine, taken = coarse_and_fine(tmp_path, np.repeat(query, 80, axis=0), K)
    np.testing.assert_array_equal(coarse.rows, fine.rows)
    np.testing.assert_array_equal(coarse.scores, fine.scores)
    assert taken[:2] == [(80, torch.bfloat16), (80, torch.float32)]


@pytest.mark.parametrize(("scale", "questions", "block"), [(1e16, 80, 1024), (1e-16, 80, 1024), (1.0, 63, 1024), (1.0, 80, 63)])
def test_products_are_in_float32_where_bf16_might_overflow_or_does_not_pay(corpus, tmp_path, scale, questions, block):
    ids, vectors, _ = corpus
    build_index(tmp_path, ids, vectors)
    queries = unit(np.random.default_rng(5), questions, 24) * np.float32(scale)
    *_, taken = coarse_and_fine(tmp_path, queries, K, question_block=block)
    assert {kind for _, kind in taken} == {torch.float32}


@pytest.mark.parametrize("units", [5, 32, 384, 1024])
def test_no_product_in_bf16_is_off_by_more_than_the_bound(units):
    rng = np.random.default_rng(units)
    queries, vectors = (np.exp2(rng.uniform(-8, 8, (rows, units))).astype(np.float32) for rows in (64, 2000))
    queries *= rng.choice([-1, 1], queries.shape)
    queries[0] = vectors[0] = 1 + 0.99 * 2.0**-8  # all rounded down, and by as much as can be
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    found = (torch.from_numpy(queries).bfloat16() @ torch.from_numpy(vectors).bfloat16().T).double().numpy()
    norms, rows = (np.linalg.norm(of.astype(np.float64), axis=1) for of in (queries, vectors))
    error = _product_error(queries, norms, torch.bfloat16)[:, None] * rows
    assert (abs(found - exact) <= error + 2.0**-8 * abs(found)).all()
    assert abs(found - exact)[0, 0] > 0.9 * error[0, 0]


@pytest.mark.parametrize("settings", [DenseSettings("pq", nlist=20, pq_m=8, pq_bits=6), DenseSettings("ivf", nlist=20)])
def test_what_faiss_finds_does_not_depend_on_how_many_ask(tmp_path, settings):
    """Nor is a shard that is too small for it searched less exactly."""
    rng = np.random.default_rng(6)
    vectors = unit(rng, 4000, 32)
    vectors[2500:] = vectors[2500] * (1 + 1e-5 * np.arange(1500)[:, None]).astype(np.float32)
    ids = [f"{number:05d}" for number in range(4000)]
    build_shard(tmp_path / "shard-00000", ids[:2500], vectors[:2500], settings)
    build_shard(tmp_path / "shard-00001", ids[2500:], vectors[2500:], settings)
    publish_index(tmp_path, ["shard-00000", "shard-00001"])
    index = DenseIndex.open(tmp_path, device="cpu")
    index._has_bf16 = True
    queries = np.concatenate([np.repeat(vectors[2500:2501], 40, axis=0), unit(rng, 40, 32)])
    many, few = index.search(queries, K), index.search(queries[:60], K)
    np.testing.assert_array_equal(many.rows[:60], few.rows)
    np.testing.assert_array_equal(many.rows[0], np.arange(3999, 3989, -1))


def test_products_that_overflow_or_vanish_in_float32_hide_no_row(tmp_path):
    """By hand: sums of terms that are too large on the way, though they are not in the end; terms that are nothing each."""
    large = np.zeros((200, 64), np.float32)
    large[:, 0] = np.linspace(0.1, 0.9, 200)
    large[7] = np.repeat([10, -10], 32)
    large[7, 0] = 10.95
    small = np.zeros((200, 64), np.float32)
    small[:, 0] = np.linspace(1e-20, 4e-20, 200)
    small[7] = 0.45e-20
    for name, vectors, value in (("large", large, 1e38), ("small", small, 1e-25)):
        build_index(tmp_path / name, [f"{number:03d}" for number in range(200)], vectors)
        for questions in (1, 80):
            hits = DenseIndex.open(tmp_path / name, device="cpu").search(np.full((questions, 64), value, np.float32), 1)
            assert (hits.rows == 7).all(), (name, questions)


def test_a_search_inside_autocast_is_none_of_its_business(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors)
    index = DenseIndex.open(tmp_path, device="cpu")
    wanted = index.search(queries, K)
    with torch.autocast("cpu", torch.bfloat16):
        found = index.search(queries, K)
    np.testing.assert_array_equal(found.rows, wanted.rows)


def test_many_questions_are_asked_in_parts(corpus, tmp_path, monkeypatch):
    ids, vectors, _ = corpus
    build_index(tmp_path, ids, vectors)
    queries = unit(np.random.default_rng(7), 300, 24)
    queries[::50] = 0  # all rows are as good: each of these needs room for all of them
    wanted = DenseIndex.open(tmp_path, device="cpu").search(queries, K)
    monkeypatch.setattr(dense, "LIST_ROWS", 7_000)
    coarse, fine, taken = coarse_and_fine(tmp_path, queries, K)
    for hits in (coarse, fine):
        np.testing.assert_array_equal(hits.rows, wanted.rows)
        np.testing.assert_array_equal(hits.scores, wanted.scores)
    assert max(number for number, _ in taken) <= 7_000 // 74
    assert {kind for _, kind in taken} == {torch.bfloat16, torch.float32}


def test_exact_search_agrees_with_faiss(tmp_path):
    rng = np.random.default_rng(2)
    vectors, queries = unit(rng, 5000, 48), unit(rng, 50, 48)
    build_index(tmp_path, [f"{number:06d}" for number in range(5000)], vectors, shards=2)
    hits = DenseIndex.open(tmp_path).search(queries, 100)
    peer = faiss.IndexFlatIP(48)
    peer.add(vectors)
    scores, rows = peer.search(queries, 100)
    np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
    assert (hits.rows == rows).mean() > 0.99  # the rest are near ties, which faiss settles by its rounding


def test_fewer_rows_than_k_leave_places_empty(tmp_path):
    build_index(tmp_path, ["b", "a"], np.array([[0.0, 1.0], [-1.0, 0.0]]))
    index = DenseIndex.open(tmp_path)
    hits = index.search(np.array([[1.0, 0.0]]), 4)
    assert index.sentence_ids(hits.rows[0, :2]) == ["b", "a"]
    np.testing.assert_array_equal(hits.rows[0, 2:], [-1, -1])
    np.testing.assert_array_equal(hits.scores, [[0, -1, 0, 0]])
    assert index.search(np.zeros((0, 2)), 4).rows.shape == (0, 4)


def test_some_shards_can_be_searched_alone(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=2)
    index = DenseIndex.open(tmp_path, [1])
    assert found_ids(index, index.search(queries, K)) == slow_search(ids[350:], vectors[350:], queries, K)[0]
    assert index.num_rows == 700


def clustered(rng, rows, dimension):
    return unit(rng, rows, dimension) * 0.5 + unit(rng, 40, dimension)[rng.integers(40, size=rows)]


def recall_of(hits, exact):
    return np.mean([len(set(a) & set(b)) / K for a, b in zip(hits.rows, exact.rows)])


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_faiss_kinds_find_most_with_exact_scores(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(faiss_shards, "SMALL_SHARD", 1500)
    rng = np.random.default_rng(3)
    vectors = clustered(rng, 4000, 32)
    queries = vectors[:40] + unit(rng, 40, 32) * 0.2
    ids = [f"{number:06d}" for number in range(4000)]
    folder, exact_folder = tmp_path / "index", tmp_path / "exact"
    names = ["shard-00000", "shard-00001"]  # the second is too small to train
    for name, rows in zip(names, (slice(0, 3000), slice(3000, 4000))):
        build_shard(folder / name, ids[rows], vectors[rows], DenseSettings(kind))
    publish_index(folder, names)
    assert [(folder / name / "faiss.index").exists() for name in names] == [True, False]
    build_index(exact_folder, ids, vectors)
    exact = DenseIndex.open(exact_folder).search(queries, K)
    hits = DenseIndex.open(folder, search=DenseSearch(nprobe=50)).search(queries, K)
    assert recall_of(hits, exact) > (0.6 if kind == "pq" else 0.95)
    same = hits.rows == exact.rows
    np.testing.assert_array_equal(hits.scores[same], exact.scores[same])
    assert (np.diff(hits.scores) <= 0).all()


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_what_faiss_built_is_mapped_and_finds_what_it_finds_in_memory(tmp_path, kind):
    vectors = clustered(np.random.default_rng(3), 3000, 32)
    build_index(tmp_path, [f"{number:06d}" for number in range(3000)], vectors, settings=DenseSettings(kind))
    file = tmp_path / "shard-00000" / "faiss.index"
    index = DenseIndex.open(tmp_path)
    in_memory = faiss.deserialize_index(np.fromfile(file, np.uint8))
    if kind == "hnsw":
        in_memory.hnsw.efSearch = DenseSearch().ef_search
    else:
        in_memory.nprobe = DenseSearch().num_probes(in_memory.nlist)
    for mine, theirs in zip(index._faiss[0].search(vectors[:50], K), in_memory.search(vectors[:50], K)):
        np.testing.assert_array_equal(mine, theirs)
    if Path("/proc/self/maps").exists() and not faiss.get_num_gpus():
        assert str(file) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("gpus", [0, 2])
def test_what_faiss_built_is_searched_on_all_gpus_where_there_are_some_that_can(tmp_path, monkeypatch, gpus):
    """No GPU is needed: what would be sent to them is kept, and is the index with its number of probes."""
    vectors = clustered(np.random.default_rng(3), 2500, 16)
    sent = []
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: gpus)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda index: sent.append(index) or index, raising=False)
    kinds = {"ivf": {"nlist": 8}, "pq": {"nlist": 8, "pq_m": 4}, "hnsw": {}, "four": {"nlist": 8, "pq_m": 4, "pq_bits": 4}}
    taken = {}
    for name, given in kinds.items():
        kind = "pq" if name == "four" else name  # codes of four bits are not for a GPU, nor are graphs
        folder = tmp_path / name
        build_index(folder, [f"{n:06d}" for n in range(2500)], vectors, settings=DenseSettings(kind, **given))
        index = DenseIndex.open(folder, search=DenseSearch(nprobe=5), device="cpu")
        taken[name] = index._faiss[0] in sent  # what is searched is what came back
    assert all(index.nprobe == 5 for index in sent)
    assert taken == {"ivf": gpus > 0, "pq": gpus > 0, "hnsw": False, "four": False}


@pytest.mark.gpu
def test_a_gpu_holds_the_vectors_while_the_index_is_open_and_finds_the_same(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=2)
    index, on_cpu = DenseIndex.open(tmp_path, device="cuda"), DenseIndex.open(tmp_path, device="cpu")
    found = index.search(queries, K)
    held = {at: kept.data_ptr() for at, kept in index._vectors.items()}
    assert all(kept.is_cuda for kept in index._vectors.values())
    assert len(held) == 2
    for mine, theirs in zip(index.search(queries, K), on_cpu.search(queries, K)):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(found.rows, on_cpu.search(queries, K).rows)
    assert {at: kept.data_ptr() for at, kept in index._vectors.items()} == held


def test_one_row_of_a_query_has_the_score_that_a_search_gives_it(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=3)
    index = DenseIndex.open(tmp_path)
    hits = index.search(queries, 3)
    for place in range(3):
        np.testing.assert_array_equal(index.products(queries, hits.rows[:, place]), hits.scores[:, place])


# What is built; two searches, the second with more effort; what these find at least of what an exact search finds, among
# vectors in clusters and, much harder, among vectors without any order.
EFFORTS = {
    "ivf": (
        DenseSettings("ivf", nlist=60),
        [DenseSearch(nprobe=1), DenseSearch(nprobe=60)],
        {"clustered": [0.5, 1.0], "random": [0.1, 1.0]},
    ),
    "hnsw": (
        DenseSettings("hnsw", hnsw_m=8, ef_construction=40),
        [DenseSearch(ef_search=10), DenseSearch(ef_search=400)],
        {"clustered": [0.7, 0.9], "random": [0.7, 0.95]},
    ),
    "pq": (
        DenseSettings("pq", nlist=60, pq_m=8, pq_bits=6),
        [DenseSearch(nprobe=1), DenseSearch(nprobe=60)],
        {"clustered": [0.4, 0.8], "random": [0.1, 0.6]},
    ),
}


@pytest.mark.parametrize("kind", EFFORTS)
@pytest.mark.parametrize("spread", ["clustered", "random"])
def test_given_parameters_find_so_much_and_more_effort_finds_more(tmp_path, kind, spread):
    rng = np.random.default_rng(5)
    vectors = clustered(rng, 3000, 32) if spread == "clustered" else unit(rng, 3000, 32)
    queries = vectors[:60] + unit(rng, 60, 32) * 0.3
    ids = [f"{number:06d}" for number in range(3000)]
    settings, efforts, least = EFFORTS[kind]
    for name, given in (("flat", DenseSettings()), (kind, settings)):
        build_index(tmp_path / name, ids, vectors, settings=given)
    exact = DenseIndex.open(tmp_path / "flat").search(queries, K)
    recalls = [recall_of(DenseIndex.open(tmp_path / kind, search=way).search(queries, K), exact) for way in efforts]
    assert recalls[0] < recalls[1]
    assert all(found >= wanted for found, wanted in zip(recalls, least[spread]))


def test_the_parameters_reach_faiss(tmp_path):
    rng = np.random.default_rng(6)
    vectors = unit(rng, 2500, 24)
    ids = [f"{number:06d}" for number in range(2500)]

    def built(settings, search=None):
        build_index(tmp_path / settings.kind, ids, vectors, settings=settings)
        (index,) = DenseIndex.open(tmp_path / settings.kind, search=search)._faiss.values()
        return index

    ivf = built(DenseSettings("ivf", nlist=30), DenseSearch(nprobe=7))
    assert (ivf.nlist, ivf.nprobe, ivf.ntotal) == (30, 7, 2500)
    pq = built(DenseSettings("pq", nlist=10, pq_m=6, pq_bits=5), DenseSearch(nprobe=3))
    assert (pq.nlist, pq.nprobe, pq.pq.M, pq.pq.nbits) == (10, 3, 6, 5)
    hnsw = built(DenseSettings("hnsw", hnsw_m=12, ef_construction=33), DenseSearch(ef_search=44))
    assert (hnsw.hnsw.nb_neighbors(1), hnsw.hnsw.efConstruction, hnsw.hnsw.efSearch) == (12, 33, 44)
    # by the size: 4 * sqrt(2500) = 200 cells, but 39 rows for each make 64; 64 / 32 probes, but at least 16; 24 / 8 parts
    by_size = built(DenseSettings("pq"))
    assert (by_size.nlist, by_size.nprobe, by_size.pq.M, by_size.pq.nbits) == (64, 16, 3, 8)
    assert built(DenseSettings("ivf", nlist=4), DenseSearch()).nprobe == 4  # no more than there are
    assert built(DenseSettings("ivf", nlist=4), DenseSearch(nprobe=9)).nprobe == 4


def test_numbers_that_suit_the_size():
    # a shard of 250,000 rows: 4 * 500 cells, 2000 / 32 = 62 probes; a vector in parts of eight units where they divide
    assert DenseSettings("ivf").num_lists(250_000) == 2000
    assert DenseSearch().num_probes(2000) == 62
    assert [DenseSettings("pq").num_parts(dimension) for dimension in (384, 768, 100, 6, 7)] == [48, 96, 10, 1, 1]


@pytest.mark.parametrize(
    ("settings", "rows", "wrong"),
    [
        (DenseSettings("ivf", nlist=301), 300, r"index\.ivf\.nlist 301 is more than the 300 vectors .*it is 7 then"),
        (DenseSettings("pq", nlist=301), 300, r"index\.ivf\.nlist 301 is more"),
        (
            DenseSettings("pq", pq_m=5),
            300,
            r"24 units cannot be cut into 5 equal parts: set index\.pq\.m to one of 1, 2, 3, 4, 6",
        ),
        (DenseSettings("pq", pq_bits=12), 3000, r"index\.pq\.bits 12 needs 4,096 vectors .* has 3,000: set it to 11 or less"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_written(tmp_path, settings, rows, wrong):
    vectors = unit(np.random.default_rng(0), rows, 24)
    with pytest.raises(InputError, match=wrong):
        build_index(tmp_path, list(map(str, range(rows))), vectors, settings=settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", [{"nlist": 0}, {"hnsw_m": 1}, {"ef_construction": 0}, {"pq_m": 0}, {"pq_bits": 3}, {"pq_bits": 13}]
)
def test_impossible_parameters_are_named(wrong):
    with pytest.raises(InputError, match="a dense index needs sizes of 1 or more"):
        DenseSettings("pq", **wrong)
    with pytest.raises(InputError, match="a search needs nprobe and ef_search of 1 or more"):
        DenseSearch(nprobe=0)


def test_a_last_shard_too_small_for_the_cells_asked_for_is_searched_exactly(tmp_path):
    vectors = unit(np.random.default_rng(0), 5500, 8)
    ids = [f"{number:06d}" for number in range(5500)]
    settings = DenseSettings("ivf", nlist=2600)
    for name, rows in (("shard-00000", slice(0, 3000)), ("shard-00001", slice(3000, 5500))):
        build_shard(tmp_path / name, ids[rows], vectors[rows], settings)
    publish_index(tmp_path, ["shard-00000", "shard-00001"])
    index = DenseIndex.open(tmp_path)
    assert list(index._faiss) == [0]
    assert found_ids(index, index.search(vectors[3000:3010], 1)) == [[id] for id in ids[3000:3010]]


def test_the_same_rows_give_the_same_bytes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_shards, "SMALL_SHARD", 100)
    ids, vectors, _ = corpus
    for kind in ("flat", "ivf", "hnsw"):
        for name in ("one", "two"):
            build_index(tmp_path / kind / name, ids, vectors, settings=DenseSettings(kind))
        one, two = (sorted((tmp_path / kind / name).rglob("*")) for name in ("one", "two"))
        assert [path.name for path in one] == [path.name for path in two]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two) if a.is_file())


def test_vectors_that_are_in_the_order_of_their_ids_are_not_copied(tmp_path):
    vectors = unit(np.random.default_rng(0), 20_000, 32)
    ids = [f"{number:06d}" for number in range(20_000)]
    build_shard(tmp_path / "warm", ids[:10], vectors[:10])  # what is imported on the way is not counted
    tracemalloc.start()
    build_shard(tmp_path / "shard", ids, vectors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * vectors.nbytes
    build_shard(tmp_path / "other", ids[::-1], vectors[::-1])
    assert (tmp_path / "shard/vectors.npy").read_bytes() == (tmp_path / "other/vectors.npy").read_bytes()


def test_an_index_that_was_not_finished_cannot_be_opened_and_is_built_over(corpus, tmp_path):
    ids, vectors, queries = corpus
    build_index(tmp_path, ids, vectors, shards=3)
    (tmp_path / "index.json").unlink()  # as if the run had died before the end
    (tmp_path / "shard-00000" / "vectors.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"no dense index at .*index\.json is not there"):
        DenseIndex.open(tmp_path)
    build_index(tmp_path, ids, vectors, shards=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.json", "shard-00000", "shard-00001"]
    index = DenseIndex.open(tmp_path)
    assert found_ids(index, index.search(queries, K)) == slow_search(ids, vectors, queries, K)[0]


def test_index_json_says_what_made_the_vectors(corpus, tmp_path):
    ids, vectors, _ = corpus
    build_index(tmp_path, ids, vectors, encoder={"folder": "builtin:tiny", "pooling": "mean"})
    assert DenseIndex.open(tmp_path).encoder == {"folder": "builtin:tiny", "pooling": "mean"}
    assert json.loads((tmp_path / "index.json").read_text())["kind"] == "dense"


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "pq"])
def test_the_size_is_known_in_advance(tmp_path, kind):
    rng = np.random.default_rng(4)
    vectors = unit(rng, 4000, 64)
    build_index(tmp_path, [f"{number:024d}" for number in range(4000)], vectors, settings=DenseSettings(kind))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.*") if path.suffix != ".json")
    assert estimate_bytes(4000, 64, DenseSettings(kind)) == pytest.approx(size, rel=0.05)


def test_ids_are_compared_where_shards_overlap_and_not_where_they_were_cut_from_one_table(corpus, tmp_path, monkeypatch):
    _, vectors, _ = corpus
    ids = ["a", "b", "c", "é", "\uffee", "\U0001f600"]  # in the order of code points, which is that of their bytes
    with monkeypatch.context() as table:
        for name in ("count_distinct", "is_in"):
            table.setattr(pc, name, lambda *_, **__: pytest.fail("ids were looked into"))
        build_index(tmp_path, ids, vectors[:6], shards=3)
    build_shard(tmp_path / "more", ["a2", "z"], vectors[:2])
    build_shard(tmp_path / "again", ["b", "z2"], vectors[:2])
    with pytest.raises(InputError, match="already has 1 of these ids, 'b' for one"):
        publish_index(tmp_path, ["shard-00000", "shard-00001", "shard-00002", "again"])
    (tmp_path / "index.json").unlink()
    with pytest.raises(InputError, match="'b' is given to more than one row"):
        publish_index(tmp_path, ["shard-00000", "shard-00001", "shard-00002", "again"])
    publish_index(tmp_path, ["shard-00000", "shard-00001", "shard-00002", "more"])
    assert DenseIndex.open(tmp_path).num_rows == 8


def test_wrong_input_is_named(corpus, tmp_path):
    ids, vectors, queries = corpus
    with pytest.raises(InputError, match="the corpus is empty"):
        build_index(tmp_path / "a", [], np.zeros((0, 4)))
    with pytest.raises(InputError, match="'x' is given to more than one row"):
        build_index(tmp_path / "b", ["x", "y", "x"], vectors[:3])
    with pytest.raises(InputError, match="'x' is given to more than one row"):
        build_index(tmp_path / "c", ["x", "y", "x"], vectors[:3], shards=3)
    broken = vectors[:3].copy()
    broken[1, 2] = np.nan
    with pytest.raises(InputError, match="1 vectors are not finite, 'y' for one"):
        build_index(tmp_path / "d", ["x", "y", "z"], broken)
    with pytest.raises(InputError, match="2 ids for vectors of shape"):
        build_index(tmp_path / "e", ["x", "y"], vectors[:3])
    with pytest.raises(InputError, match="unknown dense index 'flt'"):
        DenseSettings("flt")
    build_index(tmp_path / "f", ids, vectors)
    index = DenseIndex.open(tmp_path / "f")
    with pytest.raises(InputError, match="index of 24 units"):
        index.search(queries[:, :5])
    with pytest.raises(InputError, match="query 1 is not finite"):
        index.search(np.array([queries[0], queries[0] * np.nan]))
    build_shard(tmp_path / "f" / "shard-00001", ["new"], vectors[:1, :5])
    with pytest.raises(InputError, match="another dimension"):
        publish_index(tmp_path / "f", ["shard-00000", "shard-00001"])
    (tmp_path / "f" / "index.json").write_text(json.dumps({"kind": "bm25", "format": 1}))
    with pytest.raises(InputError, match="of kind bm25"):
        DenseIndex.open(tmp_path / "f")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_search_within_some_rows_is_that_of_an_index_of_these_alone(tmp_path, share, shards):
    rng = np.random.default_rng(5)
    vectors = rng.integers(-2, 3, (400, 16)).astype(np.float32)  # many ties
    ids = [f"s{number:04d}" for number in range(len(vectors))]
    build_index(tmp_path / "all", ids, vectors, shards)
    within = rng.random(len(vectors)) < share
    queries = rng.integers(-2, 3, (70, 16)).astype(np.float32)
    whole = DenseIndex.open(tmp_path / "all", device="cpu")
    found = whole.search(queries, 20, within=within, row_block=64)
    if not within.any():
        assert (found.rows == -1).all()
        return
    build_index(tmp_path / "some", np.array(ids)[within].tolist(), vectors[within])
    alone = DenseIndex.open(tmp_path / "some", device="cpu")
    wanted = alone.search(queries, 20)
    assert (found.scores == wanted.scores).all()
    assert whole.sentence_ids(found.rows[found.rows >= 0]) == alone.sentence_ids(wanted.rows[wanted.rows >= 0])
