"""SQuAD documents."""

import json

import pytest
from helpers.question_files import PASSAGE, QA, fault, qa, read, squad, write

from raydist.corpus.ids import passage_id
from raydist.corpus.rejected import IMPOSSIBLE_ANSWERED, UNLABELLED
from raydist.records import GoldAnswer


def test_squad_rows_keep_order_titles_and_ordinals(tmp_path):
    document = squad(qa("a", answers=[("Lund", 16), ("Lund", 16), ("in Lund", 13)]), qa(7, answers=[("Oslo", 34)]))
    a, seven = read(write(tmp_path / "x", document))[0]
    assert (a.id, a.line, a.title, a.language, a.file) == ("a", 1, "Ada", "en", str(tmp_path / "x"))
    assert a.answers == [GoldAnswer("Lund", 16), GoldAnswer("Lund", 16), GoldAnswer("in Lund", 13)]
    assert (seven.id, seven.line) == ("7", 2)  # a number as id is a name like any other
    assert a.passage_id == seven.passage_id == passage_id(PASSAGE)


def test_offsets_count_code_points(tmp_path):
    context = "😀 é Lund"  # 😀 is one code point, two UTF-16 units, four bytes: Lund starts at 4
    [example], _, _ = read(write(tmp_path / "x", squad(qa(answers=[("Lund", 4)]), context=context)))
    assert example.answers == [GoldAnswer("Lund", 4)]


def test_squad_v2_impossible_and_unlabelled_questions(tmp_path):
    plausible = [{"text": "Oslo", "answer_start": 34}]
    document = squad(
        qa("no", answers=[], is_impossible=True, plausible_answers=plausible),
        qa("yes", is_impossible=False),
        qa("open", answers=[], is_impossible=False),
        {"id": "absent", "question": "Where?"},
        qa("both", is_impossible=True),
    )
    path = write(tmp_path / "x", document)
    examples, rejected, _ = read(path)
    assert [(e.id, e.is_impossible, len(e.answers)) for e in examples] == [
        ("no", True, 0), ("yes", False, 1), ("open", False, 0), ("absent", False, 0)
    ]  # fmt: skip
    assert [(r.id, r.reason) for r in rejected] == [("both", IMPOSSIBLE_ANSWERED)]
    counts = read(path)[2]
    assert (counts.unlabelled, counts.impossible) == (2, 1)
    assert (read(path, format="squad_v2")[2].unlabelled, read(path, format="squad_v2")[2].impossible) == (1, 2)
    # where labels are needed, what has none is refused
    examples, rejected, counts = read(path, labelled=True)
    assert [example.id for example in examples] == ["no", "yes"]
    assert [(r.id, r.unit, r.line) for r in rejected if r.reason == UNLABELLED] == [
        ("open", "question", 3),
        ("absent", "question", 4),
    ]
    assert counts.unlabelled == 0
    # told that the file is v2, a question without answers and without the flag is impossible
    assert [e.is_impossible for e in read(path, format="squad_v2")[0]] == [True, False, False, True]


def test_one_spread_row_may_be_asked_for_as_squad(tmp_path):
    row = {**QA, "answer": None}
    [example], _, _ = read(write(tmp_path / "x", json.dumps(row, indent=2)), format="squad_v2")
    assert example.is_impossible


def test_a_missing_key_of_a_squad_file_is_named_with_its_place(tmp_path):
    def without(key, *place):
        document = squad(qa("a"), qa("b"))
        at = document
        for step in place:
            at = at[step]
        at["other"] = at.pop(key)
        return fault(write(tmp_path / "x", document))

    assert "data[0] has no 'paragraphs' (it has title, other)" in without("paragraphs", "data", 0)
    assert "data[0].paragraphs[0] has no 'qas'" in without("qas", "data", 0, "paragraphs", 0)
    assert "data[0].paragraphs[0] has no 'context'" in without("context", "data", 0, "paragraphs", 0)
    place = ("data", 0, "paragraphs", 0, "qas", 1)
    assert "data[0].paragraphs[0].qas[1] has no 'question'" in without("question", *place)
    assert "qas[1].answers[0] has no 'answer_start'" in without("answer_start", *place, "answers", 0)
    assert "qas[1].answers[0] has no 'text'" in without("text", *place, "answers", 0)


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        ({"data": [3]}, "data[0] is a number, wanted an object with 'paragraphs'"),
        ({"data": [{"paragraphs": {}}]}, "'paragraphs' of data[0] is an object, wanted a list"),
        (squad("x"), "qas[0] is a text, wanted an object with 'question'"),
        (squad({"question": "a", "answers": 5}), "'answers' of data[0].paragraphs[0].qas[0] is a number, wanted a list"),
        (squad({"question": "a", "answers": ["Lund"]}), "answers[0] is a text, wanted an object with 'text'"),
    ],
)
def test_a_squad_file_of_another_shape_says_where(tmp_path, document, seen):
    assert seen in fault(write(tmp_path / "x", document))
