"""Bytes -> text: byte order marks, the charset that HTML states, else UTF-8; and text without invisible characters."""

from __future__ import annotations

import codecs
import re

from raydist.corpus.rejected import INVALID_UTF8, WRONG_CONTENT, Fault

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHARSET = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]{1,40})""", re.I)
_AS_BROWSERS_TAKE_THEM = {"iso8859-1": "cp1252", "ascii": "cp1252", "utf-16": "utf-8", "utf-16-le": "utf-8"}

# first bytes of binary files: these are no texts, whatever their names
_BINARY = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a ZIP archive (a Word document, say)",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x7fELF": "a program",
    b"{\\rtf": "an RTF document",
}


def kind_of_content(content: bytes) -> str:
    """The kind of a binary file, by its first bytes; empty if unknown."""
    return next((kind for start, kind in _BINARY.items() if content.startswith(start)), "")


def decode(content: bytes, *, is_html: bool = False) -> str:
    """The text of a file, its lines ending in \\n; raises a Fault if it is no text or its encoding is unknown."""
    if kind := kind_of_content(content):
        raise Fault(WRONG_CONTENT, f"holds {kind}")
    mark, encoding = next(((mark, name) for mark, name in _MARKS if content.startswith(mark)), (b"", ""))
    try:
        text = content[len(mark) :].decode(encoding or (_stated(content) if is_html else "") or "utf-8")
    except UnicodeDecodeError as error:
        byte = content[len(mark) + error.start]
        raise Fault(
            INVALID_UTF8, f"byte {len(mark) + error.start + 1} is {byte:#04x} ({error.encoding}); save it as UTF-8"
        ) from None
    if "\0" in text:
        raise Fault(WRONG_CONTENT, f"holds bytes that are no text (NUL at character {text.index(chr(0)) + 1})")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _stated(content: bytes) -> str:
    """The encoding stated in HTML; empty if missing or unknown."""
    found = _CHARSET.search(content[:4096])
    if not found:
        return ""
    try:
        codec = codecs.lookup(found[1].decode())
    except LookupError:
        return ""
    return _AS_BROWSERS_TAKE_THEM.get(codec.name, codec.name) if codec._is_text_encoding else ""


# control characters become blanks; soft hyphens, zero-width blanks and marks vanish; joiners, letters in some scripts, stay
_BLANKS = dict.fromkeys((*range(32), *range(127, 160), 0x2028, 0x2029), " ")
_UNREAD = _BLANKS | dict.fromkeys((0xAD, 0x200B, 0xFEFF, 0x2060))


def one_line(text: str) -> str:
    """The text as one line: single blanks, none around it, and no control characters."""
    return " ".join(text.translate(_UNREAD).split())


def code_line(text: str) -> str:
    """The same for a line of code, with its indentation."""
    return text.expandtabs(4).translate(_UNREAD).rstrip()
