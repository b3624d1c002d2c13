"""Codes of languages, by their English names, and by ids that start with one."""

from __future__ import annotations

import re
from typing import Any

CODES = {
    "arabic": "ar",
    "bengali": "bn",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "finnish": "fi",
    "french": "fr",
    "german": "de",
    "hindi": "hi",
    "indonesian": "id",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "swahili": "sw",
    "telugu": "te",
    "thai": "th",
    "vietnamese": "vi",
}
_TYDI_ID = re.compile(rf"({'|'.join(CODES)})-+\d+-\d+")  # of TyDi QA's gold passages: finnish--6120-2


def language_code(name: Any) -> str | None:
    """The code of a language given by its English name, or by its code; None for anything else."""
    if not isinstance(name, str):
        return None
    return CODES.get(name.lower(), name.lower() if name.lower() in CODES.values() else None)


def language_of_id(id: Any) -> str | None:
    """The language in a question's id, as TyDi QA's gold passages state it and nowhere else."""
    match = _TYDI_ID.fullmatch(id) if isinstance(id, str) else None
    return CODES[match[1]] if match else None
