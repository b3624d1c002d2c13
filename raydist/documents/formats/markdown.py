"""Markdown: headings, paragraphs, list items, table rows, lines of code; front matter is metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from raydist.corpus.rejected import BROKEN_FRONT_MATTER, TOO_DEEP, Fault
from raydist.documents.decode import code_line, decode, one_line
from raydist.documents.document import Document, File, Outline
from raydist.documents.formats.html import fragment
from raydist.documents.metadata import column_name, plain

MOST_FRONT_MATTER = 1 << 16  # characters
MOST_DEPTH = 50


def read(file: File) -> Iterator[Document]:
    """One document; title and language come from the front matter; the default title is the first heading."""
    text = decode(file.content)
    facts, text = front_matter(text)
    outline = Outline()
    _collect(outline, _parsed(text))
    title, language = (str(facts.pop(name, "") or "") for name in ("title", "language"))
    metadata = {column_name(str(name)): value for name, given in facts.items() if (value := plain(given)) is not None}
    yield Document(outline.blocks, one_line(title) or outline.first, language or str(metadata.get("lang", "")), metadata)


# --- front matter ----------------------------------------------------------------------------------------------------


def front_matter(text: str) -> tuple[dict[Any, Any], str]:
    """The YAML between --- and --- at the start, and the text with blank lines in its place."""
    if not text.startswith("---\n"):
        return {}, text
    end = next((at for mark in ("\n---\n", "\n...\n") if (at := (text + "\n").find(mark, 3)) >= 0), -1)
    if end < 0:
        return {}, text
    if end > MOST_FRONT_MATTER:
        raise Fault(BROKEN_FRONT_MATTER, f"{end:,} characters, and there may be {MOST_FRONT_MATTER:,}")
    facts = _loaded(text[4:end])
    if not isinstance(facts, dict):  # text between two horizontal rules
        return {}, text
    return facts, "\n" * text.count("\n", 0, end + 5) + text[end + 5 :]


def _loaded(text: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, yaml.CSafeLoader):
            line = event.start_mark.line + 2 if event.start_mark else 0
            if isinstance(event, yaml.AliasEvent):
                raise Fault(BROKEN_FRONT_MATTER, f"line {line}: aliases (*name) are not read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise Fault(BROKEN_FRONT_MATTER, f"line {line}: nested more than {MOST_DEPTH} deep")
        return yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a value such as 2026-02-31
        raise Fault(BROKEN_FRONT_MATTER, " ".join(str(error).split())[:200]) from None


# --- text ------------------------------------------------------------------------------------------------------------


def _parsed(text: str) -> list[Token]:
    """The parser's tokens; raises a Fault if blocks are nested so deeply that the parser drops the rest."""
    tokens = MarkdownIt("commonmark", {"maxNesting": MOST_DEPTH}).enable(["table", "strikethrough"]).parse(text)
    for token in tokens:
        if token.level >= MOST_DEPTH - 1:
            line = f"line {token.map[0] + 1}: " if token.map else ""
            raise Fault(TOO_DEEP, f"{line}lists or quotations {MOST_DEPTH} deep")
    return tokens


def _collect(outline: Outline, tokens: list[Token]) -> None:
    """Tokens are flat, in reading order; an inline token is a paragraph, heading or cell, depending on the token before it."""
    lists, level = 0, 0
    row: list[str] | None = None
    for token in tokens:
        line = token.map[0] + 1 if token.map else None
        match token.type:
            case "heading_open" if not token.level:  # one in a quotation is a paragraph
                level = int(token.tag[1])
            case "bullet_list_open" | "ordered_list_open":
                lists += 1
            case "bullet_list_close" | "ordered_list_close":
                lists -= 1
            case "tr_open":
                row, row_line = [], line
            case "tr_close" if row is not None:
                outline.add(" | ".join(row) if any(row) else "", row_line, is_line=True)
                row = None
            case "fence" | "code_block":
                _add_code(outline, token.content, (line or 1) + (token.type == "fence"))
            case "html_block":
                outline.extend(fragment(token.content, line or 1))
            case "inline":
                text = one_line(_text(token.children or []))
                if level:
                    outline.heading(level, text)
                elif row is not None:
                    row.append(text)
                else:
                    outline.add(text, line, is_line=lists > 0)
                level = 0


def _add_code(outline: Outline, code: str, first_line: int) -> None:
    for number, line in enumerate(code.split("\n")):
        outline.add(code_line(line), first_line + number, is_line=True)


def _text(tokens: list[Token]) -> str:
    """The text of a paragraph: without markup, pictures replaced by their alternative text."""
    parts = []
    for token in tokens:
        if token.type in ("text", "code_inline", "image"):
            parts.append(token.content)
        elif token.type in ("softbreak", "hardbreak") or token.content.lower().startswith("<br"):
            parts.append(" ")
    return "".join(parts)
