"""HTML: the text that a browser shows, without navigation: headings, paragraphs, list items, table rows, lines of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lxml import etree
from lxml import html as lxml_html

from raydist.corpus.rejected import DAMAGED, TOO_DEEP, Fault
from raydist.documents.decode import code_line, decode, one_line
from raydist.documents.document import Block, Document, File, Outline
from raydist.documents.metadata import Value, column_name, parsed

UNSHOWN = frozenset(
    (
        "script",
        "style",
        "template",
        "noscript",
        "nav",
        "head",
        "svg",
        "math",
        "iframe",
        "object",
        "embed",
        "canvas",
        "audio",
        "video",
        "map",
        "select",
        "datalist",
        "button",
        "input",
        "textarea",
    )
)
INLINE = frozenset(
    (
        "a",
        "abbr",
        "acronym",
        "b",
        "bdi",
        "bdo",
        "big",
        "cite",
        "code",
        "data",
        "del",
        "dfn",
        "em",
        "font",
        "i",
        "img",
        "ins",
        "kbd",
        "label",
        "mark",
        "meter",
        "output",
        "progress",
        "q",
        "ruby",
        "rp",
        "rt",
        "s",
        "samp",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "sup",
        "time",
        "tt",
        "u",
        "var",
        "wbr",
    )
)
ITEMS = frozenset(("li", "dt", "dd", "option"))
# of <meta name=...>: meant for machines, not readers
TECHNICAL = re.compile(
    r"(viewport|generator|robots|googlebot|referrer|theme-color|color-scheme|format-detection|handheldfriendly|mobileoptimized"
    r"|title|language|csrf.*|twitter:.*|fb:.*|og:.*|msapplication.*|apple-.*|.*verification.*|msvalidate.*|application-name)",
    re.I,
)
_XML_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")


def read(file: File) -> Iterator[Document]:
    """One document, with the metadata of its head."""
    text = decode(file.content, is_html=True)
    if not text.strip():
        yield Document([])
        return
    root = _tree(text)
    outline = Outline()
    _Shown(outline).walk(root)
    title = next((one_line(found.text or "") for found in root.iter("title")), "")
    yield Document(outline.blocks, title or outline.first, _language(root), _metadata(root))


def fragment(text: str, line: int) -> Iterator[Block]:
    """The blocks of embedded HTML."""
    outline = Outline()
    if text.strip() and not text.lstrip().startswith("<!--"):
        _Shown(outline, line - 1).walk(_tree(text))
    yield from outline.blocks


def _tree(text: str) -> Any:
    """The element tree; tolerates invalid HTML."""
    parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    content = _XML_DECLARATION.sub("", text).encode()
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        raise Fault(DAMAGED, str(error)[:200]) from None
    for problem in parser.error_log:
        if "depth" in problem.message.lower():  # the parser dropped the rest
            raise Fault(TOO_DEEP, f"line {problem.line}: {problem.message.splitlines()[0]}"[:200])
    return root if root is not None else etree.Element("html")


class _Shown:
    """Collects visible text, element by element; not recursive, since elements may be nested deeply."""

    def __init__(self, outline: Outline, lines_before: int = 0) -> None:
        self.outline, self.lines_before = outline, lines_before
        self.held: list[str] = []  # of the current paragraph
        self.line: int | None = None
        self.rows, self.items, self.code = 0, 0, 0  # nesting depth of each
        self.level = 0  # of the current heading

    def walk(self, root: Any) -> None:
        skipped: Any = None
        for event, element in etree.iterwalk(root, events=("start", "end")):
            tag = element.tag if isinstance(element.tag, str) else ""
            if skipped is None and event == "start":
                if _is_unshown(element, tag):
                    skipped = element
                else:
                    self._start(element, tag)
            elif skipped is element and event == "end":
                skipped = None
                self._text(element.tail, element)
            elif skipped is None:
                self._end(element, tag)
        self._flush()

    def _start(self, element: Any, tag: str) -> None:
        if self._is_heading(tag):
            self._flush()
            self.level = int(tag[1])
        elif tag == "tr":
            self._flush(in_row=True)
            self.rows += 1
        elif tag == "br":
            self.held.append("\n")
        elif tag not in INLINE:
            self._flush()
            self.items += tag in ITEMS
            self.code += tag == "pre"
        self._text(element.text, element)

    def _end(self, element: Any, tag: str) -> None:
        if self._is_heading(tag):
            text = one_line("".join(self.held))
            self.held, self.line = [], None
            self.outline.heading(self.level, text)
            self.level = 0
        elif tag == "tr":
            self.rows -= 1
            self._flush()
        elif tag in ("td", "th") and self.rows:
            self.held.append(" | ")
        elif tag not in INLINE and tag != "br":
            self._flush()
            self.items -= tag in ITEMS
            self.code -= tag == "pre"
        self._text(element.tail, element)

    def _is_heading(self, tag: str) -> bool:
        return len(tag) == 2 and tag[0] == "h" and tag[1] in "123456" and not self.rows

    def _text(self, text: str | None, element: Any) -> None:
        if not text:
            return
        if self.line is None and not text.isspace():
            start = text[: len(text) - len(text.lstrip())].count("\n")
            self.line = element.sourceline and element.sourceline + self.lines_before + start
        self.held.append(text)

    def _flush(self, *, in_row: bool = False) -> None:
        """End the paragraph; within a table row, it continues."""
        if (self.rows and not in_row) or self.level:
            self.held.append(" ")
            return
        text, line = "".join(self.held), self.line
        self.held, self.line = [], None
        if self.code:
            for number, kept in enumerate(text.split("\n")):
                self.outline.add(code_line(kept), line and line + number, is_line=True)
        elif " | " in text:  # drop trailing empty cells
            self.outline.add(one_line(text).rstrip(" |"), line, is_line=True)
        else:
            self.outline.add(one_line(text), line, is_line=self.items > 0)


def _is_unshown(element: Any, tag: str) -> bool:
    return tag in UNSHOWN or not tag or "hidden" in element.attrib or element.get("role") == "navigation"


# --- the head --------------------------------------------------------------------------------------------------------


def _language(root: Any) -> str:
    body = next(root.iter("body"), None)
    for element in (root, body):
        if element is not None and (found := element.get("lang") or element.get("xml:lang")):
            return found
    stated = (meta for meta in root.iter("meta") if (meta.get("http-equiv") or "").lower() == "content-language")
    return next((meta.get("content") or "" for meta in stated), "")


def _metadata(root: Any) -> dict[str, Value]:
    """<meta name=... content=...>; the first of a name counts."""
    found: dict[str, Value] = {}
    for meta in root.iter("meta"):
        name = one_line(meta.get("name") or "").lower()
        if name and not TECHNICAL.fullmatch(name):
            (value,) = parsed([one_line(meta.get("content") or "")])
            if value is not None:
                found.setdefault(column_name(name), value)
    return found
