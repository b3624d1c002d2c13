"""A report, drawn and parsed."""

from html.parser import HTMLParser
from pathlib import Path

from raydist.report.html import write_report


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, text; it complains about a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text, self.open = "", []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def count(self, tag, **attrs):
        return sum(name == tag and attrs.items() <= found.items() for name, found in self.elements)


def report_on(*runs: Path) -> tuple[str, Page]:
    text = write_report(runs, runs[0].parent / "out.html").read_text(encoding="utf-8")
    return text, Page(text)
