"""Curves as small inlined SVG. Matplotlib is imported when the first one is drawn: it costs most of a second."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from raydist.report.markup import Html, el, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#3987c9", "#e07b39", "#2fa37c", "#c65a8a", "#8a75d1", "#9a8f2c")  # legible on white and on near-black
DASHES = ("-", "--", ":")  # from the seventh series on
INK = "#010203"  # becomes the colour of the text around the figure, light or dark
MAX_POINTS = 300
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and in the page's own font
    "text.parse_math": False,  # a name with $ in it is a name
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "path.simplify": True,
}

Curve = tuple[str, np.ndarray, np.ndarray]  # label, steps, values


def line_plot(title: str, curves: Sequence[Curve], *, smooth: bool = False, note: str | None = None) -> Html | None:
    """A figure of values over steps, all curves on one scale; None where there is no finite point to draw.

    With ``smooth``, a curve of many points is drawn faintly as logged and boldly as its running mean.
    """
    if not any(np.isfinite(values).any() for _, _, values in curves):
        return None
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
        figure = Figure(figsize=(4.4, 2.3))
        axes = figure.subplots(gridspec_kw={"left": 0.12, "right": 0.99, "bottom": 0.19, "top": 0.93})
        for place, (_, steps, values) in enumerate(curves):
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
            steps, values = thin(steps, np.where(np.isfinite(values), values, np.nan))
            marker = "o" if len(steps) <= 30 else None
            faint = smooth and len(steps) > 30
            axes.plot(
                steps, values, dash, color=colour, lw=0.8 if faint else 1.6, alpha=0.35 if faint else 1, marker=marker, ms=3
            )
            if faint:
                axes.plot(steps, running_mean(values, len(steps) // 15), dash, color=colour, lw=1.8)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
        axes.set_xlabel("step")
        axes.margins(x=0.02, y=0.08)
        drawing = to_svg(figure, title)
    caption = el("figcaption", el("b", title), el("small", " ", note) if note else None, legend([curve[0] for curve in curves]))
    return el("figure", caption, drawing)


def to_svg(figure: Figure, label: str) -> Html:
    """The figure as an ``<svg>`` element for this page: no date, no document head, no ids that two figures could share."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's own font lacks is drawn by the browser's
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, count=2, flags=re.DOTALL)
    text = re.sub(r' id="[^"]*_\d+"| transform="rotate\(-0 [^"]*"|font-family: [^;"]*;?', "", text)
    text = re.sub(r' (d|x|y)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), text).replace(INK, "currentColor")
    text = re.sub(r"\s*\n\s*", "\n", text)
    return Html(text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def thin(steps: np.ndarray, values: np.ndarray, most: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most ``most`` points: means of equally many neighbours each, so that a spike leaves a trace."""
    if len(steps) <= most:
        return steps, values
    edges = np.linspace(0, len(steps), most + 1).astype(int)[:-1]
    sizes = np.diff(np.append(edges, len(steps)))
    return np.add.reduceat(steps, edges) / sizes, np.add.reduceat(values, edges) / sizes


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of each value and its neighbours up to ``width`` away, a third of that near the ends; NaN is passed over."""
    places = np.arange(len(values))
    reach = np.clip(np.minimum(places, places[::-1]), width // 3, width)  # a wide one-sided mean would flatten a steep start
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    number = counts[high] - counts[low]
    return np.divide(sums[high] - sums[low], number, out=np.full(len(values), np.nan), where=number > 0)
