"""A document, the result of reading any format: blocks of text under headings, and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from raydist.documents.metadata import Value


@dataclass(frozen=True)
class File:
    """A file to read, on this node."""

    path: Path
    name: str  # its document_id
    max_bytes: int = 1 << 28  # limit of its unpacked size

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()


@dataclass(slots=True)
class Block:
    """A paragraph, an item of a list, a row of a table, a line of code: stays whole if it is short enough."""

    text: str
    headings: tuple[str, ...] = ()
    line: int | None = None
    page: int | None = None
    is_line: bool = False  # directly below the block before it, like rows of a table


@dataclass(slots=True)
class Document:
    """The content of a document. A file of rows holds many, each with its own id."""

    blocks: list[Block]
    title: str = ""
    language: str = ""  # as declared
    metadata: dict[str, Value] = field(default_factory=dict)
    id: str = ""
    line: int = 0  # of a row


class Outline:
    """Collects blocks under their headings."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.first = ""  # the first heading of the highest level
        self._open: list[tuple[int, str]] = []
        self._first_level = 99

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._open)

    def heading(self, level: int, text: str) -> None:
        if not text:
            return
        if level < self._first_level:
            self.first, self._first_level = text, level
        self._open = [*(above for above in self._open if above[0] < level), (level, text)]

    def add(self, text: str, line: int | None = None, page: int | None = None, *, is_line: bool = False) -> None:
        if text:
            self.blocks.append(Block(text, self.headings, line, page, is_line))

    def extend(self, blocks: Iterator[Block]) -> None:
        """Add embedded blocks, such as HTML within Markdown."""
        for block in blocks:
            self.add(block.text, block.line, is_line=block.is_line)
