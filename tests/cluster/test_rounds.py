"""Several rounds of mining, with everything but the training itself: what is compared learns from the same pairs."""

import pyarrow.parquet as pq
import pytest

from raydist.cluster import retrieval
from raydist.cluster.pipeline import Run
from raydist.config import load_config
from raydist.retrieval.cross_encoder import sigmoid


def test_rounds_end_alike_in_a_whole_run_in_mining_alone_and_in_an_evaluation(trained, no_ray, tmp_path):
    changes = [f"storage={tmp_path / 'runs'}", "mining.rounds=2", "data.sample.size=200", "cluster.threads_per_worker=1"]
    changes.append("mining.calibrate=platt")
    config = load_config("debug_retrieval", changes).config
    run = Run(config, no_ray)
    run.begin()
    corpora = retrieval.open_corpora(run)
    cross_encoder, variants = retrieval.build_retriever(run, corpora["train"])
    assert list(variants) == ["gold", "gold_silver", "round1", "gold_silver_weighted"]
    last = trained["debug_retrieval"]["data.train.silver"]
    assert trained["debug_retrieval_round1"]["data.train.silver"] != last
    assert trained["debug_retrieval_gold_silver"]["data.train.silver"] == last, "else weights and rounds are compared at once"

    retrieval.evaluate_retrieval(run, cross_encoder, variants, corpora)
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
    retrieval.mine_only(run)
    assert run.folder.read_bytes("mining/silver.parquet") == pairs
    retrieval.evaluate_only(run)
    assert run.folder.read_json("metrics.json") == metrics
