import pytest
from helpers.documents import read_file, write_pdf, write_scanned_pdf

from raydist.corpus.rejected import DAMAGED, ENCRYPTED, SCANNED, TOO_LARGE, WRONG_CONTENT, Fault
from raydist.documents.formats import pdf

LONG = "The mill by the river was built in the year 1746 by a man whose name is"


def blocks_of(path):
    (document,) = read_file(path)
    return [(block.text, block.headings, block.page) for block in document.blocks]


def refused(path) -> tuple[str, str]:
    with pytest.raises(Fault) as fault:
        read_file(path)
    return fault.value.reason, fault.value.detail


def test_lines_are_paragraphs_again_under_bookmarks_and_with_their_page(tmp_path):
    pages = [
        ["Mills", LONG, "Lamb. He also owned the exam-", "ple farm.", "Owner Year", "Lamb 1746"],
        [f"It was sold. {LONG}"],
        ["not known. He sold it to a man whose name is the same as that of", "his brother."],
    ]
    write_pdf(tmp_path / "a.pdf", pages, title="The mill", marks=[(0, 0, "Mills"), (1, 1, "Sales")])
    assert blocks_of(tmp_path / "a.pdf") == [
        (f"{LONG} Lamb. He also owned the example farm.", ("Mills",), 1),
        ("Owner Year", ("Mills",), 1),
        ("Lamb 1746", ("Mills",), 1),
        (
            f"It was sold. {LONG} not known. He sold it to a man whose name is the same as that of his brother.",
            ("Mills", "Sales"),
            2,
        ),
    ]


def test_properties_are_title_and_metadata(tmp_path):
    write_pdf(tmp_path / "a.pdf", [["text"]], title="The mill")
    (document,) = read_file(tmp_path / "a.pdf")
    assert document.title == "The mill"
    assert document.metadata["author"] == "Ada"
    assert document.metadata["created"].isoformat() == "2000-01-01T00:00:00+00:00"


def test_lines_at_head_and_foot_of_most_pages_are_left_out(tmp_path):
    pages = [["The mill and the river", f"{LONG} Lamb {number}.", f"page {number} of 5"] for number in range(5)]
    write_pdf(tmp_path / "a.pdf", pages)
    assert blocks_of(tmp_path / "a.pdf") == [(f"{LONG} Lamb {number}.", (), number + 1) for number in range(5)]


def test_a_scan_without_text_says_so(tmp_path):
    write_scanned_pdf(tmp_path / "a.pdf", pages=3)
    assert refused(tmp_path / "a.pdf") == (SCANNED, "3 of 3 pages are pictures; put text behind them (OCR)")


def test_an_encrypted_one_says_so_unless_it_opens_without_a_password(tmp_path):
    write_pdf(tmp_path / "a.pdf", [["secret"]], password="x")
    assert refused(tmp_path / "a.pdf") == (ENCRYPTED, "needs a password; save it without one")


def test_what_is_damaged_or_no_pdf_says_so(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n%%EOF")
    assert refused(tmp_path / "a.pdf")[0] == DAMAGED
    (tmp_path / "b.pdf").write_text("<html>")
    assert refused(tmp_path / "b.pdf") == (WRONG_CONTENT, "not a PDF: begins with b'<html>'")
    (tmp_path / "c.pdf").write_bytes(b"PK\x03\x04")
    assert refused(tmp_path / "c.pdf") == (WRONG_CONTENT, "not a PDF: a ZIP archive (a Word document, say)")


def test_pages_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf, "MOST_PAGES", 2)
    write_pdf(tmp_path / "a.pdf", [["text"]] * 3)
    assert refused(tmp_path / "a.pdf") == (TOO_LARGE, "3 pages, and there may be 2; cut it")
