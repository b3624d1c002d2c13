"""Published numbers of mining and retrieval beside a run's own (docs/methods.md 5.4, 5.9).

The paper's tables are lost: mining.yaml has the numbers in its text.
"""

from __future__ import annotations

import re
from typing import Any

from raydist.report.markup import Html, el, is_number, join, table
from raydist.report.mining import METHODS, scores_by_set
from raydist.report.parts import model_name
from raydist.report.published.reader import beware, is_small, language_of, say_setting
from raydist.report.published.tables import MinedSet, mining_paper
from raydist.report.runs import ReportedRun


def known_set(run: ReportedRun, which: str) -> str:
    """The published set that the corpus "train" or a test set is, by its name or files; "" for none."""
    source = run.setting("corpus", "train") if which == "train" else run.setting("corpus", "test", which)
    files = source.get("files") if isinstance(source, dict) else source
    for name in [which, *([files] if isinstance(files, str) else files or [])]:
        words = set(re.split(r"[^a-z0-9]+", str(name).lower()))
        if language_of(str(name)) not in ("", "en"):
            return ""
        if words & {"nq", "naturalquestions"}:
            return "nq"
        if "squad" in words:
            return "squad"
    return ""


def published_retrieval(run: ReportedRun) -> Html | None:
    """Our numbers beside those of the paper, for each of its test sets."""
    paper, parts = mining_paper(), []
    for name, found in scores_by_set(run).items():
        known = paper.sets.get(known_set(run, name))
        rows = number_rows(known, found) if known else []
        if not known or not rows:
            continue
        mined = run.metrics.get("mining.yield")
        if is_number(mined) and paper.sets.get(known_set(run, "train")) == known:
            rows.append(_row("Silver pairs, per cent of gold pairs", 100 * mined, known.mined))
        differing = differences(run, name, known)
        sentences = run.rows_of(f"corpus {name}")
        small = {f"sentences of {name}": (sentences, known.candidates)} if is_small(sentences, known.candidates) else {}
        parts += [
            el("h3", f"{paper.title}, {known.title}"),
            beware(small),
            table([f"Score on {name}", "This run", "Published", "Difference"], rows),
            el("p", "How many runs a published number is over is not stated.", class_="note"),
            el("h4", "Where this run's setting differs") if differing else el("p", "No setting that is compared differs."),
            table(["", "Published", "This run"], differing) if differing else None,
        ]
    return join(part for part in parts if part) if parts else None


def number_rows(known: MinedSet, found: dict[str, dict[str, Any]]) -> list[list[object]]:
    """A line for each number that the run has, too."""
    rows = []
    for number in known.numbers:
        scores: list[Any] = [found.get(name, {}).get(number.metric) for name in (number.method, number.above) if name]
        if all(is_number(score) for score in scores):
            title = METHODS[number.method] + (f", above {METHODS[number.above].lower()}" if number.above else "")
            ours = scores[0] - scores[1] if number.above else scores[0]
            rows.append(_row(f"{title}: {number.metric}", ours, number.value, signed=bool(number.above)))
    return rows


def _row(title: str, ours: float, theirs: float, signed: bool = False) -> list[object]:
    shown = (f"{ours:+.2f}", f"{theirs:+.1f}") if signed else (f"{ours:.2f}", f"{theirs:.1f}")
    cells = [el("b", shown[0], class_="n"), el("span", shown[1], class_="n"), el("b", f"{ours - theirs:+.2f}", class_="n")]
    return [title, *cells]


def differences(run: ReportedRun, test_set: str, known: MinedSet) -> list[list[object]]:
    """(name, published value, value of this run) for all known facts that differ."""
    paper = mining_paper()
    train = paper.sets.get(known_set(run, "train"))
    compared: list[tuple[object, Any, Any]] = [
        ("Model", paper.model, (model_name(run) or "").split("/")[-1] or None),
        ("Training data", known.title, train.title if train else "another"),
        ("Gold pairs", known.pairs, run.mined.get("gold")),
        (f"Sentences of {test_set}", known.candidates, run.rows_of(f"corpus {test_set}")),
    ]
    compared += [(el("code", key), value, run.setting(*key.split("."))) for key, value in paper.settings.items()]
    compared.append((el("code", "train.max_steps"), "–", run.setting("train", "max_steps")))
    return [[what, say_setting(theirs), say_setting(ours)] for what, theirs, ours in compared if ours not in (None, theirs)]
