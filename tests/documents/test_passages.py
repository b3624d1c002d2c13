import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydist.documents.document import Block
from raydist.documents.passages import cut, pack, size


def words(count: int, word: str = "word") -> str:
    return " ".join([word] * count)


def texts(blocks, limit=10):
    return [passage.text for passage in pack(blocks, limit)]


def test_blocks_are_packed_up_to_the_limit_and_not_across_a_heading():
    blocks = [Block(words(4), ("A",)), Block(words(6), ("A",)), Block(words(1), ("A",)), Block(words(1), ("A", "B"))]
    assert [size(text) for text in texts(blocks)] == [10, 1, 1]
    assert texts(blocks)[0] == f"{words(4)}\n\n{words(6)}"


def test_lines_stand_below_each_other_and_a_passage_is_where_its_first_block_is():
    blocks = [Block("a | b", (), 3, is_line=True), Block("1 | 2", (), 5, is_line=True), Block("end", (), 7)]
    (passage,) = pack(blocks, 20)
    assert (passage.text, passage.line) == ("a | b\n1 | 2\n\nend", 3)


def test_a_long_paragraph_is_cut_between_sentences_into_pieces_alike():
    text = " ".join(f"This is sentence number {n}." for n in range(10))  # of five words
    pieces = cut(text, 30)
    assert [size(piece) for piece in pieces] == [25, 25]
    assert " ".join(pieces) == text


@pytest.mark.parametrize(
    "text", [words(100), "x" * 10_000, "漢字" * 500, "漢字の文です。" * 100, words(5, "x" * 1000), "a.b-" * 3000, ". " * 500]
)
def test_what_has_no_sentences_or_no_words_is_cut_too(text):
    pieces = cut(text, 10)
    assert all(size(piece) <= 10 for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.text(alphabet=st.sampled_from("ab .!?\n漢。x"), max_size=400), st.integers(1, 12))
def test_nothing_is_lost_and_nothing_is_too_long(text, limit):
    pieces = cut(text, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(size(piece) <= limit for piece in pieces if piece.strip())


def test_a_word_without_end_takes_no_time_to_speak_of():
    assert len(cut("x" * 2_000_000 + " y", 100)) > 1000
