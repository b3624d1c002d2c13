"""What is said of corpora before a retriever trains."""

import json

import pytest

from raydist.config import load_config
from raydist.here import Here
from raydist.retrieval.check import say_corpora
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run

SENTENCES = ["Ada lived in Lund.", "In Lund lived Ada.", "Bo lives in Oslo.", "Cy is " + "very " * 40 + "old."]
QUESTIONS = {"a": "Where did Ada live?", "b": "Where does Bo live, " + "please, " * 20 + "tell me?"}
GOLD = [("a", 0), ("a", 1), ("b", 2)]


@pytest.fixture
def open_run(tmp_path):
    (tmp_path / "qrels").mkdir()
    rows = [{"_id": f"s{number}", "title": "", "text": text} for number, text in enumerate(SENTENCES)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": id, "text": text} for id, text in QUESTIONS.items()]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    judged = "".join(f"{question}\ts{number}\t1\n" for question, number in GOLD)
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)

    def open_run(*overrides: str) -> Run:
        given = [f"storage={tmp_path}/runs", f"corpus={{train: {{files: {tmp_path}, format: beir}}, test: {{}}}}"]
        run = Run(load_config("debug_retrieval", [*given, *overrides]).config, Here())
        run.begin()
        return run

    return open_run


def test_counts_by_hand_and_what_is_cut_or_missing(open_run, capsys):
    run = open_run()
    corpora = open_corpora(run)
    capsys.readouterr()
    say_corpora(run, corpora)
    said = capsys.readouterr().out
    (row,) = [line.split() for line in said.splitlines() if line.startswith("train ")]
    # two of four sentences have the same words; one of two questions and one of four sentences are too long (32 and 96 tokens)
    assert row[:5] == ["train", "4", "2", "1.5", "1"]
    assert row[5:] == ["50", "%", "0"]
    assert "train: 50 % of some 500 texts are longer than retriever.max_question_length=32: raise it" in said
    assert "- training: 1 steps of 16 for 3 gold pairs alone" in said
    assert "there is neither a dev nor a test set: nothing will tell how good this retriever is" in said
    assert "the cross-encoder starts from the encoder that it is to teach, builtin:tiny, with 2 questions" in said
    assert "mining.candidates 10: train has 4 sentences, and all are candidates" in said
    assert len(said.splitlines()) < 24, "one screen"


def test_where_all_is_well_little_is_said(open_run, capsys):
    changes = ["retriever.max_question_length=96", "mining.candidates=2", "cross_encoder.trained=true", "corpus.dev_share=0.5"]
    run = open_run(*changes)
    corpora = open_corpora(run)
    capsys.readouterr()
    say_corpora(run, corpora)
    said = capsys.readouterr().out
    assert [line[:2] for line in said.splitlines() if line.startswith("- ")] == ["- "]
    assert any(line.startswith("dev ") for line in said.splitlines())
    run.folder.write_json("training.json", {"done": True})
    say_corpora(run, corpora)
    assert capsys.readouterr().out == "", "of a run that is trained there is nothing to foresee"
