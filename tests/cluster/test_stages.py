"""Stages: the same bytes whatever the layout, nothing twice, nothing half."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

from raydist import terminal as progress
from raydist.cluster import pipeline
from raydist.cluster.fit import RunLog
from raydist.cluster.retrieval import _tell_rejected
from raydist.cluster.stages import Work, run_parts
from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.stage import Stage
from raydist.files.storage import Storage, StorageError
from raydist.training.loop import StepReport


def square_maker(*, log: str, slow: float = 0.0):
    """Parts of squares; notes in a file which parts were made."""

    def make(spec: dict) -> dict:
        time.sleep(slow)
        if spec.get("bad"):
            raise InputError(f"part {spec['first']} is bad; mend it")
        if spec.get("full"):
            raise StorageError("cannot write x: no space is left on the device")
        with open(log, "a") as file:
            file.write(f"{spec['first']}\n")
        numbers = range(spec["first"], spec["first"] + 10)
        return {"part": pa.table({"n": [n * n for n in numbers]}), "info": {"first": spec["first"]}}

    return make


def waiting_maker(*, told: str):
    """Parts of which the second is made only when the first has been told."""

    def make(spec: dict) -> dict:
        ends = time.monotonic() + 20
        while spec["first"] and not Path(told).exists():
            if time.monotonic() > ends:
                raise InputError("the first part was not told while the second was made")
            time.sleep(0.1)
        return {"part": pa.table({"n": [spec["first"]]}), "info": {}}

    return make


@pytest.fixture
def squares(tmp_path):
    def squares(name: str, parts: int = 6, **changes) -> tuple[Work, Path]:
        specs = [{"first": 10 * i} | changes.get(str(i), {}) for i in range(parts)]
        return Work(Stage(Storage(str(tmp_path)), name, {"parts": parts}), specs, name), tmp_path / f"{name}.log"

    return squares


def contents(work: Work) -> dict[str, bytes]:
    folder = Path(work.stage.uri)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def test_one_and_three_actors_write_the_same_bytes(cluster, squares):
    found = []
    for actors in (1, 3):
        work, log = squares(f"layout{actors}")
        (manifest,) = run_parts(cluster, [work], square_maker, {"log": str(log)}, label="squares", actors=actors)
        found.append((contents(work), manifest.parts))
        assert manifest.rows == 60
        assert [part["info"]["first"] for part in manifest.parts] == [0, 10, 20, 30, 40, 50]
    assert found[0] == found[1]


def test_a_part_is_told_when_it_is_done_and_not_with_the_next_one(cluster, squares, tmp_path, monkeypatch):
    work, told = squares("told", parts=2)[0], tmp_path / "told.txt"
    update = progress.Progress.update
    monkeypatch.setattr(progress.Progress, "update", lambda self, made: (told.write_text(str(made)), update(self, made))[1])
    run_parts(cluster, [work], waiting_maker, {"told": str(told)}, label="told")
    assert told.read_text() == "2"


def test_what_is_whole_is_not_made_again_and_what_is_missing_is(cluster, squares, capsys):
    work, log = squares("again")
    run_parts(cluster, [work], square_maker, {"log": str(log)}, label="squares")
    before = contents(work)
    run_parts(cluster, [work], square_maker, {"log": str(log)}, label="squares")
    assert "again: already done (60 rows)" in capsys.readouterr().out
    assert len(log.read_text().splitlines()) == 6
    # an interrupted stage: no manifest, two parts missing
    work.stage.storage.delete(f"{work.stage.folder}/manifest.json")
    for number in (1, 4):
        work.stage.storage.delete(f"{work.stage.folder}/{work.stage.part(number)}")
    run_parts(cluster, [work], square_maker, {"log": str(log)}, label="squares")
    assert "going on after 4 finished parts" in capsys.readouterr().out
    assert sorted(log.read_text().splitlines()[6:]) == ["10", "40"]
    assert contents(work) == before


def test_a_part_that_was_damaged_and_kept_its_size_is_made_again(no_ray, squares):
    work, log = squares("damaged", parts=3)
    run_parts(no_ray, [work], square_maker, {"log": str(log)}, label="squares")
    before = contents(work)
    name = f"{work.stage.folder}/{work.stage.part(1)}"
    content = work.stage.storage.read_bytes(name)
    at = len(content) // 2
    work.stage.storage.write_bytes(name, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    run_parts(no_ray, [work], square_maker, {"log": str(log)}, label="squares")
    assert sorted(log.read_text().splitlines()) == ["0", "10", "10", "20"]
    assert contents(work) == before


def test_one_long_part_is_heard_of_before_it_ends(no_ray, squares, capsys, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    work, _ = squares("long", parts=1)

    def maker():
        def make(spec: dict) -> dict:
            ends = time.monotonic() + 60
            while "squares: 0/1 parts, for " not in capsys.readouterr().out:
                assert time.monotonic() < ends, "not a word"
                time.sleep(0.01)
            return {"part": pa.table({"n": [spec["first"]]})}

        return make

    (manifest,) = run_parts(no_ray, [work], maker, {}, label="squares")
    assert manifest.rows == 1


@pytest.mark.parametrize(("fault", "kind"), [("bad", InputError), ("full", StorageError)])
def test_a_workers_message_reaches_the_user_unwrapped_and_finished_parts_stay(cluster, squares, fault, kind):
    work, log = squares(f"broken_{fault}", **{"3": {fault: True}})
    with pytest.raises(kind) as error:
        run_parts(cluster, [work], square_maker, {"log": str(log)}, label="squares")
    assert type(error.value) is kind
    assert str(error.value) in ("part 30 is bad; mend it", "cannot write x: no space is left on the device")
    assert work.stage.manifest() is None
    mended, log = squares(f"broken_{fault}")
    run_parts(cluster, [mended], square_maker, {"log": str(log)}, label="squares")
    made = log.read_text().splitlines()
    assert sorted(set(made)) == sorted(made), "a finished part was made twice"
    assert mended.stage.manifest().rows == 60


def test_a_killed_worker_is_replaced_and_the_bytes_are_the_same(cluster, squares):
    from helpers.own_workers import own_workers  # here: workers import this module, and do not have that one

    work, log = squares("kill", parts=12)
    killed = threading.Event()

    def kill_one() -> None:
        while not killed.is_set():
            if log.exists() and len(log.read_text().splitlines()) >= 2:
                for process in own_workers("MapBatches(write_parts)")[:1]:
                    process.kill()
                    killed.set()
            time.sleep(0.05)

    threading.Thread(target=kill_one, daemon=True).start()
    (manifest,) = run_parts(cluster, [work], square_maker, {"log": str(log), "slow": 0.6}, label="squares")
    assert killed.is_set()
    assert manifest.rows == 120
    calm, calm_log = squares("calm", parts=12)
    run_parts(cluster, [calm], square_maker, {"log": str(calm_log)}, label="squares")
    assert contents(work) == contents(calm)


def test_a_full_disk_stops_a_stage_and_the_same_command_goes_on(tmp_path):
    """A real file system of 256 KiB, too small for the examples of the sample."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        world = tmp_path / "world"
        from raydist.sample.write import write_sample

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


