"""Files in, checked rows out: splits, layouts and lines."""

import gzip
import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.question_files import PASSAGE, QA, fault, read, reasons, write

from raydist.corpus.examples import plan_splits, read_split
from raydist.corpus.rejected import (
    EMPTY_QUESTION,
    NO_ANSWER_LEFT,
    WRONG_TYPE,
    WRONG_WIDTH,
)
from raydist.errors import InputError
from raydist.records import GoldAnswer


def test_csv_with_mapped_columns_quotes_and_line_numbers(tmp_path):
    text = (
        "key;q;passage;gold;at\n"
        f'1;Where?;"{PASSAGE}";Lund;16\n'
        '2;"Which\nword?";"One; two ""three"".";"[""two"", ""One""]";"[5, 0]"\n'
        f"3;Where?;{PASSAGE};Lund;\n"
        "4;too;few\n"
        f"5;Where?;{PASSAGE};Lund;x\n"
    )
    columns = {"id": "key", "question": "q", "context": "passage", "answer": "gold", "answer_start": "at"}
    examples, rejected, _ = read(write(tmp_path / "x.txt", text), columns=columns)
    assert [(e.id, e.line, e.answers) for e in examples] == [
        ("1", 2, [GoldAnswer("Lund", 16)]),
        ("2", 3, [GoldAnswer("two", 5), GoldAnswer("One", 0)]),
        ("3", 5, [GoldAnswer("Lund", 16)]),
    ]  # fmt: skip
    assert examples[1].question == "Which\nword?"
    assert [(r.line, r.reason) for r in rejected] == [
        (6, WRONG_WIDTH), (7, WRONG_TYPE), (7, NO_ANSWER_LEFT)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_unmapped_columns_are_listed_with_the_nearest(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "csv":
        write(path, "questions,context\na,b\n")
    else:
        pq.write_table(pa.table({"questions": ["a"], "context": ["b"]}), path)
    message = fault(path)
    assert "no column 'question'" in message
    assert "it has questions, context" in message
    assert "did you mean questions" in message
    assert "no column 'gold'" in fault(path, columns={"question": "questions", "answer": "gold"})
    with pytest.raises(InputError, match="unknown name 'questoin'"):
        plan_splits([str(path)], columns={"questoin": "questions"})


def parquet(path, rows, group=2, packed=False):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    return str(path)


def test_parquet_splits_by_row_groups_and_numbers_rows(tmp_path):
    rows = [
        {"id": i, "question": f"Who {i}?", "context": PASSAGE, "answers": {"text": ["Ada"], "answer_start": [22]}}
        for i in range(5)
    ]
    path = parquet(tmp_path / "x.json", rows)
    splits = plan_splits([path], max_bytes=1)
    assert [(s.format, s.start, s.end, s.first_line) for s in splits] == [
        ("parquet", 0, 1, 1), ("parquet", 1, 2, 3), ("parquet", 2, 3, 5)
    ]  # fmt: skip
    pieces = [example for split in splits for example in read_split(split)[0]]
    whole = read(path)[0]
    assert pieces == whole
    assert [(e.id, e.line, e.answers) for e in whole] == [(str(i), i + 1, [GoldAnswer("Ada", 22)]) for i in range(5)]
    packed = read(parquet(tmp_path / "y", rows, packed=True))[0]
    assert [e.id for e in packed] == [e.id for e in whole]


def test_parquet_faults(tmp_path):
    path = tmp_path / "x"
    parquet(path, [{**QA, "answer": 1745}, {**QA, "answer": 1745, "question": None}])
    assert reasons(str(path)) == {WRONG_TYPE: 1, NO_ANSWER_LEFT: 1, EMPTY_QUESTION: 1}
    path.write_bytes(path.read_bytes()[:-9])
    assert "damaged Parquet" in fault(path)
    pq.write_table(pa.table({"question": pa.array([], pa.string()), "context": pa.array([], pa.string())}), path)
    assert "without rows" in fault(path)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ends", [True, False])
def test_json_lines_in_pieces_equal_the_whole(tmp_path, newline, ends):
    rows = [json.dumps({**QA, "id": i, "question": "Who? " * (i % 5 + 1)}) for i in range(40)]
    rows[7], rows[23] = "", '{"broken'
    path = write(tmp_path / "x", newline.join(rows) + newline * ends)
    examples, rejected, counts = read(path)
    assert [r.line for r in rejected] == [24]
    for max_bytes in (1, 100, 333, 1000, 4000):
        splits = plan_splits([path], max_bytes=max_bytes)
        assert (len(splits) > 1) == (max_bytes < (tmp_path / "x").stat().st_size)
        assert pickle.loads(pickle.dumps(splits)) == splits
        parts = [read_split(split) for split in splits]
        assert [e for part in parts for e in part[0]] == examples
        assert [r for part in parts for r in part[1]] == rejected
        assert sum(part[2].questions for part in parts) == counts.questions == 39


def test_a_file_of_which_nothing_parses_is_refused(tmp_path):
    assert "not valid JSON" in fault(write(tmp_path / "x", '{"question": \n{"question": \n'))


def test_what_is_refused_is_found_by_line_by_row_or_by_question(tmp_path):
    rows = [{**QA, "id": "a"}, {**QA, "id": "b", "answer": "Paris"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
    (tmp_path / "c").write_text("id,question,context,answer\na,Where?,In Lund.,Lund\nb,Where?,In Lund.,Oslo\n")
    wanted = {"x": ("line", 2), "d": ("question", 2), "t": ("row", 2), "c": ("line", 3)}
    write(tmp_path / "x", rows)
    write(tmp_path / "d", json.dumps(rows))
    for name, place in wanted.items():
        assert {(r.unit, r.line) for r in read(str(tmp_path / name))[1]} == {place}
