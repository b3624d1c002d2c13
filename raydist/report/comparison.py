"""The sections of a report about several runs: functions from the runs to HTML or None. The first run is the baseline or, with
runs that differ only in their seed, the first such group."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from raydist.config.compare import changed_settings
from raydist.config.load import flat_values
from raydist.config.roles import changes_scores
from raydist.records import RANKED_SCHEMA, Score
from raydist.report.markup import Html, el, is_number, join, swatch, table, took
from raydist.report.mining import METHODS, METRICS, ordered, scores_by_set
from raydist.report.parts import (
    chance,
    drawing_key,
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
from raydist.report.plots import dot_plot
from raydist.report.published.reader import published
from raydist.report.runs import ReportedRun
from raydist.report.sections import notices
from raydist.statistics import Comparison, adversarial_scores, compare_groups, holm

SAMPLES = 2000  # of the paired bootstrap
DISAGREEMENTS = 10  # of each kind and test set
WHO_IS_RIGHT = ((True, True), (True, False), (False, True), (False, False))  # first run, other run


def overview(runs: Sequence[ReportedRun]) -> Html:
    """The runs and their colours."""
    rows = []
    for place, run in enumerate(runs):
        time = took(run.metrics.get("train.seconds"))
        rows.append([named(place, run), run.setting("task"), model_name(run), run.num_steps, time])
    said = [join([el("h3", run.name), notices(run)]) for run in runs if notices(run)]
    return join([table(["Run", "Task", "Model", "Steps", "Training took"], rows), *said])


def scores(runs: Sequence[ReportedRun]) -> Html | None:
    """Scores side by side, with the difference from the first run and its significance."""
    by_run = [run.scores() for run in runs]
    lines = [(name, measure) for name, found in by_set(by_run).items() for measure in main_measures(found)]
    places = range(1, len(runs))
    tests = corrected({(*line, at): paired_test([runs[0]], [runs[at]], *line) for line in lines for at in places})
    rows = []
    for test_set, measure in lines:
        found = by_set(by_run)[test_set]
        cells = [with_interval(values, measure) for values in found]
        for place in places:
            test = tests.get((test_set, measure, place))
            cells[place] = join([cells[place], difference(found[0].get(measure), found[place].get(measure), test)])
        rows.append([join([test_set, " ", measure_name(measure)]), *cells])
    if not rows:
        return None
    note = (
        "Small figures: 95 % bootstrap interval over questions. Below: the difference from the first run; its interval and p "
        "are from a paired bootstrap over the questions both runs answered, where both have their predictions. "
        "p is corrected for all tests of this table (Holm). One run against another says nothing of other seeds."
    )
    return join([table(["Score", *(named(place, run) for place, run in enumerate(runs))], rows), el("p", note, class_="note")])


def by_set(by_run: Sequence[Mapping[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The scores of every run, by set."""
    names = dict.fromkeys(name for scored in by_run for name in scored)
    return {name: [scored.get(name, {}) for scored in by_run] for name in names}


def difference(first: Any, other: Any, test: Comparison | None) -> Html | None:
    """The difference of a run from the first one; with predictions of both, also its significance."""
    if not is_number(first) or not is_number(other):
        return None
    return el(
        "div",
        el("b", f"{other - first:+.2f}"),
        chance_of(test) if test else None,
        class_="difference n",
    )


def chance_of(test: Comparison) -> Html:
    return chance(test.low, test.high, test.p_value)


def corrected(tests: Mapping[Any, Comparison | None]) -> dict[Any, Comparison]:
    """The existing tests of a table, with p corrected for their number."""
    known = {key: test for key, test in tests.items() if test}
    p_values = holm([test.p_value for test in known.values()])
    return {key: replace(test, p_value=p) for (key, test), p in zip(known.items(), p_values)}


def paired_test(first: Sequence[ReportedRun], other: Sequence[ReportedRun], test_set: str, measure: str) -> Comparison | None:
    """Compare two groups of runs on the questions that all of them answered: over seeds, then questions.

    None if a run has no predictions, or the measure is not one of single questions.
    """
    by_run = [question_scores(run, test_set, measure) for run in (*first, *other)]
    return paired_groups(by_run, len(first), "original questions" if measure.startswith("addsent_") else "questions")


