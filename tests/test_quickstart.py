"""What the README promises of the quickstart, with the config that it ships."""

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def quickstart(storage: Path) -> str:
    command = [sys.executable, "-m", "raydist.cli", "run", "quickstart", f"storage={storage}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_quickstart_reads_well_is_fooled_by_the_adversary_and_does_nothing_twice(tmp_path):
    assert "raydist run quickstart" in (CHECKOUT / "Makefile").read_text()
    first = quickstart(tmp_path)
    metrics = json.loads((tmp_path / "quickstart/metrics.json").read_text())
    assert metrics["dev.f1"] >= 85
    assert metrics["adversarial.addsent_f1"] < metrics["adversarial.original_f1"] - 10
    assert "95 % interval" in first
    assert (tmp_path / "quickstart/report.html").stat().st_size > 50_000
    weights = (tmp_path / "quickstart/model/model.safetensors").stat().st_mtime_ns
    second = quickstart(tmp_path)
    assert "starting Ray" not in second
    assert "train: already done" in second
    assert (tmp_path / "quickstart/model/model.safetensors").stat().st_mtime_ns == weights
