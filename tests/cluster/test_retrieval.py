"""Mining and retrieval on Ray: one command, the same bytes whatever the layout and whatever dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raydist.cluster import pipeline, retrieval
from raydist.errors import InputError

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def finished(cluster, storage):
    """A whole run, made once."""
    from raydist.config import load_config

    overrides = [f"storage={storage}", "cluster.threads_per_worker=1"]  # how sums round depends on the threads
    run = pipeline.Run(load_config("debug_retrieval", overrides).config, cluster)
    run.begin()
    pipeline.run_all(run)
    return run


def silver(run) -> list[dict]:
    return pq.read_table(run.folder.path("mining", "silver.parquet")).to_pylist()


def test_the_run_leaves_models_pairs_scores_and_lists_that_others_can_read(finished):
    from datasets import load_dataset
    from sentence_transformers import CrossEncoder, SentenceTransformer

    metrics = finished.folder.read_json("metrics.json")
    for method in ("bm25", "untrained", "gold", "gold_silver", "gold_silver_weighted", "reranked"):
        for metric in ("P@1", "P@5", "P@10", "MRR@100", "recall@100", "nDCG@10"):
            assert 0 <= metrics[f"retrieval.sample.{method}.{metric}"] <= 1
    assert metrics["retrieval.sample.bm25.P@10"] > 0.3
    assert metrics["mining.silver"] > 0
    pairs = load_dataset("parquet", data_files=finished.folder.path("mining", "silver.parquet"), split="train")
    assert set(pairs["kept"]) <= {True, False}
    assert SentenceTransformer(finished.folder.path("model")).encode(["Who?"]).shape == (1, 64)
    scorer = CrossEncoder(finished.storage.path("debug_retrieval_cross_encoder", "model"))
    row = pq.read_table(finished.folder.path("mining", "examples.parquet")).to_pylist()[0]
    assert scorer.predict([(row["question"], row["sentence"])])[0] == pytest.approx(row["p"], abs=1e-5)
    html = Path(finished.folder.path("report.html")).read_text()
    assert "Re-ranked by the cross-encoder" in html
    assert Path(finished.folder.path("ranked", "sample.bm25.trec")).is_file()


def test_a_second_call_makes_nothing_and_needs_no_ray(finished, capsys, monkeypatch):
    from raydist.cluster.connect import Cluster

    monkeypatch.setattr(Cluster, "start", lambda self: pytest.fail("Ray was started"))
    again = pipeline.Run(finished.config, finished.cluster)
    again.begin()
    pipeline.run_all(again)
    assert "P@10" in capsys.readouterr().out


def test_shards_and_actors_change_nothing(finished, make_run):
    other = make_run(
        "name=layout", "index.shard_rows=70", "cluster.actors=3", "cluster.threads_per_worker=1", config="debug_retrieval"
    )
    corpus = retrieval.open_corpora(other, ["train"])["train"]
    encoder = retrieval.named_encoder(other, "builtin:tiny", "auto", context=False)
    cross_encoder = pipeline.Run(
        retrieval.override(finished.config, {"name": "debug_retrieval_cross_encoder"}), finished.cluster
    )
    retrieval.mine(other, corpus, encoder, cross_encoder)
    assert other.folder.read_json("stages.json")["BM25 index of train"]["rows"] > 1
    assert silver(other) == silver(finished)


def test_another_threshold_asks_no_model_and_keeps_what_a_fresh_run_would(finished, make_run, capsys):
    threshold = sorted(row["p"] for row in silver(finished))[len(silver(finished)) // 2]
    other = make_run("name=debug_retrieval", f"mining.threshold={threshold}", config="debug_retrieval")
    retrieval.mine_only(other)
    assert "scores of train: already done" in capsys.readouterr().out
    for row in silver(other):
        assert row["kept"] == (row["p"] >= threshold)
    retrieval.mine_only(make_run(config="debug_retrieval"))  # as it was


def test_an_index_is_searched_and_documents_are_added_to_it(make_run, tmp_path):
    from raydist.retriever.search import Searcher

    run = make_run("name=indexed", config="debug_retrieval")
    folder = retrieval.index(run)
    text = Searcher(folder).tables[0].texts([5])[0].as_py()
    assert Searcher(folder).search([text], 3)[0][0].text == text
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "new", "text": "Zyxquor built a lighthouse. It fell in 1911."}\n')
    assert retrieval.add_to_index(run, [more]) == 2
    best = Searcher(run.folder.path()).search(["Who built the lighthouse Zyxquor?"], 2)[0]
    assert best[0].text == "Zyxquor built a lighthouse."
    with pytest.raises(InputError, match="in the index already"):
        retrieval.add_to_index(run, [more])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corpus.train=nowhere"], r"there is no .*nowhere"),
        (["corpus.train.split=missing"], r"missing"),
        (["corpus.train=null"], r"set corpus.train"),
        (["mining.encoder=builtin:small"], r"builtin:small"),
        (["index.dense=pq", "index.pq.m=7"], r"64 units cannot be cut into 7 equal parts"),
        (["index.dense=ivf", "index.ivf.nlist=9999"], r"index\.ivf\.nlist 9999 is more than the 400 vectors"),
    ],
)
def test_bad_input_is_named(make_run, overrides, message):
    with pytest.raises(InputError, match=message):
        pipeline.run_all(make_run("name=bad", *overrides, config="debug_retrieval"))


def test_killed_in_every_stage_it_ends_with_the_same_bytes_and_makes_no_part_twice(tmp_path):
    """kill -9 of the driver while it indexes, finds, scores and selects; then the same command again."""
    command = [sys.executable, "-m", "raydist.cli", "mine", "debug_retrieval", "mining.part_questions=6", "index.shard_rows=50"]

    def parts(storage: Path) -> dict[str, Path]:
        return {f"{file.parent.name}/{file.name}": file for file in storage.glob("stages/*/part-*")}

    disturbed, calm = tmp_path / "disturbed", tmp_path / "calm"
    written: dict[str, int] = {}
    for stage in ("bm25-", "candidates-", "scores-", "silver-"):
        driver = subprocess.Popen([*command, f"storage={disturbed}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while driver.poll() is None and not any(name.startswith(stage) for name in parts(disturbed)):
            time.sleep(0.02)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        for name, file in parts(disturbed).items():
            written.setdefault(name, file.stat().st_mtime_ns)
    assert any(name.startswith("scores-") for name in written)
    for storage in (disturbed, calm):
        subprocess.run([*command, f"storage={storage}"], check=True, capture_output=True, timeout=600)
    for name, file in parts(disturbed).items():
        assert written.get(name, file.stat().st_mtime_ns) == file.stat().st_mtime_ns, f"{name} was made again"
    ours, theirs = parts(disturbed), parts(calm)
    assert ours.keys() == theirs.keys()
    for name, file in ours.items():
        assert file.read_bytes() == theirs[name].read_bytes(), name
