"""Rule-based sentence splitting.

A stop ends a sentence unless it is part of a number, an abbreviation, an acronym or an ordinal; a blank line always does.
"""

from __future__ import annotations

import re
from functools import cache

# A run of stops, then closing quotes and brackets.
_STOPS = re.compile(r"""([.!?…。！？｡؟۔।॥։።။។]+)["'”’»›)\]}」』》）】]*""")
_GREEK_STOPS = re.compile(_STOPS.pattern.replace("[.!?", "[.!?;;", 1))
_NEEDS_NO_BLANK = frozenset("。！？｡।॥")  # scripts without a blank after the stop
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«„-]*$")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # also a single initial
_ROMAN_OR_NUMBER = re.compile(r"\d{1,2}|[IVX]+")
_OPENERS = "\"'“‘«„([{¿¡"

# Words before a full stop that ends no sentence; those of the second set only if a digit or a Roman number follows.
_ABBREVIATIONS = {
    "en": "mr mrs ms dr prof rev hon gen col lt sgt capt cmdr adm maj gov sen rep pres st mt ft jr sr messrs vs cf al approx "
    "dept e.g i.e viz univ ave blvd",
    "de": "dr prof hr fr st bzw z.b d.h u.a z.t vgl ca nr bd usw evtl ggf inkl zzgl geb gest jh v.chr n.chr",
    "es": "sr sra srta dr dra d dña prof lic ing gral p.ej ud uds ee.uu av núm pág vol aprox",
    "fr": "m mm mme mlle dr pr st ste cf p.ex env av",
    "it": "sig sigg dott prof ing avv on st ca cfr p.es pag",
    "pt": "sr sra dr dra prof eng av p.ex",
    "ru": "г гг в вв т.е т.д т.п т.к им ул д др руб тыс млн млрд см рис",
    "vi": "ts ths gs pgs tp q p",
}
_BEFORE_NUMBERS = frozenset(
    "no nos nr p pp vol fig figs sec art ch eq op ca c jan feb mar apr jun jul aug sep sept oct nov dec n núm pág".split()  # noqa: SIM905
)
# Languages that write "3." for "third".
_ORDINALS = frozenset("de da nb nn no fi cs sk hu hr sl sr tr et lv".split())  # noqa: SIM905
# After "U.S." these begin a sentence; any other capital may continue the name.
_STARTERS = frozenset(
    "The A An In On At It He She They We I This That These Those But And However If When While After Before As For "  # noqa: SIM905
    "His Her Its Their There Most Some Many".split()
)


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Spans [start, end) of the sentences: slices of the text, in order, that cover every non-blank character."""
    ends = [match.end() for match in BLANK_LINE.finditer(text)]
    for match in (_GREEK_STOPS if language == "el" else _STOPS).finditer(text):
        if _ends_sentence(text, match.start(), match.group(1), match.end(), language):
            ends.append(match.end())
    spans, start = [], 0
    for end in [*sorted(ends), len(text)]:
        piece = text[start:end]
        if kept := piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            spans.append((first, first + len(kept)))
        start = end
    return spans


def _ends_sentence(text: str, at: int, stops: str, end: int, language: str) -> bool:
    if stops[-1] in _NEEDS_NO_BLANK:
        return True
    if end < len(text) and not text[end].isspace():
        return False  # 3.5, example.org, "Yes!"-men
    rest = text[end : end + 80].lstrip().lstrip(_OPENERS)
    if not rest:
        return True
    if rest[0].islower():
        return False  # "Why?" he asked; ... and so on; Yahoo! is
    if stops != ".":
        return True
    word = _LAST_WORD.search(text, max(0, at - 40), at).group()  # type: ignore[union-attr]
    folded = word.casefold()
    if folded in _abbreviations(language) or (folded in _BEFORE_NUMBERS and rest[0].isdigit()):
        return False
    if language in _ORDINALS and _ROMAN_OR_NUMBER.fullmatch(word):
        return False
    if _ACRONYM.fullmatch(word) and (word[-1].isupper() or "." in word):  # J. Smith; the U.S. Senate; U.S. The
        return "." in word and re.split(r"\W", rest, maxsplit=1)[0] in _STARTERS
    return True


@cache
def _abbreviations(language: str) -> frozenset[str]:
    return frozenset(_ABBREVIATIONS.get(language, "").split()) | frozenset(_ABBREVIATIONS["en"].split())
