"""Sections about mining and retrieval: functions from a run to HTML, or None if their files are missing.

metrics.json                       retrieval.TESTSET.METHOD.METRIC, 0 to 1, with .low and .high where there are intervals, and
                                   .minus_OTHER (with .low, .high and .p) where a method is compared with another
mining/yield.json                  what ``retrieval.silver.yield_curve`` returns
mining/examples.parquet            ``records.MINED_EXAMPLE_SCHEMA``
cross_encoder/metrics.json         ``retrieval.cross_encoder.classification_scores``, and dense_average_precision: that
                                   of the encoder's products on the same pairs; negatives.ASKED.SOURCE: how many negatives were
                                   asked of a source and drawn from it or, where it had none left, from another; other numbers
                                   may join
cross_encoder/reliability.json     {"before": {"expected_calibration_error": e, "bins": [a Bin as a mapping, ...]},
                                    "after": the same with temperature, where one was fitted, "platt": with temperature and
                                    shift, and "temperature": t}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from raydist.report.markup import Html, el, is_number, join, number, table
from raydist.report.parts import chance, figures, measure_name, with_interval
from raydist.report.plots import Curve, line_plot
from raydist.report.runs import ReportedRun
from raydist.statistics import holm

METRICS = ("P@1", "P@5", "P@10", "MRR@100", "recall@10", "recall@100", "nDCG@10")
METHODS = {
    "bm25": "BM25",
    "untrained": "Encoder, untrained",
    "gold": "Gold pairs",
    "gold_silver": "Gold and silver pairs",
    "gold_silver_weighted": "Gold and silver pairs, weighted",
    "reranked": "Re-ranked by the cross-encoder",
    "foreign": "Another tool",
    "hybrid": "Hybrid",
    "hybrid_reranked": "Hybrid, re-ranked",
}
SOURCES = {
    "bm25": "BM25",
    "dense": "Dense retriever",
    "same_doc": "Same document",
    "pool": "Whole corpus",
    "judged": "Judged wrong",
}
NEGATIVES = "negatives."
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
PER_CENT = {"accuracy", "precision", "recall", "f1", "average_precision", "majority", "dense_average_precision"}
PER_CENT |= {"even_average_precision", "even_dense_average_precision"}
NAMES = {
    "average_precision": "Average precision",
    "majority": "Accuracy of the majority",
    "dense_average_precision": "Average precision of the encoder's products",
    "even_average_precision": "Average precision without negatives that the encoder ranked high",
    "even_dense_average_precision": "The same of the encoder's products",
}


def scores_by_set(run: ReportedRun) -> dict[str, dict[str, dict[str, Any]]]:
    """Retrieval metrics in per cent, by test set, method and metric; with ``.low`` and ``.high`` where there are intervals."""
    by_set: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for key, value in run.metrics.items():
        if not key.startswith("retrieval."):
            continue
        name, end = next(((key.removesuffix(end), end) for end in (".low", ".high") if key.endswith(end)), (key, ""))
        named, _, metric = name.removeprefix("retrieval.").rpartition(".")
        test_set, _, method = named.rpartition(".")  # a test set may have a dot in its name
        if test_set and metric in METRICS and is_number(value):
            by_set[test_set][method][metric + end] = 100 * float(value)
    return by_set


def differences(run: ReportedRun, test_set: str) -> Html | None:
    """Differences between methods, paired over the questions."""
    start = f"retrieval.{test_set}."
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(dict)
    for key, value in run.metrics.items():
        method, _, rest = key.removeprefix(start).partition(".")
        metric, _, rest = rest.partition(".minus_")
        other, _, of = rest.partition(".")
        if key.startswith(start) and metric in METRICS and other and is_number(value):
            found[method, other].setdefault(metric, {})[of] = float(value)
    if not found:
        return None
    shown = [metric for metric in METRICS if any(metric in tests for tests in found.values())]
    tests = [test for by_metric in found.values() for test in by_metric.values() if "p" in test]
    for test, p_value in zip(tests, holm([test["p"] for test in tests])):
        test["p"] = p_value  # metrics.json has those of single tests
    rows = []
    for method, other in sorted(found, key=lambda pair: [ordered([*METHODS, *pair]).index(of) for of in reversed(pair)]):
        cells = [gap(found[method, other].get(metric, {})) for metric in shown]
        rows.append([f"{METHODS.get(method, method)} – {METHODS.get(other, other).lower()}", *cells])
    return table(["Difference", *shown], rows)


def gap(test: dict[str, float]) -> Html | None:
    """A difference in points with its interval and p, from shares."""
    if "" not in test:
        return None
    has_interval = {"low", "high", "p"} <= test.keys()
    interval = chance(100 * test["low"], 100 * test["high"], test["p"]) if has_interval else None
    return el("span", el("b", f"{100 * test['']:+.2f}"), interval, class_="n")


def ordered(methods: Iterable[str]) -> list[str]:
    """The distinct methods: ours in the order of METHODS, then the others."""
    found = dict.fromkeys(methods)
    return [method for method in METHODS if method in found] + [method for method in found if method not in METHODS]


def retrieval(run: ReportedRun) -> Html | None:
    """Methods against metrics, for each test set."""
    parts: list[Html | None] = []
    for test_set, found in scores_by_set(run).items():
        methods = ordered(found)
        shown = [metric for metric in METRICS if any(metric in found[method] for method in methods)]
        rows = [
            [METHODS.get(method, method), *(with_interval(found[method], metric) for metric in shown)] for method in methods
        ]
        parts += [el("h3", test_set), table(["", *shown], rows), differences(run, test_set)]
    if is_number(chosen := run.metrics.get("dev.mrr")):
        said = " is the MRR, in per cent, of the held-out questions that the model is chosen by."
        parts.append(el("p", el("b", f"{chosen:.2f}", class_="n"), said))
    if not parts:
        return None
    note = (
        "In per cent. P@N: questions with a right sentence among the first N. MRR@100: mean of 1 / rank of the first right "
        "one. recall@N: the share of a question's right sentences among the first N. Small figures: 95 % bootstrap interval "
        "over questions; for a difference, from a paired bootstrap, with its p, corrected for all tests of a table (Holm): "
        "they show what other questions might do, not what another seed would."
    )
    return join([*parts, el("p", note, class_="note")])


def mined_pairs(run: ReportedRun) -> Html | None:
    """The number of pairs kept by each threshold, and examples of kept and rejected pairs."""
    parts = [part for part in (yield_plot(run), truth(run), mined_examples(run)) if part]
    return join(parts) if parts else None


def yield_plot(run: ReportedRun) -> Html | None:
    """Pairs over the threshold, and the number kept by the current one."""
    points = [point for point in listed(run.mined.get("points")) if is_number(point.get("threshold"))]
    if not points:
        return None
    at = np.array([point["threshold"] for point in points], float)
    pairs, shares = (np.array([numeric(point.get(name)) for point in points]) for name in ("pairs", "share_of_gold"))
    threshold, said = run.mined.get("threshold"), None
    for place in np.flatnonzero((at == threshold) & np.isfinite(pairs) & np.isfinite(shares)):
        said = (
            f"The threshold {threshold:g} keeps {number(int(pairs[place]))} of {number(run.mined.get('candidates'))} "
            f"candidates: {100 * shares[place]:.1f} % of the {number(run.mined.get('gold'))} gold pairs."
        )
    plot = line_plot("Pairs kept, per cent of gold pairs", [("share", at, 100 * shares)], x_label="threshold", x_ticks=SHARES)
    return join([el("p", said) if said else None, figures([plot])])


def truth(run: ReportedRun) -> Html | None:
    """The share of kept pairs that are right, if known."""
    right, answers, kept = (run.metrics.get(f"mining.{name}") for name in ("right", "answers", "silver"))
    if not is_number(right) or not is_number(answers) or not is_number(kept):
        return None
    of_kept = f" ({100 * right / kept:.0f} %)" if kept else ""
    said = f"Of the {number(kept)} pairs that are kept {number(right)} are right{of_kept}"
    of_all = f" There are {number(answers)} answers beside gold in the sample."
    return el("p", el("b", f"{said}."), of_all)


def mined_examples(run: ReportedRun) -> Html | None:
    """Kept and rejected pairs, drawn by a hash of their ids."""
    if run.mined_examples is None or not run.mined_examples.num_rows:
        return None
    rows = run.mined_examples.to_pylist()
    groups: list[Html] = []
    for title, is_kept in (("Kept", True), ("Rejected", False)):
        chosen = sorted((row for row in rows if bool(row["kept"]) == is_kept), key=lambda row: -(row["p"] or 0.0))
        if chosen:
            cards = join(map(pair_card, chosen))
            groups.append(el("details", el("summary", f"{title} ({len(chosen)})"), cards, open=None if groups else ""))
    return join([el("p", "Some pairs, drawn by a hash of their ids, the likeliest first.", class_="note"), *groups])


def pair_card(row: dict[str, Any]) -> Html:
    """One candidate: question, sentence, gold answers, its ranks and the cross-encoder's p."""
    gold = [el("p", el("span", "gold ", class_="what"), el("span", text, dir="auto")) for text in row["gold"] or []]
    ranks = [f"{name} {row[key]}" for name, key in (("BM25 rank", "bm25_rank"), ("dense rank", "dense_rank")) if row[key]]
    facts = [
        {True: "right, as the sample knows", False: "wrong, as the sample knows"}.get(row["right"]),
        f"p {row['p']:.3f}" if row["p"] is not None else None,
        f"weight {row['weight']:.3f}" if row["kept"] and row["weight"] is not None else row["why_not"],
        *ranks,
        "same document" if row["same_doc"] else None,
        row["question_id"],
        row["sentence_id"],
    ]
    return el(
        "article",
        el("h5", row["question"], dir="auto"),
        el("p", el("span", "mined ", class_="what"), el("b", row["sentence"], dir="auto")),
        *gold,
        el("footer", " · ".join(str(fact) for fact in facts if fact)),
        class_={True: "right", False: "wrong"}.get(row["right"], "unknown"),
    )


