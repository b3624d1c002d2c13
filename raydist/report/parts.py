"""Parts shared by reports on one run and on several: plots, bars and scores of any number of runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.report.markup import Bar, Html, bars, el, is_number, join, legend, number
from raydist.report.plots import Curve, line_plot
from raydist.report.runs import ReportedRun

LENGTHS = ((1, "1 word"), (2, "2 words"), (4, "3–4 words"), (8, "5–8 words"))


def figures(drawn: Iterable[Html | None]) -> Html | None:
    """Figures side by side if there is room; None if there are none."""
    found = [figure for figure in drawn if figure]
    return el("div", *found, class_="figures") if found else None


def loss_plots(runs: Sequence[ReportedRun], apart: tuple[str, ...] = ()) -> list[Html | None]:
    """The total loss and each term's contribution, then each unweighted term, except those drawn ``apart``."""
    terms = shared_keys(runs, lambda key: key.startswith("loss."))
    note = "faint: as logged; bold: running mean"
    total = over_runs(runs, "loss", "total")
    if len(runs) == 1 and len(terms) > 1:
        weighted = shared_keys(runs, lambda key: key.startswith("weighted."))
        counted = [key for key in weighted if runs[0].series(key)[1].any()]  # weight 0: logged, no part of the loss
        total += [curve for key in counted for curve in over_runs(runs, key, key.removeprefix("weighted."))]
    plots = [line_plot("Loss: total and weighted terms" if len(total) > len(runs) else "Loss", total, smooth=True, note=note)]
    if len(terms) > 1:
        shown = [key for key in terms if not key[5:].startswith(apart)] if apart else terms
        plots += [line_plot(f"Loss: {key[5:]}, unweighted", over_runs(runs, key, key[5:]), smooth=True) for key in shown]
    return plots


def score_plots(runs: Sequence[ReportedRun]) -> list[Html | None]:
    """Scores during training: a figure per set for one run, per score for several."""
    keys = list(dict.fromkeys(key for run in runs for key in run.score_keys()))
    if len(runs) > 1:
        return [line_plot(score_name(key), over_runs(runs, key, key)) for key in keys]
    by_set: dict[str, list[Curve]] = defaultdict(list)
    for key in keys:
        test_set, _, measure = key.partition(".")
        by_set[test_set] += over_runs(runs, key, measure_name(measure))
    return [line_plot(f"Score on {test_set}", found) for test_set, found in by_set.items()]


def other_plots(runs: Sequence[ReportedRun]) -> list[Html | None]:
    """Learning rate, gradient norm."""
    named = {"lr": "Learning rate", "grad_norm": "Gradient norm"}
    return [line_plot(title, over_runs(runs, key, title), smooth=key == "grad_norm") for key, title in named.items()]


def over_runs(runs: Sequence[ReportedRun], key: str, label: str) -> list[Curve]:
    """One curve for each run that logged ``key``; several are labelled by name, and a run without values keeps its colour."""
    if len(runs) == 1:
        return [(label, *runs[0].series(key))] if len(runs[0].series(key)[0]) else []
    return [(run.name, *run.series(key)) for run in runs]


def shared_keys(runs: Sequence[ReportedRun], wanted: Callable[[str], bool]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.step_keys() if wanted(key)))


def language_bars(runs: Sequence[ReportedRun]) -> Html | None:
    """F1 of each language of each test set, from the predictions, else from metrics.json; None for a single language."""
    found: dict[tuple[str, str], list[Bar | None]] = {}
    for place, run in enumerate(runs):
        groups: dict[tuple[str, str], Bar] = {}
        for test_set, scored in run.scores().items():
            for measure, value in scored.items():
                if re.fullmatch(r"f1\.(?!low$|high$|languages$)[^.]+", measure) and is_number(value):
                    groups[test_set, measure[3:]] = Bar(value, int(scored.get("questions." + measure[3:], 0)), 0.0)
        for test_set, rows in run.evaluations.items():
            for language, bar in group_means(rows["language"].to_pylist(), rows).items():
                groups[test_set, language] = bar
        for key, bar in groups.items():
            found.setdefault(key, [None] * len(runs))[place] = bar
    if len({language for _, language in found}) < 2:
        return None
    order = list(dict.fromkeys(test_set for test_set, _ in found))
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    rows = [(join([language, " ", el("small", test_set)]), found[test_set, language]) for test_set, language in keys]
    note = el("p", "Mean F1; the whisker is ± 1.96 standard errors.", class_="note")
    return join([note, legend([run.name for run in runs]), bars(rows)])


