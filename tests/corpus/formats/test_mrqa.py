"""MRQA, as files and as the hub has it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.question_files import PASSAGE, read, write

from raydist.corpus.examples import read_rows
from raydist.corpus.rejected import NO_ANSWER_LEFT, NOT_AT_OFFSET, WRONG_TYPE
from raydist.records import GoldAnswer


def test_mrqa_spans_are_inclusive_and_every_span_is_an_answer(tmp_path):
    def question(qid, *detected, **more):
        return {"qid": qid, "question": "Who?", "detected_answers": [{"text": t, "char_spans": s} for t, s in detected], **more}

    rows = [
        {"header": {}},
        {
            "context": PASSAGE,
            "qas": [
                question("two", ("Ada", [[0, 2], [22, 24]])),
                question("case", ("ADA", [[22, 24]])),  # as the passage spells it
                question("off", ("Ada", [[1, 3]])),
                question("none", answers=["Ada"]),  # nothing detected: the first occurrence
                question("odd", ("Ada", [5])),
            ],
        },
    ]
    examples, rejected, counts = read(write(tmp_path / "x", rows))
    answers = {e.id: e.answers for e in examples}
    assert answers == {
        "two": [GoldAnswer("Ada", 0), GoldAnswer("Ada", 22)],
        "case": [GoldAnswer("Ada", 22)],
        "none": [GoldAnswer("Ada", 0)],
    }
    assert counts.several_occurrences == 1
    assert [(r.id, r.what, r.reason, r.line) for r in rejected] == [
        ("off", "answer", NOT_AT_OFFSET, 2), ("off", "question", NO_ANSWER_LEFT, 2),
        ("odd", "question", WRONG_TYPE, 2),
    ]  # fmt: skip


def test_labels_are_what_was_detected_and_golds_are_all_aliases(tmp_path):
    detected = [{"text": "LUND", "char_spans": [[16, 19]]}]
    qas = [{"qid": "q", "question": "Where?", "answers": ["Lund", "Lund, Sweden"], "detected_answers": detected}]
    [example], _, _ = read(write(tmp_path / "x", [{"header": {}}, {"context": PASSAGE, "qas": qas}]))
    assert example.answers == [GoldAnswer("Lund", 16)]
    assert example.golds == ["Lund", "Lund, Sweden"]
    [example], _, _ = read_rows([HUB_MRQA | {"answers": ["Ada", "Countess"]}], file="hub:mrqa")
    assert example.golds == ["Ada", "Countess"]


HUB_MRQA = {
    "subset": "NewsQA",
    "context": PASSAGE,
    "context_tokens": {"tokens": ["Ada"], "offsets": [0]},
    "qid": "q1",
    "question": "Who?",
    "question_tokens": {"tokens": ["Who"], "offsets": [0]},
    "detected_answers": {
        "text": ["Ada", "LUND"],
        "char_spans": [{"start": [0, 22], "end": [2, 24]}, {"start": [16], "end": [19]}],
        "token_spans": [{"start": [0, 6], "end": [0, 6]}, {"start": [4], "end": [4]}],
    },
    "answers": ["Ada", "Lund"],
}


@pytest.mark.parametrize("layout", ["rows", "lines", "parquet"])
def test_rows_of_mrqa_on_the_hub_keep_their_ids_and_every_span(tmp_path, layout):
    uneven = {**HUB_MRQA["detected_answers"], "text": ["Ada"]}
    rows = [HUB_MRQA, {**HUB_MRQA, "qid": "odd", "detected_answers": uneven}]
    if layout == "rows":
        [example], rejected, _ = read_rows(rows, file="hub:mrqa")
    elif layout == "lines":
        [example], rejected, _ = read(write(tmp_path / "x.jsonl", rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
        [example], rejected, _ = read(str(tmp_path / "x.parquet"))
    assert example.id == "q1"
    assert example.answers == [GoldAnswer("Ada", 0), GoldAnswer("Ada", 22), GoldAnswer("Lund", 16)]
    assert [(r.id, r.what, r.reason) for r in rejected] == [("odd", "question", WRONG_TYPE)]
