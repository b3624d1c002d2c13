"""The sections of a report about one run. A section is a function from a run to its HTML, or None if it has nothing to show; a
new one needs a function and its line in ``SECTIONS``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.report.asking import asking
from raydist.report.markup import Html, el, is_number, join, mark_passage, number, table, took
from raydist.report.mining import METHODS, cross_encoder, mined_pairs, retrieval, scores_by_set
from raydist.report.objectives import DRAWN_HERE, infomax, n_best_gain, pfa
from raydist.report.parts import (
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
from raydist.report.plots import line_plot
from raydist.report.published.reader import published
from raydist.report.published.retrieval import published_retrieval
from raydist.report.runs import ReportedRun

HEADLINES = ("gold_silver_weighted", "gold_silver", "gold", "untrained", "bm25")  # the run's first of these
TILES = ("addsent_f1", "f1", "em")  # the first of them is the large one
EXAMPLES = 20  # right ones, and as many wrong ones, of each test set
FIRST_REJECTED = 10


def overview(run: ReportedRun) -> Html:
    """The run, its outcome, and its missing parts."""
    tiles = retrieval_tiles(run)
    for test_set, found in run.scores().items():
        shown = [f"{found[measure]:.1f} {measure_name(measure)}" for measure in TILES if is_number(found.get(measure))]
        if shown:
            value, _, name = shown[0].partition(" ")
            tiles.append(tile(value, name, [test_set, *shown[1:]]))
    facts: dict[str, object] = {
        "Task": run.setting("task"),
        "Answers of another tool" if run.is_foreign else "Model": (
            join(el("div", f"{name}: {file}") for name, file in run.setting("evaluate", "predictions").items())
            if run.is_foreign
            else model_name(run)
        ),
        "Objectives": objectives_trained(run),
        "Seed": None if run.is_foreign else run.setting("seed"),
        "Steps": number(run.num_steps) if run.num_steps is not None else None,
        "Last step": f"{run.last_step_at:%Y-%m-%d %H:%M} UTC" if run.last_step_at and run.steps else None,
        "Training took": took(run.metrics["train.seconds"]) if "train.seconds" in run.metrics else None,
        "Rejected rows": number(run.rejected.num_rows) if run.rejected is not None and run.rejected.num_rows else None,
    }
    listed = join(el("div", el("dt", name), el("dd", value, dir="auto")) for name, value in facts.items() if value is not None)
    return join([el("div", *tiles, class_="tiles") if tiles else None, el("dl", listed) if listed else None, notices(run)])


def tile(value: str, name: str, below: Sequence[str]) -> Html:
    """A large number, its name, and the lines below it."""
    return el("div", el("b", value, el("small", " ", name)), el("span", " · ".join(below)))


def retrieval_tiles(run: ReportedRun) -> list[Html]:
    """MRR on each retrieval set by the run's own method, else by the first of HEADLINES that it has."""
    tiles = []
    for test_set, found in scores_by_set(run).items():
        method = next((name for name in HEADLINES if name in found), next(iter(found)))
        mrr, first = (found[method].get(metric) for metric in ("MRR@100", "P@1"))
        if mrr is not None:
            below = [test_set, METHODS.get(method, method), *([f"{first:.1f} P@1"] if first is not None else [])]
            tiles.append(tile(f"{mrr:.1f}", "MRR@100", below))
    return tiles


def objectives_trained(run: ReportedRun) -> str | None:
    """The training objectives, by their names in the config."""
    if run.is_foreign:
        return None
    if run.setting("task") == "cross_encoder":
        return "cross-entropy of labelled pairs"
    if run.setting("task") == "retriever":
        loss = run.setting("retriever", "loss")
        return {"softmax": "weighted in-batch softmax", "margin_mse": "margin MSE", "kl": "KL"}.get(str(loss), loss)
    objectives = run.setting("objectives")
    on = [name for name, section in objectives.items() if section is not None] if isinstance(objectives, dict) else []
    if "hard_learning" in on and "span" in on:  # replaces the plain loss
        on.remove("span")
    return ", ".join(on) or None


def notices(run: ReportedRun) -> Html | None:
    """Caveats about the numbers, and data that the report could not show."""
    if not (run.missing or run.damaged or run.overlap or run.apart):
        return None
    overlap = [el("p", el("b", "Not apart: "), text, ".") for text in run.overlap]
    overlap += [el("p", el("b", "Not compared: "), text, ".") for text in run.apart]
    missing = el("p", el("b", "Not there yet: "), ", ".join(run.missing), ".") if run.missing else None
    damaged = [el("p", el("b", "Not readable: "), problem) for problem in run.damaged]
    return el("div", *overlap, missing, *damaged, class_="notice")


