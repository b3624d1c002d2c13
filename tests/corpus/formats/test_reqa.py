"""ReQA files, and pairs of question and answer."""

import json

import pytest
from helpers.corpus_files import reasons

from raydist.corpus.formats.pairs import read_answer_pairs
from raydist.corpus.formats.reqa import read_reqa
from raydist.errors import InputError


def test_reqa_files(tmp_path):
    path = tmp_path / "reqa.json"
    document = {
        "questions": ["Where?", "When?", "Why?"],
        "candidates": ["Here.", "Now.", ""],
        "ground_truths": [[0, 1], [9], [2]],
    }
    path.write_text(json.dumps(document))
    found = read_reqa(path)
    assert found.sentences["sentence_id"].to_pylist() == ["s00000000", "s00000001"]
    assert found.gold["sentence_id"].to_pylist() == ["s00000000", "s00000001"]
    assert found.questions["question_id"].to_pylist() == ["q00000000"]
    assert [reason for _, reason, _, _ in reasons(found)] == [
        "empty sentence",
        "gold sentence not in the corpus",
        "gold sentence not in the corpus",
        "question with no gold sentence",
        "question with no gold sentence",
    ]
    path.write_text(json.dumps({**document, "ground_truths": [[0]]}))
    with pytest.raises(InputError, match="3 questions and 1 ground_truths"):
        read_reqa(path)
    path.write_text('{"questions": []}')
    with pytest.raises(InputError, match="wanted an object with the lists"):
        read_reqa(path)


def test_a_text_that_cannot_be_written_as_utf8_is_rejected_from_reqa_files_and_pairs(tmp_path):
    lone = "\ud800"
    reqa = {"questions": ["Who?", lone], "candidates": ["He did.", lone], "ground_truths": [[0], [0]]}
    pairs = {"questions": ["Who?", lone, "What?"], "answers": ["He did.", "It.", lone], "question_ids": [1, 2, 3]}
    for name, content, read in (("reqa", reqa, read_reqa), ("pairs", pairs, read_answer_pairs)):
        (tmp_path / name).write_text(json.dumps(content))
        found = read(tmp_path / name)
        assert found.questions["text"].to_pylist() == ["Who?"]
        assert found.sentences["text"].to_pylist() == ["He did."]
        assert len(found.rejected) == 2


@pytest.mark.realdata
def test_real_sets_are_read_whole(data_dir):
    found = read_reqa(data_dir / "reqa_squad" / "test-A.json.gz")
    assert (len(found.sentences), len(found.questions), found.rejected) == (5605, 5246, [])
    found = read_answer_pairs(data_dir / "reqa_squad" / "train-10k.json.gz")
    assert (len(found.questions), found.rejected) == (10_000, [])
