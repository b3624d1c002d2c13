import pytest
from helpers.documents import read_one

from raydist.corpus.rejected import INVALID_UTF8, WRONG_CONTENT, Fault


def test_paragraphs_stand_between_blank_lines_and_know_where_they_begin(tmp_path):
    document = read_one(tmp_path / "a.txt", "\r\none\r\ntwo \t three\r\n \t\r\n\r\nfour\x07\u200bfive\r\n")
    assert [(block.text, block.line) for block in document.blocks] == [("one two three", 2), ("four five", 6)]


def test_joiners_of_scripts_that_need_them_stay(tmp_path):
    (block,) = read_one(tmp_path / "a.txt", "می\u200cروم").blocks
    assert block.text == "می\u200cروم"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    (block,) = read_one(tmp_path / "a.txt", "Mühle".encode(encoding)).blocks
    assert block.text == "Mühle"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"M\xfchle", INVALID_UTF8), (b"a\0b", WRONG_CONTENT), (b"\x89PNG\r\n", WRONG_CONTENT), (b"PK\x03\x04", WRONG_CONTENT)],
)
def test_what_is_no_text_is_refused_by_name(tmp_path, content, reason):
    with pytest.raises(Fault) as fault:
        read_one(tmp_path / "a.txt", content)
    assert fault.value.reason == reason
