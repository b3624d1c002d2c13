"""Blocks -> passages: as many blocks as fit, never across a heading; longer blocks are cut at sentence ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raydist.corpus.sentences import split_sentences
from raydist.documents.document import Block

Span = tuple[int, int]

CHARACTERS = 12  # per word on average: longer words (addresses, codes) count as several
_UNSPACED = re.compile(  # scripts without blanks between words: two characters count as one word
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_WORD = re.compile(r"\S+")


@dataclass(slots=True)
class Passage:
    """Consecutive blocks as one text."""

    text: str
    headings: tuple[str, ...]
    page: int | None
    line: int | None


def size(text: str) -> int:
    """The length of a text in words, or in equivalents of words."""
    unspaced = 0 if text.isascii() else len(_UNSPACED.findall(text)) // 2
    return max(len(text.split()) + unspaced, -(-len(text) // CHARACTERS))


def pack(blocks: Iterable[Block], words: int, language: str = "en") -> Iterator[Passage]:
    """Passages of at most `words` words."""
    passage: Passage | None = None
    for block in blocks:
        separator = "\n" if block.is_line else "\n\n"
        for text in cut(block.text, words, language):
            joined = f"{passage.text}{separator}{text}" if passage and passage.headings == block.headings else ""
            if passage and joined and size(joined) <= words:
                passage.text = joined
                continue
            if passage:
                yield passage
            passage = Passage(text, block.headings, block.page, block.line)
    if passage:
        yield passage


def cut(text: str, words: int, language: str = "en") -> list[str]:
    """A text in pieces of at most `words` words and similar length, cut between sentences if possible."""
    total = size(text)
    if total <= words:
        return [text]
    enough = -(-total // -(-total // words))  # words per piece, if all are equal
    pieces: list[Span] = []
    for start, end in _short_spans(text, split_sentences(text, language), words):
        if pieces and size(text[slice(*pieces[-1])]) < enough and size(text[pieces[-1][0] : end]) <= words:
            pieces[-1] = pieces[-1][0], end
        else:
            pieces.append((start, end))
    return [text[start:end] for start, end in pieces]


def _short_spans(text: str, spans: Iterable[Span], words: int) -> Iterator[Span]:
    """The spans; overlong ones cut between words, and overlong words anywhere."""
    for start, end in spans:
        if size(text[start:end]) <= words:
            yield start, end
            continue
        first = last = start
        for begin, stop in _short_words(text, start, end, words):
            if last > first and size(text[first:stop]) > words:
                yield first, last
                first = begin
            last = stop
        yield first, last


def _short_words(text: str, start: int, end: int, words: int) -> Iterator[Span]:
    for match in _WORD.finditer(text, start, end):
        begin, stop = match.span()
        if size(match[0]) <= words:
            yield begin, stop
        else:
            yield from ((at, min(at + words, stop)) for at in range(begin, stop, words))
