"""Data files that are wrong in ways that nobody means: one message or one rejected row each."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.question_files import PASSAGE, QA, squad

from raydist.corpus.examples import plan_splits, read_split
from raydist.corpus.formats import open_corpus
from raydist.corpus.rows import table_rows
from raydist.errors import InputError
from raydist.records import rejected_table

DEEP = "[" * 100_000 + "]" * 100_000
ROW = json.dumps(QA)


def read(path):
    examples, rejected = [], []
    for split in plan_splits([str(path)]):
        found, bad, _ = read_split(split)
        examples += found
        rejected += bad
    return examples, rejected


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("deep.jsonl", f'{{"question": {DEEP}}}', "broken JSON"),
        ("digits.jsonl", f'{{"question": "q?", "context": "c", "answer_start": {"9" * 5000}}}', "broken JSON"),
        (
            "infinity.jsonl",
            '{"question": "q?", "context": "c", "answer": "c", "answer_start": Infinity}',
            "no valid answer left",
        ),
        ("surrogate.jsonl", '{"question": "q\\ud800?", "context": "c", "answer": "c"}', "lone surrogate"),
    ],
)
def test_a_wrong_line_is_rejected_and_the_others_are_read(tmp_path, name, content, reason):
    (tmp_path / name).write_text(f"{ROW}\n{content}\n")
    examples, rejected = read(tmp_path / name)
    assert len(examples) == 1
    assert reason in [row.reason for row in rejected]
    assert all(len(row.detail) < 1000 for row in rejected)


def test_a_cell_of_brackets_or_of_digits_is_a_text_that_is_no_answer(tmp_path):
    rows = [f'q{n}?,"{PASSAGE}","{answers}"' for n, answers in enumerate(("Lund", "[" * 10_000, "9" * 5000))]
    (tmp_path / "cells.csv").write_text("\n".join(["question,context,answers", *rows]))
    examples, rejected = read(tmp_path / "cells.csv")
    assert [example.question for example in examples] == ["q0?"]
    assert {row.line for row in rejected} == {3, 4}


def whole_of(path):
    return lambda: list(table_rows(path)) if path.name.startswith("corpus") else read(path)


@pytest.mark.parametrize("name", ["questions.parquet", "corpus.parquet", "questions.csv", "corpus.csv", "corpus.tsv"])
def test_a_column_twice_is_refused_by_name(tmp_path, name):
    path, columns = tmp_path / name, ["question", "context", "answer", "answer"]
    if name.endswith("parquet"):
        pq.write_table(pa.table([pa.array(["x"])] * 4, columns), path)
    else:
        mark = "\t" if name.endswith("tsv") else ","
        path.write_text(f"{mark.join(columns)}\n{mark.join('abcd')}\n")
    with pytest.raises(InputError, match=f"{name} has the column 'answer' twice; rename or remove one of them"):
        whole_of(path)()


@pytest.mark.parametrize("name", ["questions.parquet", "corpus.parquet"])
def test_parquet_that_is_no_utf8_is_refused_by_name(tmp_path, name):
    wrong = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfe q"))
    pq.write_table(pa.table({"question": wrong, "context": ["c"], "answer": ["c"]}), tmp_path / name)
    with pytest.raises(InputError, match=f"{name}.*(not UTF-8|can't decode)"):
        whole_of(tmp_path / name)()


@pytest.mark.parametrize(
    "line",
    [
        '{"candidate_id": "x_q1/_0", "response_start": Infinity, "response_end": 3}',
        '{"title": "Ada", "paragraph": -Infinity, "sentences": [[0, 3]]}',
        '{"title": "Ada", "paragraph": 0, "sentences": [[NaN, 3]]}',
        f'{{"title": "Ada", "paragraph": 0, "sentences": {DEEP}}}',
    ],
)
def test_boundaries_that_are_no_numbers_are_refused_by_line(tmp_path, line):
    (tmp_path / "a.json").write_text(json.dumps(squad(QA | {"id": "q1", "answers": [{"text": "Lund", "answer_start": 16}]})))
    (tmp_path / "bounds.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"bounds.jsonl, line 1: ") as caught:
        open_corpus("squad", [tmp_path / "a.json"], boundaries=tmp_path / "bounds.jsonl")
    assert len(str(caught.value)) < 600


def test_pairs_with_half_of_a_character_are_rejected(tmp_path):
    lists = {"questions": ["a?", "b\ud800?", "c?"], "answers": ["A.", "B.", "C."], "question_ids": ["1", "2\ud800", "3\ud800"]}
    (tmp_path / "pairs.json").write_text(json.dumps(lists))
    found = open_corpus("pairs", [tmp_path / "pairs.json"])
    assert found.questions["text"].to_pylist() == ["a?"]
    assert [row.line for row in found.rejected] == [2, 3]
    assert rejected_table(found.rejected)["id"].to_pylist() == ["2?", "3?"]
