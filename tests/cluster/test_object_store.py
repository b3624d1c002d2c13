"""Runs whose storage is an object store: every node finds what the driver and other nodes wrote, under no path of theirs."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from helpers.stages import Squares, folders_of, make
from helpers.trec import read_qrels

from raydist.config import ClusterConfig, load_config
from raydist.files.stage import Worker, part_name, whole_manifest
from raydist.files.storage import Storage, StorageError
from raydist.reader.prepare import examples_stage, prepare
from raydist.retrieval import flow
from raydist.retrieval.metrics import read_trec_run, score_run
from raydist.runs.run import Run


@pytest.fixture
def make_run(s3, here):
    def make_run(*overrides: str, config: str = "debug_reader") -> Run:
        loaded = load_config(config, [f"storage={s3.uri('runs')}", "data.sample.size=200", *overrides])
        run = Run(loaded.config, here)
        run.begin()
        return run

    return make_run


def test_a_stage_on_an_object_store_goes_on_with_the_parts_that_are_missing_or_damaged(s3, here, tmp_path, capsys):
    storage, executor = s3.uri("runs"), here.executor(ClusterConfig())
    stage = Squares("squares", 4, str(tmp_path / "log"))
    s3.refuse_writes_of = part_name(2, stage.kind)
    with pytest.raises(StorageError, match="ACCESS_DENIED"):
        make(executor, storage, stage)
    assert whole_manifest(Storage(storage).at(stage.folder)) is None
    s3.refuse_writes_of = None
    damaged = f"runs/{stage.folder}/{part_name(0, stage.kind)}"
    s3.objects[damaged].content = s3.objects[damaged].content[:-9]
    make(executor, storage, stage)
    assert "resuming after 1 finished part" in capsys.readouterr().out
    assert stage.made() == ["0", "10", "20", "0", "20", "30"]
    manifest = whole_manifest(Storage(storage).at(stage.folder))
    assert [part.info["first"] for part in manifest.parts] == [0, 10, 20, 30]
    make(executor, storage, stage)
    assert "squares: already done (40 rows)" in capsys.readouterr().out
    assert len(stage.made()) == 6


def test_files_of_the_sample_world_are_found_on_a_node_that_has_nothing_of_the_drivers(
    s3, make_run, monkeypatch, tmp_path, capsys
):
    run = make_run()
    stage = examples_stage(run, "dev", run.config.sets()["dev"])
    assert "sample world: 3,450 passages in " in capsys.readouterr().out, "how much is seen, and not only that it was begun"
    written = [request for request in s3.requests if request.startswith("PUT runs/stages/sample-") and ".lock/" not in request]
    assert written[-1].endswith("/world.json"), "what says that the world is whole comes last"
    shutil.rmtree(os.environ["RAYDIST_CACHE"])
    tables = []
    for node in ("one", "two"):
        monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path / node))
        elsewhere = pickle.loads(pickle.dumps(stage))
        assert elsewhere.parts == 1
        tables.append(elsewhere.open(Worker())(elsewhere.read(0)).table)
    assert tables[0].num_rows == 400  # 80 passages
    assert tables[0] == tables[1], "also in what their rows say of where they came from"
    assert tables[0]["file"][0].as_py().startswith("bucket/runs/stages/sample-")


def test_the_same_stages_are_made_on_a_disk_and_on_an_object_store(s3, make_run, tmp_path):
    remote = make_run()
    prepare(remote, ["dev", "adversarial"])
    local = make_run(f"storage={tmp_path / 'disk'}")
    prepare(local, ["dev", "adversarial"])
    folders = [folders_of(run) for run in (remote, local)]
    assert folders[0] == folders[1]
    for folder in folders[0].values():
        if "windows-" in folder:  # examples name the file they came from
            for name, size in local.storage.sizes(folder).items():
                if name != "manifest.json":
                    assert remote.storage.sizes(folder)[name] == size
                    assert remote.storage.read_bytes(f"{folder}/{name}") == local.storage.read_bytes(f"{folder}/{name}")


def test_retrieval_on_an_object_store_leaves_its_ranked_lists_there(make_run):
    run = make_run("corpus.train=null", config="debug_retrieval")
    flow.evaluate(run)
    methods = ("bm25", "untrained", "hybrid")
    lists = {f"sample.{method}.trec" for method in methods}
    assert run.folder.sizes("ranked").keys() == lists | {"sample.qrels", "sample.parquet"}
    folder = run.folder.local_copy("ranked")
    gold = read_qrels(folder / "sample.qrels")
    metrics = run.folder.read_json("metrics.json")
    for method in methods:
        means = score_run(read_trec_run(folder / f"sample.{method}.trec"), gold).means()
        assert {name: metrics[f"retrieval.sample.{method}.{name}"] for name in means} == pytest.approx(means, abs=1e-6)


@pytest.mark.ray
@pytest.mark.slow
def test_a_whole_run_with_its_storage_on_an_object_store(s3, raydist, tmp_path):
    """Ray's own files, too: checkpoints are there, and nothing of the run is on this machine but copies in the cache."""
    storage = s3.uri("runs")
    environment = os.environ | {"RAYDIST_CACHE": str(tmp_path / "cache")}
    command = ("run", "debug_reader", f"storage={storage}", "name=far", "train.checkpoint_every=10", "train.keep_finished=true")
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
