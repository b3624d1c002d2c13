"""Building blocks of a report. Text is escaped unless it is ``Html``, so data cannot become markup by an oversight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from typing import NamedTuple, TypeGuard

from raydist.terminal import duration

LONG_PASSAGE = 2000  # characters; a longer passage is shown only around its marks
AROUND_A_MARK = 300
GOLD, PREDICTED, SHOWN = 1, 2, 4
MARKS = {GOLD: "gold", PREDICTED: "predicted", GOLD | PREDICTED: "both"}


class Html(str):
    """Text that already is markup."""


def el(name: str, *children: object, **attributes: object) -> Html:
    """An element; children that are not ``Html`` are escaped, None is left out (``class_`` stands for ``class``)."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    given = "".join(f' {key}="{escape(str(value))}"' for key, value in named.items())
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """The parts in a row, each escaped unless it is ``Html``; None is left out."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def number(value: object) -> str:
    """A number formatted by its size; a dash for None; anything else unchanged."""
    if not is_number(value):
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def took(seconds: object) -> str:
    """A duration, if known."""
    return duration(seconds) if is_number(seconds) else "–"


def table(head: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Html:
    """A table that scrolls sideways if too wide; a row's first cell is its heading, numbers are aligned right."""

    def cell(value: object, first: bool) -> Html:
        kind = "n" if is_number(value) else None
        return el("th" if first else "td", value if isinstance(value, Html) else number(value), class_=kind)

    body = [el("tr", *(cell(value, place == 0) for place, value in enumerate(row))) for row in rows]
    top = el("thead", el("tr", *(el("th", name, scope="col") for name in head)))
    return el("div", el("table", top, el("tbody", *body), **attributes), class_="wide")


def swatch(place: int) -> Html:
    """A swatch in the colour of series ``place``."""
    return el("i", class_=f"swatch c{place % 6}")


def legend(labels: Sequence[str]) -> Html | None:
    """The colours of the series; None for a single series."""
    return el("p", *(el("span", swatch(i), label) for i, label in enumerate(labels)), class_="legend") if labels[1:] else None


class Bar(NamedTuple):
    """A mean from 0 to 100, its number of questions (0: unknown), and half the width of its interval."""

    mean: float
    questions: int
    margin: float


def bars(rows: Iterable[tuple[object, Sequence[Bar | None]]]) -> Html:
    """Labelled bars, one for each series of a row."""

    def line(bar: Bar | None, series: int) -> Html:
        if bar is None:
            return el("div", el("small", "not there"), class_="bar")
        low, high = max(0.0, bar.mean - bar.margin), min(100.0, bar.mean + bar.margin)
        fill = el("i", class_=f"fill c{series % 6}", style=f"width:{bar.mean:.2f}%")
        whisker = el("i", class_="whisker", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
        value = el("span", f"{bar.mean:.1f}", el("small", f" n = {bar.questions:,}") if bar.questions else None, class_="value")
        return el("div", el("span", fill, whisker, class_="track"), value, class_="bar")

    lines = [el("tr", el("th", label), el("td", *(line(bar, i) for i, bar in enumerate(row)))) for label, row in rows]
    return el("table", *lines, class_="bars")


def find_answers(context: str, answers: Iterable[str]) -> list[tuple[int, int]]:
    """Every occurrence of every answer in the passage: as whole words or, failing that, anywhere."""
    places: set[tuple[int, int]] = set()
    for answer in {text for text in answers if text.strip()}:
        literal = re.escape(answer)
        found = list(re.finditer(rf"(?<!\w){literal}(?!\w)", context)) or list(re.finditer(literal, context))
        places.update(match.span() for match in found)
    return sorted(places)


def mark_passage(context: str, answers: Iterable[str], prediction: str, start: int) -> Html:
    """The passage with right answers and the prediction marked; they may overlap. A long one is cut to its marks."""
    gold, predicted = find_answers(context, answers), [(start, start + len(prediction))]
    if start < 0 or not context.startswith(prediction, start):  # from a file without positions
        predicted = find_answers(context, [prediction])
    state = bytearray(len(context))  # per character: whether it is shown, and its marks
    for begin, end in [*predicted[:1], *gold[:3]] or [(0, LONG_PASSAGE)]:
        low, high = max(0, begin - AROUND_A_MARK), end + AROUND_A_MARK
        if len(context) <= LONG_PASSAGE:
            low, high = 0, len(context)
        state[low:high] = bytes([SHOWN]) * len(state[low:high])
    for kind, spans in ((GOLD, gold), (PREDICTED, predicted)):
        for place in (place for span in spans for place in range(*span) if state[place]):
            state[place] |= kind

    parts: list[object] = []
    for stretch in re.finditer(rb"(.)\1*", state, re.DOTALL):
        text, kind = context[slice(*stretch.span())], stretch[1][0]
        if not kind:
            parts.append(el("span", " […] ", class_="cut"))
        else:
            parts.append(el("mark", text, class_=MARKS[kind - SHOWN]) if kind > SHOWN else text)
    return el("p", *parts, class_="passage", dir="auto")
