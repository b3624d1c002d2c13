"""The method hybrid of a run: BM25 and the retriever as one list, and the weight that development questions give it."""

from pathlib import Path

import pytest

from raydist.config import load_config
from raydist.here import Here
from raydist.retrieval import flow
from raydist.retrieval.candidates import ranked_lists
from raydist.retrieval.evaluate import gold_lists
from raydist.retrieval.fusion import Fusion, tune
from raydist.retrieval.index_stages import FusedHits
from raydist.retrieval.metrics import read_trec_run
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run


@pytest.fixture
def open_run(tmp_path):
    def open_run(*overrides: str) -> Run:
        run = Run(load_config("debug_retrieval", [f"storage={tmp_path}", *overrides]).config, Here())
        run.begin()
        return run

    return open_run


def lists_of(made) -> dict[str, list[tuple[str, float]]]:
    return {question: hits for table in made.tables() for question, hits in ranked_lists(table).items()}


def test_without_training_hybrid_is_bm25_and_the_untrained_encoder_whatever_the_shards(open_run):
    fused = []
    for shard_rows in (100, 10_000):
        run = open_run(f"index.shard_rows={shard_rows}", "retriever.fusion.kind=minmax", "retriever.fusion.dense_weight=0.3")
        corpus = open_corpora(run, ["sample"])["sample"]
        hits = flow.search_untrained(run, corpus)
        made = run.make(FusedHits(corpus, hits["bm25"], hits["untrained"], Fusion("minmax", 0.3), 100), "fused hits of sample")
        fused.append(lists_of(made))
        words, vectors = lists_of(hits["bm25"]), lists_of(hits["untrained"])
        for question in corpus.read("questions")["question_id"].to_pylist():
            assert fused[-1][question] == Fusion("minmax", 0.3).fuse(words.get(question, []), vectors[question])[:100]
    assert fused[0] == fused[1]
    flow.evaluate(run)
    metrics = run.folder.read_json("metrics.json")
    assert metrics["retrieval.sample.hybrid.MRR@100"] > metrics["retrieval.sample.untrained.MRR@100"]
    assert "retrieval.sample.hybrid.MRR@100.minus_bm25.p" in metrics
    kept = read_trec_run(Path(run.folder.path("ranked", "sample.hybrid.trec")))
    assert {question: [id for id, _ in hits] for question, hits in kept.items()} == {
        question: [id for id, _ in hits] for question, hits in fused[1].items()
    }


def test_the_weight_is_chosen_on_development_questions_and_on_nothing_else(open_run):
    run = open_run("evaluate.bootstrap=0")
    corpora, encoder = open_corpora(run), flow.own_encoder(run)
    assert flow.choose_fusion(run, encoder) == Fusion("rrf"), "no development questions, nothing to choose by"
    development = corpora["train"]
    chosen = flow.choose_fusion(run, encoder, development)
    words = flow.search_bm25(run, development, flow.index_bm25(run, development), 100)
    vectors = flow.search_dense(run, development, flow.index_dense(run, development, encoder), encoder, 100)
    assert chosen == tune(lists_of(words), lists_of(vectors), gold_lists(development.read("gold")))
    assert chosen != Fusion("rrf"), "random vectors deserve little trust"
    assert flow.choose_fusion(open_run("retriever.fusion.kind=z"), encoder, development) == Fusion("z", 0.5), "the config rules"
