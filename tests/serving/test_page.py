"""Both views in a real browser: asking, filtering, judging, by hand and by keyboard; and what must never run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from helpers.browser import chromium
from helpers.mined_run import MARKUP as MINED_MARKUP
from helpers.mined_run import write_mined_run
from helpers.serving import MARKUP, served

from raydist.config.serving import ServingConfig
from raydist.judgements.reading import read_judgements
from raydist.serving.answering import Answering, LocalService, Opening
from raydist.serving.flow import app_of
from raydist.serving.metrics import Metrics

ENTER, TAB = "\ue007", "\ue004"
QUESTION = "Who built the Orla bridge?"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile") / "empty") as browser:
        yield browser


@pytest.fixture
def browser(chrome):
    """The browser at its usual size; whatever a page tries against its policy fails the test."""
    chrome.look()
    chrome.log()
    yield chrome
    assert not [line for line in chrome.log() if is_violation(line)]
    chrome.open("about:blank")


def is_violation(line: str) -> bool:
    return "Content Security Policy" in line or "TrustedHTML" in line or "Content-Security-Policy" in line


@pytest.fixture(scope="module")
def page_of(answering):
    """Settings -> the address of a service with both views."""
    with ExitStack() as stack:

        def page_of(answering=answering, **settings) -> str:
            config, metrics = ServingConfig(rate=None, **settings), Metrics()
            service = LocalService(answering, config, metrics)
            stack.callback(service.end)
            return stack.enter_context(served(app_of(service, config, metrics), config, metrics))

        yield page_of


@pytest.fixture(scope="module")
def judgements(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("judged") / "judgements.jsonl"


@pytest.fixture(scope="module")
def address(page_of, judgements) -> str:
    return page_of(judgements=str(judgements))


def ask(browser, address: str, question: str, **fields: str) -> None:
    browser.open(f"{address}/")
    browser.until_text("passages", "#facts")
    if fields:
        browser.click("summary")
    for name, text in fields.items():
        browser.type(f"#{name}", text)
    browser.type("#question", question + ENTER)


def marks(browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('#result mark')].map((each) => each.textContent)")


def sources(browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('#result .source')].map((each) => each.textContent)")


# --- asking ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_marked_in_its_passage_with_source_and_scores(browser, address):
    ask(browser, address, QUESTION)
    browser.until_text("Answered in", "#status")
    answer = browser.text("#answer")
    assert answer
    assert marks(browser)[0] == answer
    assert browser.run("return document.activeElement.contains(document.getElementById('answer'))")
    assert re.search(r"\d %.*not calibrated", browser.text(".sure"))
    assert re.search(r"\.(md|pdf|txt|html).*(line|page) \d", sources(browser)[0])
    assert re.match(r"BM25\s+\d.*Vectors\s+-?\d", browser.text(".scores"), re.DOTALL)
    assert browser.run("return document.querySelectorAll('.others li').length") == len(marks(browser)) - 1 > 0
    assert browser.run("return document.querySelector('footer').hidden")  # no mined pairs are served here
    assert browser.log() == []


def test_a_condition_and_the_number_of_passages_narrow_what_is_read(browser, address):
    ask(browser, address, "Who built the bridge or the tower?", where="document_id = 'towers.pdf'")
    browser.until_text("Answered in", "#status")
    assert sources(browser)
    assert all(source.startswith("towers.pdf, page 3") for source in sources(browser))
    browser.open(f"{address}/")
    browser.click("summary")
    browser.until_text("year", "#columns")
    browser.run("document.querySelector('#columns').lastChild.scrollIntoView()")
    for button in browser.run("return [...document.querySelectorAll('#columns button')].map((each) => each.textContent)"):
        assert "'" not in button
    browser.run("[...document.querySelectorAll('#columns button')].find((each) => each.textContent == 'year').click()")
    browser.command(f"element/{browser.find('#where')}/value", text=" > 1000000")
    browser.type("#question", QUESTION + ENTER)
    browser.until_text("Not found in these documents", "#result")
    assert "No passage has anything to do with it" in browser.text("#result")
    browser.type("#where", "yeer > 1")
    browser.click("#ask .main")
    browser.until_text("yeer", "#problem")  # the service's own sentence
    assert browser.text("#result") == ""
    browser.type("#where", " ")
    browser.type("#k", "1")
    browser.run("document.querySelector('#kind').value = 'bm25'")
    browser.click("#ask .main")
    browser.until_text("Answered in", "#status")
    assert len(set(sources(browser))) == 1


def test_right_and_wrong_are_saved_changed_and_taken_back(browser, address, judgements):
    ask(browser, address, QUESTION)
    browser.until_text("Answered in", "#status")
    browser.click("#result .card .yes")
    browser.until_text("Saved", "#result .card .say")
    (said,) = read_judgements([judgements]).verdicts
    assert (said.question, said.right, said.answer.text) == (QUESTION, True, browser.text("#answer"))
    assert said.text[said.answer.start : said.answer.end] == said.answer.text
    assert said.text_id.startswith(said.document)
    pressed = "return [...document.querySelectorAll('#result .card .say button')].map((each) => each.ariaPressed)"
    assert browser.run(pressed) == ["true", "false"]
    browser.press(TAB, " ")  # to `Wrong`, which the keyboard presses as well
    browser.until(lambda: browser.run(pressed) == ["false", "true"])
    assert [each.right for each in read_judgements([judgements]).verdicts] == [False]
    browser.press(" ")
    browser.until_text("Taken back", "#result .card .say")
    assert read_judgements([judgements]).verdicts == []
    assert len(judgements.read_bytes().splitlines()) == 4


def test_not_found_is_said_with_the_nearest_candidates(browser, page_of, index, reader_folder, judgements):
    strict = Answering(Opening(index, {"reader": reader_folder, "k": 3, "threshold": 1.0}))
    ask(browser, page_of(strict, judgements=str(judgements)), QUESTION)
    browser.until_text("Not found in these documents", "#result")
    assert "below the threshold of 100 %" in browser.text(".card")
    assert "The nearest candidates" in browser.text(".others")
    assert len(marks(browser)) > 1
    browser.click(".card .yes")
    browser.until_text("Saved", ".card .say")
    (said,) = read_judgements([judgements]).verdicts
    assert (said.text, said.right) == (None, True)


def test_markup_of_a_document_or_a_question_stays_text(browser, address):
    ask(browser, address, "Has the mill of Oder burned <img src=x onerror=\"document.title='run'\">?")
    browser.until_text(MARKUP, "#result")
    assert "<img src=x onerror=alert(1)>.html" in browser.text("#result")
    assert browser.run("return document.querySelectorAll('#result script, #result img').length") == 0
    assert browser.run("return document.title").startswith("Ask ")


def test_the_policy_would_be_seen_to_be_broken(chrome, address):
    chrome.open(f"{address}/")
    chrome.log()
    chrome.run("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.2:9/x.png'}))")
    chrome.run("const made = document.createElement('script'); made.append('window.ran = 1'); document.body.append(made)")
    assert chrome.until(lambda: [line for line in chrome.log() if is_violation(line)])
    assert chrome.run("return window.ran ?? null") is None


def test_a_token_is_asked_for_and_kept_for_the_tab(browser, page_of, tmp_path):
    (tmp_path / "tokens").write_text("good-token-of-this-test\n")
    browser.open(f"{page_of(token_file=str(tmp_path / 'tokens'))}/")
    for token in ("bad-token-of-this-test", "good-token-of-this-test"):
        browser.until(lambda: browser.run("return document.querySelector('#sign-in').open"))
        assert browser.run("return document.activeElement.id") == "token"
        browser.type("#token", token + ENTER)
    browser.until_text("passages", "#facts")
    assert browser.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
    browser.command("refresh")
    browser.until_text("passages", "#facts")


# --- judging ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def mined(tmp_path) -> Path:
    return write_mined_run(tmp_path)


def verdicts(run: Path) -> dict[tuple, bool | None]:
    return {(each.question_id, each.text_id): each.right for each in read_judgements([run / "judgements.jsonl"]).verdicts}


def progress(browser) -> str:
    return browser.text("#facts").partition(" · ")[2]


def test_pairs_are_judged_by_keyboard_undone_and_kept(browser, page_of, mined):
    browser.open(f"{page_of(mined=str(mined))}/judge")
    browser.until_text("When was the Orla bridge built?", "#asked")
    assert browser.text("#pair blockquote").startswith("The Orla bridge was drawn by Mina Orlov. It was built in 1894")
    assert browser.text("#pair mark") == "It fell in 1911."
    assert "weight 0.27" in browser.text(".why")
    assert "It was built in 1894, of iron." in browser.text(".known")
    browser.press("r")
    browser.until_text("What spans", "#asked")
    assert browser.run("return document.activeElement.id") == "pair"
    browser.press("a")
    browser.until_text("When was the Orla bridge built?", "#asked")
    assert "Not kept: p below the threshold" in browser.text(".why")
    browser.press("s")
    browser.until_text("1 accepted, 1 rejected, 1 skipped", "#facts")
    wanted = {("q1", "orla#2"): False, ("q2", "oder#0"): True}
    assert verdicts(mined) == wanted
    shown = browser.text("#pair")
    browser.command("refresh")
    browser.until_text("2 of 7 pairs judged", "#facts")
    assert browser.text("#pair") == shown
    browser.press("u")
    browser.until_text("0 skipped", "#facts")
    browser.press("u")
    browser.until_text("What spans", "#asked")
    assert verdicts(mined) == {("q1", "orla#2"): False}
    browser.press("r")
    browser.until_text("2 rejected", "#facts")
    assert verdicts(mined) == dict.fromkeys(wanted, False)


def test_pairs_are_chosen_by_what_became_of_them(browser, page_of, mined):
    def choose(name, value):
        script = "const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))"
        browser.run(script, name, value)

    browser.open(f"{page_of(mined=str(mined))}/judge")
    browser.until_text("When was the Orla bridge built?", "#asked")
    choose("show", "not kept")
    browser.until_text("The tower of Veld was built", "#pair")
    shown = browser.text("#context")  # the beginning of a long paragraph
    assert shown.startswith("The tower of Veld was built in 1790. Nobody lives in it. Its stones")
    assert shown.endswith(" …")
    assert 400 < len(shown) < 500
    browser.click("#reject")
    browser.until_text("The mill beside it burned.", "#pair mark")
    choose("verdict", "rejected")
    browser.until_text("Judged before: rejected.", "#pair")
    choose("verdict", "accepted")
    browser.until_text("No such pair is left.", "#status")
    assert browser.run("return document.getElementById('accept').disabled")
    choose("verdict", "undecided")
    browser.until_text("The mill beside it burned.", "#pair mark")
    browser.run("document.getElementById('show').focus()")
    browser.press("r")  # is typed into a field
    browser.click("#keys")
    browser.press("r")  # keys are switched off
    browser.click("#keys")
    browser.run("document.getElementById('keys').blur()")
    assert progress(browser).startswith("1 of 7")
    choose("show", "kept")
    browser.until_text("It fell in 1911.", "#pair mark")


def test_markup_and_right_to_left_texts_of_pairs(browser, page_of, mined):
    browser.open(f"{page_of(mined=str(mined))}/judge")
    browser.until_text("Orla", "#asked")
    browser.press("s")
    browser.until_text("What spans the <i>Oder</i>?", "#asked")
    assert browser.text("#pair mark") == MINED_MARKUP
    assert browser.run("return document.querySelectorAll('#pair img, #pair i, #pair b').length") == 0
    assert browser.run("return document.title") == "Judge mined pairs"
    seen = "return [...document.querySelectorAll('#pair h2, #pair blockquote')].map((e) => getComputedStyle(e).direction)"
    assert browser.run(seen) == ["ltr", "ltr"]
    for left in range(5, 0, -1):
        if "הגשר" in browser.text("#asked"):
            break
        browser.press("s")
        browser.until_text(f"{7 - left} skipped", "#facts")
    assert browser.run(seen) == ["rtl", "rtl"]


@contextmanager
def judging(run: Path):
    """The command `raydist judge`, and its address."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "raydist", "judge", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        assert process.stdout
        said = next(line for line in process.stdout if "pairs at http" in line)
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield re.search(r"http://[\d.:]+", said)[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_the_command_keeps_the_work_when_it_is_killed_in_the_middle_of_a_line(browser, mined):
    with judging(mined) as address:
        browser.open(address)  # the view is at / as well
        browser.until_text("Orla", "#asked")
        browser.press("a")
        browser.until_text("1 accepted", "#facts")
    with (mined / "judgements.jsonl").open("ab") as file:
        file.write(b'{"question": "Wh')
    with judging(mined) as address:
        browser.open(address)
        browser.until_text("1 of 7 pairs judged", "#facts")
        browser.press("a")
        browser.until_text("2 accepted", "#facts")
    assert list(verdicts(mined).values()) == [True, True]


# --- what it looks like ----------------------------------------------------------------------------------------------


def test_both_views_are_accessible_and_fit_a_phone(browser, page_of, mined, judgements):
    address = page_of(mined=str(mined), judgements=str(judgements))

    def check():
        for dark in (False, True):
            browser.look(width=390, height=844, dark=dark)
            assert browser.run("return [document.documentElement.scrollWidth, window.innerWidth]") == [390, 390]
            assert browser.faults() == []

    ask(browser, address, QUESTION, where="year > 1")
    browser.until_text("Answered in", "#status")
    check()
    browser.look()
    browser.open(f"{address}/judge")
    browser.until_text("Orla", "#asked")
    check()
    browser.run("document.querySelector('#accept').remove(); document.querySelector('label').remove()")
    assert browser.faults()  # it would be seen