def scores(run: ReportedRun) -> Html | None:
    """Every number in metrics.json about a test set."""
    by_set = run.scores()
    if not by_set:
        return None
    main = main_measures(by_set.values())
    head = ["Test set", "Questions", *map(measure_name, main), "Rule"]
    rows, nbest, further = [], [], []
    ranks = sorted({int(m.split("@")[1]) for found in by_set.values() for m in found if re.fullmatch(r"em@\d+", m)})
    for test_set, found in by_set.items():
        cells = [with_interval(found, measure) for measure in main]
        rows.append([test_set, found.get("questions"), *cells, found.get("rule")])
        for measure in ("em", "f1"):
            if any(f"{measure}@{k}" in found for k in ranks):
                nbest.append([f"{test_set} {measure_name(measure)}", *(found.get(f"{measure}@{k}") for k in ranks)])
        shown = {"questions", "rule", *main, *(f"{m}@{k}" for k in ranks for m in ("em", "f1"))}
        for measure in found:
            part_of = measure.split(".")[0]  # f1.low is part of f1; so is f1.ar, which has a section of its own
            if measure not in shown and (part_of == measure or part_of not in found):
                further.append([test_set, measure_name(measure), with_interval(found, measure)])
    note = "Small figures: 95 % bootstrap interval over questions. The rule says how answers are normalised."
    parts = [table(head, rows), el("p", note, class_="note")]
    if nbest:
        parts.append(el("h3", "Among the k best spans"))
        parts.append(el("p", "Exact match of any of the k best spans, and F1 of the best of them.", class_="note"))
        parts.append(table(["", *(f"k = {k}" for k in ranks)], nbest))
    if further:
        parts += [el("h3", "Further measures"), table(["Test set", "Measure", "Value"], further)]
    return join(parts)


def curves(run: ReportedRun) -> Html | None:
    """Losses, scores, learning rate and gradient norm over steps."""
    return figures([*loss_plots([run], apart=DRAWN_HERE), *score_plots([run]), *other_plots([run])])


def throughput(run: ReportedRun) -> Html | None:
    """Training speed."""
    steps, rates = run.series("examples_per_s")
    if not np.isfinite(rates).any():
        return None
    low, middle, high = np.percentile(rates[np.isfinite(rates)], [10, 50, 90])
    mean = run.metrics.get("train.examples_per_s")
    note = f"Median {middle:,.1f} examples/s; one logged step in ten is below {low:,.1f}, one in ten above {high:,.1f}."
    whole = f" Whole training: {mean:,.1f} examples/s." if is_number(mean) else ""
    plot = line_plot("Examples per second", [("examples/s", steps, rates)], smooth=True)
    return join([el("p", note + whole), figures([plot])])


def languages(run: ReportedRun) -> Html | None:
    """F1 by language."""
    return language_bars([run])


def answer_lengths(run: ReportedRun) -> Html | None:
    """F1 by the length of the shortest right answer."""
    return length_bars([run])


def predictions(run: ReportedRun) -> Html | None:
    """Right and wrong predictions of each test set, with the passage marked up."""
    if not run.evaluations:
        return None
    key = el(
        "p",
        el("mark", "right answer", class_="gold"),
        " every place where it occurs · ",
        el("mark", "prediction", class_="predicted"),
        " · ",
        el("mark", "both", class_="both"),
        class_="legend",
    )
    how = (
        f"Up to {EXAMPLES} right (exact match) and {EXAMPLES} wrong ones of each test set. Right ones are drawn by a hash of "
        f"their id, so the same ones come back; of the wrong ones the first {EXAMPLES // 2} are those the model was surest of, "
        "the others are drawn the same way."
    )
    sets = []
    for place, (test_set, rows) in enumerate(run.evaluations.items()):
        right, sure, drawn = choose_examples(rows)
        num_right = int((rows["em"].to_numpy() >= 100).sum())
        total = el("small", f"{num_right:,} right, {rows.num_rows - num_right:,} wrong")
        groups = (("Right", right), ("Wrong, and sure of it", sure), ("Wrong, drawn at random", drawn))
        cards = join(join([el("h4", f"{title} ({len(chosen)})"), *map(card, chosen)]) for title, chosen in groups if chosen)
        sets.append(el("details", el("summary", test_set, " ", total), cards, open=None if place else ""))
    return join([el("p", how, class_="note"), key, *sets])


