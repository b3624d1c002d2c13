"""What the README promises of the quickstart, with the configs that it ships."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from helpers.pages import blocks
from helpers.walk import first_missing

CHECKOUT = Path(__file__).resolve().parents[1]


def quickstart(folder: Path) -> str:
    """The commands of `make quickstart`, in a folder of their own; what they print."""
    recipe = re.search(r"^quickstart:.*\n((?:\t.*\n)+)", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    told = ""
    for line in recipe[1].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "$(BIN)/raydist"
        command = [sys.executable, "-m", "raydist.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not done.stderr, done.stderr
        told += done.stdout
    return told


def test_the_quickstart_reads_and_retrieves_well_and_does_nothing_twice(tmp_path):
    first = quickstart(tmp_path)
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (shown,) = [block.text for block in blocks(readme) if block.text.startswith("test set ")]
    assert first_missing(shown, first) is None, "the README shows what is printed"
    reader = json.loads((tmp_path / "runs/quickstart/metrics.json").read_text())
    assert reader["dev.f1"] >= 85
    assert reader["adversarial.addsent_f1"] < reader["adversarial.original_f1"] - 10, "the adversary fools it"
    assert "95 % interval" in first

    retrieval = json.loads((tmp_path / "runs/retrieval/metrics.json").read_text())
    methods = ("bm25", "untrained", "gold", "gold_silver", "gold_silver_weighted", "reranked")
    score = {method: retrieval[f"retrieval.sample.{method}.MRR@100"] for method in methods}
    assert score["gold"] > score["untrained"] > score["bm25"], "training helps"
    for method in ("gold_silver", "gold_silver_weighted", "reranked"):
        assert score[method] > score["gold"] + 0.02, "what was mined helps, and so does its supervisor"
    assert retrieval["mining.right"] > 0.75 * retrieval["mining.silver"], "most silver pairs answer their question"
    assert retrieval["mining.right"] > 0.5 * retrieval["mining.answers"], "and most answers are found"
    assert f"{retrieval['mining.silver']:,} silver pairs" in first
    report = (tmp_path / "runs/report.html").read_text()
    assert "quickstart: scores" in report
    assert "Re-ranked by the cross-encoder" in report

    models = sorted((tmp_path / "runs").glob("*/model/model.safetensors"))
    assert len(models) == 5  # reader, cross-encoder, three retrievers
    weights = [model.stat().st_mtime_ns for model in models]
    began = time.monotonic()
    second = quickstart(tmp_path)
    print(f"second call: {time.monotonic() - began:.0f} s")
    assert "starting Ray" not in second
    assert len(re.findall(r"^train: already done", second, re.MULTILINE)) == 5
    assert [model.stat().st_mtime_ns for model in models] == weights
