"""Flat rows."""

import pytest
from helpers.question_files import PASSAGE, QA, read, reasons, write

from raydist.corpus.examples import read_rows
from raydist.corpus.rejected import MISSING_KEY, NOT_AT_OFFSET, NOT_IN_PASSAGE, WRONG_TYPE
from raydist.errors import InputError
from raydist.records import GoldAnswer


def test_without_offsets_the_first_occurrence_is_the_label_and_every_gold_text_is_kept(tmp_path):
    rows = [
        {**QA, "id": 1, "answer": "Ada"},  # occurs at 0 and 22
        {**QA, "id": 2, "answer": " Lund "},
        {"id": 3, "question": "Who?", "context": PASSAGE, "answers": ["Lund", "Ada", "Lund"]},
        {"id": 4, "question": "Who?", "context": PASSAGE, "answer": "Oslo", "answers": ["Lund"]},
        {"id": 5, "question": "Who?", "context": PASSAGE},
        {"id": 6, "question": "Who?", "context": PASSAGE, "answers": ["Rome", "Lund"]},
    ]
    examples, rejected, counts = read(write(tmp_path / "x", rows))
    assert [e.answers for e in examples] == [
        [GoldAnswer("Ada", 0)], [GoldAnswer("Lund", 16)], [GoldAnswer("Lund", 16), GoldAnswer("Ada", 0)],
        [GoldAnswer("Oslo", 34), GoldAnswer("Lund", 16)], [], [GoldAnswer("Lund", 16)],
    ]  # fmt: skip
    assert counts.several_occurrences == 2
    assert [(r.id, r.what, r.reason) for r in rejected] == [("6", "answer", NOT_IN_PASSAGE)]  # the question stays


def test_rows_of_the_hub_carry_offsets_in_parallel_lists():
    row = {"id": "a", "question": "Who?", "context": PASSAGE, "answers": {"text": ["Ada", "Lund"], "answer_start": [22, 3]}}
    uneven = {**row, "id": "b", "answers": {"text": ["Ada", "Lund"], "answer_start": [22]}}
    none = {**row, "id": "c", "answers": {"text": [], "answer_start": []}}
    [a, c], rejected, _ = read_rows([row, uneven, none], file="hub:x", first_line=11)
    assert a.answers == [GoldAnswer("Ada", 22)]
    assert (c.id, c.line, c.is_impossible) == ("c", 13, False)
    assert [(r.id, r.reason, r.line) for r in rejected] == [("a", NOT_AT_OFFSET, 11), ("b", WRONG_TYPE, 12)]
    assert read_rows([none], file="hub:squad_v2", format="squad_v2")[0][0].is_impossible
    with pytest.raises(InputError, match="rows with the keys text"):
        read_rows([{"text": "x"}], file="hub:x")


def test_a_mapped_key_that_json_rows_lack_is_no_silent_loss_of_labels(tmp_path):
    assert reasons(write(tmp_path / "x", [QA]), columns={"answer": "gold"}) == {MISSING_KEY: 1}
