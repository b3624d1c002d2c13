"""Duplicates are recognised by normalised text (NFKC, case folded, everything but letters, digits and marks a blank).

``text_key`` is equal for exact duplicates, ``bag_key`` for near ones: the same words, equally often, in any order.
"""

from __future__ import annotations

import unicodedata
from hashlib import blake2b

import numpy as np
import pyarrow as pa


def normalise_text(text: str) -> str:
    """NFKC, case folded, everything but letters, digits and marks a blank, blanks collapsed."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in folded).split())


def duplicate_keys(text: str) -> tuple[int, int]:
    """The key of exact duplicates, and the key of near duplicates: the same words in any order."""
    normal = normalise_text(text) or text  # texts of punctuation alone are equal only to themselves
    return _key(normal), _key(" ".join(sorted(normal.split())))


def _key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def count_duplicates(sentences: pa.Table) -> dict[str, int]:
    """Numbers of sentences that repeat an earlier one: word for word, and with the same words in another order."""
    texts, bags = (len(np.unique(sentences[name].to_numpy())) for name in ("text_key", "bag_key"))
    return {"exact": len(sentences) - texts, "near": texts - bags}