@pytest.fixture(scope="module")
def whole(cluster, storage) -> pipeline.Run:
    """A run that went through all stages."""
    run = pipeline.Run(load_config("debug_reader", [f"storage={storage}", "name=whole"]).config, cluster)
    run.begin()
    pipeline.run_all(run)
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
    description = pipeline.describe_run(str(folder))
    assert "train: done, 20 steps" in description
    assert "dev.f1" in description


def test_a_second_call_needs_no_ray_and_changes_nothing(whole, storage, raydist):
    folder = Path(storage) / "whole"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = raydist("run", "debug_reader", f"storage={storage}", "name=whole")
    assert code == 0, err
    assert "starting Ray" not in out
    assert "train: already done (20 steps)" in out
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    tells_reuse = ("stages.json", "report.html")  # these say that stages were there already
    assert not [str(path) for path in before if before[path] != after[path] and path.name not in tells_reuse]


def test_predictions_do_not_depend_on_parts_or_actors(make_run, whole):
    tables = []
    for part_rows, actors in ((1000, 1), (7, 2)):
        run = make_run("name=whole", f"data.part_rows={part_rows}", f"cluster.actors={actors}", "predict.split=dev")
        tables.append(pipeline.predict(run)["dev"])
    scores = [[row["score"] for spans in table["nbest"].to_pylist() for row in spans] for table in tables]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)  # other rows in the batch: other rounding
    for name in ("id", "language", "passage_id"):
        assert tables[0][name].to_pylist() == tables[1][name].to_pylist()
    texts = [[[span["text"] for span in spans[:1]] for spans in table["nbest"].to_pylist()] for table in tables]
    assert texts[0] == texts[1]


