"""PDF: paragraphs and lines of pages, under their bookmarks; the document's properties are metadata."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

import pypdfium2 as pdfium
from pypdfium2 import raw

from raydist.corpus.rejected import DAMAGED, ENCRYPTED, SCANNED, TOO_LARGE, WRONG_CONTENT, Fault
from raydist.documents.decode import kind_of_content, one_line
from raydist.documents.document import Document, File, Outline
from raydist.documents.metadata import Value, plain

MOST_PAGES = 10_000
MOST_BOOKMARKS = 10_000
MOST_CHARACTERS = 1 << 20  # per page
FULL = 0.6  # of the longest line of a page: a shorter line ends a paragraph
STOPS = (".", "!", "?", ":", "…", "。", "।")
PROPERTIES = {"Author": "author", "Subject": "subject", "Keywords": "keywords"}
NOT_SAID = ("", "untitled", "unspecified", "anonymous", "(unspecified)", "(anonymous)")

Bookmark = tuple[int, str]  # level from 1, title


def read(file: File) -> Iterator[Document]:
    """One document; the title comes from its properties, else its first bookmark."""
    pdf = _opened(file)
    try:
        if len(pdf) > MOST_PAGES:
            raise Fault(TOO_LARGE, f"{len(pdf):,} pages, and there may be {MOST_PAGES:,}; cut it")
        pages = [_lines(page.get_textpage()) for page in pdf]
        if not any(pages) and (pictures := _pages_with_pictures(pdf)):
            raise Fault(SCANNED, f"{pictures} of {len(pdf)} pages are pictures; put text behind them (OCR)")
        outline = Outline()
        _collect(outline, _without_repeated(pages), _bookmarks(pdf))
        facts = {name: one_line(text) for name, text in pdf.get_metadata_dict().items()}
    except pdfium.PdfiumError as error:
        raise Fault(DAMAGED, f"not to be read as a PDF ({error}); save it again") from None
    finally:
        pdf.close()
    title = facts.get("Title", "")
    yield Document(outline.blocks, outline.first if title.lower() in NOT_SAID else title, metadata=_metadata(facts))


def _opened(file: File) -> pdfium.PdfDocument:
    start = file.content[:1024]
    if b"%PDF-" not in start:
        raise Fault(WRONG_CONTENT, f"not a PDF: {kind_of_content(start) or f'begins with {start[:8]!r}'}")
    try:
        return pdfium.PdfDocument(file.path)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower() or "security" in str(error).lower():
            raise Fault(ENCRYPTED, "needs a password; save it without one") from None
        raise Fault(DAMAGED, f"not to be read as a PDF ({error}); save it again") from None


def _metadata(facts: Mapping[str, str]) -> dict[str, Value]:
    found = {ours: plain(facts[name]) for name, ours in PROPERTIES.items() if facts.get(name, "").lower() not in NOT_SAID}
    if created := re.match(r"D:(\d{14})(?:Z|([+-])(\d\d)'?(\d\d))?", facts.get("CreationDate", "")):
        digits, sign, hours, minutes = created.groups()
        zone = f"{sign}{hours}{minutes}" if sign else "+0000"
        with suppress(ValueError):  # a 31st of February
            found["created"] = plain(datetime.strptime(digits + zone, "%Y%m%d%H%M%S%z"))
    return {name: value for name, value in found.items() if value is not None}


def _pages_with_pictures(pdf: pdfium.PdfDocument) -> int:
    return sum(any(True for _ in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)) for page in pdf)


# --- lines -----------------------------------------------------------------------------------------------------------


def _lines(page: pdfium.PdfTextPage) -> list[str]:
    """The lines of a page, with words hyphenated at line ends rejoined."""
    if page.count_chars() > MOST_CHARACTERS:
        raise Fault(TOO_LARGE, f"a page of {page.count_chars():,} characters, and there may be {MOST_CHARACTERS:,}")
    text = page.get_text_range().replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub("[\ufffe\x02]\n?", "", text)  # pdfium's codes of a hyphen at a line end
    text = re.sub(r"([^\W\d_])-\n([a-zß-ÿ])", r"\1\2", text)
    return [kept for line in text.split("\n") if (kept := one_line(line))]


def _without_repeated(pages: Sequence[list[str]]) -> list[list[str]]:
    """The pages without first and last lines that most pages share, ignoring numbers."""
    if len(pages) < 4:
        return list(pages)

    def repeated(place: int) -> set[str]:
        seen = Counter(_numberless(page[place]) for page in pages if len(page) > 1)
        return {line for line, count in seen.items() if count > len(pages) / 2}

    heads, feet = repeated(0), repeated(-1)
    return [
        page[
            int(len(page) > 1 and _numberless(page[0]) in heads) : len(page)
            - int(len(page) > 1 and _numberless(page[-1]) in feet)
        ]
        for page in pages
    ]


def _numberless(line: str) -> str:
    return re.sub(r"\d+", "#", line)


# --- bookmarks and paragraphs ----------------------------------------------------------------------------------------


def _bookmarks(pdf: pdfium.PdfDocument) -> dict[int, list[Bookmark]]:
    """The bookmarks by page number."""
    found: dict[int, list[Bookmark]] = {}
    for bookmark in islice(pdf.get_toc(), MOST_BOOKMARKS):
        target = bookmark.get_dest()
        page = target.get_index() if target else None
        if page is not None and (title := one_line(bookmark.get_title())):
            found.setdefault(page, []).append((bookmark.level + 1, title))
    return found


def _collect(outline: Outline, pages: Sequence[list[str]], bookmarks: Mapping[int, list[Bookmark]]) -> None:
    """Collect the paragraphs; a bookmark's section begins at the line with its title, else with its page."""
    held: list[str] = []  # of the current paragraph, perhaps from an earlier page
    begun = 1

    def flush(*, is_line: bool = False) -> None:
        outline.add(" ".join(held), page=begun, is_line=is_line)
        held.clear()

    for number, lines in enumerate(pages):
        waiting = list(bookmarks.get(number, ()))
        while waiting and waiting[0][1] not in lines:
            flush()
            outline.heading(*waiting.pop(0))
        longest = max(map(len, lines), default=0)
        for line in lines:
            if waiting and line == waiting[0][1]:
                flush()
                outline.heading(*waiting.pop(0))
                while waiting and waiting[0][1] not in lines:
                    outline.heading(*waiting.pop(0))
                continue
            begun = begun if held else number + 1
            held.append(line)
            if len(line) < FULL * longest:
                flush(is_line=len(held) == 1 and not line.endswith(STOPS))
        if held and held[-1].endswith(STOPS):
            flush()
    flush()