def cross_encoder(run: ReportedRun) -> Html | None:
    """The cross-encoder's separation of answers from other sentences, and the calibration of its p."""
    rows = [
        [NAMES.get(name, measure_name(name).capitalize().replace("_", " ")), 100 * value if name in PER_CENT else value]
        for name, value in run.cross_encoder.items()
        if is_number(value) and not name.startswith(NEGATIVES)
    ]
    drawn = reliability(run)
    if not rows and not drawn:
        return None
    note = el("p", "On held-out questions. Shares in per cent.", class_="note")
    names = ("average_precision", "dense_average_precision")
    pairs = [[numeric(run.cross_encoder.get(f"{even}{name}")) for name in names] for even in ("", "even_")]
    said = None
    if any(own <= dense for own, dense in pairs):
        said = el("p", "It is no better than the encoder that finds candidates: its silver pairs are unlikely to help.")
    return join([table(["Measure", "Value"], rows) if rows else None, note if rows else None, said, drawn, negatives(run)])


def negatives(run: ReportedRun) -> Html | None:
    """The requested and the actual sources of negatives."""
    found = {
        tuple(name.removeprefix(NEGATIVES).split(".")): int(value)
        for name, value in run.cross_encoder.items()
        if name.startswith(NEGATIVES) and name.count(".") == 2 and is_number(value)
    }
    if not found:
        return None
    rows = [[SOURCES.get(asked, asked), SOURCES.get(source, source), count] for (asked, source), count in found.items()]
    note = "Negatives of training and held-out pairs. A source with nothing left gives way to BM25, and that to the corpus."
    return join([table(["Negatives asked of", "Drawn from", "Pairs"], rows), el("p", note, class_="note")])


