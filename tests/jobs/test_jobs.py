"""Each job file, end to end, on its debug config, as `ray job submit` would call it."""

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def job(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(JOBS / f"{name}.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_train_predict_evaluate_in_a_row(tmp_path):
    small = ("data.train.questions=40", "train.batch_size=8", "data.dev.questions=10")
    for name, said in (("train", "model in"), ("predict", "dev: 10 questions"), ("evaluate", "test set"), ("run", "report in")):
        done = job(name, tmp_path, "debug_reader", *small)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
        assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/debug_reader/report.html").is_file()


def test_an_index_is_made_and_searched_and_pairs_are_mined(tmp_path):
    small = ("cross_encoder.train.max_steps=4", "cross_encoder.train.checkpoint_every=4")
    for name, said in (("mine", "silver"), ("index", "raydist search")):
        done = job(name, tmp_path, "debug_retrieval", *small)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
    assert (tmp_path / "runs/debug_retrieval/mining/silver.parquet").is_file()


@pytest.mark.parametrize("name", sorted(path.stem for path in JOBS.glob("*.py")))
def test_a_wrong_call_is_status_2(tmp_path, name):
    assert job(name, tmp_path, "nonsense").returncode == 2
    assert job(name, tmp_path).returncode == 2
