"""Where sentences end."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raydist.corpus.sentences import split_sentences


def pieces(text, language="en"):
    return [text[start:end] for start, end in split_sentences(text, language)]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Smith met Mr. J. R. Brown.", "They spoke for 3.5 hours."]),
        ("en", ["It cost $3.50.", "He paid."]),
        ("en", ["The U.S. Senate met.", "It was late."]),
        ("en", ["He left the U.S. for good.", "She stayed in the U.S.", "They never met again."]),
        ("en", ['"Go!" he said.', '"Why?" she asked.', "Nobody knew."]),
        ("en", ['He said "Stop."', "Then he left.", "(Nobody saw it.)", "“It rained.”", "Yes."]),
        ("en", ["Wait... and see.", "Well...", "Then it ended…", "Or not?!", "Yes!!"]),
        ("en", ["See No. 5, pp. 12 and Vol. 3.", "No.", "Next, e.g. this one, i.e. that."]),
        ("en", ["Visit example.org today.", "Version 2.0.1 is out."]),
        ("de", ["Am 3. Oktober kam z.B. Dr. Müller.", "Er blieb."]),
        ("es", ["El Sr. García llegó.", "¿Quién era?", "¡Nadie lo sabía!"]),
        ("ar", ["أين تقع المدينة؟", "تقع على النهر.", "نعم."]),
        ("hi", ["नदी कहाँ है।", "यह यहाँ है॥", "ठीक।"]),
        ("el", ["Πού είναι;", "Εδώ."]),
        ("vi", ["Ông ở TP. Huế.", "Sông ở đâu?"]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(language, sentences):
    assert pieces(" ".join(sentences), language) == sentences


def test_chinese_and_hindi_need_no_blank_after_the_stop():
    assert pieces("他来了。她说：「走！」他们走了吗？是。", "zh") == ["他来了。", "她说：「走！」", "他们走了吗？", "是。"]
    assert pieces("नदी है।यह है।", "hi") == ["नदी है।", "यह है।"]


def test_a_number_with_a_stop_is_an_ordinal_in_german_and_an_end_in_english():
    assert len(pieces("Er war der 3. Am Ende", "de")) == 1
    assert len(pieces("He was number 3. Finally", "en")) == 2


def test_a_blank_line_ends_a_sentence_and_a_line_break_does_not():
    assert pieces("A title\n\nThe text\ngoes on\n \n  More") == ["A title", "The text\ngoes on", "More"]


odd = st.text(st.sampled_from(list("aB1 .!?…。؟।॥;\"'”)»(\n\t\u00a0\u3000\u200bé")), max_size=60)


@settings(max_examples=400, deadline=None)
@given(odd | st.text(max_size=60), st.sampled_from(["en", "de", "el", "zh", "ar", "hi", "xx"]))
@example("", "en")
@example(" \n\n ", "en")
@example("a.\n\n\n.b", "en")
def test_sentences_are_slices_in_order_that_leave_out_nothing_but_blanks(text, language):
    spans = split_sentences(text, language)
    at = 0
    for start, end in spans:
        assert at <= start < end <= len(text)
        assert text[at:start].strip() == ""  # what lies between is blank
        assert text[start:end] == text[start:end].strip() != ""
        at = end
    assert text[at:].strip() == ""
