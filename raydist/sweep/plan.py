"""The plan of a sweep, checked as a whole: its settings, and its trials.

A trial is a setting with a seed, named by a hash of both. So the same trial has the same name in every session, and a space may
grow while finished trials remain valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from raydist.config import Config, ConfigError, SweepConfig, override
from raydist.files.storage import fingerprint
from raydist.sweep.space import RANGES, Axis, draw, grid, read_space, typed

DEFAULT_TRIALS = 20  # settings, for random and optuna
MOST_SETTINGS = 10_000  # of a grid: each is checked before the first trial


@dataclass(frozen=True)
class Trial:
    """A setting with a seed."""

    choice: Mapping[str, Any]
    seed: int

    @cached_property
    def id(self) -> str:
        return fingerprint({"choice": dict(self.choice), "seed": self.seed})[:12]

    @property
    def entry(self) -> dict[str, Any]:
        """The first fields of its entry in the ledger."""
        return {"id": self.id, "choice": dict(self.choice), "seed": self.seed}


@dataclass(frozen=True)
class Plan:
    """A checked sweep: the config without its section `sweep`, the axes, and the settings, unless a searcher chooses them."""

    base: Config
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    settings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trials(self) -> list[Trial]:
        return [Trial(choice, seed) for choice in self.settings for seed in self.seeds]


def plan_sweep(config: Config) -> Plan:
    """Check a whole sweep and expand the settings known so far; a ConfigError lists every problem."""
    sweep = config.sweep
    if sweep is None:
        raise ConfigError("there is nothing to sweep: the config has no section `sweep` (try raydist sweep debug_sweep)")
    base = override(config, {"sweep": None})
    axes, problems = read_space(sweep.space)
    problems += _check_metric(config) + _check_scheduler(config)
    if sweep.search == "grid":
        problems += _check_grid(sweep, axes)
    settings: list[dict[str, Any]] = []
    wrong: list[str] = []
    if not problems and sweep.search != "optuna":
        choices = grid(axes) if sweep.search == "grid" else draw(axes, sweep.trials or DEFAULT_TRIALS, config.seed)
        settings, wrong = _check_settings(base, choices)
    if problems or wrong or sweep.search == "optuna":  # value by value: a wrong one is in many settings
        alone = _check_settings(base, [{axis.key: value} for axis in axes for value in axis.values])[1]
        problems += alone or wrong
    if problems:
        listed = list(dict.fromkeys(problems))
        count = f"{len(listed)} problem" + "s" * (len(listed) > 1)
        raise ConfigError(f"sweep {config.name}: {count}\n  " + "\n  ".join(listed))
    if sweep.search == "optuna":
        axes = [_typed_axis(base, axis) for axis in axes]
    unique = {fingerprint(choice): choice for choice in settings}
    return Plan(base, tuple(axes), tuple(sweep.seeds or [config.seed]), list(unique.values()))


def _typed_axis(base: Config, axis: Axis) -> Axis:
    """The axis with values as a later session reads them from the ledger: 3e-5 for YAML's "3e-5"."""
    if axis.kind != "choice":
        return axis
    return replace(axis, values=tuple(typed(base, {axis.key: value})[axis.key] for value in axis.values))


def _check_settings(base: Config, choices: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The valid settings, and the problems of the others."""
    right, wrong = [], []
    for choice in choices:
        try:
            right.append(typed(base, choice))
        except ConfigError as error:
            wrong.append(str(error))
    return right, wrong


# --- rejected sweeps -------------------------------------------------------------------------------------------------


def _check_grid(sweep: SweepConfig, axes: Sequence[Axis]) -> list[str]:
    problems = [f"sweep.space.{axis.key}: a grid takes lists, not {axis.kind}" for axis in axes if axis.kind in RANGES]
    if sweep.trials:
        problems.append("sweep.trials: a grid tries every combination; leave trials out, or use search: random")
    if math.prod(len(axis.values) for axis in axes) > MOST_SETTINGS:
        problems.append(f"sweep.space: a grid of more than {MOST_SETTINGS:,} settings; use search: random")
    return problems


def _check_metric(config: Config) -> list[str]:
    """Problems of a metric that cannot score trials of this task."""
    if config.task == "cross_encoder":
        return ["task: a sweep is of readers or retrievers, and this is a cross_encoder"]
    return _check_retriever(config) if config.task == "retriever" else _check_reader(config)


def _check_retriever(config: Config) -> list[str]:
    assert config.sweep is not None
    problems, metric = [], config.sweep.metric
    if config.corpus.train is None:
        problems.append("corpus.train: there is nothing to train on")
    if metric == "dev.mrr":
        if not config.corpus.has_dev:
            problems.append("sweep.metric: dev.mrr is of questions that are held out: set corpus.dev_share or corpus.dev")
        if config.train.evaluate_every == 0:
            problems.append("sweep.metric: dev.mrr is measured during training: leave out train.evaluate_every: 0")
    elif metric.startswith(tuple(f"retrieval.{name}." for name in config.corpus.test)):
        problems += _check_test(config.sweep, "dev.mrr, with corpus.dev_share or corpus.dev")
    else:
        problems.append(
            f"sweep.metric: {metric} is no score of this retriever; take dev.mrr, with corpus.dev_share or corpus.dev"
        )
    return problems


def _check_test(sweep: SweepConfig, instead: str) -> list[str]:
    """Reject a metric of a test set: it would no longer test the setting that it chose."""
    if sweep.metric_is_test == "allow":
        return []
    return [
        f"sweep.metric: {sweep.metric} is of a test set, and what is chosen by a test set scores too well on it: rank by "
        f"{instead}, or set sweep.metric_is_test: allow"
    ]


def _check_reader(config: Config) -> list[str]:
    assert config.sweep is not None
    problems, metric = [], config.sweep.metric
    scored = [name for name in config.predict.split or config.sets() if name != "train"]
    if metric.split(".")[0] not in ("train", *scored):
        there = f"there are {', '.join(scored)}" if scored else "none is given"
        problems.append(f"sweep.metric: {metric} is of no data set that is scored; {there}")
    elif metric.split(".")[0] in config.data.test:
        problems += _check_test(config.sweep, "a score of data.dev, such as dev.f1")
    if config.data.train is None:
        problems.append("data.train: there is nothing to train on")
    for key, value in (("predict.model", config.predict.model), ("evaluate.predictions", config.evaluate.predictions)):
        if value:
            problems.append(f"{key}: a trial is scored by its own model; leave this out")
    return problems


def _check_scheduler(config: Config) -> list[str]:
    sweep, train = config.sweep, config.train
    assert sweep is not None
    if sweep.scheduler == "none":
        return []
    of_retriever = config.task == "retriever"
    if not (config.corpus.has_dev if of_retriever else config.data.dev):
        way = "set corpus.dev_share or corpus.dev" if of_retriever else "set data.dev"
        return [f"sweep.scheduler: {sweep.scheduler} goes by the dev score, and there is no dev set: {way}"]
    if train.evaluate_every == 0 or (train.evaluate_every is None and train.epochs <= 1):
        return [f"sweep.scheduler: {sweep.scheduler} needs dev scores during training: set train.evaluate_every"]
    return []
