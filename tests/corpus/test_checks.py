"""Every way in which a question or an answer can be wrong."""

import pytest
from helpers.question_files import PASSAGE, QA, qa, read, recognise_format, squad, write

from raydist.corpus.examples import read_rows
from raydist.corpus.rejected import (
    DUPLICATE_ID,
    EMPTY_ANSWER,
    EMPTY_PASSAGE,
    EMPTY_QUESTION,
    LONE_SURROGATE,
    MISSING_KEY,
    NO_ANSWER_LEFT,
    NOT_AT_OFFSET,
    NOT_IN_PASSAGE,
    WRONG_TYPE,
)
from raydist.records import GoldAnswer


def test_missing_ids_are_made_from_question_and_passage_and_do_not_depend_on_the_file(tmp_path):
    [a], _, _ = read(write(tmp_path / "a", [QA]))
    [b, other], rejected, _ = read(write(tmp_path / "b", [{**QA, "question": "Who?"}, QA, {**QA, "id": ""}]))
    assert a.id == other.id != b.id
    assert [(r.reason, r.line, r.id) for r in rejected] == [(DUPLICATE_ID, 3, a.id)]
    assert "first at line 2" in rejected[0].detail


def test_an_answer_off_its_offset_is_refused_alone(tmp_path):
    path = write(tmp_path / "x", squad(qa(answers=[("Oslo", 33), ("Oslo", 34), ("Oslo", -5), ("Ada", 21), ("Oslo", 1000)])))
    [example], rejected, counts = read(path)
    assert example.answers == [GoldAnswer("Oslo", 34)]
    assert (counts.answers, counts.answers_rejected, counts.questions_rejected) == (5, 4, 0)
    assert {r.reason for r in rejected} == {NOT_AT_OFFSET}
    assert rejected[0].detail == "'Oslo' at 33, where there is ' Osl'"
    # repaired where the text occurs once: Oslo does, Ada (0 and 22) does not
    [example], _, counts = read(path, repair_offsets=True)
    assert example.answers == [GoldAnswer("Oslo", 34)] * 4
    assert (counts.answers_repaired, counts.answers_rejected) == (3, 1)


def test_overlapping_occurrences_are_several():
    row = {"question": "?", "context": "aaa", "answer": "aa", "answer_start": 7}
    assert read_rows([row], file="x", repair_offsets=True)[2].answers_repaired == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"question": " \n"}, {EMPTY_QUESTION: 1}),
        ({"question": None}, {EMPTY_QUESTION: 1}),
        ({"context": ""}, {EMPTY_PASSAGE: 1}),
        ({"context": None}, {EMPTY_PASSAGE: 1}),
        ({"context": None, "answer": None}, {EMPTY_PASSAGE: 1}),
        ({"answer": " "}, {EMPTY_ANSWER: 1, NO_ANSWER_LEFT: 1}),
        ({"answer": "Rome"}, {NOT_IN_PASSAGE: 1, NO_ANSWER_LEFT: 1}),
        ({"answer": 1745}, {WRONG_TYPE: 1, NO_ANSWER_LEFT: 1}),
        ({"answer": {"start": 3}}, {MISSING_KEY: 1}),
        ({"answer_start": "16"}, {WRONG_TYPE: 1, NO_ANSWER_LEFT: 1}),
        ({"answer_start": True}, {WRONG_TYPE: 1, NO_ANSWER_LEFT: 1}),
        ({"question": 5}, {WRONG_TYPE: 1}),
        ({"context": {"a": 1}}, {WRONG_TYPE: 1}),
        ({"id": 1.5}, {WRONG_TYPE: 1}),
        ({"id": ["a"]}, {WRONG_TYPE: 1}),
        ({"id": "good"}, {DUPLICATE_ID: 1}),
        ({"id": "\ud800"}, {LONE_SURROGATE: 1}),
        ({"is_impossible": "perhaps"}, {WRONG_TYPE: 1}),
        ({"question": "\ud800?"}, {LONE_SURROGATE: 1}),
        ({"context": PASSAGE + "\udfff"}, {LONE_SURROGATE: 1}),
        ({"answer": "Lund\ud800"}, {LONE_SURROGATE: 1, NO_ANSWER_LEFT: 1}),
        ({"title": "\ud800", "language": "\ud800"}, {}),  # no reason to lose a question, but it must be writable
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_row_is_refused_with_its_reason_and_its_line_wherever_it_stands(tmp_path, changed, expected, place):
    rows = [{**QA, "id": "good"}, {**QA, "id": "also good"}]
    rows.insert(place, {**QA, "id": "bad", **changed})
    path = write(tmp_path / "x", rows)
    if place == 0 and isinstance(changed.get("context"), dict):  # a file that starts so is HotpotQA
        assert recognise_format(path) == "hotpotqa"
        return
    examples, rejected, counts = read(path)
    assert counts.reasons == expected
    assert len(examples) == (2 if expected else 3)
    later = place == 0 and changed == {"id": "good"}  # of two rows with one id the later is refused
    assert {r.line for r in rejected} <= {2 if later else place + 1}


def test_translations_in_one_file_may_share_an_id(tmp_path):
    rows = [{**QA, "id": "a", "language": language} for language in ("en", "es", "es")]
    examples, rejected, _ = read(write(tmp_path / "x", rows))
    assert [e.language for e in examples] == ["en", "es"]
    assert [r.reason for r in rejected] == [DUPLICATE_ID]
