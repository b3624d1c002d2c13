"""The section about questions to documents: HTML for a run, or None if it asked none.

metrics.json          asking.SET.MEASURE, from 0 to 100 (``asking.evaluate.chain_scores``), and seconds for one question
asking/SET.parquet    ASKED_SCHEMA
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.report.markup import Html, el, is_number, join, table
from raydist.report.parts import figures, with_interval
from raydist.report.plots import line_plot
from raydist.report.runs import ReportedRun

CAUSES = {
    "right": "right",
    "misread": "misread: a passage with an answer was read",
    "lost_in_ranking": "lost in ranking: it was found, and not read",
    "not_retrieved": "not retrieved",
    "not_in_the_documents": "not in the documents",
}
RECALLS = {"recall": "found", "reranked_recall": "reranked", "gold_recall": "the known passage"}
STEPS = ("retrieve", "rerank", "read")
CURVE_POINTS = 200


def asking(run: ReportedRun) -> Html | None:
    """The whole chain for every set: answers, passages found, causes of losses, precision over answered share."""
    by_set = chain_measures(run.metrics)
    if not by_set:
        return None
    parts: list[Html | None] = [answers(by_set), el("h3", "Passages with an answer"), recalls(by_set)]
    parts += [el("h3", "Where answers are lost"), errors(by_set), figures([precision_curve(run)])]
    return join(parts)


def chain_measures(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """asking.SET.MEASURE by set."""
    by_set: dict[str, dict[str, Any]] = {}
    for key, value in metrics.items():
        kind, _, rest = key.partition(".")
        name, dot, measure = rest.partition(".")
        if kind == "asking" and dot:
            by_set.setdefault(name, {})[measure] = value
    return by_set


def answers(by_set: dict[str, dict[str, Any]]) -> Html:
    head = ["Set", "Questions", "EM", "F1", "Answered", "Right of these", "Threshold", "ms each"]
    has_absent = any("not_found.recall" in found for found in by_set.values())
    head[6:6] = ["Rightly not found", "Of all not there"] if has_absent else []
    rows = []
    for name, found in by_set.items():
        cells = [with_interval(found, "em"), with_interval(found, "f1"), found.get("answered"), found.get("precision")]
        cells += [found.get("not_found.precision"), found.get("not_found.recall")] if has_absent else []
        seconds = [found.get(f"seconds.{step}") for step in STEPS]
        spent = 1000 * sum(value for value in seconds if is_number(value))
        rows.append([name, found.get("questions"), *cells, found.get("threshold"), round(spent)])
    note = (
        "EM and F1 are of the questions that the documents answer, the best answer taken even where it was withheld. Answered: "
        "share of all questions whose best answer reaches the threshold. Weights and threshold are fitted on the set dev, if "
        "there is one."
    )
    return join([table(head, rows), el("p", note, class_="note")])


def recalls(by_set: dict[str, dict[str, Any]]) -> Html:
    names = {name for found in by_set.values() for name in found if re.fullmatch(r"recall@\d+", name)}
    ranks = sorted(int(name.partition("@")[2]) for name in names)
    rows = []
    for name, found in by_set.items():
        for measure, title in RECALLS.items():
            values = [found.get(f"{measure}@{k}") for k in ranks]
            if any(map(is_number, values)):
                rows.append([f"{name}: {title}", *values, found.get("recall_read") if measure == "recall" else None])
    return table(["Share of questions", *(f"k = {k}" for k in ranks), "among those read"], rows)


def errors(by_set: dict[str, dict[str, Any]]) -> Html:
    rows = []
    for cause, title in CAUSES.items():
        cells = [found.get(f"errors.{cause}.{how}") for found in by_set.values() for how in ("answered", "withheld")]
        if any(cells):
            rows.append([title, *cells])
    head = [f"{name}: {how}" for name in by_set for how in ("answered", "withheld")]
    return join([table(["Best answer", *head], rows), el("p", "Numbers of questions.", class_="note")])


def precision_curve(run: ReportedRun) -> Html | None:
    """Precision of the surest answers, over their share of the questions."""
    curves = [(name, *surest_first(rows)) for name, rows in run.asked.items() if rows.num_rows]
    return line_plot("Right among the surest answers, %", curves, x_label="% of questions answered") if curves else None


def surest_first(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Answered share and precision at up to CURVE_POINTS thresholds, both in %."""
    order = np.argsort(-rows["probability"].to_numpy(), kind="stable")
    right = (np.array(rows["cause"].to_pylist(), object) == "right")[order]
    given = np.arange(1, len(order) + 1)
    kept = np.unique(np.linspace(0, len(order) - 1, min(CURVE_POINTS, len(order))).round().astype(int))
    return (100 * given / len(order))[kept], (100 * np.cumsum(right) / given)[kept]
