"""What a page says first, and what it does not set side by side."""

import json

import pytest
from helpers.made_run import example, write_run
from helpers.report_page import report_on

from raydist.report.comparison import scores as compared_scores
from raydist.report.mining import mined_pairs, retrieval
from raydist.report.published.reader import published
from raydist.report.published.retrieval import published_retrieval
from raydist.report.runs import load_run
from raydist.report.same_sets import part_sets
from raydist.report.sections import objectives_trained, overview

MINED = {
    "cross_encoder.f1": 0.2,
    "mining.silver": 51,
    "mining.right": 17,
    "mining.answers": 1_200,
    "dev.mrr": 61.25,
    "retrieval.sample.bm25.MRR@100": 0.5,
    "retrieval.sample.gold_silver_weighted.MRR@100": 0.646,
    "retrieval.sample.gold_silver_weighted.P@1": 0.5,
}


def test_the_headline_of_a_retrieval_run_is_its_retrieval_score(tmp_path):
    run = load_run(write_run(tmp_path / "run", {}, config="task: retriever\n", metrics=MINED))
    page = overview(run)
    tiles = page[: page.index("<dl")]
    assert "64.6<small> MRR@100" in tiles
    assert "sample · Gold and silver pairs, weighted · 50.0 P@1" in tiles
    assert "cross_encoder" not in tiles
    assert run.scores() == {}
    assert "61.25" in retrieval(run)


def test_of_mined_pairs_it_says_how_many_are_right_where_that_is_known(tmp_path):
    run = load_run(write_run(tmp_path / "run", {}, config="task: retriever\n", metrics=MINED))
    assert "Of the 51 pairs that are kept 17 are right (33 %)." in mined_pairs(run)
    assert "There are 1,200 answers beside gold" in mined_pairs(run)
    other = {key: value for key, value in MINED.items() if key != "mining.right"}
    assert mined_pairs(load_run(write_run(tmp_path / "other", {}, config="task: retriever\n", metrics=other))) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("task: retriever\nobjectives: {span: {}}\nretriever: {loss: softmax}\n", "weighted in-batch softmax"),
        ("task: cross_encoder\nobjectives: {span: {}}\n", "cross-entropy of labelled pairs"),
        ("task: reader\nobjectives: {span: {}, infomax: {}, pfa: null}\n", "span, infomax"),
        ("task: reader\nobjectives: {span: {}, hard_learning: {}}\n", "hard_learning"),
        ("task: reader\nobjectives: {span: {}}\nevaluate: {predictions: {dev: theirs.json}}\n", None),
    ],
)
def test_objectives_are_those_that_were_trained(tmp_path, config, said):
    assert objectives_trained(load_run(write_run(tmp_path / "run", {}, config=config))) == said


def test_an_evaluation_of_another_tools_answers_names_them_and_no_model(tmp_path):
    config = "task: reader\nseed: 3\nmodel: {name: 'builtin:minilm'}\nevaluate: {predictions: {dev: theirs/bidaf.json}}\n"
    folder = write_run(tmp_path / "run", {"dev": [example()]}, config=config)
    page = overview(load_run(folder))
    assert "Answers of another tool" in page
    assert "dev: theirs/bidaf.json" in page
    assert "minilm" not in page
    other = write_run(tmp_path / "ours", {"dev": [example()]})
    text, _ = report_on(other, folder)
    assert "another tool&#x27;s answers: theirs/bidaf.json" in text or "another tool's answers: theirs/bidaf.json" in text


def with_set(folder, files, folder_of_stage, **config):
    """A run that scored `squad`."""
    (path := write_run(folder, {"squad": [example()]})).joinpath("config.yaml").write_text(
        json.dumps({"task": "reader", "data": {"test": {"squad": {"files": files, **config}}}})
    )
    stages = {"1": {"title": "examples of squad", "folder": folder_of_stage, "rows": 1}}
    (path / "stages.json").write_text(json.dumps(stages))
    return path


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({"files": ["moved/dev.json"], "folder_of_stage": "stages/examples-1"}, True),
        ({"files": ["dev.json"], "folder_of_stage": "stages/examples-2"}, False),
        ({"files": ["dev.json"], "folder_of_stage": "stages/examples-1", "questions": 20}, False),
    ],
)
def test_sets_of_one_name_and_other_files_are_not_compared(tmp_path, other, is_same):
    first = with_set(tmp_path / "first", ["dev.json"], "stages/examples-1")
    runs = [load_run(first), load_run(with_set(tmp_path / "second", **other))]
    part_sets(runs)
    assert list(runs[1].scores()) == list(runs[1].evaluations) == ["squad" if is_same else "squad (2)"]
    assert ('class="difference' in compared_scores(runs)) is is_same
    assert bool(runs[1].apart) is not is_same
    text, _ = report_on(first, tmp_path / "second")
    assert ("Not compared: " in text) is not is_same


def test_ranked_lists_of_other_corpora_are_not_compared(tmp_path):
    runs = []
    for name in ("first", "second"):
        folder = write_run(tmp_path / name, {}, config="task: retriever\n", metrics=MINED)
        (folder / "stages.json").write_text(json.dumps({"1": {"title": "corpus sample", "folder": f"stages/set-{name}"}}))
        runs.append(load_run(folder))
    part_sets(runs)
    assert runs[0].retrieval_sets() == ["sample"]
    assert runs[1].metrics["retrieval.sample (2).bm25.MRR@100"] == 0.5


def test_a_small_test_set_stands_beside_published_numbers_with_a_loud_word(tmp_path):
    config = json.dumps(
        {
            "task": "reader",
            "model": {"name": "roberta-base"},
            "objectives": {"span": {}, "pfa": {"perturber": "mlp"}},
            "data": {"train": {"hub": "squad"}, "test": {"squad": {"files": ["squad/dev.json"]}}},
        }
    )
    few = load_run(write_run(tmp_path / "few", {"squad": [example(id=f"q{n}") for n in range(50)]}, config=config))
    said = published([few])
    assert "Not comparable." in said
    assert "squad: 50 here, 10,507 there" in said
    many = write_run(tmp_path / "many", {"squad": [example(id=f"q{n}") for n in range(10_507)]}, config=config)
    assert "Not comparable." not in published([load_run(many)])


def test_so_does_a_small_corpus(tmp_path):
    found = {"retrieval.squad.bm25.P@1": 0.6}
    for rows, is_loud in ((100, True), (10_642, False)):
        folder = write_run(tmp_path / f"{rows}", {}, config="task: retriever\n", metrics=found)
        (folder / "stages.json").write_text(json.dumps({"1": {"title": "corpus squad", "folder": "s", "rows": rows}}))
        assert ("sentences of squad: 100 here, 10,642 there" in published_retrieval(load_run(folder))) is is_loud


def test_overlaps_are_repeated_on_the_page(tmp_path):
    folder = write_run(tmp_path / "run", {})
    (folder / "overlap.json").write_text(json.dumps([{"text": "dev has 1 of 3 questions of test set x"}]))
    assert "Not apart: </b>dev has 1 of 3 questions of test set x." in overview(load_run(folder))
