"""The papers' numbers, read from the YAML files of this folder and checked: nothing is in a file that is not read.

A file holds the tables of one paper. ``common`` has what its tables share; what a table says itself comes first. Scores are
``test_set: value`` where a set has one score, and else ``test_set: {measure: {language: value}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

LANGUAGES = ("en", "es", "de", "ar", "hi", "vi")  # of the cross-lingual paper, in the order of its tables
AVERAGE = "average"  # over the six languages
WARMUP = "Warm-up"  # among settings: stands for the three keys of optim that say how long it is
PAPERS = ("infomax", "pfa", "two_stage")
ORIGINAL = "original"  # the questions that an adversarial set was made from
MEASURES = {"addsent": "addsent_f1", "addonesent": "addsent_f1", ORIGINAL: "original_f1"}  # of a set's one score; else F1

Scores: TypeAlias = dict[str, float | dict[str, dict[str, float]]]


class Key(NamedTuple):
    """What a number is of."""

    test_set: str
    measure: str = "f1"
    language: str = ""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _RowFile(_Closed):
    method: str
    scores: Scores
    objectives: dict[str, dict[str, Any]] | None = None
    spread: dict[str, float] = {}
    settings: dict[str, Any] = {}


class _TableFile(_Closed):
    title: str
    model: str
    trained_on: str
    train_questions: dict[str, int]
    settings: dict[str, Any]
    questions: dict[str, int | dict[str, int]]
    rules: dict[str, str]
    runs: str
    rows: list[_RowFile] = Field(min_length=1)
    languages: str = Field("one", pattern="one|several")


class _PaperFile(_Closed):
    tables: list[dict[str, Any]] = Field(min_length=1)
    common: dict[str, Any] = {}


@dataclass(frozen=True)
class PublishedRow:
    """One method's numbers. ``objectives`` are the settings that a run must have for the row to speak of it; None: nothing
    that raydist trains.
    """

    method: str
    scores: Mapping[Key, float]
    objectives: Mapping[str, Mapping[str, Any]] | None
    spread: Mapping[Key, float]
    settings: Mapping[str, Any]  # where they are not those of the table; None: not stated


@dataclass(frozen=True)
class Table:
    """What a table was made with, in the terms of a config."""

    title: str
    model: str
    trained_on: str  # a data set, or "" for the training part of each test set's own
    train_questions: Mapping[str, int]
    settings: Mapping[str, Any]  # dotted keys of a config and WARMUP; those of an objective count where it is on
    questions: Mapping[Key, int]  # of the test sets; Key(test_set) or Key(test_set, language=...)
    rules: Mapping[str, str]
    runs: str  # what a number is over
    rows: tuple[PublishedRow, ...]
    languages: str  # of the training data: "one" or "several"


class Number(_Closed):
    """A score in per cent, or by how much one method is above another."""

    metric: str
    value: float
    method: str
    above: str = ""


class MinedSet(_Closed):
    """What is published of mining on one corpus."""

    title: str
    pairs: int  # gold, for training
    candidates: int  # sentences of the test set
    mined: float  # silver pairs in per cent of gold pairs
    numbers: list[Number]


class MiningPaper(_Closed):
    """The settings of the mining paper, and its numbers by corpus."""

    title: str
    model: str
    settings: dict[str, Any]
    sets: dict[str, MinedSet]


@cache
def papers() -> tuple[tuple[Table, ...], ...]:
    """The tables of each paper on readers."""
    return tuple(tuple(_tables(_PaperFile.model_validate(_read(name)))) for name in PAPERS)


@cache
def mining_paper() -> MiningPaper:
    return MiningPaper.model_validate(_read("mining"))


def _read(name: str) -> Any:
    return yaml.safe_load((files(__package__) / f"{name}.yaml").read_text(encoding="utf-8"))


def _tables(paper: _PaperFile) -> Iterator[Table]:
    for given in paper.tables:
        settings = paper.common.get("settings", {}) | given.get("settings", {})
        table = _TableFile.model_validate(paper.common | given | {"settings": settings})
        yield Table(
            title=table.title,
            model=table.model,
            trained_on=table.trained_on,
            train_questions=table.train_questions,
            settings=table.settings,
            questions=dict(_questions(table.questions)),
            rules=table.rules,
            runs=table.runs,
            rows=tuple(map(_row, table.rows)),
            languages=table.languages,
        )


def _row(row: _RowFile) -> PublishedRow:
    spread = {Key(name, MEASURES.get(name, "f1")): value for name, value in row.spread.items()}
    return PublishedRow(row.method, dict(_scores(row.scores)), row.objectives, spread, row.settings)


def _questions(counts: Mapping[str, int | dict[str, int]]) -> Iterator[tuple[Key, int]]:
    for name, count in counts.items():
        if isinstance(count, int):
            yield Key(name), count
        else:
            yield from ((Key(name, language=language), number) for language, number in count.items())


def _scores(scores: Scores) -> Iterator[tuple[Key, float]]:
    """In the order in which they are shown: set by set and language by language; those of the k best come last."""
    for name, found in scores.items():
        if isinstance(found, float):
            yield Key(name, MEASURES.get(name, "f1")), found
        else:
            yield from _by_language(name, {measure: by for measure, by in found.items() if "@" not in measure})
    for name, found in scores.items():
        if isinstance(found, dict):
            yield from _by_language(name, {measure: by for measure, by in found.items() if "@" in measure})


def _by_language(name: str, measures: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[Key, float]]:
    languages = dict.fromkeys(language for by in measures.values() for language in by)
    for language in languages:
        yield from ((Key(name, measure, language), by[language]) for measure, by in measures.items())
    for measure, by in measures.items():
        if "@" not in measure and by.keys() == set(LANGUAGES):
            yield Key(name, measure, AVERAGE), float(np.mean([by[language] for language in LANGUAGES]))
