"""A document as every format gives it: blocks of text under headings, and what is said of it as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from raydist.documents.metadata import Value


@dataclass(frozen=True)
class File:
    """A file that is to be read, on this node."""

    path: Path
    name: str  # what it is called: its document_id
    max_bytes: int = 1 << 28  # that it may unpack to

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()


@dataclass(slots=True)
class Block:
    """A paragraph, an item of a list, a row of a table, a line of code: what is not torn apart if it is short enough."""

    text: str
    headings: tuple[str, ...] = ()
    line: int | None = None
    page: int | None = None
    is_line: bool = False  # stands right below the one before it, as rows of a table do


@dataclass(slots=True)
class Document:
    """What was read of a document. A file of rows holds many, each with an id of its own."""

    blocks: list[Block]
    title: str = ""
    language: str = ""  # as declared
    metadata: dict[str, Value] = field(default_factory=dict)
    id: str = ""
    line: int = 0  # of a row


class Outline:
    """Collects blocks under the headings that stand above them."""

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
        """Blocks of something that stands here, such as HTML within Markdown."""
        for block in blocks:
            self.add(block.text, block.line, is_line=block.is_line)
