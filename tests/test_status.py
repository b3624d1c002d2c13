"""`raydist status` of runs that are not at their end: files as a running or a killed command leaves them."""

import os
import time
from pathlib import Path

import pytest

from raydist.config import load_config
from raydist.files.local import LocalExecutor
from raydist.here import Here
from raydist.reader.prepare import make_examples, make_windows
from raydist.runs.run import Run
from raydist.runs.stages import StageUse
from raydist.status import describe_run
from raydist.sweep.driver import Sweep


class CutShort(LocalExecutor):
    """Is interrupted after two parts."""

    def lines(self, jobs):
        lines = super().lines(jobs)
        yield next(lines)
        yield next(lines)
        raise KeyboardInterrupt


class Interrupted(Here):
    def executor(self, settings) -> CutShort:
        return CutShort()


@pytest.fixture
def cut(tmp_path) -> Run:
    """A run that was interrupted after two of its windows' parts."""
    given = [f"storage={tmp_path}", "name=some/cut", "data.part_rows=40", "data.test={}"]
    run = Run(load_config("debug_reader", given).config, Here())
    run.begin()
    examples = make_examples(run, ["train"])
    run.machine = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        make_windows(run, examples)
    return run


def used(run: Run, title: str) -> StageUse:
    (use,) = [use for use in run.stages.values() if use.title == title]
    return use


def long_ago(folder: Path, hours: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600 * hours,) * 2)


def test_a_stage_in_progress_tells_its_parts_and_a_finished_one_its_rows(cut, tmp_path):
    said = describe_run(cut.folder.path())
    parts = used(cut, "windows of train").parts
    assert parts > 2
    assert f"windows of train: 2 of {parts} parts (stages/windows-" in said
    rows = used(cut, "examples of train").rows
    assert f"examples of train: {rows:,} rows (stages/examples-" in said
    assert "sample world: (stages/sample-" in said

    long_ago(tmp_path, 3.5)
    said = describe_run(cut.folder.path())
    assert "last written to 3 h 30 min ago; if its command has ended, the same command goes on" in said


def test_training_that_came_to_no_end_tells_when_it_was_last_seen(cut, tmp_path):
    cut.folder.write_json("training.json", {"identity": {}, "done": False})
    cut.folder.write_json("progress.json", {"step": 40, "first": 0, "total": 60, "note": "loss 2.5", "warnings": []})
    (stage,) = (tmp_path / "stages").glob("windows-*")
    line = '{"name": "part-00000.arrow", "rows": 70, "bytes": 1, "checksum": "c"}'
    (stage / "manifest.json").write_text(
        '{"name": "windows", "fingerprint": "f", "identity": {}, "parts": [LINE]}'.replace("LINE", line)
    )
    long_ago(tmp_path, 2)
    said = describe_run(cut.folder.path())
    assert "windows of train: 70 rows" in said, "it was whole before its command was killed"
    assert "train: step 40 of 60 loss 2.5\n  last written to 2 h 00 min ago" in said
    cut.folder.write_json("training.json", {"done": True, "fitted": {"steps": 60, "seconds": 9.0, "examples_per_s": 80.0}})
    assert "last written" not in describe_run(cut.folder.path())


def test_trials_that_ended_in_an_error_are_not_finished(tmp_path):
    sweep = Sweep(load_config("debug_sweep", [f"storage={tmp_path}"]).config, Here())
    sweep.begin(fresh=False)
    ends = ("done", "stopped", "error")
    for trial, status in zip(sweep.trials.values(), ends):
        sweep.ledger.add({"id": trial.id, "status": status})
    for id in sweep.trials:
        sweep.folder.write_bytes(f"trials/{id}/config.yaml", b"")
    said = describe_run(sweep.folder.path())
    assert "trials: 2 finished, 1 with an error, 4 begun" in said
    assert "last written to" in said, "the fourth is still running, or was killed"
