import pytest

from raydist.documents.document import Block
from raydist.documents.language import detected, known_language
from raydist.errors import InputError

GERMAN = "Die Mühle am Fluss wurde im Jahr 1746 gebaut und gehörte lange Zeit der Familie Lamm."


def test_a_declared_language_is_taken_without_its_region():
    assert [known_language(name) for name in ("de-AT", "EN_us", " fr ", "", "x-klingon", "deutsch")] == [
        "de",
        "en",
        "fr",
        "",
        "",
        "",
    ]


def test_an_undeclared_one_is_told_by_words_enough():
    assert detected([Block("Die Mühle"), Block(GERMAN)]) == "de"
    assert detected([Block("The mill by the river was built in 1746, and for a long time it was owned by the Lambs.")]) == "en"
    assert detected([Block("1746 | 1747")]) == detected([]) == detected([Block("Mill")]) == ""


def test_languages_may_be_named_among_which_it_is():
    assert detected([Block(GERMAN)], ("de", "nl")) == "de"
    with pytest.raises(InputError, match=r"documents.languages: 'qq' cannot be detected; supported are af, "):
        detected([Block(GERMAN)], ("de", "qq"))
