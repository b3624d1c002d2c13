"""The language of a document: as it is declared, else as its words look, else unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from raydist.documents.document import Block
from raydist.errors import InputError

SAMPLE = 1500  # characters that are looked at
LEAST = 60  # letters, below which any guess is one
SURE = 0.9  # probability

_CODE = re.compile(r"[a-z]{2}")
_ENOUGH = re.compile(rf"[\W\d_]*(?:[^\W\d_][\W\d_]*){{{LEAST}}}")


def known_language(declared: str) -> str:
    """A declared language as ISO 639-1: `de` of `de-AT`; empty where it is none."""
    code = re.split(r"[-_]", declared.strip().lower(), maxsplit=1)[0]
    return code if _CODE.fullmatch(code) else ""


def detected(blocks: Sequence[Block], among: tuple[str, ...] = ()) -> str:
    """The language that the first blocks are in, if that is plain to see."""
    sample, length = [], 0
    for block in blocks:
        sample.append(block.text[: SAMPLE - length])
        length += len(sample[-1])
        if length >= SAMPLE:
            break
    text = "\n".join(sample)
    if not _ENOUGH.match(text):
        return ""
    language, probability = _identifier(among).classify(text)
    return str(language) if probability >= SURE else ""


@lru_cache(maxsize=1)
def _identifier(among: tuple[str, ...]) -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError:
        raise InputError(
            "languages are told apart by the package py3langid, which is not installed: pip install 'raydist[documents]', "
            "or set documents.language"
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if unknown := sorted(set(among) - set(identifier.labels)):
        raise InputError(
            f"documents.languages: {unknown[0]!r} is none that can be told; there are {', '.join(identifier.labels)}"
        )
    if among:
        identifier.set_languages(among)
    return identifier
