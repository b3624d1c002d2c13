"""Published numbers of mining and retrieval beside a run's own (docs/methods.md 5.4, 5.9).

The paper's tables are lost; what its text says is a few scores, differences of two methods, and how many pairs were mined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from raydist.report.markup import Html, el, is_number, join, table
from raydist.report.mining import METHODS, scores_by_set
from raydist.report.parts import model_name
from raydist.report.published import language_of, say_setting
from raydist.report.runs import Run

WEIGHTED, GOLD = "gold_silver_weighted", "gold"
MODEL = "bert-base-uncased"  # which case is not stated
SETTINGS: dict[str, Any] = {
    "mining.encoder": "USE-QA",  # cannot be: no model of transformers
    "mining.dev_share": 0.1,
    "mining.threshold": 0.5,
    "mining.power": 2.0,
    "mining.weighting": "power",
    "cross_encoder.model.name": "bert-large-uncased",
    "cross_encoder.train.epochs": 10.0,
    "cross_encoder.train.batch_size": 256,
    "cross_encoder.optim.lr": 3e-5,
    "retriever.max_question_length": 96,
    "retriever.max_answer_length": 384,
    "retriever.loss": "softmax",
    "retriever.scale": 100.0,
    "train.epochs": 200.0,
    "train.batch_size": 64,
    "optim.lr": 1e-4,
}


class Number(NamedTuple):
    """A score in per cent, or by how much one method is above another."""

    metric: str
    value: float
    method: str
    above: str = ""


@dataclass(frozen=True)
class PublishedSet:
    title: str
    pairs: int  # gold, for training
    candidates: int  # sentences of the test set
    mined: float  # silver pairs in per cent of gold pairs
    numbers: tuple[Number, ...]


SETS = {
    "squad": PublishedSet(
        title="MultiReQA-SQuAD",
        pairs=87_133,
        candidates=10_642,
        mined=11.7,
        numbers=(
            Number("P@1", 62.8, "bm25"),
            Number("MRR@100", 70.5, "bm25"),
            Number("MRR@100", 71.9, "gold_silver"),
            Number("P@1", 1.0, WEIGHTED, GOLD),
            Number("MRR@100", 1.0, WEIGHTED, GOLD),
        ),
    ),
    "nq": PublishedSet(
        title="MultiReQA-NQ",
        pairs=106_521,
        candidates=22_118,
        mined=52.7,
        numbers=(
            Number("MRR@100", 60.1, "gold_silver"),
            Number("P@1", 8.6, WEIGHTED, GOLD),
            Number("MRR@100", 7.0, WEIGHTED, GOLD),
        ),
    ),
}


def known_set(run: Run, which: str) -> str:
    """Which of the published sets the corpus "train" or a test set is, by its name or its files; "" for none."""
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


def published_retrieval(run: Run) -> Html | None:
    """Our numbers beside those of the paper, for each test set that it speaks of."""
    parts = []
    for name, found in scores_by_set(run).items():
        known = SETS.get(known_set(run, name))
        rows = number_rows(known, found) if known else []
        if not known or not rows:
            continue
        mined = run.metrics.get("mining.yield")
        if is_number(mined) and SETS.get(known_set(run, "train")) == known:
            rows.append(_row("Silver pairs, per cent of gold pairs", 100 * mined, known.mined))
        differing = differences(run, name, known)
        parts += [
            el("h3", f"Cross-attention supervised mining (ACL 2021), {known.title}"),
            table([f"Score on {name}", "This run", "Published", "Difference"], rows),
            el("p", "How many runs a published number is over is not stated.", class_="note"),
            el("h4", "Where this run's setting differs") if differing else el("p", "No setting that is compared differs."),
            table(["", "Published", "This run"], differing) if differing else None,
        ]
    return join(part for part in parts if part) if parts else None


def number_rows(known: PublishedSet, found: dict[str, dict[str, Any]]) -> list[list[object]]:
    """A line for each number that the run has, too."""
    rows = []
    for metric, value, method, above in known.numbers:
        scores: list[Any] = [found.get(name, {}).get(metric) for name in (method, above) if name]
        if all(is_number(score) for score in scores):
            title = METHODS[method] + (f", above {METHODS[above].lower()}" if above else "")
            ours = scores[0] - scores[1] if above else scores[0]
            rows.append(_row(f"{title}: {metric}", ours, value, signed=bool(above)))
    return rows


def _row(title: str, ours: float, theirs: float, signed: bool = False) -> list[object]:
    shown = (f"{ours:+.2f}", f"{theirs:+.1f}") if signed else (f"{ours:.2f}", f"{theirs:.1f}")
    cells = [el("b", shown[0], class_="n"), el("span", shown[1], class_="n"), el("b", f"{ours - theirs:+.2f}", class_="n")]
    return [title, *cells]


def differences(run: Run, test_set: str, known: PublishedSet) -> list[list[object]]:
    """What, as published, and in this run, of everything that is known of both and is not the same."""
    train = SETS.get(known_set(run, "train"))
    compared: list[tuple[object, Any, Any]] = [
        ("Model", MODEL, (model_name(run) or "").split("/")[-1] or None),
        ("Training data", known.title, train.title if train else "another"),
        ("Gold pairs", known.pairs, run.mined.get("gold")),
        (f"Sentences of {test_set}", known.candidates, run.rows_of(f"corpus {test_set}")),
    ]
    compared += [(el("code", key), value, run.setting(*key.split("."))) for key, value in SETTINGS.items()]
    compared.append((el("code", "train.max_steps"), "–", run.setting("train", "max_steps")))
    return [[what, say_setting(theirs), say_setting(ours)] for what, theirs, ours in compared if ours not in (None, theirs)]
