"""Pairs of question and answer."""

import json

from helpers.corpus_files import reasons

from raydist.corpus.formats.pairs import read_answer_pairs


def test_pairs_of_question_and_answer(tmp_path):
    path = tmp_path / "train.json"
    rows = [("Where?", "Here.", 4), ("There?", "Here.", 2), ("Where?", "Or there.", 4), ("Other?", "Here.", 2), ("Why?", "", 3)]
    questions, answers, ids = zip(*rows)
    path.write_text(json.dumps({"questions": questions, "answers": answers, "question_ids": ids}))
    found = read_answer_pairs(path)
    assert found.sentences["text"].to_pylist() == ["Here.", "Or there."]  # equal answers are one sentence
    assert found.questions["question_id"].to_pylist() == ["4", "2"]
    assert [row["question_id"] for row in found.gold.to_pylist()] == ["4", "2", "4"]
    assert reasons(found) == [("question", "duplicate id", "2", 4), ("question", "wrong type", "3", 5)]