def paired_groups(by_run: Sequence[dict[str, float]], first: int, kind: str = "questions") -> Comparison | None:
    """Compare the ``first`` runs with the others on the questions that all have; None if there are none."""
    shared = [id for id in by_run[0] if all(id in scores for scores in by_run)]
    if not shared:
        return None
    answered = [{id: scores[id] for id in shared} for scores in by_run]
    return compare_groups(answered[:first], answered[first:], samples=SAMPLES, resampled=kind)


def question_scores(run: ReportedRun, test_set: str, measure: str) -> dict[str, float]:
    """Score by question from the run's predictions; for adversarial sets by original question, its worst copy's."""
    rows = run.evaluations.get(test_set)
    kind = measure.removeprefix("addsent_")
    if rows is None or kind not in ("f1", "em"):
        return {}
    columns = zip(*(rows[name].to_pylist() for name in ("id", "language", "prediction", "em", "f1")))
    scores = [Score(id, language, prediction, em, f1, True) for id, language, prediction, em, f1 in columns]
    if measure != kind:
        scores = adversarial_scores(scores)
    return {f"{score.id}\0{score.language}": getattr(score, kind) for score in scores}


class Group(NamedTuple):
    """Runs that differ in their seed alone."""

    name: str
    runs: list[ReportedRun]

    def values(self, test_set: str, measure: str) -> dict[str, float]:
        """A score by seed, for the runs that have it; a repeated seed carries its run's name."""
        found: dict[str, float] = {}
        for run in self.runs:
            value = run.scores().get(test_set, {}).get(measure)
            if is_number(value):
                seed = str(run.setting("seed"))
                found[f"{seed} ({run.name})" if seed in found else seed] = float(value)
        return found


def seed_groups(runs: Sequence[ReportedRun]) -> list[Group]:
    """The runs grouped by all settings that change a result except the seed, in the order of their first runs."""
    by_settings: list[tuple[dict[str, Any], list[ReportedRun]]] = []
    for run in runs:
        own = {name: value for name, value in result_settings(run).items() if name != "seed"}
        group = next((group for first, group in by_settings if first and own and not changed_settings(first, own)), None)
        if group is None:
            by_settings.append((own, [run]))
        else:
            group.append(run)
    names = [group_name([run.name for run in group]) for _, group in by_settings]
    groups = zip(names, (group for _, group in by_settings))
    return [Group(name if names.count(name) == 1 else ", ".join(run.name for run in runs), runs) for name, runs in groups]


def result_settings(run: ReportedRun) -> dict[str, Any]:
    """The run's settings that may change a score of its task."""
    task = run.setting("task")
    return {name: value for name, value in flat_values(run.config).items() if changes_scores(name, task)}


def group_name(names: Sequence[str]) -> str:
    """The common prefix of the names: ``infomax`` for infomax_0 and infomax_1; all names if it is empty."""
    if len(names) == 1:
        return names[0]
    end = next((i for i, letters in enumerate(zip(*names)) if len(set(letters)) > 1), min(map(len, names)))
    shared = names[0][:end].rstrip("0123456789").rstrip("_-. (")
    return shared.removesuffix("seed").rstrip("_-. ") or ", ".join(names)


