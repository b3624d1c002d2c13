"""Questions from a pipe, and at a prompt."""

import io
import json

import pytest
from helpers.passages import InMemory

from raydist.asking.asker import Asker
from raydist.asking.session import Showing, ask_library
from raydist.errors import InputError

SETTINGS = {"kind": "bm25", "k": 3}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def ask(reader, monkeypatch, capsys):
    """What is printed, and what is said beside it."""

    def ask(stdin: io.StringIO, question: str | None = None, **showing) -> tuple[str, str]:
        monkeypatch.setattr("sys.stdin", stdin)
        ask_library(InMemory(), question, {"reader": reader, **SETTINGS}, Showing(**showing))
        captured = capsys.readouterr()
        return captured.out, captured.err

    return ask


def test_one_question_has_one_reply_and_the_note_goes_beside_it(ask, reader):
    out, err = ask(io.StringIO(), "Who built the bridge?")
    assert out.startswith(Asker(InMemory(), reader, **SETTINGS).ask("Who built the bridge?").text)
    assert "note: probabilities are not calibrated" in err


def test_each_question_of_a_pipe_has_a_line(ask, reader):
    out, _ = ask(io.StringIO("Who built the bridge?\n\nWhen did it fall?\n"))
    replies = Asker(InMemory(), reader, **SETTINGS).ask(["Who built the bridge?", "When did it fall?"])
    assert [line.split("\t")[0] for line in out.splitlines()] == [reply.text for reply in replies]


def test_a_pipe_with_json_has_one_object_for_each_question(ask):
    out, _ = ask(io.StringIO("Who built the bridge?\nWhen did it fall?"), as_json=True, n_best=2)
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["question"] for each in found] == ["Who built the bridge?", "When did it fall?"]
    assert [len(each["candidates"]) for each in found] == [2, 2]


def test_a_prompt_answers_until_the_end_of_the_input(ask):
    out, _ = ask(Terminal("Who built the bridge?\n \nWhen did it fall?\n"))
    assert out.count("question: ") == 4  # two questions, an empty line, and Ctrl-D
    assert out.count("not calibrated") == 2


def test_a_filter_holds_for_every_question(ask):
    out, _ = ask(io.StringIO("Who built the tower?\n"), where="bridges.md", as_json=True)
    assert json.loads(out)["source"]["document_id"] == "bridges.md"


def test_no_answers_are_not_asked_for():
    with pytest.raises(InputError, match="n_best is 0; wanted 1 or more"):
        Showing(n_best=0)
