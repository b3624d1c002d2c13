"""Several rounds of mining, with everything but the training itself: what is compared learns from the same pairs."""

import pyarrow.parquet as pq
import pytest

from raydist.config import load_config
from raydist.retrieval import flow
from raydist.retrieval.cross_encoder import sigmoid
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run


def test_rounds_end_alike_in_a_whole_run_in_mining_alone_and_in_an_evaluation(untrained, tmp_path):
    changes = [f"storage={tmp_path / 'runs'}", "mining.rounds=2", "data.sample.size=200", "cluster.threads_per_worker=1"]
    changes.append("mining.calibrate=platt")
    config = load_config("debug_retrieval", changes).config
    run = Run(config, untrained)
    run.begin()
    corpora = open_corpora(run)
    cross_encoder, variants = flow.train_all(run, corpora["train"])
    assert list(variants) == ["gold", "gold_silver", "round1", "gold_silver_weighted"]

    def silver_of(name: str) -> str:
        """By what the training of a run knows its silver pairs."""
        return run.storage.read_json(f"{name}/training.json")["identity"]["data.train.silver"]

    last = silver_of("debug_retrieval")
    assert silver_of("debug_retrieval_round1") != last
    assert silver_of("debug_retrieval_gold_silver") == last, "else weights and rounds are compared at once"

    flow.score_methods(run, cross_encoder, variants, corpora)
    metrics = run.folder.read_json("metrics.json")
    for key in ("candidates", "silver", "yield"):
        assert metrics[f"mining.{key}"] == metrics[f"mining.round2.{key}"]
        assert f"mining.round1.{key}" in metrics
    rows = pq.read_metadata(run.folder.path("mining", "silver.parquet")).num_rows
    assert rows == metrics["mining.candidates"]
    assert rows != metrics["mining.round1.candidates"]

    platt = run.folder.read_json("cross_encoder/reliability.json")["platt"]
    scored = pq.read_table(run.folder.path("mining", "silver.parquet"), columns=["p", "logit"])
    p = sigmoid(scored["logit"].to_numpy(), platt["temperature"], platt["shift"])
    assert scored["p"].to_pylist() == pytest.approx(p.tolist(), abs=1e-6)
    assert p.mean() < 0.4, "1:3, where an untrained head says 1:1"

    pairs = run.folder.read_bytes("mining/silver.parquet")
    flow.mine(run)
    assert run.folder.read_bytes("mining/silver.parquet") == pairs
    flow.evaluate(run)
    assert run.folder.read_json("metrics.json") == metrics
