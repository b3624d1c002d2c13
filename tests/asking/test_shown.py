"""Replies on a terminal and as JSON."""

import json
from dataclasses import replace

import pytest
from helpers.passages import BRIDGES, Found

from raydist.asking.asker import Reply
from raydist.asking.merge import FEATURES, Candidate
from raydist.asking.shown import marked, one_line, place_of, plain, reply_dict, reply_json, shown_reply

BUILT = BRIDGES[0]
NOTHING = (0.0,) * len(FEATURES)
BEST = Candidate("Mina Orlov", 0, 0, 10, 5.0, 2, NOTHING)
SECOND = Candidate("1911", 1, 24, 28, 3.0, 1, NOTHING)
REPLY = Reply("Who?", True, "Mina Orlov", 0.8125, BUILT, 0, 10, (BEST, SECOND), BRIDGES[:2], {"read": 0.1}, True, 0.5)


def test_an_answer_is_shown_with_probability_passage_and_place():
    assert shown_reply(REPLY).splitlines() == [
        "Mina Orlov  (p 0.81)",
        "  [[Mina Orlov]] built the Orla bridge in 1894.",
        "  bridges.md > Bridges > Orla, line 7",
    ]
    assert "\x1b[1;7mMina Orlov\x1b[0m built" in shown_reply(REPLY, colour=True)


def test_further_answers_follow_with_their_own_passages():
    lines = shown_reply(REPLY, n_best=2).splitlines()
    assert lines[4:] == [
        "2. 1911",
        "  The Orla bridge fell in [[1911]]. Nobody was on it.",
        "  bridges.md > Bridges > Orla, line 12",
    ]


def test_what_is_withheld_is_said_to_be_and_what_is_not_calibrated():
    assert shown_reply(replace(REPLY, answered=False)).startswith("not found (p 0.81, below 0.50); the nearest:\nMina Orlov")
    assert "(p 0.81, not calibrated)" in shown_reply(replace(REPLY, calibrated=False))
    nothing = replace(REPLY, answered=False, text="", source=None, candidates=(), passages=())
    assert shown_reply(nothing) == "not found: no passage has anything to do with it"
    assert one_line(replace(REPLY, answered=False)) == ""
    assert one_line(REPLY) == "Mina Orlov\tbridges.md > Bridges > Orla, line 7"


@pytest.mark.parametrize(
    ("passage", "place"),
    [
        (Found("a#0", "docs/cluster.md", "", ("Storage",), line=41), "docs/cluster.md > Storage, line 41"),
        (Found("a#0", "report.pdf", "", page=7), "report.pdf, page 7"),
        (Found("a#0", "notes.docx", ""), "notes.docx"),
        (Found("a#0", "a\x1b[2Jb\n.md", "", ("\x07Bell",)), "a[2Jb .md > Bell"),
    ],
)
def test_places(passage, place):
    assert place_of(passage) == place


HOSTILE = "\x1b]0;title\x07 \x9b31m \u202egnp.exe\u2066 a\r\nb\tc \x00\x7f \ud800 \u200d"


def test_nothing_of_a_document_acts_on_a_terminal():
    passage = Found("x#0", HOSTILE, HOSTILE, (HOSTILE,))
    candidate = Candidate(HOSTILE, 0, 0, len(HOSTILE), 1.0, 1, NOTHING)
    reply = replace(REPLY, text=HOSTILE, source=passage, candidates=(candidate, candidate), passages=(passage,))
    for text in (shown_reply(reply, n_best=2), one_line(reply), reply_json(reply, n_best=2), plain(HOSTILE)):
        seen = set(text) - {"\n", "\t"}
        assert not [char for char in seen if ord(char) < 32 or 127 <= ord(char) < 160]
        assert not seen & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ud800")
    assert len(one_line(reply).splitlines()) == 1
    assert json.loads(reply_json(reply))["text"] == HOSTILE  # as it is, for programs


def test_right_to_left_writing_and_joiners_stay():
    assert plain("سلام\u200fعلي\u200cها 😀") == "سلام\u200fعلي\u200cها 😀"


def test_a_long_passage_is_cut_around_the_answer():
    text = "a" * 1000 + " Mina " + "b" * 1000
    shown = marked(text, 1001, 1005)
    assert shown.startswith("… aaa")
    assert "[[Mina]]" in shown
    assert shown.endswith("bbb …")
    assert len(shown) < 500


def test_json_has_what_a_program_needs():
    found = reply_dict(REPLY, n_best=2)
    assert found["source"]["text"][found["start"] : found["end"]] == found["text"] == "Mina Orlov"
    assert [candidate["source"]["passage_id"] for candidate in found["candidates"]] == ["bridges.md#0", "bridges.md#1"]
    assert json.loads(reply_json(REPLY, n_best=2)) == json.loads(json.dumps(found))
    assert "\n" not in reply_json(REPLY)
