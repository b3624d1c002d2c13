"""What both retrievers find for training questions is searched for once, and is what two searches would find."""

import pytest

from raydist.config import load_config
from raydist.retrieval import bm25, dense, flow, hits
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run


@pytest.fixture
def open_run(here, tmp_path):
    """A run of its own storage, its training corpus and its encoder."""

    def open_run(storage: str, *overrides: str):
        given = [f"storage={tmp_path / storage}", "index.shard_rows=150", *overrides]
        run = Run(load_config("debug_retrieval", given).config, here)
        run.begin()
        return run, open_corpora(run, ["train"])["train"], flow.mining_encoder(run)

    return open_run


@pytest.fixture
def searched(monkeypatch) -> list[int]:
    """To which depths an index was searched."""
    depths: list[int] = []

    def counted(plain):
        return lambda self, questions, k, **given: depths.append(k) or plain(self, questions, k, **given)

    for index in (bm25.Index, dense.DenseIndex):
        monkeypatch.setattr(index, "search", counted(index.search))
    return depths


def made_hits(folder) -> dict[str, bytes]:
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in folder.glob("stages/*_hits-*/part-*")}


@pytest.mark.parametrize("candidates", [4, 30])
def test_negatives_and_candidates_come_from_one_search_and_are_what_two_would_find(open_run, searched, tmp_path, candidates):
    run, corpus, encoder = open_run("once", f"mining.candidates={candidates}")
    for depth in (hits.NEGATIVES_DEPTH, candidates):
        found = hits.find_hits(run, corpus, encoder, depth)
        assert max(row["rank"] for table in found.bm25.tables() for row in table.to_pylist()) == depth
    assert set(searched) == {max(10, candidates)}
    run, corpus, encoder = open_run("twice")
    words, vectors = flow.index_bm25(run, corpus), flow.index_dense(run, corpus, encoder)
    for depth in (hits.NEGATIVES_DEPTH, candidates):
        flow.search_bm25(run, corpus, words, depth)
        flow.search_dense(run, corpus, vectors, encoder, depth)
    assert made_hits(tmp_path / "once") == made_hits(tmp_path / "twice")


def test_an_index_that_is_not_exact_is_searched_to_each_depth(open_run, searched):
    """Where it looks deeper it may find other sentences, and a stage is known by the depth it was searched to."""
    run, corpus, encoder = open_run("hnsw", "mining.candidates=30", "index.dense=hnsw")
    hits.find_hits(run, corpus, encoder, hits.NEGATIVES_DEPTH)
    assert set(searched) == {10, 30}
