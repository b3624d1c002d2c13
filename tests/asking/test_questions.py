"""Files of questions about documents."""

import json

import pytest
from helpers.passages import BRIDGES

from raydist.asking.questions import Question, read_questions
from raydist.errors import InputError


def lines(path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_json_lines_have_question_answers_and_maybe_a_document(tmp_path):
    file = lines(
        tmp_path / "asked.jsonl",
        {"question": "Who?", "answers": ["Mina Orlov", "Mina Orlov", "Orlov"], "document": "bridges.md", "id": "q1"},
        {"question": "Wer?", "answers": "Jon Haas", "language": "de"},
        {"question": "Which whale?", "answers": []},
    )
    assert read_questions([file]) == [
        Question("q1", "Who?", ("Mina Orlov", "Orlov"), "bridges.md"),
        Question("asked.jsonl:2", "Wer?", ("Jon Haas",), language="de"),
        Question("asked.jsonl:3", "Which whale?", ()),
    ]


def test_squad_shaped_files_have_the_paragraph_that_answers(tmp_path):
    asked = [
        {"id": "a", "question": "Who?", "answers": [{"text": "Mina Orlov", "answer_start": 0}], "is_impossible": False},
        {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    document = {"version": "v2.0", "data": [{"title": "B", "paragraphs": [{"context": BRIDGES[0].text, "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(document))
    first, second = read_questions([str(tmp_path / "squad.json")])
    assert (first.id, first.answers, first.context) == ("a", ("Mina Orlov",), BRIDGES[0].text)
    assert (second.id, second.answers, second.knows_its_place) == ("b", (), False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": " ", "answers": []}, "asked.jsonl, line 1: there is no question"),
        ({"question": "Who?"}, r"line 1: answers is not a list of texts; .* and \[\] where no document answers"),
        ({"question": "Who?", "answers": [3]}, "answers is not a list of texts"),
        ({"question": "Who?", "answers": [], "document": 3}, "document is no text"),
    ],
)
def test_wrong_rows_are_named(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_questions([lines(tmp_path / "asked.jsonl", row)])


def test_an_id_may_not_be_there_twice(tmp_path):
    row = {"id": "q", "question": "Who?", "answers": []}
    with pytest.raises(InputError, match="the id 'q' is there twice"):
        read_questions([lines(tmp_path / "asked.jsonl", row, row)])


def test_a_passage_holds_an_answer_as_whole_words():
    orlov, tower = BRIDGES[0], BRIDGES[2]
    assert Question("", "", ("the Mina Orlov!",)).is_held_by(orlov)
    assert not Question("", "", ("Mina Orlo",)).is_held_by(orlov)
    assert not Question("", "", ("the",)).is_held_by(orlov)  # nothing is left of it
    assert not Question("", "", ()).is_held_by(tower)


def test_a_passage_answers_if_it_is_of_the_known_document_or_paragraph():
    orlov, tower = BRIDGES[0], BRIDGES[2]
    assert Question("", "", ("1894",), document="bridges.md").is_answered_by(orlov)
    assert Question("", "", ("1894",), document="bridges.md#0").is_answered_by(orlov)
    assert not Question("", "", ("built",), document="bridges.md").is_answered_by(tower)
    assert Question("", "", ("1894",), context=f"Before. {orlov.text.replace(' ', '  ')} After.").is_answered_by(orlov)
    assert not Question("", "", ("built",), context=orlov.text).is_answered_by(tower)