def choose_examples(rows: pa.Table, count: int = EXAMPLES) -> list[list[dict]]:
    """Right ones by hash of their id; of the wrong ones, half by highest confidence and half by hash."""
    names = zip(rows["id"].to_pylist(), rows["language"].to_pylist())
    keys = [drawing_key(id, language) for id, language in names]
    by_hash = sorted(range(len(keys)), key=keys.__getitem__)
    em = rows["em"].to_numpy()
    probability = np.nan_to_num(rows["probability"].to_numpy(), nan=-1.0)
    right = [i for i in by_hash if em[i] >= 100]
    wrong = [i for i in by_hash if not em[i] >= 100]
    sure = sorted(wrong, key=lambda i: -probability[i])[: count // 2]  # stable: ties stay in hash order
    drawn = [i for i in wrong if i not in sure]
    chosen = [right[:count], sure, drawn[: count - len(sure)]]
    return [rows.take(pa.array(places, pa.int64())).to_pylist() for places in chosen]


def card(row: dict[str, Any]) -> Html:
    """One prediction: question, answers, passage."""
    answers = [text for text in dict.fromkeys(row["answers"] or []) if text]
    gold = join(join([" · " if place else None, el("bdi", text)]) for place, text in enumerate(answers)) or "no answer"
    is_right, language = row["em"] >= 100, row["language"] or None
    facts = [f"F1 {row['f1']:.0f}", f"probability {row['probability']:.2f}" if row["probability"] is not None else None]
    right = el("p", el("span", "right ", class_="what"), el("span", gold, dir="auto"))
    foot = " · ".join(str(fact) for fact in [*facts, row["language"], row["id"]] if fact)
    return el(
        "article",
        el("h5", row["question"], dir="auto", lang=language),
        el("p", el("span", "predicted ", class_="what"), el("b", row["prediction"] or "no answer", dir="auto")),
        None if answers == [row["prediction"]] else right,
        el("div", mark_passage(row["context"], answers, row["prediction"] or "", row["start"]), lang=language),
        el("footer", foot),
        class_="right" if is_right else "wrong",
    )


def rejected(run: ReportedRun) -> Html | None:
    """Rejected input, by reason, with its first few rows."""
    if run.rejected is None or not run.rejected.num_rows:
        return None
    counts = run.rejected.group_by(["reason", "what"]).aggregate([([], "count_all")]).to_pylist()
    counts.sort(key=lambda row: (-row["count_all"], row["reason"] or "", row["what"] or ""))
    first = run.rejected.slice(0, FIRST_REJECTED).to_pylist()
    rows = [
        [f"{row['file']}, {row['unit']} {row['line']}", row["id"], row["what"], row["reason"], shorten(row["detail"])]
        for row in first
    ]
    return join(
        [
            table(["Reason", "Of", "Rows"], [[row["reason"], row["what"], row["count_all"]] for row in counts]),
            el("h3", f"The first {len(first)}" if run.rejected.num_rows > len(first) else "All of them"),
            table(["Where", "Id", "What", "Reason", "Seen"], rows, class_="text"),
        ]
    )


def stages(run: ReportedRun) -> Html | None:
    """The rows and duration of each stage, and which ones were reused."""
    if not run.stages:
        return None
    rows = []
    for stage in run.stages:
        how = "ready from before" if stage.get("reused") else "made in this run"
        time = el("span", took(stage.get("seconds")), class_="n")
        rows.append([stage["title"], stage.get("rows"), time, how, el("code", stage.get("folder"))])
    return table(["Stage", "Rows", "Time", "", "Folder"], rows)


def files(run: ReportedRun) -> Html | None:
    """The settings, complete, and every final number."""
    texts = {"config.yaml": run.config_text.rstrip(), "metrics.json": json.dumps(run.metrics, indent=1) if run.metrics else ""}
    return join(el("details", el("summary", name), el("pre", text)) for name, text in texts.items() if text) or None


def beside_published(run: ReportedRun) -> Html | None:
    """A reader's numbers, or a retriever's, beside those of the papers."""
    return published([run]) or published_retrieval(run)


SECTIONS: list[tuple[str, Callable[[ReportedRun], Html | None]]] = [
    ("Overview", overview),
    ("Scores", scores),
    ("Answers from documents", asking),
    ("Retrieval", retrieval),
    ("Mined pairs", mined_pairs),
    ("Cross-encoder", cross_encoder),
    ("Beside published numbers", beside_published),
    ("Curves", curves),
    ("QAInfomax", infomax),
    ("Perturbation for alignment", pfa),
    ("Hard learning and contrast", n_best_gain),
    ("By language", languages),
    ("By answer length", answer_lengths),
    ("Predictions", predictions),
    ("Throughput", throughput),
    ("Rejected rows", rejected),
    ("Stages", stages),
    ("Settings and numbers", files),
]


def shorten(text: str | None, most: int = 200) -> str:
    """The beginning of a long text."""
    text = text or ""
    return text if len(text) <= most else text[:most] + " …"
