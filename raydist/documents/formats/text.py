"""Plain text: paragraphs between blank lines."""

from __future__ import annotations

from collections.abc import Iterator

from raydist.documents.decode import decode, one_line
from raydist.documents.document import Block, Document, File


def read(file: File) -> Iterator[Document]:
    """One document, without headings."""
    yield Document(list(paragraphs(decode(file.content))))


def paragraphs(text: str, first_line: int | None = 1) -> Iterator[Block]:
    """The text between blank lines, with its first line."""
    held: list[str] = []
    start = 0
    for number, line in enumerate([*text.split("\n"), ""]):
        if line and not line.isspace():
            start = start if held else number
            held.append(line)
        elif held:
            if kept := one_line(" ".join(held)):
                yield Block(kept, line=None if first_line is None else first_line + start)
            held = []
