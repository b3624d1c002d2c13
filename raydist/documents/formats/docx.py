"""Word documents: paragraphs, headings by their styles, tables by rows; core properties are metadata."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import docx
from docx.oxml.ns import qn
from lxml import etree

from raydist.corpus.rejected import DAMAGED, ENCRYPTED, TOO_LARGE, WRONG_CONTENT, Fault
from raydist.documents.decode import kind_of_content, one_line
from raydist.documents.document import Document, File, Outline
from raydist.documents.metadata import Value, plain

MOST_ENTRIES = 10_000
MOST_RATIO = 200  # of an entry's unpacked to packed size; prose is below ten
SMALL = 10 << 20  # an entry below this is harmless at any ratio

PROPERTIES = ("author", "subject", "keywords", "category", "created", "modified")


def read(file: File) -> Iterator[Document]:
    """One document; the title comes from its properties, else a paragraph of the style Title, else the first heading."""
    check_archive(file)
    try:
        opened = docx.Document(str(file.path))
        body = opened.element.body
    except (KeyError, ValueError, AttributeError, OSError, zipfile.BadZipFile, etree.XMLSyntaxError, zlib.error) as error:
        raise Fault(DAMAGED, f"not to be read as a Word document ({str(error)[:150]}); save it again") from None
    styles = {style.styleId: style.name_val or "" for style in opened.styles.element.style_lst}
    outline, title = Outline(), ""
    for element in _in_order(body):
        if element.tag == qn("w:tbl"):
            _add_table(outline, element)
            continue
        style, text = styles.get(element.style, ""), one_line(element.text)
        if level := _level(style):
            outline.heading(level, text)
        elif style == "Title":
            title = title or text
        else:
            outline.add(text, is_line=style.startswith("List") or element.find(f"{qn('w:pPr')}/{qn('w:numPr')}") is not None)
    properties = opened.core_properties
    metadata = {name: value for name in PROPERTIES if (value := _property(properties, name)) is not None}
    yield Document(outline.blocks, one_line(properties.title) or title or outline.first, properties.language or "", metadata)


def check_archive(file: File) -> None:
    """Reject files that are no Word document, are encrypted, or would unpack to too much."""
    start = file.content[:8]
    if start.startswith(b"\xd0\xcf\x11\xe0"):
        raise Fault(ENCRYPTED, "encrypted, or saved as .doc; save it without a password as .docx")
    if not start.startswith(b"PK"):
        raise Fault(WRONG_CONTENT, f"not a Word document: {kind_of_content(start) or f'begins with {start!r}'}")
    try:
        with zipfile.ZipFile(file.path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise Fault(DAMAGED, f"a ZIP archive cut short or damaged ({error}); copy it again") from None
    size = sum(entry.file_size for entry in entries)
    if size > file.max_bytes or len(entries) > MOST_ENTRIES:
        raise Fault(
            TOO_LARGE, f"unpacks to {size:,} bytes in {len(entries):,} entries, and there may be {file.max_bytes:,} bytes"
        )
    for entry in entries:
        if entry.file_size > SMALL and entry.file_size > MOST_RATIO * entry.compress_size:
            raise Fault(TOO_LARGE, f"{entry.filename[:80]!r} unpacks to {entry.file_size:,} bytes from {entry.compress_size:,}")
    if not any(entry.filename == "[Content_Types].xml" for entry in entries):
        raise Fault(WRONG_CONTENT, "a ZIP archive, but not a Word document")


def _in_order(body: Any) -> Iterator[Any]:
    """Paragraphs and tables, including those in content controls."""
    waiting = list(reversed(body))
    while waiting:
        element = waiting.pop()
        if element.tag in (qn("w:p"), qn("w:tbl")):
            yield element
        elif element.tag in (qn("w:sdt"), qn("w:sdtContent")):
            waiting.extend(reversed(element))


def _level(style: str) -> int:
    """A heading's level by its style's name, which is English whatever the language of Word; 0 if it is no heading."""
    name, _, number = style.lower().rpartition(" ")
    return int(number) if name == "heading" and number.isdigit() and 1 <= int(number) <= 9 else 0


def _add_table(outline: Outline, table: Any) -> None:
    for row in table.iterchildren(qn("w:tr")):
        cells = [one_line(" ".join(paragraph.text for paragraph in cell.iter(qn("w:p")))) for cell in row.iter(qn("w:tc"))]
        outline.add(" | ".join(cells) if any(cells) else "", is_line=True)


def _property(properties: Any, name: str) -> Value | None:
    try:
        return plain(getattr(properties, name))
    except ValueError:  # an invalid date
        return None
