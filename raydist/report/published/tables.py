"""The papers' numbers, read from the YAML files of this folder and checked: files contain no unread values.

A file holds the tables of one paper. ``common`` has values shared by its tables; a table's own values take precedence. Scores
are ``test_set: value`` if a set has one score, and otherwise ``test_set: {measure: {language: value}}``.
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
WARMUP = "Warm-up"  # among settings: stands for the three keys of optim that set its length
PAPERS = ("infomax", "pfa", "two_stage")
ORIGINAL = "original"  # the source questions of an adversarial set
MEASURES = {"addsent": "addsent_f1", "addonesent": "addsent_f1", ORIGINAL: "original_f1"}  # a set's one score; else F1

Scores: TypeAlias = dict[str, float | dict[str, dict[str, float]]]


class Key(NamedTuple):
    """Identifies a number: its test set, language and measure."""

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
    """One method's numbers. ``objectives`` are the settings that a run must have for the row to apply; None: raydist does not
    train the method.
    """

    method: str
    scores: Mapping[Key, float]
    objectives: Mapping[str, Mapping[str, Any]] | None
    spread: Mapping[Key, float]
    settings: Mapping[str, Any]  # if not those of the table; None: not stated


@dataclass(frozen=True)
class Table:
    """A table's numbers and its settings, in the terms of a config."""

    title: str
    model: str
    trained_on: str  # a data set, or "" for each test set's own training part
    train_questions: Mapping[str, int]
    settings: Mapping[str, Any]  # dotted keys of a config and WARMUP; an objective's count if it is on
    questions: Mapping[Key, int]  # of the test sets; Key(test_set) or Key(test_set, language=...)
    rules: Mapping[str, str]
    runs: str  # the runs that a number summarises
    rows: tuple[PublishedRow, ...]
    languages: str  # of the training data: "one" or "several"


class Number(_Closed):
    """A score in per cent, or by how much one method is above another."""

    metric: str
    value: float
    method: str
    above: str = ""


class MinedSet(_Closed):
    """The published numbers of mining on one corpus."""

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
    """Scores in display order: by set and language, with those of the k best last."""
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
