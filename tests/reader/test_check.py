"""What is said of a reader's data before it trains."""

import json

import pytest
from helpers.tiny_reader import write_reader

from raydist.config import load_config
from raydist.here import Here
from raydist.reader.check import say_data, set_facts
from raydist.reader.prepare import choose_questions, prepare
from raydist.runs.run import Run

LONG = "Ada was born in Lund. " + "She read and wrote a lot. " * 30 + "She died in Oslo."


def asked(id, question, text, start):
    return {"id": id, "question": question, "answers": [{"text": text, "answer_start": start}]}


@pytest.fixture
def open_run(tmp_path):
    short = "Bo lives in Umea with a cat."
    questions = [
        {
            "context": LONG,
            "qas": [asked("1", "Where was Ada born?", "Lund", 16), asked("2", "Where was Ada born?", "Lund", 16)],
        },
        {"context": short, "qas": [asked("3", "Where does Bo live, " + "please, " * 20 + "tell me?", "Umea", 12)]},
        {"context": short, "qas": [asked("4", "What of Bo?", "lives in Umea with a cat", 3)]},
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}))

    def open_run(*overrides: str) -> Run:
        lengths = ["data.max_length=64", "data.doc_stride=16", "data.max_question_length=20", "predict.max_answer_length=5"]
        given = [f"storage={tmp_path}/runs", f"data.train={tmp_path}/train.json", "data.dev=null", "data.test={}"]
        run = Run(load_config("debug_reader", [*given, *lengths, *overrides]).config, Here())
        run.begin()
        return run

    return open_run


def facts_of(run: Run):
    rows = prepare(run, ["train"])["train"]
    return set_facts(run, rows, choose_questions(run, "train", rows.examples)), rows


def test_counts_by_hand(open_run):
    facts, rows = facts_of(open_run())
    assert (facts.questions, facts.golds, facts.repeated, dict(facts.languages)) == (4, 4, 1, {"en": 4})
    assert facts.windows == rows.rows > 4
    assert facts.long == 2, "both questions about the long passage"
    assert (facts.question_cut, facts.labelled, facts.answer_cut) == (1, 4, 1), "the answer of six words is too long"
    assert facts_of(open_run("predict.max_answer_length=12"))[0].answer_cut == 0
    assert facts_of(open_run("data.train.questions=2"))[0].questions == 2


def test_it_is_said_with_what_to_expect_and_only_before_a_training(open_run, capsys, tmp_path):
    run = open_run("data.train.questions=9", "data.train.language=de", "data.max_rejected=1")
    sets = prepare(run, ["train"])
    capsys.readouterr()
    say_data(run, sets)
    said = capsys.readouterr().out
    (row,) = [line.split() for line in said.splitlines() if line.startswith("train ")]
    assert row[:4] == ["train", "4", "de", "1.0"]
    for line in (
        "there is neither a dev nor a test set: nothing will tell how good this reader is; set data.dev or data.test",
        "4 questions and an encoder that has not learned to read (builtin:tiny): expect little; start from a reader",
        "train: 1 of 4 answers are in no window or longer than predict.max_answer_length (5 tokens)",
        "train: 1 questions are as long as data.max_question_length allows, or longer: raise it",
        "train: 1 questions are asked again about the same passage",
        "data.train.questions 9: there are 4",
    ):
        assert line in said
    assert len(said.splitlines()) < 24, "one screen"
    run.folder.write_json("training.json", {"done": True})
    say_data(run, sets)
    assert capsys.readouterr().out == ""
    say_data(run, sets, fresh=True)
    assert "expect little" in capsys.readouterr().out


def test_a_reader_to_start_from_has_learned_to_read(open_run, capsys, tmp_path):
    run = open_run(f"model.name={write_reader(tmp_path / 'reader')}")
    sets = prepare(run, ["train"])
    capsys.readouterr()
    say_data(run, sets)
    assert "has not learned to read" not in capsys.readouterr().out
