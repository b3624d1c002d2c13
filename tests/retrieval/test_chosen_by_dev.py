"""Retrievers are chosen by questions that are held out of all training."""

import json

import pytest

from raydist.config import load_config
from raydist.corpus.duplicates import duplicate_keys
from raydist.files.storage import folder_digest, read_parquet
from raydist.here import Here
from raydist.retrieval import flow
from raydist.retrieval.prepare import open_corpora
from raydist.retrieval.rows import PairRows
from raydist.runs.run import Run
from raydist.training.dev_search import DevSearch

GIVEN = [
    *("name=held", "corpus.dev_share=0.2", "mining.candidates=2", "retriever.search_depth=100"),
    *("train.evaluate_every=2", "train.choose=best", "train.epochs=9", "train.max_steps=6", "train.checkpoint_every=2"),
    *("cross_encoder.train.max_steps=2", "cross_encoder.train.choose=best", "cross_encoder.train.evaluate_every=1"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A trained one, with the dual encoders that it is compared with."""
    storage = tmp_path_factory.mktemp("runs")
    with Run(load_config("debug_retrieval", [f"storage={storage}", *GIVEN]).config, Here()) as run:
        flow.train(run)
    return run


@pytest.fixture(scope="module")
def corpus(run):
    return open_corpora(run, ["train"])["train"]


def of_stage(run: Run, name: str):
    return [run.storage.at(use.folder) for use in run.stages.values() if use.folder.startswith(f"stages/{name}-")]


def test_no_pair_of_a_held_out_question_trains_or_is_mined(run, corpus):
    held_out = corpus.dev.read("questions")
    ids, keys = set(held_out["question_id"].to_pylist()), {duplicate_keys(text)[0] for text in held_out["text"].to_pylist()}
    assert len(ids) == corpus.dev.num_questions > 5
    assert len(ids) + corpus.num_questions == 40
    for name in ("labelled_pairs", "candidates", "silver"):
        (folder,) = of_stage(run, name)
        asked = [file for file in folder.files() if file.endswith(".parquet")]
        assert asked
        for file in asked:
            assert not ids & set(read_parquet(folder, file)["question_id"].to_pylist())
    for beside in (run, run.beside("held_gold"), run.beside("held_gold_silver")):
        stages = [use for use in (beside.stages or run.stages).values() if use.folder.startswith("stages/pair_rows-")]
        for use in stages:
            folder = run.storage.at(use.folder).local_copy("")
            assert not keys & set(PairRows(sorted(folder.glob("*.arrow"))).column("question").tolist())


def test_all_that_are_compared_are_chosen_by_the_same_questions(run):
    runs = [run, run.beside("held_gold"), run.beside("held_gold_silver")]
    training = [one.folder.read_json("training.json") for one in runs]
    known = [{key: value for key, value in one["identity"].items() if key.startswith("data.dev.")} for one in training]
    assert known[0].keys() == {"data.dev.questions", "data.dev.sentences", "data.dev.seed"}
    assert known[0] == known[1] == known[2]
    for one, trained in zip(runs, training):
        assert one.folder.read_json("metrics.json")["dev.mrr"] == trained["fitted"]["dev.mrr"] > 0
        assert trained["fitted"]["model"] == "best"
        assert trained["fitted"]["best_step"] in (2, 4, 6)
    beside = run.beside("held_cross_encoder").folder.read_json("training.json")
    assert beside["fitted"]["model"] == "best"


def test_the_best_model_is_that_of_the_best_score(run):
    lines = [line for line in run.folder.read_bytes("metrics.jsonl").decode().splitlines() if "dev.mrr" in line]
    scores = {line["step"]: line["dev.mrr"] for line in map(json.loads, lines)}
    fitted = run.folder.read_json("fitted.json")
    assert set(scores) == {2, 4, 6}
    assert fitted["dev.mrr"] == max(scores.values()) == scores[fitted["best_step"]]


def test_a_retriever_that_was_interrupted_is_chosen_as_one_that_was_not(run, corpus, monkeypatch):
    gold = run.beside("held_gold")
    again = run.beside("held_again")
    again.begin()
    calls = []
    search = DevSearch.__call__

    def interrupted(self, task):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return search(self, task)

    monkeypatch.setattr(DevSearch, "__call__", interrupted)
    silver = cross_encoder = None
    with pytest.raises(KeyboardInterrupt):
        flow.train_retriever(again, corpus, cross_encoder, silver, "gold")
    flow.train_retriever(again, corpus, cross_encoder, silver, "gold")
    assert len(calls) == 4
    fitted, whole = (one.folder.read_json("training.json")["fitted"] for one in (again, gold))
    assert (fitted["best_step"], fitted["dev.mrr"]) == (whole["best_step"], whole["dev.mrr"])
    assert folder_digest(again.folder.local_copy("model")) == folder_digest(gold.folder.local_copy("model"))


def test_a_corpus_of_its_own_may_be_dev(run, tmp_path):
    given = [f"storage={run.config.storage}", "corpus.dev={files: 'sample:', split: dev, questions: 9}"]
    other = Run(load_config("debug_retrieval", given).config, Here())
    corpora = open_corpora(other)
    assert corpora.keys() == {"train", "sample"}
    assert corpora["train"].num_questions == 40
    assert corpora["train"].dev.num_questions == 9
