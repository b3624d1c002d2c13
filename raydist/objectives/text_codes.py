"""The normalised text of any span of tokens as one 64-bit number, from prefix sums: no strings in a training step.

Shapes: B rows, T tokens, A spans of a row, V tokens of the vocabulary.

Equal texts have equal numbers, however they are tokenized. Different texts collide far less often than once in a billion:
letters have random codes, and a letter that two texts use differently enters with a factor, a sum of powers of an odd base, of
which few low bits vanish.

Normalisation follows the ``squad`` rule (methods 2.5), but equates more texts in two ways: it drops all Unicode punctuation,
not only ASCII's, and blanks. A vocabulary with ## does not record blanks beside punctuation; as in decoding such tokens, they
are assumed, so that the A of U.S.A. counts as an article.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_WORD = 1 << 64
_LETTERS = [int.from_bytes(blake2b(bytes([letter]), digest_size=8).digest(), "little") for letter in range(256)]  # UTF-8
_PRINTED = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that stand for themselves in a byte-level
_UNPRINTED = [byte for byte in range(256) if byte not in _PRINTED]  # vocabulary; the others are letters from U+0100 on
_BYTES = {chr(byte): byte for byte in _PRINTED} | {chr(0x100 + i): byte for i, byte in enumerate(_UNPRINTED)}


def text_code(letters: bytes) -> int:
    """The number of a text, modulo 2^64 and signed as in torch."""
    code = sum(_LETTERS[letter] * pow(_BASE, i, _WORD) for i, letter in enumerate(letters)) % _WORD
    return code - _WORD if code >= _WORD // 2 else code


ARTICLES = tuple(map(text_code, (b"a", b"an", b"the")))


def piece_codes(pieces: Sequence[str]) -> Tensor:
    """For every token of a vocabulary: code, base^letters, its inverse modulo 2^64, and whether it begins a word; int64 [4, V].

    Lower case; punctuation, blanks and word-border marks are dropped. The mark is the most frequent one: ``##`` continues a
    word, ``▁`` or ``Ġ`` begins one, the latter in byte-level vocabularies. Pieces are as the tokenizer stores them:
    ``tokenizer.convert_ids_to_tokens(range(len(tokenizer)))``.

    >>> import raydist
    >>> raydist.piece_codes(["[CLS]", "bridge", "##s", "Bridge"]).shape
    torch.Size([4, 4])
    """
    mark = max(("##", "▁", "Ġ"), key=lambda mark: sum(len(piece) > len(mark) and piece.startswith(mark) for piece in pieces))
    texts = [_read(piece, mark) for piece in pieces]
    longest = max((len(letters) for letters, _ in texts), default=0)
    power = [pow(_BASE, i, _WORD) for i in range(longest + 1)]
    inverse = [pow(_BASE, -i, _WORD) for i in range(longest + 1)]
    codes = np.empty((4, len(pieces)), dtype=np.uint64)
    for v, (letters, begins) in enumerate(texts):
        code = sum(_LETTERS[letter] * power[i] for i, letter in enumerate(letters))
        codes[:, v] = code % _WORD, power[len(letters)], inverse[len(letters)], begins
    return torch.from_numpy(codes.view(np.int64))


def _read(piece: str, mark: str) -> tuple[bytes, bool]:
    """The letters of a piece that count, and whether it begins a word."""
    text = piece.removeprefix(mark)
    begins = (text != piece) == (mark != "##")
    if mark == "Ġ" and _BYTES.keys() >= set(piece):  # else an added token, in plain text
        # half a letter passes through unchanged (capital or not), and is whole again beside its other half
        text = bytes(_BYTES[letter] for letter in piece).decode("utf-8", "surrogateescape")
        begins = text[:1].isspace()
    kept = "".join(letter for letter in text.lower() if not _dropped(letter))
    return kept.encode("utf-8", "surrogateescape"), begins


@cache
def _dropped(letter: str) -> bool:
    return letter in string.punctuation + "▁" or letter.isspace() or unicodedata.category(letter).startswith("P")


class _Prefixes:
    """Codes of any tokens start..end-1 of a row, from sums over prefixes. Products and sums wrap modulo 2^64."""

    def __init__(self, code_BT: Tensor, scale_BT: Tensor, inverse_BT: Tensor) -> None:
        self.before_BT = F.pad(scale_BT.cumprod(1), (1, 0), value=1)  # base^(letters before t); T + 1 of them
        self.inverse_BT = F.pad(inverse_BT.cumprod(1), (1, 0), value=1)
        self.sum_BT = F.pad((code_BT * self.before_BT[:, :-1]).cumsum(1), (1, 0))

    def between(self, start_BA: Tensor, end_BA: Tensor) -> tuple[Tensor, Tensor]:
        """The code, and base^letters; 0 and 1 for an empty range."""
        inverse_BA = self.inverse_BT.gather(1, start_BA)
        code_BA = (self.sum_BT.gather(1, end_BA) - self.sum_BT.gather(1, start_BA)) * inverse_BA
        return code_BA, self.before_BT.gather(1, end_BA) * inverse_BA

    def without_article(self, start_BA: Tensor, end_BA: Tensor) -> tuple[Tensor, Tensor]:
        """`between` for the tokens of one word, empty if they spell an article."""
        code_BA, scale_BA = self.between(start_BA, end_BA)
        is_article_BA = torch.stack([code_BA == article for article in ARTICLES]).any(0)
        return code_BA.masked_fill(is_article_BA, 0), scale_BA.masked_fill(is_article_BA, 1)


def span_text_codes(codes_4BT: Tensor, start_BA: Tensor, end_BA: Tensor) -> Tensor:
    """The normalised text of every span (tokens start..end, inclusive) as one number.

    A span may cut its first and last words, so these are read as they stand; articles among the words between are removed
    beforehand.
    """
    code_BT, scale_BT, inverse_BT, begins_BT = codes_4BT
    T = begins_BT.shape[1]
    position_T = torch.arange(T, device=begins_BT.device)
    begins_BT = begins_BT.bool() | (position_T == 0)
    first_BT = position_T.where(begins_BT, 0).cummax(1).values  # start of each token's word
    later_BT = F.pad(position_T.where(begins_BT, T)[:, 1:], (0, 1), value=T)
    next_BT = later_BT.flip(1).cummin(1).values.flip(1)  # start of the next word

    whole = _Prefixes(code_BT, scale_BT, inverse_BT)
    _, letters_BT = whole.without_article(first_BT, next_BT)
    empty_BT = letters_BT == 1  # tokens of articles, and of words without a letter
    plain = _Prefixes(*(row.masked_fill(empty_BT, of) for row, of in ((code_BT, 0), (scale_BT, 1), (inverse_BT, 1))))

    after_BA = end_BA + 1
    head_BA = torch.minimum(next_BT.gather(1, start_BA), after_BA)  # end of the first word
    tail_BA = torch.maximum(first_BT.gather(1, end_BA), head_BA)  # start of the last word, if different
    head_code_BA, head_scale_BA = whole.without_article(start_BA, head_BA)
    middle_code_BA, middle_scale_BA = plain.between(head_BA, tail_BA)
    tail_code_BA, _ = whole.without_article(tail_BA, after_BA)
    return head_code_BA + head_scale_BA * (middle_code_BA + middle_scale_BA * tail_code_BA)
