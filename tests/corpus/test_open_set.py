"""Corpora with questions and gold: what is wrong is named, and size costs no memory."""

import tracemalloc

import pyarrow as pa
import pytest
from helpers.corpus_files import CORPUS, read_beir, reasons, write_beir

from raydist.corpus import columns
from raydist.corpus.formats.beir import open_beir
from raydist.corpus.formats.reqa import read_reqa
from raydist.corpus.sentences import split_sentences
from raydist.errors import InputError


def test_everything_wrong_in_a_set_is_named_and_the_rest_stays(tmp_path):
    corpus = [
        *CORPUS,
        {"_id": "d1", "text": "Again."},
        {"_id": "d3", "title": "", "text": " "},
        {"_id": "d4", "text": ["no", "text"]},
    ]
    queries = [
        {"_id": "q1", "text": "Where?"},
        {"_id": "q2", "text": "No gold left?"},
        {"_id": "q1", "text": "Twice?"},
        {"_id": "q3", "text": ""},
    ]
    qrels = [("q1", "d1", 1), ("q2", "d9", 1), ("q3", "d1", 1), ("q9", "d1", 1), ("q1", "d2", "much")]
    write_beir(tmp_path, corpus, queries, qrels)
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.write('{"_id": "d5", "text"\n[1]\n{"_id": "d6", "text": "\\ud800"}\n')
    found = read_beir(tmp_path)
    assert found.sentences["sentence_id"].to_pylist() == ["d1", "d2"]
    assert found.questions["question_id"].to_pylist() == ["q1"]
    assert found.gold.to_pylist() == [{"question_id": "q1", "sentence_id": "d1", "relevance": 1}]
    assert sorted(reasons(found)) == sorted(
        [
            ("sentence", "wrong type", "d4", 5),
            ("row", "broken JSON", "", 6),
            ("row", "wrong type", "", 7),
            ("sentence", "lone surrogate", "d6", 8),
            ("gold", "wrong type", "q1", 6),
            ("sentence", "duplicate id", "d1", 3),
            ("sentence", "empty sentence", "d3", 4),
            ("question", "duplicate id", "q1", 3),
            ("question", "empty question", "q3", 4),
            ("gold", "gold sentence not in the corpus", "q2", 3),
            ("gold", "gold for an unknown question", "q9", 5),
            ("question", "question with no gold sentence", "q2", 2),
        ]
    )


def test_an_empty_corpus_a_missing_file_and_ids_that_never_meet_stop_with_one_message(tmp_path):
    write_beir(tmp_path / "a", [], [{"_id": "q", "text": "Where?"}], [("q", "d", 1)])
    with pytest.raises(InputError, match="corpus is empty"):
        read_beir(tmp_path / "a")
    with pytest.raises(InputError, match=r"no gold of the split 'train', only of test"):
        read_beir(tmp_path / "a", "train")
    write_beir(tmp_path / "b", CORPUS, [{"_id": "q", "text": "Where?"}], [("other", "d1", 1)])
    with pytest.raises(InputError, match="none of the questions"):
        read_beir(tmp_path / "b")


def test_a_score_that_is_too_large_and_a_row_nested_too_deeply_are_refused_alone(tmp_path):
    write_beir(tmp_path, CORPUS, [{"_id": "q", "text": "Where?"}], [("q", "d1", 2**31 - 1), ("q", "d2", -(2**31))])
    scores = ["99999999999", 2**31, -(2**31) - 1, "9" * 5_000]
    with open(tmp_path / "qrels/test.tsv", "a") as file:
        file.writelines(f"q\td2\t{score}\n" for score in scores)
    depths = (100, 900, 950, 980, 990, 1_000, 100_000)  # at some of them the row is read, and its text is none
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.writelines('{"_id": "deep", "text": ' + "[" * depth + "]" * depth + "}\n" for depth in depths)
    found = read_beir(tmp_path)
    assert found.gold.to_pylist() == [{"question_id": "q", "sentence_id": "d1", "relevance": 2**31 - 1}]
    deep, wrong = found.rejected[: len(depths)], found.rejected[len(depths) :]
    assert [row.line for row in deep] == [*range(3, 3 + len(depths))]
    assert (deep[0].reason, deep[-1].reason) == ("wrong type", "broken JSON")
    assert [(row.what, row.reason, row.id, row.line) for row in wrong] == [
        ("gold", "wrong type", "q", 4 + at) for at in range(len(scores))
    ]
    assert wrong[0].detail == "score: '99999999999'"
    (tmp_path / "deep.json").write_text('{"questions": ' + "[" * 100_000)
    with pytest.raises(InputError, match="not JSON"):
        read_reqa(tmp_path / "deep.json")


def test_blocks_change_nothing_and_a_repeat_is_told_across_them(tmp_path, monkeypatch):
    corpus = [{"_id": f"d{n % 23}", "text": f"It is {n}. Yes.", "sentences": [[0, 8 + (n > 9)]]} for n in range(40)]
    corpus += [{"_id": f"w{n % 17}", "text": f"Whole {n}." * (n != 3)} for n in range(30)]
    write_beir(tmp_path, corpus, [{"_id": "q", "text": "Which?"}], [("q", "d5#0", 1), ("q", "w16", 1), ("q", "w17", 1)])
    whole = read_beir(tmp_path)
    assert whole.sentences["sentence_id"].to_pylist() == [
        *(f"d{n}#0" for n in range(23)),
        *(f"w{n}" for n in range(17) if n != 3),
        "w3",  # the first one is empty
    ]
    assert {row.id for row in whole.rejected if row.reason == "duplicate id"} == {
        *(f"d{n}" for n in range(17)),
        *(f"w{n}" for n in range(13) if n != 3),
    }
    for rows in (1, 7, 30):
        monkeypatch.setattr(columns, "BLOCK_ROWS", rows)
        found = read_beir(tmp_path)
        for name in ("sentences", "passages", "questions", "gold"):
            assert getattr(found, name).to_pylist() == getattr(whole, name).to_pylist()
        assert sorted(reasons(found)) == sorted(reasons(whole))


@pytest.mark.parametrize("layout", ["rows", "documents"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch, layout):
    """As dicts a sentence takes some 1,500 bytes; as it is, the hash of its id."""
    monkeypatch.setattr(columns, "BLOCK_ROWS", 200)
    peaks = {}
    for rows in (500, 2_500):
        corpus = [{"_id": f"d{n:08d}", "text": f"The river {n} is long. The bridge {n} was built."} for n in range(rows)]
        if layout == "documents":
            corpus = [row | {"sentences": split_sentences(row["text"])} for row in corpus]
        write_beir(tmp_path / str(rows), corpus, [{"_id": "q", "text": "Which?"}], [("q", "d00000001", 1)])
        del corpus
        arrow = 0
        tracemalloc.start()
        for _ in open_beir(tmp_path / str(rows)).blocks():
            arrow = max(arrow, pa.total_allocated_bytes())
        peaks[rows] = tracemalloc.get_traced_memory()[1] + arrow
        tracemalloc.stop()
    assert (peaks[2_500] - peaks[500]) / 2_000 < 150
