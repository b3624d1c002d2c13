"""`raydist evaluate` for documents: ask all questions, calibrate on the set `dev`, score the whole chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from raydist.asking.asker import Asker, Gathered
from raydist.asking.calibration import fit_calibration
from raydist.asking.evaluate import CAUSES, asked_table, chain_scores, evaluation_table, judge, right_candidates
from raydist.asking.places import CALIBRATION, open_library
from raydist.asking.questions import Question, read_questions
from raydist.asking.retriever import Retriever
from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.library.flow import index
from raydist.runs import trackers
from raydist.runs.locate import locate
from raydist.runs.run import Run
from raydist.terminal import Progress, say, say_table

DEV = "dev"
STAGES = ("retrieve", "rerank", "read")


def run_all(run: Run, *, fresh: bool = False) -> None:
    """Index the documents, and evaluate if questions are given."""
    if fresh:
        run.folder.delete("index")
    index(run)
    if run.config.asking.questions:
        evaluate(run)


def train(run: Run, *, fresh: bool = False) -> None:
    raise InputError("there is nothing to train with documents: take `raydist index`, then `raydist ask` or `raydist evaluate`")


def evaluate(run: Run, library: Retriever | None = None) -> dict[str, dict[str, Any]]:
    """Score every set of questions; RUN/asking has the calibration and one row for each question."""
    config = run.config.asking
    if not config.questions:
        raise InputError("there is nothing to evaluate with: set asking.questions.NAME to a file of questions with answers")
    sets = {name: _read(run, name) for name in sorted(config.questions, key=lambda name: name != DEV)}
    asker = open_asker(run, library or open_library(run.folder.path("index") if run.folder.is_local else run.folder.uri))
    scores = {}
    for name, questions in sets.items():
        gathered, seconds = _gather(run, asker, name, questions)
        if name == DEV:
            asker = _calibrated(run, asker, questions, gathered)
        scores[name] = seconds | _write_scores(run, asker, name, questions, gathered)
        run.add_metrics({f"asking.{name}.{key}": value for key, value in scores[name].items()}, f"asking.{name}.")
    _show(scores, asker)
    trackers.tell_end(run.config, run.folder)
    return scores


def open_asker(run: Run, library: Retriever) -> Asker:
    """An asker as configured. With a set `dev`, the calibration is fitted on it, and none is loaded."""
    config = run.config.asking
    settings = {name: getattr(config, name) for name in ("kind", "k", "depth", "products")}
    if DEV not in config.questions and config.calibration:
        settings |= {"calibration": config.calibration, "precision": config.precision, "threshold": config.threshold}
    return Asker.open(library, reader=config.reader, cross_encoder=config.cross_encoder, **settings)


def _read(run: Run, name: str) -> list[Question]:
    questions = read_questions([str(locate(run, file).fetch()) for file in run.config.asking.questions[name]])
    if not questions:
        raise InputError(f"asking.questions.{name}: there is no question in {', '.join(run.config.asking.questions[name])}")
    return questions


def _gather(run: Run, asker: Asker, name: str, questions: Sequence[Question]) -> tuple[list[Gathered], dict[str, float]]:
    """Results for each question before answers are weighed, and the seconds of each step per question."""
    depth, block = max(run.config.evaluate.at_k), run.config.asking.block
    gathered: list[Gathered] = []
    seconds: Counter[str] = Counter()
    with Progress(f"ask {name}", len(questions), "questions") as bar:
        for first in range(0, len(questions), block):
            gathered += asker.gather([question.text for question in questions[first : first + block]], depth=depth)
            seconds.update(asker.seconds)
            bar.update(len(gathered))
    return gathered, {f"seconds.{stage}": seconds[stage] / len(questions) for stage in STAGES}


def _calibrated(run: Run, asker: Asker, questions: Sequence[Question], gathered: Sequence[Gathered]) -> Asker:
    """The same asker, with a calibration fitted on these questions and stored in the run's folder."""
    right = [right_candidates(question, found) for question, found in zip(questions, gathered)]
    calibration = fit_calibration([found.features for found in gathered], right, asker.setup)
    run.folder.write_json(CALIBRATION, calibration.to_json())
    say(f"calibrated on {calibration.questions:,} questions: {run.folder.path(CALIBRATION)}")
    return asker.calibrated(calibration, precision=run.config.asking.precision, threshold=run.config.asking.threshold)


def _write_scores(
    run: Run, asker: Asker, name: str, questions: Sequence[Question], gathered: Sequence[Gathered]
) -> dict[str, Any]:
    outcomes = [judge(question, found, asker.weigh(found)) for question, found in zip(questions, gathered)]
    run.folder.write_bytes(f"asking/{name}.parquet", encode_table(asked_table(outcomes), "parquet", {}))
    run.folder.write_bytes(f"evaluation/{name}.parquet", encode_table(evaluation_table(outcomes), "parquet", {}))
    settings = run.config.evaluate
    reranked = asker.cross_encoder is not None
    scores = chain_scores(outcomes, at_k=settings.at_k, reranked=reranked, bootstrap=settings.bootstrap)
    return scores | {"threshold": asker.threshold}


def _show(scores: dict[str, dict[str, Any]], asker: Asker) -> None:
    shown = ("em", "f1", "recall_read", "answered", "precision")
    head = ["questions", *(name.replace("_", " ") for name in shown), "ms each"]
    rows = []
    for name, found in scores.items():
        time = sum(found[f"seconds.{stage}"] for stage in STAGES)
        rows.append([f"{name}: {found['questions']:,}", *(f"{found[key]:.1f}" for key in shown), f"{1000 * time:.0f}"])
    say_table(head, rows)
    causes = [[name, *(_cell(found, cause) for cause in CAUSES)] for name, found in scores.items()]
    say_table(["answered / withheld", *CAUSES], causes)
    for note in asker.notes:
        say(note)


def _cell(found: dict[str, Any], cause: str) -> str:
    key = f"errors.{cause.replace(' ', '_')}"
    return f"{found[f'{key}.answered']:,} / {found[f'{key}.withheld']:,}"
