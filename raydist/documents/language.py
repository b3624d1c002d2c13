"""The language of a document: as declared, else as detected from its words, else unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from raydist.documents.document import Block
from raydist.errors import InputError

SAMPLE = 1500  # characters examined
LEAST = 60  # letters; with fewer, detection is guesswork
SURE = 0.9  # probability

_CODE = re.compile(r"[a-z]{2}")
_ENOUGH = re.compile(rf"[\W\d_]*(?:[^\W\d_][\W\d_]*){{{LEAST}}}")


def known_language(declared: str) -> str:
    """A declared language as ISO 639-1: `de` for `de-AT`; empty if invalid."""
    code = re.split(r"[-_]", declared.strip().lower(), maxsplit=1)[0]
    return code if _CODE.fullmatch(code) else ""


def detected(blocks: Sequence[Block], among: tuple[str, ...] = ()) -> str:
    """The language of the first blocks, if detection is confident."""
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
            "detecting languages needs the package py3langid, which is not installed: pip install 'raydist[documents]', "
            "or set documents.language"
        ) from None
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if unknown := sorted(set(among) - set(identifier.labels)):
        raise InputError(
            f"documents.languages: {unknown[0]!r} cannot be detected; supported are {', '.join(identifier.labels)}"
        )
    if among:
        identifier.set_languages(among)
    return identifier
