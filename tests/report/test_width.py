"""No table of a page is wider than a screen of 1280 pixels, in a real browser."""

import json
import re
import shutil
import subprocess

import pytest
from helpers.made_run import example, write_run

from raydist.report.html import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MEASURE = """<script>addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const tables = [...document.querySelectorAll(".wide")];
  const said = document.createElement("pre");
  said.id = "measured";
  said.textContent = JSON.stringify({
    page: document.documentElement.scrollWidth, tables: tables.length,
    wider: tables.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent.slice(0, 60)),
  });
  document.body.append(said);
})</script>"""
METRICS = ("P@1", "P@5", "P@10", "MRR@100", "recall@10", "recall@100", "nDCG@10")
METHODS = ("bm25", "untrained", "gold", "gold_silver", "gold_silver_weighted", "reranked", "hybrid", "hybrid_reranked")


def retrieval_scores() -> dict[str, float]:
    found: dict[str, float] = {"mining.silver": 51_234, "mining.candidates": 912_345, "cross_encoder.f1": 0.71234}
    for method in METHODS:
        for metric in METRICS:
            key = f"retrieval.squad_documents.{method}.{metric}"
            found |= {key: 0.612345, f"{key}.low": 0.581234, f"{key}.high": 0.641234}
            found |= {f"{key}.minus_gold": 0.012345, f"{key}.minus_gold.low": -0.001, f"{key}.minus_gold.high": 0.02}
            found[f"{key}.minus_gold.p"] = 0.0123
    return found


@pytest.mark.skipif(BROWSER is None, reason="no browser")
def test_tables_fit_a_screen_of_1280_pixels(tmp_path):
    sets = {f"adversarial_test_set_{number}": [example(id=f"q{n}") for n in range(4)] for number in range(3)}
    readers = [write_run(tmp_path / f"reader_with_a_long_name_{seed}", sets) for seed in range(3)]
    retriever = write_run(tmp_path / "retriever", {}, config="task: retriever\n", metrics=retrieval_scores())
    for number, runs in enumerate(([retriever], readers, [*readers, retriever])):
        page = write_report(runs, tmp_path / f"{number}.html").read_text()
        measured = tmp_path / f"measured{number}.html"
        measured.write_text(re.sub(r"<meta http-equiv[^>]*>", "", page) + MEASURE)
        command = [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1280,900",
            "--virtual-time-budget=2000",
        ]
        command += [f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", measured.as_uri()]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        found = json.loads(re.search(r'<pre id="measured">(.*?)</pre>', shown)[1].replace("&amp;", "&"))
        assert found["tables"] > 1
        assert found["page"] <= 1280
        assert found["wider"] == []
