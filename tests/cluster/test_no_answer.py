"""Questions without an answer, from files to scores; trained in bf16, which must not show in what comes out."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from raydist.cluster import pipeline


@pytest.fixture
def squad_v2(make_run, tmp_path) -> Path:
    """A part of the sample in SQuAD v2 layout: every third question is asked of a passage that does not answer it."""
    sample = Path(pipeline.make_sample(make_run("name=v2_sample")))
    articles = json.loads((sample / "en/dev.json").read_text())["data"][:24]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        for place, question in enumerate(paragraph["qas"]):
            question["is_impossible"] = (number + place) % 3 == 0
            if question["is_impossible"]:
                question["answers"] = []
    file = tmp_path / "v2.json"
    file.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return file


def test_a_whole_run_on_squad_v2_in_bf16(make_run, squad_v2):
    run = make_run(
        "name=v2",
        f"data.train={squad_v2}",
        f"data.dev={squad_v2}",
        "data.test={}",
        "train.max_steps=4",
        "train.evaluate_every=2",
        "train.precision=bf16",
        "evaluate.bootstrap=0",
    )
    pipeline.run_all(run)
    metrics = run.folder.read_json("metrics.json")
    assert metrics["dev.no_ans_questions"] > 10
    assert metrics["dev.has_ans_questions"] > 20
    halves = [metrics[f"dev.{half}_f1"] * metrics[f"dev.{half}_questions"] for half in ("has_ans", "no_ans")]
    assert metrics["dev.f1"] == pytest.approx(sum(halves) / metrics["dev.questions"], abs=1e-4)
    assert "dev.null_threshold" in metrics
    unanswered = [text for text in run.folder.read_json("predictions/dev.json").values() if not text]
    assert unanswered, "below the threshold nothing is answered"
    weights = load_file(run.folder.path("model", "model.safetensors"))
    assert {value.dtype for value in weights.values()} == {torch.float32}
