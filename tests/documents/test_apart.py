"""A parser that dies, hangs or swells costs one file."""

import os
import signal
import threading
import time

import pytest
from helpers.documents import write_pdf_bomb

from raydist.corpus.rejected import CRASHED, EMPTY_DOCUMENT, TOO_SLOW, Fault
from raydist.documents.apart import Apart, answer_to
from raydist.documents.document import File
from raydist.errors import InputError


@pytest.fixture
def file(tmp_path):
    def file(name: str, content: str) -> File:
        (tmp_path / name).write_text(content)
        return File(tmp_path / name, name)

    return file


def test_a_document_comes_back_as_it_was_read(file):
    document = Apart(60).read(file("a.md", "---\nday: 2020-02-29\ntitle: T\n---\n# H\n\nMühle\n\n- x"))
    assert [(one.text, one.headings, one.line, one.is_line) for one in document.blocks] == [
        ("Mühle", ("H",), 7, False),
        ("x", ("H",), 9, True),
    ]
    assert document.metadata["day"].isoformat() == "2020-02-29"
    assert document.title == "T"


def test_a_file_that_takes_too_long_is_given_up_and_the_next_one_is_read(file):
    apart = Apart(1.0)
    slow = file("slow.txt", "x")
    apart.read(file("a.txt", "before"))
    process = apart._process
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Fault) as fault:
        apart.read(slow)
    assert (fault.value.reason, fault.value.detail) == (TOO_SLOW, "more than documents.max_seconds, which is 1")
    assert process.poll() is not None
    assert Apart(60).read(file("b.txt", "after")).blocks[0].text == "after"


def test_a_pdf_of_few_bytes_that_unpacks_to_many_is_given_up(tmp_path):
    write_pdf_bomb(tmp_path / "a.pdf", 300 << 20)
    assert (tmp_path / "a.pdf").stat().st_size < 10_000
    with pytest.raises(Fault) as fault:
        Apart(0.5).read(File(tmp_path / "a.pdf", "a.pdf"))
    assert fault.value.reason == TOO_SLOW


def test_a_parser_that_dies_is_the_files_fault_and_the_next_one_is_read(file):
    apart = Apart(60)
    apart.read(file("a.txt", "before"))
    process = apart._process
    os.kill(process.pid, signal.SIGSTOP)  # so that it is killed with the file in hand

    def kill() -> None:
        time.sleep(0.2)
        process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Fault) as fault:
        apart.read(file("b.txt", "x"))
    killer.join()
    assert (fault.value.reason, fault.value.detail) == (CRASHED, "the process that parsed it ended with status -9")
    assert apart.read(file("c.txt", "after")).blocks[0].text == "after"


def test_the_process_ends_with_its_reader(file):
    apart = Apart(60)
    apart.read(file("a.txt", "x"))
    process = apart._process
    del apart
    assert process.poll() == -9


def test_what_a_parser_stumbles_over_is_named(tmp_path, monkeypatch):
    import raydist.documents.formats.text as text

    request = {"path": str(tmp_path / "a.txt"), "name": "a.txt", "max_bytes": 100}
    (tmp_path / "a.txt").write_text(" ")
    assert answer_to(request)["reason"] == EMPTY_DOCUMENT

    def stumble(file):
        raise ZeroDivisionError("over a stone")

    monkeypatch.setattr(text, "read", stumble)
    assert answer_to(request) == {"reason": "damaged", "detail": "ZeroDivisionError: over a stone"}


def test_a_missing_package_is_the_users_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "raydist.documents.formats.docx", None)
    (tmp_path / "a.docx").write_text("x")
    answer = answer_to({"path": str(tmp_path / "a.docx"), "name": "a.docx", "max_bytes": 100})
    assert "pip install 'raydist[documents]'" in answer["problem"]
    assert isinstance(InputError(answer["problem"]), ValueError)
