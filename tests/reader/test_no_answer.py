"""Questions without an answer, from files to scores; trained in bf16, which must not show in what comes out."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from raydist.config import load_config
from raydist.here import Here
from raydist.reader import flow
from raydist.reader.metrics import null_differences
from raydist.reader.model import load_reader
from raydist.runs.run import Run
from raydist.sample.write import write_sample


def write_v2(sample: Path, articles: slice, file: Path) -> Path:
    """A part of the sample in SQuAD v2 layout: every third question is asked of a passage that does not answer it."""
    chosen = json.loads((sample / "en/dev.json").read_text())["data"][articles]
    paragraphs = [paragraph for article in chosen for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        for place, question in enumerate(paragraph["qas"]):
            question["is_impossible"] = (number + place) % 3 == 0
            if question["is_impossible"]:
                question["answers"] = []
    file.write_text(json.dumps({"version": "v2.0", "data": chosen}))
    return file


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "world"
    write_sample(folder, 200)
    return folder


def test_a_whole_run_on_squad_v2_in_bf16(tmp_path, world):
    squad_v2 = write_v2(world, slice(24), tmp_path / "v2.json")
    overrides = [
        f"storage={tmp_path / 'runs'}",
        "name=v2",
        f"data.train={squad_v2}",
        f"data.dev={squad_v2}",
        "data.test={}",
        "train.max_steps=4",
        "train.evaluate_every=2",
        "train.precision=bf16",
        "predict.precision=bf16",
        "evaluate.bootstrap=0",
        "cluster.threads_per_worker=1",
    ]
    run = Run(load_config("debug_reader", overrides).config, Here())
    run.begin()
    flow.run_all(run)
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


@pytest.fixture
def untrained(tmp_path, world):
    """Runs with a reader whose head is drawn, a dev set and two test sets: "hard" is in SQuAD v2 layout, "plain" is not."""
    hard = write_v2(world, slice(8), tmp_path / "hard.json")
    tests = f"data.test={{hard: {hard}, plain: {{files: {world}/en/dev.json, questions: 5}}}}"

    def untrained(name: str, dev: str, *overrides: str) -> Run:
        settings = [f"storage={tmp_path / 'runs'}", f"name={name}", f"data.dev={dev}", tests, "evaluate.bootstrap=0"]
        run = Run(load_config("debug_reader", [*settings, *overrides]).config, Here())
        run.begin()
        load_reader(run.model_folder).save(Path(run.folder.path("model")), run.model_folder)
        return run

    return untrained


@pytest.mark.parametrize("split", ["[]", "hard"])
def test_the_threshold_of_dev_serves_the_test_sets_also_where_dev_is_not_asked_for(untrained, world, tmp_path, capsys, split):
    dev = write_v2(world, slice(8, 16), tmp_path / "dev.json")
    run = untrained("tuned", str(dev), f"predict.split={split}")
    flow.evaluate(run)
    metrics = run.folder.read_json("metrics.json")
    assert (metrics["dev.null_threshold_from"], metrics["hard.null_threshold_from"]) == ("this set", "dev")
    assert metrics["hard.null_threshold"] == metrics["dev.null_threshold"]
    differences = null_differences(pq.read_table(run.folder.path("predictions", "hard.parquet")))
    unanswered = {id for id, text in run.folder.read_json("predictions/hard.json").items() if not text}
    assert unanswered == {id for id, difference in differences.items() if difference > metrics["dev.null_threshold"]}
    said = capsys.readouterr().out
    assert ("dev: scored as well" in said) == (split == "hard")
    assert "tuned on its own answers" not in said


def test_a_question_that_is_only_asked_stays_among_the_answers(untrained, world, tmp_path):
    dev = write_v2(world, slice(8, 16), tmp_path / "dev.json")
    document = json.loads(dev.read_text())
    asked = document["data"][0]["paragraphs"][0]["qas"][0]
    del asked["is_impossible"]
    asked["answers"] = []
    dev.write_text(json.dumps(document))
    run = untrained("asked", str(dev), "predict.split=dev", "data.max_rejected=1", "data.dev.format=squad")
    flow.evaluate(run)
    assert run.folder.read_json("metrics.json")["dev.unlabelled"] == 1
    assert "dev.null_threshold" in run.folder.read_json("metrics.json")
    answers = run.folder.read_json("predictions/dev.json")
    assert answers.keys() == run.folder.read_json("predictions/dev.nbest.json").keys()
    assert asked["id"] in answers


@pytest.mark.parametrize("dev", ["null", "{{files: {world}/other_domain/dev.json, questions: 5}}"])
def test_a_threshold_that_is_tuned_on_the_set_it_scores_is_told(untrained, world, capsys, dev):
    run = untrained("alone", dev.format(world=world), "predict.split=[hard, plain]")
    flow.evaluate(run)
    metrics = run.folder.read_json("metrics.json")
    assert metrics["hard.null_threshold_from"] == "this set"
    assert "plain.null_threshold" not in metrics
    assert "dev.f1" not in metrics, "dev has no threshold to give"
    assert "hard: its no-answer threshold was tuned on its own answers" in capsys.readouterr().out
