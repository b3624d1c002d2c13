"""BEIR folders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.corpus_files import CORPUS, read_beir, reasons, write_beir

from raydist.corpus.formats.tables import open_tables
from raydist.corpus.schemas import GOLD_SCHEMA, QUESTION_SCHEMA, SENTENCE_SCHEMA


def test_beir_layout(tmp_path):
    queries = [{"_id": "q1", "text": "Where?"}, {"_id": "q2", "text": "When?"}, {"_id": "dev", "text": "Of another split?"}]
    write_beir(tmp_path, CORPUS, queries, [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1)])
    found = read_beir(tmp_path)
    assert found.sentences.schema == SENTENCE_SCHEMA
    assert found.questions.schema == QUESTION_SCHEMA
    assert found.gold.schema == GOLD_SCHEMA
    assert found.sentences["text"].to_pylist() == ["Oder It flows.", "It ends."]
    assert found.questions["question_id"].to_pylist() == ["q1", "q2"]
    assert [tuple(row.values()) for row in found.gold.to_pylist()] == [("q1", "d1", 2), ("q2", "d2", 1)]
    assert found.rejected == []


def test_of_questions_without_gold_those_of_another_split_are_counted_and_all_others_named(tmp_path):
    names = ("gold", "zero", "broken", "elsewhere")
    queries = [{"_id": name, "text": "Where?"} for name in names]
    write_beir(tmp_path, CORPUS, queries, [("gold", "d1", 1), ("zero", "d1", 0), ("broken", "d1", "much")])
    found = read_beir(tmp_path)
    assert found.questions["question_id"].to_pylist() == ["gold"]
    assert found.gold["question_id"].to_pylist() == ["gold"]
    without = [
        ("question", "question with no gold sentence", "zero", 2),
        ("question", "question with no gold sentence", "broken", 3),
    ]
    assert reasons(found) == [("gold", "wrong type", "broken", 4), *without]
    assert found.notes == {"questions without gold answers in this split: left out": 1}
    # three tables are one set: there is no other split that a question could be of
    columns = {"questions": {"question_id": "_id"}, "corpus": {"sentence_id": "_id"}}
    columns["gold"] = {"question_id": "query-id", "sentence_id": "corpus-id", "relevance": "score"}
    files = [tmp_path / name for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")]
    whole = open_tables(*files, columns).whole()
    assert reasons(whole)[1:] == [*without, ("question", "question with no gold sentence", "elsewhere", 4)]
    assert whole.notes == {}


@pytest.mark.realdata
def test_scifact_is_put_into_beir_layout_sentence_by_sentence(data_dir, tmp_path):
    script = Path(__file__).resolve().parents[3] / "benchmarks" / "scifact.py"
    archive = data_dir / "scifact" / "scifact.zip"
    subprocess.run([sys.executable, script, archive, tmp_path], check=True)
    counts = {"train": (505, 1025), "test": (188, 366)}  # claims with evidence, and its sentences
    for split, (claims, gold) in counts.items():
        found = read_beir(tmp_path, split)
        assert (found.questions.num_rows, found.gold.num_rows, len(found.rejected)) == (claims, gold, 0)
    assert (found.passages.num_rows, found.sentences.num_rows) == (5183, 45952)
    texts = dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist()))
    assert texts["13734012#4"].startswith("RESULTS Of the 32,441 appendix samples 16 were positive for abnormal PrP")


def test_documents_that_name_their_sentences(tmp_path):
    (tmp_path / "qrels").mkdir()
    documents = [
        {"_id": "d", "title": "t", "text": "It fell. It rose.", "sentences": [[0, 8], [9, 17]]},
        {"_id": "d", "text": "Again.", "sentences": [[0, 6]]},
        {"_id": "e", "text": "Short.", "sentences": [[0, 60]]},
        {"_id": "f", "text": "Short.", "sentences": [["0", 6]]},
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "What rose?"}\n')
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td#1\t1\n")
    found = read_beir(tmp_path, "train")
    assert found.sentences.select(["sentence_id", "text", "passage_id"]).to_pylist() == [
        {"sentence_id": "d#0", "text": "It fell.", "passage_id": "d"},
        {"sentence_id": "d#1", "text": "It rose.", "passage_id": "d"},
    ]
    assert found.passages["text"].to_pylist() == ["It fell. It rose."]
    assert [(row.line, row.reason) for row in found.rejected] == [
        (2, "duplicate id"),
        (3, "sentence boundaries do not fit the passage"),
        (4, "sentence boundaries do not fit the passage"),
    ]


def test_every_row_says_for_itself_whether_it_names_its_sentences(tmp_path):
    corpus = [
        {"_id": 1, "title": "Oder", "text": "It flows. It is long."},
        {"_id": "d", "text": "It fell. It rose.", "sentences": [[0, 8], [9, 17]]},
        {"_id": "w", "text": "One candidate. Really.", "sentences": None},
        {"_id": "d#1", "text": "An id that is taken."},
        {"_id": "e", "text": "No sentences.", "sentences": []},
    ]
    write_beir(tmp_path, corpus, [{"_id": "q", "text": "What rose?"}], [("q", "d#1", 1), ("q", "w", 1)])
    found = read_beir(tmp_path)
    assert dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist())) == {
        "1": "Oder It flows. It is long.",
        "d#0": "It fell.",
        "d#1": "It rose.",
        "w": "One candidate. Really.",
    }
    assert found.sentences["passage_id"].to_pylist() == ["", "d", "d", ""]
    assert found.gold["sentence_id"].to_pylist() == ["d#1", "w"]
    assert sorted(reasons(found)) == [
        ("document", "sentence boundaries do not fit the passage", "e", 5),
        ("sentence", "duplicate id", "d#1", 4),
    ]
