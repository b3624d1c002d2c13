"""``report.html`` of a sweep: the ranking, the metric against each parameter, parallel coordinates, learning curves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raydist.errors import InputError
from raydist.report.html import write_page
from raydist.report.markup import Html, el, is_number, join, number, table
from raydist.report.parts import figures, score_name
from raydist.report.plots import COLOURS, INK, draw_figure
from raydist.report.runs import ReportedRun, load_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BOXES = 12  # a parameter of more values is drawn as points
MOST_TICKS = 8


def write_sweep_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report on the sweep in a folder, finished or not, and return its path (default: in that folder)."""
    if not (folder / "sweep.json").is_file():
        raise InputError(f"{folder} is not a sweep: it has no sweep.json; make one with raydist sweep CONFIG")
    found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    runs = {
        trial["id"]: load_run(folder / "trials" / trial["id"])
        for row in found["settings"]
        for trial in row["trials"]
        if (folder / "trials" / trial["id"]).is_dir()
    }
    sections = [
        ("Overview", overview(found)),
        ("Settings", settings(found)),
        ("Each parameter", parameters(found)),
        ("Together", coordinates(found)),
        ("Learning curves", curves(found, runs)),
    ]
    return write_page(out or folder / "report.html", found["name"], sections)


def overview(found: Mapping[str, Any]) -> Html:
    """The number of settings and trials, and the best setting."""
    statuses = [trial["status"] for row in found["settings"] for trial in row["trials"]]
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    facts = {
        "Metric": f"{score_name(found['metric'])} ({found['mode']})",
        "Search": found["search"] + (f", {found['scheduler']}" if found["scheduler"] != "none" else ""),
        "Settings": len(found["settings"]),
        "Trials": counted or "none",
        "Seeds": ", ".join(map(str, found["seeds"])),
    }
    listed = el("dl", *(el("div", el("dt", name), el("dd", number(value))) for name, value in facts.items()))
    best = found["best"]
    if not best:
        return listed
    values = ", ".join(f"{key} = {shown(value)}" for key, value in best["choice"].items())
    deviation = f" ± {number(best['deviation'])}" if is_number(best["deviation"]) else ""
    return join([listed, el("p", "Best: ", el("b", values), f", {found['metric']} {number(best['mean'])}{deviation}")])


def settings(found: Mapping[str, Any]) -> Html | None:
    """Every setting, the best first."""
    if not found["settings"]:
        return None
    seeds = [f"seed {seed}" for seed in found["seeds"]]
    rows = []
    for place, row in enumerate(found["settings"], 1):
        cells = [place, *(el("code", shown(row["choice"].get(key))) for key in found["keys"])]
        for trial in row["trials"]:
            status = None if trial["status"] == "done" else el("small", " ", trial["status"])
            score = number(trial["value"]) if trial["value"] is not None else None
            cells.append(el("span", score, status, class_="n"))
        rows.append([*cells, row["mean"], row["deviation"]])
    note = "Mean and standard deviation are over the seeds that ran to their end; a stopped trial shows its last dev score."
    return join([table(["", *found["keys"], *seeds, "mean", "deviation"], rows), el("p", note, class_="note")])


def parameters(found: Mapping[str, Any]) -> Html | None:
    """The metric against each parameter, over all values of the others: a box for each value, or points."""
    return figures(parameter_plot(found, key) for key in found["keys"])


def parameter_plot(found: Mapping[str, Any], key: str) -> Html | None:
    pairs = [
        (row["choice"].get(key), trial["value"])
        for row in found["settings"]
        for trial in row["trials"]
        if trial["status"] == "done" and is_number(trial["value"])
    ]
    values = in_order([value for value, _ in pairs])
    if not values:
        return None
    groups = [[score for value, score in pairs if same(value, one)] for one in values]

    def boxes(axes: Axes) -> None:
        colour = COLOURS[0]
        lines = {name: {"color": colour, "linewidth": 1.2} for name in ("boxprops", "whiskerprops", "capprops", "medianprops")}
        axes.boxplot(groups, widths=0.5, whis=(0, 100), showfliers=False, **lines)  # type: ignore[arg-type]
        for place, group in enumerate(groups, 1):
            axes.plot([place] * len(group), group, "o", color=INK, ms=2.5, alpha=0.45)
        axes.set_xticklabels([shown(value) for value in values])

    def points(axes: Axes) -> None:
        axes.plot([value for value, _ in pairs], [score for _, score in pairs], "o", color=COLOURS[0], ms=3.5, alpha=0.8)
        if key in found["log"]:
            axes.set_xscale("log")

    few = len(values) <= MOST_BOXES or not all(is_number(value) for value in values)

    def draw(axes: Axes) -> None:
        (boxes if few else points)(axes)
        axes.set_xlabel(key)
        axes.set_ylabel(score_name(found["metric"]))

    note = "box: quartiles; whiskers: least and most; dots: trials" if few else "a dot for each trial"
    return draw_figure(f"{score_name(found['metric'])} against {key}", draw, [], box=(0.14, 0.99, 0.2, 0.95), note=note)


