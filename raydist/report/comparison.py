"""The sections of a report about several runs: functions from the runs to HTML, or to None. The first run is the measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from raydist.reader.significance import paired_bootstrap
from raydist.report.markup import Html, el, is_number, join, swatch, table, took
from raydist.report.parts import (
    figures,
    language_bars,
    length_bars,
    loss_plots,
    main_measures,
    measure_name,
    model_name,
    other_plots,
    score_plots,
    with_interval,
)
from raydist.report.runs import Run
from raydist.report.sections import notices

SAMPLES = 2000  # of the paired bootstrap
DISAGREEMENTS = 10  # of each kind and test set
WHO_IS_RIGHT = ((True, True), (True, False), (False, True), (False, False))  # first run, other run


def overview(runs: Sequence[Run]) -> Html:
    """The runs and their colours."""
    rows = []
    for place, run in enumerate(runs):
        time = took(run.metrics.get("train.seconds"))
        rows.append([named(place, run), run.setting("task"), model_name(run), run.num_steps, time])
    said = [join([el("h3", run.name), notices(run)]) for run in runs if notices(run)]
    return join([table(["Run", "Task", "Model", "Steps", "Training took"], rows), *said])


def scores(runs: Sequence[Run]) -> Html | None:
    """Scores side by side, with the difference from the first run and whether it could be chance."""
    by_run = [run.scores() for run in runs]
    rows = []
    for test_set in dict.fromkeys(name for scored in by_run for name in scored):
        found = [scored.get(test_set, {}) for scored in by_run]
        for measure in main_measures(found):
            cells = [with_interval(values, measure) for values in found]
            for place in range(1, len(runs)):
                cells[place] = join([cells[place], difference(runs, found, test_set, measure, place)])
            rows.append([join([test_set, " ", measure_name(measure)]), *cells])
    if not rows:
        return None
    note = (
        "Small figures: 95 % bootstrap interval over questions. Below: the difference from the first run; its interval and p "
        "are from a paired bootstrap over the questions both runs answered, where both have their predictions."
    )
    return join([table(["Score", *(named(place, run) for place, run in enumerate(runs))], rows), el("p", note, class_="note")])


def difference(runs: Sequence[Run], found: Sequence[dict[str, Any]], test_set: str, measure: str, place: int) -> Html | None:
    """How far run ``place`` is from the first one; where both have their predictions, whether that could be chance."""
    first, other = found[0].get(measure), found[place].get(measure)
    if not is_number(first) or not is_number(other):
        return None
    chance = None
    if measure in ("f1", "em") and all(test_set in run.evaluations for run in (runs[0], runs[place])):
        pairs = paired_rows(runs[0], runs[place], test_set)
        values = [{f"{pair[i]['id']}\0{pair[i]['language']}": pair[i][measure] for pair in pairs} for i in (0, 1)]
        if pairs:
            test = paired_bootstrap(*values, samples=SAMPLES)
            p_value = f"p = {test.p_value:.3f}" if test.p_value >= 0.001 else "p < 0.001"
            chance = el("small", f" {test.low:+.2f} to {test.high:+.2f}, {p_value}")
    return el("div", el("b", f"{other - first:+.2f}"), chance, class_="difference n")


def curves(runs: Sequence[Run]) -> Html | None:
    """Scores and losses over steps, overlaid."""
    return figures([*score_plots(runs), *loss_plots(runs), *other_plots(runs)])


def disagreements(runs: Sequence[Run]) -> Html | None:
    """Questions that the first run answers and another does not, and the other way round."""
    counts, examples = [], []
    for place, run in enumerate(runs[1:], 1):
        for test_set in (name for name in runs[0].evaluations if name in run.evaluations):
            pairs = paired_rows(runs[0], run, test_set)
            kinds = [(first["em"] >= 100, other["em"] >= 100) for first, other in pairs]
            counts.append([test_set, named(place, run), *(kinds.count(kind) for kind in WHO_IS_RIGHT)])
            for kind, who in (((True, False), runs[0].name), ((False, True), run.name)):
                found = [pair for pair, this in zip(pairs, kinds) if this == kind]
                found.sort(key=lambda pair: blake2b(f"{pair[0]['id']}\0{pair[0]['language']}".encode()).digest())
                shown = found[:DISAGREEMENTS]
                if shown:
                    title = f"{test_set}: only {who} is right ({len(shown)} of {len(found):,})"
                    told = table(["Question", "Right", runs[0].name, run.name], map(in_a_row, shown), class_="text")
                    examples.append(el("details", el("summary", title), told))
    if not counts:
        return None
    head = ["Test set", "Against the first", "Both right", "Only the first", "Only this one", "Neither"]
    note = el("p", "Right: exact match. Examples are drawn by a hash of their id.", class_="note")
    return join([table(head, counts), note, *examples])


def paired_rows(first: Run, other: Run, test_set: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of the questions that both runs answered, in the order of the first."""
    columns = ["id", "language", "question", "answers", "prediction", "em", "f1"]
    others = {(row["id"], row["language"]): row for row in other.evaluations[test_set].select(columns).to_pylist()}
    rows = first.evaluations[test_set].select(columns).to_pylist()
    return [(row, others[row["id"], row["language"]]) for row in rows if (row["id"], row["language"]) in others]


def in_a_row(pair: tuple[dict[str, Any], dict[str, Any]]) -> list[Html]:
    """A row of a table about one question."""
    first, other = pair
    gold = next(iter(first["answers"] or []), "")
    return [el("bdi", text or "no answer") for text in (first["question"], gold, first["prediction"], other["prediction"])]


def settings(runs: Sequence[Run]) -> Html | None:
    """The settings in which the runs differ, and no others."""
    flat = [flatten(run.config) for run in runs]
    keys = [
        key for key in dict.fromkeys(key for values in flat for key in values) if len({values.get(key) for values in flat}) > 1
    ]
    if not keys:
        return el("p", "All settings are equal.") if any(flat) else None
    rows = [[el("code", key), *(el("code", values.get(key, "–")) for values in flat)] for key in keys]
    return table(["Setting", *(named(place, run) for place, run in enumerate(runs))], rows)


def flatten(value: object, path: str = "") -> dict[str, str]:
    """Nested settings as dotted keys; values as YAML and JSON both write them."""
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flatten(item, f"{path}.{key}" if path else str(key)).items()}
    return {path: value if isinstance(value, str) else json.dumps(value, default=str)} if path else {}


def named(place: int, run: Run) -> Html:
    """A run with its colour."""
    return join([swatch(place), run.name])


COMPARISONS: list[tuple[str, Callable[[Sequence[Run]], Html | None]]] = [
    ("Runs", overview),
    ("Scores", scores),
    ("Settings that differ", settings),
    ("Curves", curves),
    ("By language", language_bars),
    ("By answer length", length_bars),
    ("Where they disagree", disagreements),
]
