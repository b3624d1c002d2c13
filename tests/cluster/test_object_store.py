"""Runs whose storage is an object store: every node finds what the driver and other nodes wrote, under no path of theirs."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from raydist.cluster import pipeline, retrieval
from raydist.cluster.connect import Cluster
from raydist.cluster.pipeline import Run
from raydist.cluster.stages import Work, run_parts
from raydist.config import ClusterConfig, load_config
from raydist.files.stage import Stage
from raydist.files.storage import Storage, StorageError
from raydist.reader.parts import example_part_maker
from raydist.retrieval.metrics import read_trec_gold, read_trec_run, score_run


@pytest.fixture
def make_run(s3):
    def make_run(*overrides: str, config: str = "debug_reader", cluster: Cluster | None = None) -> Run:
        loaded = load_config(config, [f"storage={s3.uri('runs')}", "data.sample.size=200", *overrides])
        run = Run(loaded.config, cluster or Cluster(ClusterConfig()))
        run.begin()
        return run

    return make_run


def square_maker(*, log: str):
    def make(spec: dict) -> dict:
        with open(log, "a") as file:
            file.write(f"{spec['first']}\n")
        return {"part": pa.table({"n": [n * n for n in range(spec["first"], spec["first"] + 10)]}), "info": spec}

    return make


def test_a_stage_on_an_object_store_goes_on_with_the_parts_that_are_missing_or_damaged(s3, no_ray, tmp_path, capsys):
    log = tmp_path / "log"
    work = Work(Stage(Storage(s3.uri("runs")), "squares", {"parts": 4}), [{"first": 10 * i} for i in range(4)], "squares")
    s3.refuse_writes_of = work.stage.part(2)
    with pytest.raises(StorageError, match="ACCESS_DENIED"):
        run_parts(no_ray, [work], square_maker, {"log": str(log)}, label="squares")
    assert work.stage.manifest() is None
    s3.refuse_writes_of = None
    damaged = f"runs/{work.stage.folder}/{work.stage.part(0)}"
    s3.objects[damaged].content = s3.objects[damaged].content[:-9]
    run_parts(no_ray, [work], square_maker, {"log": str(log)}, label="squares")
    assert "going on after 1 finished part" in capsys.readouterr().out
    assert log.read_text().split() == ["0", "10", "20", "0", "20", "30"]
    manifest = work.stage.manifest()
    assert [part["info"]["first"] for part in manifest.parts] == [0, 10, 20, 30]
    run_parts(no_ray, [work], square_maker, {"log": str(log)}, label="squares")
    assert "squares: already done (40 rows)" in capsys.readouterr().out
    assert len(log.read_text().split()) == 6


def test_files_of_the_sample_world_are_found_on_a_node_that_has_nothing_of_the_drivers(
    s3, make_run, monkeypatch, tmp_path, capsys
):
    run = make_run()
    work = pipeline._examples_work(run, "dev", run.config.sets()["dev"])
    assert "sample world: 3,465 passages in " in capsys.readouterr().out, "how much is seen, and not only that it was begun"
    written = [request for request in s3.requests if request.startswith("PUT runs/stages/sample-")]
    assert written[-1].endswith("/world.json"), "what says that the world is whole comes last"
    shutil.rmtree(os.environ["RAYDIST_CACHE"])
    tables = []
    for node in ("one", "two"):
        monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path / node))
        (spec,) = json.loads(json.dumps(work.specs))
        tables.append(example_part_maker(row_group=100)(spec)["part"])
    assert tables[0].num_rows == 400  # 80 passages
    assert tables[0] == tables[1], "also in what their rows say of where they came from"
    assert tables[0]["file"][0].as_py().startswith("bucket/runs/stages/sample-")


def test_the_same_stages_are_made_on_a_disk_and_on_an_object_store(s3, no_ray, make_run, tmp_path):
    remote = make_run(cluster=no_ray)
    pipeline.prepare(remote, ["dev", "adversarial"])
    local = make_run(f"storage={tmp_path / 'disk'}", cluster=no_ray)
    pipeline.prepare(local, ["dev", "adversarial"])
    folders = [{title: stage["folder"] for title, stage in run.stages.items()} for run in (remote, local)]
    assert folders[0] == folders[1]
    for folder in folders[0].values():
        if "windows-" in folder:  # examples name the file they came from
            for name, size in local.storage.sizes(folder).items():
                if name != "manifest.json":
                    assert remote.storage.sizes(folder)[name] == size
                    assert remote.storage.read_bytes(f"{folder}/{name}") == local.storage.read_bytes(f"{folder}/{name}")


def test_retrieval_on_an_object_store_leaves_its_ranked_lists_there(no_ray, make_run):
    run = make_run("corpus.train=null", config="debug_retrieval", cluster=no_ray)
    retrieval.evaluate_only(run)
    assert run.folder.sizes("ranked").keys() == {"sample.bm25.trec", "sample.untrained.trec", "sample.qrels", "sample.parquet"}
    folder = run.folder.local_copy("ranked")
    gold = read_trec_gold(folder / "sample.qrels")
    metrics = run.folder.read_json("metrics.json")
    for method in ("bm25", "untrained"):
        means = score_run(read_trec_run(folder / f"sample.{method}.trec"), gold).means()
        assert {name: metrics[f"retrieval.sample.{method}.{name}"] for name in means} == pytest.approx(means, abs=1e-6)


@pytest.mark.ray
@pytest.mark.slow
def test_a_whole_run_with_its_storage_on_an_object_store(s3, raydist, tmp_path):
    """Ray's own files, too: checkpoints are there, and nothing of the run is on this machine but copies in the cache."""
    storage = s3.uri("runs")
    environment = os.environ | {"RAYDIST_CACHE": str(tmp_path / "cache")}
    command = ("run", "debug_reader", f"storage={storage}", "name=far", "train.checkpoint_every=10")
    code, out, err = raydist(*command, timeout=600, env=environment)
    assert code == 0, out + err
    run = Storage(storage).at("far")
    metrics = run.read_json("metrics.json")
    assert (metrics["train.steps"], metrics["dev.questions"], metrics["adversarial.originals"]) == (20, 60, 40)
    assert {"config.json", "model.safetensors"} <= run.sizes("model").keys()
    assert len(json.loads(run.read_bytes("predictions/dev.json"))) == 60
    assert [name for name in run.folders("checkpoints") if name.startswith("checkpoint_")]
    assert run.sizes("tensorboard")
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["cache"]

    before = {key: stored.content for key, stored in s3.objects.items() if "/stages/" in key}
    code, out, err = raydist(*command, timeout=600, env=environment)
    assert code == 0, out + err
    assert "train: already done (20 steps)" in out
    assert "starting Ray" not in out
    assert {key: stored.content for key, stored in s3.objects.items() if "/stages/" in key} == before
