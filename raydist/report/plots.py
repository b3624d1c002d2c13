"""Curves as small inlined SVG. Matplotlib is imported when the first one is drawn: it costs most of a second."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from raydist.report.markup import Html, el, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def line_plot(
    title: str,
    curves: Sequence[Curve],
    *,
    smooth: bool = False,
    note: str | None = None,
    x_label: str = "step",
    x_ticks: Sequence[float] | None = None,
) -> Html | None:
    """A figure of values over steps, all curves on one scale; None without a finite point.

    With ``smooth``, a curve of many points is drawn faintly as logged and boldly as its running mean. ``x_ticks`` are for
    values over something other than steps.
    """
    if not any(np.isfinite(values).any() for _, _, values in curves):
        return None

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FixedLocator, MaxNLocator

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
        axes.xaxis.set_major_locator(FixedLocator(list(x_ticks)) if x_ticks else MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
        axes.set_xlabel(x_label)
        axes.margins(x=0.02, y=0.08)

    return draw_figure(title, draw, [curve[0] for curve in curves], note=note)


def cloud_plot(
    title: str,
    clouds: Sequence[tuple[str, np.ndarray]],
    *,
    labels: tuple[str, str],
    ringed: np.ndarray,
    note: str | None = None,
) -> Html | None:
    """Clouds of the same points in two dimensions, [N, 2] each; faint lines join copies of a point; some are ringed."""
    if not clouds or not len(clouds[0][1]):
        return None

    def draw(axes: Axes) -> None:
        tracks = np.stack([points for _, points in clouds])  # [clouds, N, 2]
        gap = np.full((1, tracks.shape[1]), np.nan)  # cuts one line into many: one path in the file
        axes.plot(*(np.concatenate([tracks[..., i], gap]).T.ravel() for i in (0, 1)), "-", color=INK, lw=0.4, alpha=0.25)
        for place, (_, points) in enumerate(clouds):
            marker = "o^sD"[place % 4]
            axes.plot(*points.T, marker, color=COLOURS[place % len(COLOURS)], ms=3.2, mew=0, alpha=0.85)
            axes.plot(*points[ringed].T, marker, mfc="none", mec=INK, ms=6.5, mew=0.9)
        _label(axes, labels)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.05)

    return draw_figure(title, draw, [name for name, _ in clouds], size=(4.4, 3.3), box=(0.14, 0.98, 0.14, 0.96), note=note)


def path_plot(title: str, path: np.ndarray, *, labels: tuple[str, str], note: str | None = None) -> Html | None:
    """One quantity against another over training, [N, 2]: a line from the first point (a ring) to the last (a dot)."""
    path = path[np.isfinite(path).all(1)]
    if len(path) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*path.T, "-", color=COLOURS[0], lw=1.2, alpha=0.8)
        axes.plot(*path[:1].T, "o", mfc="none", mec=COLOURS[0], ms=7, mew=1.6)
        axes.plot(*path[-1:].T, "o", color=COLOURS[0], ms=7)
        _label(axes, labels)
        axes.ticklabel_format(axis="both", scilimits=(-3, 5))

    return draw_figure(title, draw, [], box=(0.14, 0.99, 0.19, 0.93), note=note)


def dot_plot(title: str, groups: Sequence[tuple[str, Sequence[float]]], *, note: str | None = None) -> Html | None:
    """A row of dots for each group, from top to bottom, and a stroke at its mean."""
    if not any(len(values) for _, values in groups):
        return None
    height = 0.6 + 0.26 * len(groups)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for place, (_, values) in enumerate(groups):
            axes.plot(values, [-place] * len(values), "o", color=COLOURS[place % len(COLOURS)], ms=5.5, mew=0, alpha=0.8)
            if len(values):
                axes.plot([np.mean(values)], [-place], "|", color=INK, ms=14, mew=1.4)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_yticks([])
        axes.set_ylim(0.4 - len(groups), 0.6)
        axes.margins(x=0.06)

    box = (0.03, 0.97, 0.3 / height, 1 - 0.06 / height)
    return draw_figure(title, draw, [name for name, _ in groups], size=(4.4, height), box=box, note=note)


def draw_figure(
    title: str,
    draw: Callable[[Axes], None],
    names: Sequence[str],
    *,
    size: tuple[float, float] = (4.4, 2.3),
    box: tuple[float, float, float, float] = (0.12, 0.99, 0.19, 0.93),
    note: str | None = None,
) -> Html:
    """A figure with its caption and the colours of its series. ``box``: left, right, bottom and top of the axes, as shares."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
        figure = Figure(figsize=size)
        draw(figure.subplots(gridspec_kw=dict(zip(("left", "right", "bottom", "top"), box))))
        drawing = to_svg(figure, title)
    return el("figure", el("figcaption", el("b", title), el("small", " ", note) if note else None, legend(names)), drawing)


def _label(axes: Axes, labels: tuple[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis, label in ((axes.xaxis, labels[0]), (axes.yaxis, labels[1])):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_label_text(label)


def to_svg(figure: Figure, label: str) -> Html:
    """The figure as an ``<svg>`` element for this page: no date, no document head, no ids that two figures could share."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser's font draws glyphs that matplotlib's lacks
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
