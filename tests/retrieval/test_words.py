import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydist.errors import InputError
from raydist.retrieval import words
from raydist.retrieval.words import ENGLISH_STOP_WORDS, WordRules, stop_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The CAT, 3.5 km/h; x_1 isn't", ["the", "cat", "km", "x_1", "isn"]),
        ("Zürich ZU\u0308RICH", ["zürich", "zürich"]),  # composed and not
        ("हिन्दी में पानी।", ["हिन्दी", "में", "पानी"]),  # vowel signs stay
        ("أين تقع المدينة؟", ["أين", "تقع", "المدينة"]),
        ("東京は2020年", ["東", "京", "は", "2020", "年"]),
        ("ﬁne Ｗｉｄｅ", ["fine", "wide"]),
        ("a\0b nul\0byte", ["nul", "byte"]),
        ("Ελλάδας ΟΔΟΣ", ["ελλάδας", "οδος"]),
        ("don’t 🙂 smile", ["don", "smile"]),
        ("", []),
    ],
)
def test_words_of_any_script(text, expected):
    assert WordRules().tokenize(text) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_plain_ascii_takes_a_short_cut_to_the_same_words(text):
    *words, dash = WordRules(min_chars=1).tokenize(f"{text} –é")  # the last makes it take the other way
    assert dash == "é"
    assert WordRules(min_chars=1).tokenize(text) == words


def test_stop_words_of_ones_own_are_compared_as_texts_are():
    assert stop_words("none") == []
    assert frozenset(stop_words("english")) == ENGLISH_STOP_WORDS
    own = stop_words(["Der", "DIE", "wird's", "Ｆür", "der"])
    assert own == ["der", "die", "für", "s", "wird"]
    assert WordRules(stop_words=frozenset(own)).tokenize("Der Ort wird für die Elche gebaut") == ["ort", "elche", "gebaut"]


def test_a_missing_stemmer_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    words._stemmer.cache_clear()
    with pytest.raises(InputError, match="pip install PyStemmer"):
        WordRules(stemmer="english").tokenize("word")