def length_bars(runs: Sequence[ReportedRun]) -> Html | None:
    """F1 by the number of words of the shortest right answer."""
    order = [*(label for _, label in LENGTHS), "9 words or more", "no answer"]
    parts: list[object] = []
    for test_set in dict.fromkeys(name for run in runs for name in run.evaluations):
        tables = [run.evaluations.get(test_set) for run in runs]
        means = [group_means(map(length_group, t["answers"].to_pylist()), t) if t else {} for t in tables]
        rows = [(label, [found.get(label) for found in means]) for label in order if any(label in found for found in means)]
        parts.append(el("div", el("h3", test_set), bars(rows)))
    if not parts:
        return None
    note = "Mean F1 by the number of words (between spaces) of the shortest right answer; whisker: ± 1.96 standard errors."
    return join([el("p", note, class_="note"), legend([run.name for run in runs]), el("div", *parts, class_="figures")])


def length_group(answers: Sequence[str] | None) -> str:
    """The bar that a question belongs to."""
    words = min((len(text.split()) for text in answers or [] if text.split()), default=0)
    return next((label for most, label in LENGTHS if words <= most), "9 words or more") if words else "no answer"


def group_means(labels: Iterable[str | None], rows: pa.Table) -> dict[str, Bar]:
    """Mean F1 of each label's rows."""
    f1_by_label: dict[str, list[float]] = defaultdict(list)
    for label, f1 in zip(labels, rows["f1"].to_pylist()):
        f1_by_label[label or "unknown"].append(f1)
    # the standard error needs the sample deviation, undefined for one question
    errors = {label: np.std(f1, ddof=1) / len(f1) ** 0.5 if len(f1) > 1 else 0.0 for label, f1 in f1_by_label.items()}
    return {label: Bar(float(np.mean(f1)), len(f1), 1.96 * float(errors[label])) for label, f1 in f1_by_label.items()}


def main_measures(found: Iterable[dict[str, Any]]) -> list[str]:
    """F1 and EM, and other measures with an interval that are not part of another."""
    measures = [measure for scored in found for measure in scored]
    main = {m for m in measures if m in ("f1", "em")} | {m[:-4] for m in measures if m.endswith(".low") and "." not in m[:-4]}
    return sorted(main, key=lambda measure: (measure != "f1", measure != "em", measure))


def with_interval(found: dict[str, Any], measure: str) -> Html:
    """A score, its interval, and both on a line from 0 to 100."""
    value, low, high = (found.get(key) for key in (measure, measure + ".low", measure + ".high"))
    if not is_number(value):
        return el("span", number(value), class_="n")
    text = el("b", number(value))
    if not is_number(low) or not is_number(high):
        return el("span", text, class_="n")
    line = None
    if 0 <= low <= high <= 100:
        place = el("i", style=f"left:{low:.2f}%;width:{high - low:.2f}%")
        line = el("span", place, el("em", style=f"left:{min(max(value, 0), 100):.2f}%"), class_="range")
    return el("span", text, el("small", f" {number(float(low))} – {number(float(high))}", class_="interval"), line, class_="n")


def chance(low: float, high: float, p_value: float) -> Html:
    """Interval and p of a difference."""
    p = f"p = {p_value:.3f}" if p_value >= 0.001 else "p < 0.001"
    return el("small", f" {low:+.2f} to {high:+.2f}, {p}", class_="interval")


def drawing_key(id: str, language: str | None) -> bytes:
    """A sort key for a reproducible random order of questions."""
    return blake2b(f"{id}\0{language}".encode()).digest()


def model_name(run: ReportedRun) -> str | None:
    """The encoder or, for another tool's answers, their files."""
    if run.is_foreign:
        return f"another tool's answers: {', '.join(dict.fromkeys(run.setting('evaluate', 'predictions').values()))}"
    model = run.setting("model")
    return model.get("name") if isinstance(model, dict) else model


def measure_name(measure: str) -> str:
    names = {"f1": "F1", "em": "EM", "addsent_f1": "AddSent F1", "addsent_em": "AddSent EM"}
    names |= {"original_f1": "F1 of originals", "mrr": "MRR"}
    return names.get(measure, measure)


def score_name(key: str) -> str:
    test_set, _, measure = key.partition(".")
    return f"{test_set} {measure_name(measure)}"