def over_seeds(runs: Sequence[ReportedRun]) -> Html | None:
    """Mean, deviation and maximum over seeds, every seed, and each group's difference from the first."""
    groups = seed_groups(runs)
    if not any(len({run.setting("seed") for run in group.runs}) > 1 for group in groups):
        return None
    drawn, rows = [], []
    scored = by_set([run.scores() for run in runs])
    scores = [(test_set, measure) for test_set, found in scored.items() for measure in main_measures(found)]
    places = range(1, len(groups))
    tests = corrected({(*one, at): paired_test(groups[0].runs, groups[at].runs, *one) for one in scores for at in places})
    for test_set, measure in scores:
        title = f"{test_set} {measure_name(measure)}"
        values = [group.values(test_set, measure) for group in groups]
        by_group = [tests.get((test_set, measure, place)) for place in range(len(groups))]
        lines = [seed_row(groups, values, place, by_group[place]) for place, known in enumerate(values) if known]
        rows += [[title if i == 0 else "", *line] for i, line in enumerate(lines)]
        drawn.append(dot_plot(f"{title}, every seed", [(g.name, list(v.values())) for g, v in zip(groups, values)]))
    if not rows:
        return None
    note = (
        "Runs that differ in their seed alone are one group. The (sample) deviation shows what another seed might "
        "do. Differences are between means, from the first group; interval and p are from a bootstrap over seeds, then over "
        "the questions that all runs of both groups answered: they show what other seeds and other questions might do. p is "
        "corrected for all tests of this table (Holm). Groups of one seed each say nothing of other seeds."
    )
    head = ["Score", "Runs", "Mean", "Deviation", "Maximum", "Every seed", *(["From the first"] if groups[1:] else [])]
    return join([el("p", note, class_="note"), figures(drawn), table(head, rows)])


def seed_row(groups: Sequence[Group], values: Sequence[dict[str, float]], place: int, test: Comparison | None) -> list[object]:
    """A group's line in the table of one score."""
    known = list(values[place].values())
    mean = float(np.mean(known))
    seeds = join(
        join([" · " if i else None, el("small", f"{seed}: "), f"{value:.2f}"])
        for i, (seed, value) in enumerate(values[place].items())
    )
    row: list[object] = [join([swatch(place), groups[place].name]), el("b", f"{mean:.2f}", class_="n")]
    row += [float(np.std(known, ddof=1)) if known[1:] else None, max(known), el("span", seeds, class_="n")]
    if not groups[1:]:
        return row
    if not place or not values[0]:
        return [*row, None]
    gap = el("b", f"{mean - float(np.mean(list(values[0].values()))):+.2f}")
    return [*row, el("div", gap, chance_of(test) if test else None, class_="difference n")]


def beside_published(runs: Sequence[ReportedRun]) -> Html | None:
    """Mean, deviation and maximum of each group of runs beside the published numbers, and differing settings."""
    parts = [published(group.runs, group.name) for group in seed_groups(runs) if group.runs[0].config]
    shown = [part for part in parts if part]
    return join(shown) if shown else None


def retrieval(runs: Sequence[ReportedRun]) -> Html | None:
    """Retrieval metrics of every method: a value for each group of runs, with its deviation over several seeds."""
    groups = seed_groups(runs)
    found = [[scores_by_set(run) for run in group.runs] for group in groups]
    parts: list[Html] = []
    for test_set in dict.fromkeys(name for group in found for scored in group for name in scored):
        by_group = [[scored[test_set] for scored in group if test_set in scored] for group in found]
        rows = []
        methods = ordered(method for group in by_group for scored in group for method in scored)
        cells_of = [(at, method, metric) for at in range(1, len(groups)) for method in methods for metric in METRICS]
        tests = corrected({(at, *of): paired_ranking(groups[0].runs, groups[at].runs, test_set, *of) for at, *of in cells_of})
        for method in methods:
            for place, group in enumerate(by_group):
                cells = [mean_and_deviation([scored.get(method, {}).get(metric) for scored in group]) for metric in METRICS]
                for at, metric in enumerate(METRICS if place else ()):
                    test = tests.get((place, method, metric))
                    if test and cells[at]:
                        gap = el(
                            "div",
                            el("b", f"{test.difference:+.2f}"),
                            chance_of(test),
                            class_="difference n",
                        )
                        cells[at] = join([cells[at], gap])
                if any(cells):
                    rows.append([METHODS.get(method, method), join([swatch(place), groups[place].name]), *cells])
        parts += [el("h3", test_set), table(["Method", "Runs", *METRICS], rows)]
    if not parts:
        return None
    note = (
        "In per cent. After ±: the sample deviation over runs that differ in their seed alone. Below: the "
        "difference of the same method from the first runs, with interval and p of a bootstrap over seeds, then questions; p "
        "is corrected for all tests of a table (Holm)."
    )
    return join([*parts, el("p", note, class_="note")])


