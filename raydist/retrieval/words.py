"""Text to terms: words of any script, stop words, stems."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import InputError

# Lucene's short list; any other words can be given instead.
ENGLISH_STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "  # noqa: SIM905
    "this to was will with".split()
)

# Written without blanks between words: one token per character (with its marks). Thai, Lao, Myanmar, Khmer, kana, Han.
_UNSEGMENTED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
)
SEPARATOR = "\0"  # between texts; never part of a word
# Bytes of ASCII text to its lower-case words: all but letters, digits and the underscore become blanks.
_ASCII_WORDS = bytes(ord(chr(c).lower()) if c < 128 and (chr(c).isalnum() or c == ord("_")) else ord(" ") for c in range(256))


@lru_cache
def _unicode_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Words of any script; and one character of a script without blanks, with its marks."""
    characters = [chr(c) for c in range(0x10000)]
    # Python's \w leaves out combining marks and would cut Hindi words at their vowel signs.
    marks = {c for c in characters if unicodedata.category(c)[0] == "M"}
    words = _ranges(c for c in characters if c.isalnum() or c == "_" or c in marks)
    beyond = "\U00010000-\U0001efff\U00020000-\U000323af"  # further scripts, taken as letters throughout
    return re.compile(f"[{words}{beyond}]+"), re.compile(f"[{_UNSEGMENTED}][{_ranges(marks)}]*")


def _ranges(characters: Iterable[str]) -> str:
    """Characters as the inside of a regular expression's brackets."""
    runs: list[list[int]] = []
    for point in sorted(map(ord, characters)):
        if runs and runs[-1][1] == point - 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs)


def _blank_between_words(text: str) -> str:
    """The words of a text in lower case, blanks between them, everything else left out."""
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode()
    words, unsegmented = _unicode_patterns()
    text = unicodedata.normalize("NFKC", text).lower()
    return " ".join(words.findall(unsegmented.sub(r" \g<0> ", text)))


def stop_words(given: str | Sequence[str]) -> list[str]:
    """Stop words from `none`, `english` or a list, normalised like indexed text: "Don't" becomes don and t."""
    named: dict[str, Iterable[str]] = {"none": (), "english": ENGLISH_STOP_WORDS}
    words = named[given] if isinstance(given, str) else given
    return sorted({part for word in words for part in _blank_between_words(word).split()})


@dataclass(frozen=True, slots=True)
class WordRules:
    """Text to terms: NFKC, lower case, words of ``min_chars`` or more; then stop words out and, if asked, stems."""

    min_chars: int = 2  # ignored for scripts written without blanks
    stop_words: frozenset[str] = field(default_factory=frozenset)
    stemmer: str = ""  # a Snowball language such as "english"; needs PyStemmer

    def words(self, texts: Iterable[str]) -> pa.DictionaryArray:
        """All words of all texts in one column, a separator after each text; each distinct word is stored once."""
        joined = "".join(f"{_blank_between_words(text)} {SEPARATOR} " for text in texts).rstrip(" ")
        return pc.ascii_split_whitespace(pa.array([joined], pa.large_string())).values.dictionary_encode()

    def terms(self, words: Sequence[str]) -> list[str]:
        """The term of each word; empty for a separator, a word that is too short, a stop word."""
        _, unsegmented = _unicode_patterns()
        stems = _stemmer(self.stemmer).stemWords(list(words)) if self.stemmer else words
        return [
            stem
            if word != SEPARATOR and word not in self.stop_words and (len(word) >= self.min_chars or unsegmented.match(word))
            else ""
            for word, stem in zip(words, stems)
        ]

    def tokenize(self, text: str) -> list[str]:
        """The terms of one text, in order."""
        return [term for term in self.terms(self.words([text]).to_pylist()) if term]


@lru_cache
def _stemmer(language: str) -> Any:
    try:
        import Stemmer
    except ImportError:
        raise InputError("stemming needs PyStemmer: pip install PyStemmer, or leave the stemmer empty") from None
    if language not in Stemmer.algorithms():
        raise InputError(f"no stemmer for {language!r}; there are {', '.join(Stemmer.algorithms())}")
    return Stemmer.Stemmer(language)
