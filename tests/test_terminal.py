"""What a stage says while it goes on, also where nothing comes to tell."""

import json
import re
import sys
import time
from types import SimpleNamespace

import pytest

from raydist import terminal as progress
from raydist.terminal import Progress, complain, duration, escaped, plain, said_if_long, say, shown_json


@pytest.fixture
def heard(capsys):
    """All that was printed, once it holds some text so many times."""
    said = ""

    def heard(text: str = "", times: int = 1) -> str:
        nonlocal said
        ends = time.monotonic() + 60
        while True:
            said += capsys.readouterr().out
            if said.count(text) >= times:
                return said
            assert time.monotonic() < ends, f"{text!r} never came; heard was {said!r}"
            time.sleep(0.01)

    return heard


def test_a_long_part_is_not_silent(heard, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    with Progress("read", 2, "parts") as bar:
        heard("read: 0/2 parts, for ", times=2)
        bar.update(1, "so far")
        heard("read: 1/2 parts, ")
        bar.update(2)
    assert not bar.thread.is_alive(), "nothing more is said"
    wanted = r"(read: 0/2 parts, for \d+ s\n){2,}(read: 1/2 parts, \S+/s, \d+ s left so far\n)+(read: 2.*\n)+"
    assert re.fullmatch(wanted, heard("read: 2 parts in "))


def test_what_has_no_parts_is_told_where_it_is_long(heard, monkeypatch):
    with said_if_long("report: drawing"):
        pass
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.02)
    with said_if_long("scoring"):
        assert heard("scoring") == "scoring\n"


def test_what_goes_fast_says_one_line(heard):
    with Progress("read", 100, "parts", done=40) as bar:
        for done in range(40, 101):
            bar.update(done)
    assert re.fullmatch(r"read: 100 parts in \d+ s \(\S+/s\)\n", heard())


def test_on_a_terminal_the_line_is_drawn_again(heard, monkeypatch):
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.05)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Progress("read", 2, "parts") as bar:
        heard("\r\x1b[Kread: 0/2 parts, for ", times=3)
        bar.say("a warning")
        bar.update(2)
    drawn = heard(" in ").split("\r\x1b[K")
    whole = [line for line in drawn if line.endswith("\n")]
    assert whole == ["a warning\n", drawn[-1]]
    assert drawn[-1].startswith("read: 2 parts in ")


def test_a_stage_that_fails_falls_silent(heard, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    bar = Progress("read", 2, "parts")

    def fail() -> None:
        with bar:
            heard("read: 0/2")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not bar.thread.is_alive()
    assert " in " not in heard(), "it did not come to its end"


def test_a_total_may_come_later_and_lost_work_is_not_counted(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    bar = Progress("train", 0, "steps")  # not entered: no thread looks at the clock

    def after_a_minute(done: float, **more: float) -> str:
        nonlocal now
        now += 60
        bar.update(done, **more)
        return capsys.readouterr().out

    assert after_a_minute(60, total=240) == "train: 60/240 steps, 1/s, 3 min 00 s left\n"
    assert after_a_minute(20) == "train: 20/240 steps, for 0 s\n"
    assert after_a_minute(140) == "train: 140/240 steps, 2/s, 50 s left\n"  # 120 in the minute since the loss


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7265, "2 h 01 min"), (-3, "0 s")],
)
def test_durations(seconds, told):
    assert duration(seconds) == told


NASTY = "\x1b]0;title\x07 \x9b2J \u202e \ud800 \x00 \r"


def test_nothing_that_is_printed_is_obeyed_by_the_terminal(capsys):
    say(NASTY)
    complain(NASTY)
    with Progress(f"read {NASTY}", 1, "rows") as bar:
        bar.say(NASTY)
        bar.update(1, note=NASTY)
    print(plain(NASTY), shown_json({NASTY: NASTY}))
    out, err = capsys.readouterr()
    assert "\\x1b]0;title\\x07 \\x9b2J \\u202e \\ud800 \\x00 \\r" in out
    assert err.startswith("\\x1b]0")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", out + err)


def test_shown_json_reads_back_and_text_of_any_language_stays_as_it_is():
    text = "\u200fשלום\u200d é\u0301 👩\u200d🚀 \u3000 \x9b\n"
    assert json.loads(shown_json({text: [text]})) == {text: [text]}
    assert escaped(text[:-2]) == text[:-2]
    assert plain("a\x1b[31mb\r\nc\u202ed\u3000e") == "a[31mb  cd e"


def test_a_very_long_complaint_is_cut(capsys):
    complain("x" * 1_000_000)
    assert len(capsys.readouterr().err) < 30_000
