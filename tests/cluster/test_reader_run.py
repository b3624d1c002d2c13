"""A reader's whole run on Ray: what it leaves, what a second call changes, and what a full disk does to it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raydist import flows
from raydist.config import load_config
from raydist.files.lease import GUARD
from raydist.reader import flow
from raydist.runs.run import Run
from raydist.sample.write import write_sample
from raydist.status import describe_run


@pytest.fixture(scope="module")
def whole(machine, storage) -> Run:
    """A run that went through all stages."""
    run = Run(load_config("debug_reader", [f"storage={storage}", "name=whole"]).config, machine)
    run.begin()
    flows.run_all(run)
    return run


def test_the_whole_pipeline_leaves_a_run_that_can_be_looked_at(whole, tmp_path):
    run = whole
    folder = Path(run.folder.path())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert 0 <= metrics["dev.f1"] <= 100
    assert metrics["dev.questions"] == 60
    assert metrics["adversarial.originals"] == 40
    assert metrics["adversarial.questions"] == 80
    assert metrics["train.steps"] == 20
    assert {line["step"] for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())} == set(range(1, 21))
    assert "<html" in (folder / "report.html").read_text()
    assert list((folder / "tensorboard").iterdir())
    predictions = json.loads((folder / "predictions/dev.json").read_text())
    lists = json.loads((folder / "predictions/dev.nbest.json").read_text())
    assert predictions == {id: spans[0]["text"] for id, spans in lists.items()}
    assert len(predictions) == 60
    from datasets import load_dataset

    file = str(folder / "evaluation/dev.parquet")
    rows = load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path))
    assert sum(row["f1"] for row in rows) / 60 == pytest.approx(metrics["dev.f1"], abs=1e-4)
    description = describe_run(str(folder))
    assert "train: done, 20 steps" in description
    assert "dev.f1" in description


def test_a_second_call_needs_no_ray_and_changes_nothing(whole, storage, raydist):
    folder = Path(storage) / "whole"

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != GUARD}

    before = files()
    code, out, err = raydist("run", "debug_reader", f"storage={storage}", "name=whole")
    assert code == 0, err
    assert "starting Ray" not in out
    assert "train: already done (20 steps)" in out
    after = files()
    assert after.keys() == before.keys()
    tells_reuse = ("stages.json", "report.html")  # these say that stages were there already
    assert not [str(path) for path in before if before[path] != after[path] and path.name not in tells_reuse]


def test_predictions_do_not_depend_on_parts_or_actors(make_run, whole):
    tables = []
    for part_rows, actors in ((1000, 1), (7, 2)):
        run = make_run("name=whole", f"data.part_rows={part_rows}", f"cluster.actors={actors}", "predict.split=dev")
        tables.append(flow.predict(run)["dev"])
    scores = [[row["score"] for spans in table["nbest"].to_pylist() for row in spans] for table in tables]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)  # other rows in the batch: other rounding
    for name in ("id", "language", "passage_id"):
        assert tables[0][name].to_pylist() == tables[1][name].to_pylist()
    texts = [[[span["text"] for span in spans[:1]] for spans in table["nbest"].to_pylist()] for table in tables]
    assert texts[0] == texts[1]


def test_a_full_disk_stops_a_stage_and_the_same_command_goes_on(tmp_path):
    """A real file system of 256 KiB, too small for the examples of the sample."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        world = tmp_path / "world"
        write_sample(world, "small", 0)
        (small / "stages").mkdir()
        command = [sys.executable, "-m", "raydist.cli", "train", "debug_reader", f"storage={small}"]
        command += [f"data.train.files={world}/en/train.json", "data.dev=null", "data.test=null", "data.train.questions=40"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "no space is left on the device" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(small.rglob("*.tmp"))
        whole = {path: path.read_bytes() for path in small.rglob("part-*")}
        subprocess.run(["mount", "-o", "remount,size=200M", str(small)], check=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(path.read_bytes() == content for path, content in whole.items())
    finally:
        subprocess.run(["umount", str(small)])