def reliability(run: ReportedRun) -> Html | None:
    """Share of answers against p, before and after calibration; a calibrated p is on the diagonal."""
    curves: list[Curve] = []
    said = []
    for key, label in (("before", "as trained"), ("after", "with temperature"), ("platt", "with temperature and shift")):
        found = run.reliability.get(key)
        if not isinstance(found, dict):
            continue
        bins = [each for each in listed(found.get("bins")) if is_number(each.get("num_pairs")) and each["num_pairs"] > 0]
        p, share = (np.array([numeric(each.get(name)) for each in bins]) for name in ("probability", "positive"))
        curves.append((label, p, share))
        if is_number(error := found.get("expected_calibration_error")):
            said.append(f"{error:.4f} {label}")
    temperature = run.reliability.get("temperature")
    fitted = f" The temperature is {temperature:.3f}." if is_number(temperature) else ""
    curves.append(("p taken at its word", np.array([0.0, 1.0]), np.array([0.0, 1.0])))
    if len(curves) == 1 or not any(len(curve[1]) for curve in curves[:-1]):
        return None
    plot = line_plot("Share of answers among pairs of like p", curves, x_label="p", x_ticks=SHARES)
    sentence = f"Expected calibration error: {', '.join(said)}.{fitted}" if said else fitted.strip()
    return join([el("p", sentence) if sentence else None, figures([plot])])


def listed(value: Any) -> list[dict[str, Any]]:
    """The mappings of a list from a file."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def numeric(value: Any) -> float:
    return float(value) if is_number(value) else float("nan")
