"""The dense index: exact whatever the layout, ties by id, whole on disk, wrong input named."""

import json

import faiss
import numpy as np
import pytest

from raydist.errors import InputError
from raydist.mining.bm25 import compiled
from raydist.retriever import index as dense
from raydist.retriever.index import (
    DenseIndex,
    DenseSettings,
    _dot_loops,
    _dot_numpy,
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


@pytest.mark.parametrize("units", [5, 8, 13, 384])
def test_compiled_and_plain_sums_have_the_same_bits(units):
    rng = np.random.default_rng(units)
    vectors = rng.standard_normal((50, units), dtype=np.float32)
    queries = rng.standard_normal((4, units), dtype=np.float32)
    rows = rng.integers(90, 160, size=(4, 30))  # some of them in other shards, which hold other rows
    rows[:, -1] = -1
    loops = compiled(_dot_loops)
    assert loops is not None
    found = []
    for dot in (_dot_numpy, loops):
        scores = np.full(rows.shape, -np.inf, np.float32)
        dot(vectors, 100, queries, rows, scores, 0, 3)
        dot(vectors, 100, queries, rows, scores, 3, 4)
        found.append(scores)
    np.testing.assert_array_equal(*found)
    here = (rows >= 100) & (rows < 150)
    exact = np.einsum("qd,qkd->qk", queries.astype(float), vectors[np.where(here, rows - 100, 0)].astype(float))
    np.testing.assert_array_equal(np.isfinite(found[0]), here)
    np.testing.assert_allclose(found[0][here], exact[here], rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_faiss_kinds_find_most_with_exact_scores(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(dense, "SMALL_SHARD", 1500)
    rng = np.random.default_rng(3)
    centres = unit(rng, 40, 32)
    vectors = unit(rng, 4000, 32) * 0.5 + centres[rng.integers(40, size=4000)]
    queries = vectors[:40] + unit(rng, 40, 32) * 0.2
    ids = [f"{number:06d}" for number in range(4000)]
    folder, exact_folder = tmp_path / "index", tmp_path / "exact"
    names = ["shard-00000", "shard-00001"]  # the second is too small to train
    for name, rows in zip(names, (slice(0, 3000), slice(3000, 4000))):
        build_shard(folder / name, ids[rows], vectors[rows], DenseSettings(kind))
    publish_index(folder, names)
    assert [(folder / name / "faiss.npy").exists() for name in names] == [True, False]
    build_index(exact_folder, ids, vectors)
    exact = DenseIndex.open(exact_folder).search(queries, K)
    index = DenseIndex.open(folder, probes=50)
    hits = index.search(queries, K)
    recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(hits.rows, exact.rows)])
    assert recall > (0.6 if kind == "pq" else 0.95)
    same = hits.rows == exact.rows
    np.testing.assert_array_equal(hits.scores[same], exact.scores[same])
    assert (np.diff(hits.scores) <= 0).all()


def test_the_same_rows_give_the_same_bytes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "SMALL_SHARD", 100)
    ids, vectors, _ = corpus
    for kind in ("flat", "ivf", "hnsw"):
        for name in ("one", "two"):
            build_index(tmp_path / kind / name, ids, vectors, settings=DenseSettings(kind))
        one, two = (sorted((tmp_path / kind / name).rglob("*")) for name in ("one", "two"))
        assert [path.name for path in one] == [path.name for path in two]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two) if a.is_file())


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
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.npy"))
    assert estimate_bytes(4000, 64, DenseSettings(kind))["disk"] == pytest.approx(size, rel=0.05)


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