def test_unused_stages_are_found_and_used_ones_kept(make_run, storage):
    run = make_run("name=tidy", "data.max_length=100", "data.doc_stride=16")
    pipeline.prepare(run, ["dev"])
    store = Storage(storage)
    used = {stage["folder"] for stage in run.stages.values()}
    assert not used & set(pipeline.unused_stages(store))
    windows = next(folder for folder in used if "windows" in folder)
    other = make_run("name=tidy_other", "data.max_length=104", "data.doc_stride=16")
    pipeline.prepare(other, ["dev"])
    for kept in ("tidy", "ti?y"):
        assert windows not in pipeline.unused_stages(store, [kept])
        assert {stage["folder"] for stage in other.stages.values()} & set(pipeline.unused_stages(store, [kept]))
    assert not used & set(pipeline.unused_stages(store, ["tidy*"]))
    with pytest.raises(InputError, match=r"--keep-runs tdy: no such run in .*; there are .*tidy"):
        pipeline.unused_stages(store, ["tdy"])
    run.folder.delete("stages.json")
    assert windows in pipeline.unused_stages(store)


def test_progress_of_stages_and_of_training_and_rejected_rows_are_among_rays_metrics(cluster, squares, make_run, tmp_path):
    import ray

    work, made = squares("watched")
    run_parts(cluster, [work], square_maker, {"log": str(made)}, label="squares", run="watched")
    log = RunLog(Storage(str(tmp_path / "watched")), {"step": 0}, total=2, per_epoch=1, batch_size=8)
    log.seen_step(StepReport(2.5, {"span": 2.5}, {"span": 8.0}, 1.0), {"span": 1.0})
    log.step(1, 1e-3)
    rejected = pa.table({"what": ["sentence"] * 3, "reason": ["empty text", "empty text", "invalid UTF-8"]})
    _tell_rejected(make_run("name=watched"), "corpus train", "rejected/corpus_train.parquet", rejected, sentences=1000)
    wanted = [
        ("ray_raydist_stage_parts", {"run": "watched", "stage": "squares", "state": "done"}, "6.0"),
        ("ray_raydist_stage_parts", {"run": "watched", "stage": "squares", "state": "total"}, "6.0"),
        ("ray_raydist_train", {"run": "watched", "value": "loss.span"}, "2.5"),
        ("ray_raydist_rejected_rows", {"run": "watched", "set": "corpus train"}, "3.0"),
    ]

    def missing() -> list:
        node = ray.nodes()[0]
        with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()

        def is_there(name: str, tags: dict[str, str], value: str) -> bool:
            parts = [f'{key}="{tag}"' for key, tag in tags.items()]
            found = [line for line in lines if line.startswith(name) and all(part in line for part in parts)]
            return any(line.endswith(f" {value}") for line in found)

        return [one for one in wanted if not is_there(*one)]

    ends = time.monotonic() + 60  # a process tells its node every few seconds
    while missing() and time.monotonic() < ends:
        time.sleep(0.5)
    assert missing() == []