def coordinates(found: Mapping[str, Any]) -> Html | None:
    """Every setting as a line through its values and what it reached; the best one stands out."""
    rows = [row for row in found["settings"] if is_number(row["mean"])]
    keys = found["keys"]
    if len(keys) < 2 or len(rows) < 2:
        return None
    columns = [[row["choice"].get(key) for row in rows] for key in keys] + [[row["mean"] for row in rows]]
    names = [*keys, found["metric"]]
    scaled = [
        scale(column, log=name in found["log"], even=place < len(keys))
        for place, (name, column) in enumerate(zip(names, columns))
    ]
    heights = np.array([[place(value) for value in column] for (place, _), column in zip(scaled, columns)])

    def draw(axes: Axes) -> None:
        across = np.arange(len(names))
        goodness = heights[-1] if found["mode"] == "max" else 1 - heights[-1]
        for column in np.argsort(goodness, kind="stable"):
            best = rows[column] is rows[0]
            axes.plot(
                across,
                heights[:, column],
                color=COLOURS[1] if best else COLOURS[0],
                lw=2.4 if best else 1.1,
                alpha=1.0 if best else 0.15 + 0.65 * float(goodness[column]),
            )
        for x, (_, ticks) in enumerate(scaled):
            axes.axvline(x, color=INK, lw=0.7, alpha=0.5)
            for height, label in ticks:
                axes.text(x + 0.02, height, label, fontsize=8, va="center")
        axes.set_xticks(across, names)
        axes.set_yticks([])
        axes.set_xlim(-0.15, len(names) - 0.6)
        axes.grid(False)
        axes.spines["left"].set_visible(False)

    wide = (max(4.4, 1.7 * len(names)), 3.0)
    note = "a line for each setting (mean over seeds); the darker, the better; the best in another colour"
    return draw_figure("Parallel coordinates", draw, [], size=wide, box=(0.04, 0.96, 0.12, 0.96), note=note)


def curves(found: Mapping[str, Any], runs: Mapping[str, ReportedRun]) -> Html | None:
    """The dev score (or the loss, without one) over steps: the best settings in colour, the others behind them."""
    keys = [key for run in runs.values() for key in run.score_keys()]
    key = found["metric"] if found["metric"] in keys else next(iter(keys), "loss")
    series: list[list[tuple[np.ndarray, np.ndarray]]] = [
        [runs[trial["id"]].series(key) for trial in row["trials"] if trial["id"] in runs] for row in found["settings"]
    ]
    if not any(len(steps) for lines in series for steps, _ in lines):
        return None

    def draw(axes: Axes) -> None:
        for place in reversed(range(len(series))):
            marked = place < len(COLOURS)
            for steps, values in series[place]:
                marker = "o" if len(steps) <= 30 else None
                axes.plot(
                    steps,
                    values,
                    color=COLOURS[place] if marked else INK,
                    lw=1.6 if marked else 0.8,
                    alpha=1.0 if marked else 0.2,
                    marker=marker,
                    ms=3,
                )
        axes.set_xlabel("step")

    labels = [", ".join(shown(row["choice"].get(name)) for name in found["keys"]) for row in found["settings"][: len(COLOURS)]]
    title = score_name(key) if "." in key else "Loss"
    note = f"a line for each trial; in colour the best settings, by {', '.join(found['keys'])}"
    return figures([draw_figure(f"{title} during training", draw, labels, size=(6.4, 3.2), note=note)])


# --- values ----------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A parameter's value as text; None is an objective that is off."""
    if value is None:
        return "off"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def in_order(values: Sequence[Any]) -> list[Any]:
    """Each value once; numbers by size, else in the order of appearance."""
    found: list[Any] = []
    for value in values:
        if not any(same(value, one) for one in found):
            found.append(value)
    return sorted(found) if all(is_number(value) for value in found) else found


def scale(column: Sequence[Any], *, log: bool, even: bool) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """A function from a value to its height between 0 and 1 on an axis, and the axis' labels. With `even`, a few values are
    spaced evenly.
    """
    values = in_order(column)
    if all(is_number(value) for value in values) and not (even and len(values) <= MOST_TICKS):
        low, high = float(values[0]), float(values[-1])

        def along(value: Any) -> float:
            if low == high:
                return 0.5
            if log:
                return math.log(value / low) / math.log(high / low)
            return (value - low) / (high - low)

        return along, [(0.0, shown(values[0])), (1.0, shown(values[-1]))]
    last = max(1, len(values) - 1)

    def step(value: Any) -> float:
        return next(place for place, one in enumerate(values) if same(value, one)) / last

    labelled = range(len(values)) if len(values) <= MOST_TICKS else (0, len(values) - 1)
    return step, [(place / last, shown(values[place])) for place in labelled]
