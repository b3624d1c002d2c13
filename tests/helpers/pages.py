"""Markdown pages as data: their headings, links and fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<marks>`{3,})(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=marks)[ ]*$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:^|\n)`([^`\n]+)`:\n\n$")  # the line above a block: the file that the block is


@dataclass(frozen=True)
class Block:
    """A fenced block; `file` is the name that is the line above it, in code and with a colon, `line` its place in the page."""

    kind: str
    text: str
    file: str | None
    line: int


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        above = text[: found.start()]
        named = FILE.search(above)
        yield Block(found["kind"].strip(), found["text"], named[1] if named else None, above.count("\n") + 1)


def without_code(text: str) -> str:
    """The page without fenced blocks and code in lines: what holds links and headings."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def links(text: str) -> list[str]:
    """The targets of links and pictures."""
    plain = without_code(text)
    return re.findall(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)", plain) + re.findall(
        r"<img[^>]*\ssrc=\"([^\"]+)\"", plain
    )


def anchor_of(title: str) -> str:
    """A heading's anchor, as GitHub and MyST make it."""
    title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip()
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, with -1, -2 ... where one occurs again."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} (.+)$", FENCE.sub("", text), re.MULTILINE):
        anchor, count = anchor_of(title), 0
        while (name := f"{anchor}-{count}" if count else anchor) in found:
            count += 1
        found.add(name)
    return found


def in_the_navigation(text: str, folder: Path) -> set[str]:
    """The pages that the tables of contents of an index name, as paths below the folder; a pattern may name none."""
    named: set[str] = set()
    for block in blocks(text):
        if block.kind == "{toctree}":
            for line in block.text.splitlines():
                if line and not line.startswith(":"):
                    found = {path.relative_to(folder).as_posix() for path in folder.glob(f"{line}.md")}
                    named |= found if "*" in line else {f"{line}.md"}
    return named