def paired_ranking(
    first: Sequence[ReportedRun], other: Sequence[ReportedRun], test_set: str, method: str, metric: str
) -> Comparison | None:
    """Compare a method between two groups of runs, in per cent; None if a run lacks values per question, or all are equal."""
    if metric not in RANKED_SCHEMA.names:
        return None
    by_run = []
    for run in (*first, *other):
        rows = run.ranked.get(test_set)
        rows = rows.filter(pc.equal(rows["method"], method)) if rows is not None else RANKED_SCHEMA.empty_table()
        rows = rows.filter(pc.is_valid(rows[metric]))
        by_run.append({id: 100 * value for id, value in zip(rows["question_id"].to_pylist(), rows[metric].to_pylist())})
    return None if all(scores == by_run[0] for scores in by_run) else paired_groups(by_run, len(first))


def mean_and_deviation(values: Sequence[float | None]) -> Html | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = el("small", f" ± {np.std(known, ddof=1):.2f}") if known[1:] else None
    return el("span", f"{np.mean(known):.2f}", deviation, class_="n")


def curves(runs: Sequence[ReportedRun]) -> Html | None:
    """Scores and losses over steps, overlaid."""
    return figures([*score_plots(runs), *loss_plots(runs), *other_plots(runs)])


def disagreements(runs: Sequence[ReportedRun]) -> Html | None:
    """Questions that the first run answers correctly and another does not, and vice versa."""
    counts, examples = [], []
    for place, run in enumerate(runs[1:], 1):
        for test_set in (name for name in runs[0].evaluations if name in run.evaluations):
            pairs = paired_rows(runs[0], run, test_set)
            kinds = [(first["em"] >= 100, other["em"] >= 100) for first, other in pairs]
            counts.append([test_set, named(place, run), *(kinds.count(kind) for kind in WHO_IS_RIGHT)])
            for kind, who in (((True, False), runs[0].name), ((False, True), run.name)):
                found = [pair for pair, this in zip(pairs, kinds) if this == kind]
                found.sort(key=lambda pair: drawing_key(pair[0]["id"], pair[0]["language"]))
                shown = found[:DISAGREEMENTS]
                if shown:
                    title = f"{test_set}: only {who} is right ({len(shown)} of {len(found):,})"
                    compared = table(["Question", "Right", runs[0].name, run.name], map(in_a_row, shown), class_="text")
                    examples.append(el("details", el("summary", title), compared))
    if not counts:
        return None
    head = ["Test set", "Against the first", "Both right", "Only the first", "Only this one", "Neither"]
    note = el("p", "Right: exact match. Examples are drawn by a hash of their id.", class_="note")
    return join([table(head, counts), note, *examples])


def paired_rows(first: ReportedRun, other: ReportedRun, test_set: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
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


def settings(runs: Sequence[ReportedRun]) -> Html | None:
    """The settings in which the runs differ, and no others."""
    flat = [flatten(run.config) for run in runs]
    keys = [
        key for key in dict.fromkeys(key for values in flat for key in values) if len({values.get(key) for values in flat}) > 1
    ]
    if not keys:
        return el("p", "All settings are equal.") if any(flat) else None
    rows = [[el("code", key), *(el("code", values.get(key, "–")) for values in flat)] for key in keys]
    return table(["Setting", *(named(place, run) for place, run in enumerate(runs))], rows)


def flatten(plain: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys; values as YAML and JSON both write them."""
    return {key: item if isinstance(item, str) else json.dumps(item, default=str) for key, item in flat_values(plain).items()}


def named(place: int, run: ReportedRun) -> Html:
    """A run with its colour."""
    return join([swatch(place), run.name])


COMPARISONS: list[tuple[str, Callable[[Sequence[ReportedRun]], Html | None]]] = [
    ("Runs", overview),
    ("Over seeds", over_seeds),
    ("Scores", scores),
    ("Retrieval", retrieval),
    ("Beside published numbers", beside_published),
    ("Settings that differ", settings),
    ("Curves", curves),
    ("By language", language_bars),
    ("By answer length", length_bars),
    ("Where they disagree", disagreements),
]
