"""What a sweep tries, and what it found: a space over dotted keys -> settings -> trials -> a ranking. Nothing here needs Ray.

A setting is a choice of values; a trial is a setting with a seed, known by a hash of both. So the same trial has the same name
in every session, and a space may grow while what is finished stays so.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from raydist.config import Config, ConfigError, override
from raydist.files.storage import Storage, fingerprint

RANGES = ("uniform", "loguniform", "int")
KINDS = ("choice", *RANGES)
DEFAULT_TRIALS = 20  # settings, for random and optuna
MOST_SETTINGS = 10_000  # of a grid: each is checked before the first trial
NOT_SWEPT = {
    **{"name": "", "storage": "", "task": "", "sweep": "", "seed": "use sweep.seeds"},
    **{"cluster": "it changes no result", "track": "it changes no result"},
}
TRIES = 100  # draws in a row that bring nothing new, before a finite space counts as exhausted


@dataclass(frozen=True)
class Axis:
    """A dotted key and the values it may take: a list (`choice`), or the ends of a range, both included."""

    key: str
    kind: str
    values: tuple

    def draw(self, rng: np.random.Generator) -> Any:
        if self.kind == "choice":
            return self.values[rng.integers(len(self.values))]
        low, high = self.values
        if self.kind == "int":
            return int(rng.integers(low, high + 1))
        if self.kind == "loguniform":
            return self.tidy(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.tidy(rng.uniform(low, high))

    def tidy(self, value: float) -> float:
        """Six digits are enough to read and to type again."""
        return min(max(float(f"{value:.6g}"), self.values[0]), self.values[1])


@dataclass(frozen=True)
class Trial:
    """A setting with a seed."""

    choice: Mapping[str, Any]
    seed: int

    @cached_property
    def id(self) -> str:
        return fingerprint({"choice": dict(self.choice), "seed": self.seed})[:12]


@dataclass(frozen=True)
class Plan:
    """A sweep that was found right: the config without its sweep, the axes, and the settings, unless a searcher finds them."""

    base: Config
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    settings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trials(self) -> list[Trial]:
        return [Trial(choice, seed) for choice in self.settings for seed in self.seeds]


def plan_sweep(config: Config) -> Plan:
    """Check all of a sweep and expand what is known of it; a ConfigError lists every problem."""
    sweep = config.sweep
    if sweep is None:
        raise ConfigError("there is nothing to sweep: the config has no section `sweep` (try raydist sweep debug_sweep)")
    base = override(config, {"sweep": None})
    axes, problems = read_space(sweep.space)
    problems += _check_metric(config) + _check_scheduler(config)
    if sweep.search == "grid":
        problems += [f"sweep.space.{axis.key}: a grid takes lists, not {axis.kind}" for axis in axes if axis.kind in RANGES]
        if sweep.trials:
            problems.append("sweep.trials: a grid tries every combination; leave trials out, or use search: random")
        if math.prod(len(axis.values) for axis in axes) > MOST_SETTINGS:
            problems.append(f"sweep.space: a grid of more than {MOST_SETTINGS:,} settings; use search: random")
    settings: list[dict[str, Any]] = []
    wrong: list[str] = []
    if not problems and sweep.search != "optuna":
        drawn = grid(axes) if sweep.search == "grid" else draw(axes, sweep.trials or DEFAULT_TRIALS, config.seed)
        settings, wrong = _check_settings(base, drawn)
    if problems or wrong or sweep.search == "optuna":  # one by one: the same value is wrong in many settings
        alone = _check_settings(base, [{axis.key: value} for axis in axes for value in axis.values])[1]
        problems += alone or wrong
    if problems:
        listed = list(dict.fromkeys(problems))
        count = f"{len(listed)} problem" + "s" * (len(listed) > 1)
        raise ConfigError(f"sweep {config.name}: {count}\n  " + "\n  ".join(listed))
    if sweep.search == "optuna":  # what a later session reads from the ledger is typed: 3e-5, where YAML gives "3e-5"
        axes = [
            replace(axis, values=tuple(typed(base, {axis.key: value})[axis.key] for value in axis.values))
            if axis.kind == "choice"
            else axis
            for axis in axes
        ]
    unique = {fingerprint(choice): choice for choice in settings}
    return Plan(base, tuple(axes), tuple(sweep.seeds or [config.seed]), list(unique.values()))


def _check_settings(base: Config, choices: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The settings that are right, and what is wrong with the others."""
    right, wrong = [], []
    for choice in choices:
        try:
            right.append(typed(base, choice))
        except ConfigError as error:
            wrong.append(str(error))
    return right, wrong


def read_space(space: Mapping[str, Any]) -> tuple[list[Axis], list[str]]:
    """The axes of a space, and what is wrong with it. Keys may be nested, as overrides on the command line leave them."""
    axes, problems = [], []
    for key, value in _leaves(space):
        kind, values = "choice", value
        if isinstance(value, dict):
            ((kind, values),) = value.items()
        wrong = _wrong_values(kind, values)
        first = key.split(".")[0]
        if key in NOT_SWEPT or first in NOT_SWEPT:
            wrong = f"cannot be swept over; {NOT_SWEPT.get(key) or NOT_SWEPT[first]}".rstrip("; ")
        if wrong:
            problems.append(f"sweep.space.{key}: {wrong}")
        else:
            ends = [int(end) if kind == "int" else float(end) for end in values] if kind in RANGES else values
            axes.append(Axis(key, kind, tuple(ends)))
    if not axes and not problems:
        problems.append("sweep.space: no key is given")
    return axes, problems


def _leaves(space: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """(dotted key, list or {kind: list}); of a key given twice, dotted and nested, the later one counts."""
    found: dict[str, Any] = {}
    for name, value in space.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and not (len(value) == 1 and next(iter(value)) in KINDS and _is_list(*value.values())):
            found.pop(key, None)
            found |= dict(_leaves(value, key)) if value else {key: []}
        else:
            found[key] = value
    return list(found.items())


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _wrong_values(kind: str, values: Any) -> str | None:
    if not _is_list(values):
        return f"should be a list of values, or one of {', '.join(KINDS)} with a list, got {values!r}"
    if not values:
        return "the list is empty"
    if kind == "choice":
        return None
    if len(values) != 2:
        return f"{kind} takes [low, high], got {list(values)}"
    try:
        low, high = (float(value) for value in values)  # YAML takes 3e-5 for a string
    except (TypeError, ValueError):
        return f"{kind} takes two numbers, got {list(values)}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{kind} takes two finite numbers, got {list(values)}"
    if low > high:
        return f"low is more than high: {list(values)}"
    if kind == "loguniform" and low <= 0:
        return f"loguniform needs a low above 0, got {list(values)}"
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        return f"int takes two whole numbers, got {list(values)}"
    return None


def _check_metric(config: Config) -> list[str]:
    sweep, problems = config.sweep, []
    assert sweep is not None
    if config.task == "cross_encoder":
        return ["task: a sweep is of readers or retrievers, and this is a cross_encoder"]
    if config.task == "retriever":
        if config.corpus.train is None:
            problems.append("corpus.train: there is nothing to train on")
        if not sweep.metric.startswith(tuple(f"retrieval.{name}." for name in config.corpus.test)):
            offered = [f"retrieval.{name}.gold_silver_weighted.MRR@100" for name in config.corpus.test]
            wanted = f"such as {', '.join(offered)}" if offered else "and corpus.test has none"
            problems.append(f"sweep.metric: {sweep.metric} is no score of a retrieval test set, {wanted}")
        return problems
    scored = [name for name in config.predict.split or config.sets() if name != "train"]
    if sweep.metric.split(".")[0] not in ("train", *scored):
        there = f"there are {', '.join(scored)}" if scored else "none is given"
        problems.append(f"sweep.metric: {sweep.metric} is of no data set that is scored; {there}")
    if config.data.train is None:
        problems.append("data.train: there is nothing to train on")
    for key, given in (("predict.model", config.predict.model), ("evaluate.predictions", config.evaluate.predictions)):
        if given:
            problems.append(f"{key}: a trial is scored by its own model; leave this out")
    return problems


def _check_scheduler(config: Config) -> list[str]:
    sweep, train = config.sweep, config.train
    assert sweep is not None
    if sweep.scheduler == "none":
        return []
    if config.task == "retriever":
        return [f"sweep.scheduler: {sweep.scheduler} goes by dev scores during training: a retriever has none"]
    if not config.data.dev:
        return [f"sweep.scheduler: {sweep.scheduler} goes by the dev score, and there is no dev set: set data.dev"]
    if train.evaluate_every == 0 or (train.evaluate_every is None and train.epochs <= 1):
        return [f"sweep.scheduler: {sweep.scheduler} needs dev scores during training: set train.evaluate_every"]
    return []


def applied(base: Config, choice: Mapping[str, Any]) -> Config:
    """The config of a setting. A copy goes in: a value may be a section, of which another key changes a part."""
    return override(base, copy.deepcopy(dict(choice)))


def typed(base: Config, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with its values as the config holds them (3e-5 for "3e-5"), checked as a whole."""
    values = applied(base, choice).model_dump(mode="json")

    def at(key: str) -> Any:
        found: Any = values
        for step in key.split("."):
            found = found[step]
        return found

    return {key: given if isinstance(at(key), dict) else at(key) for key, given in choice.items()}


# --- settings --------------------------------------------------------------------------------------------------------


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination; the last key changes fastest."""
    return [dict(zip([axis.key for axis in axes], values)) for values in itertools.product(*(axis.values for axis in axes))]


def draw(axes: Sequence[Axis], number: int, seed: int) -> list[dict[str, Any]]:
    """So many different settings, the n-th of them a function of (seed, n): more of them later begin with the same."""
    found: dict[str, dict[str, Any]] = {}
    tried = since = 0
    while len(found) < number and since < TRIES:
        rng = np.random.default_rng([seed, tried])
        choice = {axis.key: axis.draw(rng) for axis in axes}
        since = since + 1 if fingerprint(choice) in found else 0
        found.setdefault(fingerprint(choice), choice)
        tried += 1
    return list(found.values())


class Study:
    """Optuna's TPE over the axes. What is known from an earlier session is told before the first question."""

    def __init__(self, axes: Sequence[Axis], seed: int, mode: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.axes = {axis.key: axis for axis in axes}
        self.distributions = {axis.key: self._distribution(axis) for axis in axes}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(sampler=sampler, direction="maximize" if mode == "max" else "minimize")

    @staticmethod
    def _distribution(axis: Axis) -> Any:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if axis.kind == "choice":
            return CategoricalDistribution(range(len(axis.values)))  # places: a value may be a whole section
        if axis.kind == "int":
            return IntDistribution(*axis.values)
        low, high = axis.values
        return FloatDistribution(low, high, log=axis.kind == "loguniform")

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """A setting to try, and the question that `tell` answers."""
        trial = self.study.ask(self.distributions)
        choice = {}
        for key, value in trial.params.items():
            axis = self.axes[key]
            choice[key] = axis.values[value] if axis.kind == "choice" else value if axis.kind == "int" else axis.tidy(value)
        return trial, choice

    def tell(self, question: Any, value: float | None) -> None:
        """The answer to a question; None where there is no score."""
        from optuna.trial import TrialState

        self.study.tell(question, value, state=TrialState.COMPLETE if value is not None else TrialState.FAIL)

    def know(self, choice: Mapping[str, Any], value: float) -> bool:
        """A result of an earlier session; False where it lies outside the space."""
        from optuna.trial import create_trial

        params = {}
        for key, axis in self.axes.items():
            if key not in choice:
                return False
            given = choice[key]
            if axis.kind == "choice":
                if given not in axis.values:
                    return False
                params[key] = axis.values.index(given)
            elif not axis.values[0] <= given <= axis.values[1]:
                return False
            else:
                params[key] = given
        self.study.add_trial(create_trial(params=params, distributions=self.distributions, value=value))
        return True


# --- the ledger ------------------------------------------------------------------------------------------------------


class Ledger:
    """finished/ID.json of a sweep: what is known of each trial that ran to an end.

    `status` is done, stopped (by the scheduler), failed (a loss that is not finite: trying again would not help) or error
    (the next session tries again).
    """

    def __init__(self, folder: Storage) -> None:
        self.folder = folder

    def entries(self) -> dict[str, dict]:
        names = sorted(name for name in self.folder.sizes("finished") if name.endswith(".json"))
        found = [self.folder.read_json(f"finished/{name}") for name in names]
        return {entry["id"]: entry for entry in found}

    def get(self, id: str) -> dict | None:
        name = f"finished/{id}.json"
        return self.folder.read_json(name) if self.folder.exists(name) else None

    def add(self, entry: Mapping[str, Any]) -> None:
        """An error does not replace an end that was recorded before: a trial that is being stopped may still complain."""
        if entry["status"] != "error" or self.get(entry["id"]) is None:
            self.folder.write_json(f"finished/{entry['id']}.json", dict(entry))

    def forget(self, id: str) -> None:
        self.folder.delete(f"finished/{id}.json")


def is_finished(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and entry["status"] != "error"


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What the trials of one setting reached: by seed, and together."""

    choice: dict[str, Any]
    trials: dict[int, str]  # seed -> id
    status: dict[int, str]  # of the finished ones
    values: dict[int, float]  # of those with a score, stopped ones included

    @property
    def done(self) -> list[float]:
        return [value for seed, value in self.values.items() if self.status[seed] == "done"]

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.trials)

    @property
    def mean(self) -> float | None:
        """Of the trials that ran to their end; of stopped ones only where there is no other."""
        values = self.done or list(self.values.values())
        return statistics.fmean(values) if values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds (of the sample), which one trial has not."""
        return statistics.stdev(self.done) if len(self.done) > 1 else None


def rank(trials: Iterable[Trial], entries: Mapping[str, Mapping], metric: str, mode: str) -> list[Setting]:
    """Settings, the best first: complete ones, then those with a missing or failed seed, then stopped ones, then the rest."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(fingerprint(dict(trial.choice)), []).append(trial)
    settings = []
    for group in groups.values():
        known = {trial.seed: entries[trial.id] for trial in group if trial.id in entries}
        scores = {seed: entry.get("metrics", {}).get(metric) for seed, entry in known.items()}
        settings.append(
            Setting(
                dict(group[0].choice),
                {trial.seed: trial.id for trial in group},
                {seed: entry["status"] for seed, entry in known.items()},
                {seed: float(score) for seed, score in scores.items() if isinstance(score, int | float)},
            )
        )
    sign = -1 if mode == "max" else 1

    def order(setting: Setting) -> tuple:
        mean = setting.mean
        return (not setting.complete, not setting.done, mean is None, sign * mean if mean is not None else 0.0)

    return sorted(settings, key=order)


def best_trials(settings: Iterable[Setting], number: int, mode: str) -> list[str]:
    """The ids whose models are kept: the best settings' first, within a setting the best score first."""
    sign = -1 if mode == "max" else 1
    ids = [
        setting.trials[seed]
        for setting in settings
        for seed in sorted(setting.values, key=lambda seed: sign * setting.values[seed])
        if setting.status[seed] == "done"
    ]
    return ids[:number]


def summary(name: str, config: Config, plan: Plan, settings: Sequence[Setting]) -> dict[str, Any]:
    """sweep.json: everything that the table and the report are made of."""
    sweep = config.sweep
    assert sweep is not None
    rows = [
        {
            "choice": setting.choice,
            "mean": setting.mean,
            "deviation": setting.deviation,
            "complete": setting.complete,
            "trials": [
                {"seed": seed, "id": id, "status": setting.status.get(seed, "open"), "value": setting.values.get(seed)}
                for seed, id in setting.trials.items()
            ],
        }
        for setting in settings
    ]
    best = next((row for row, setting in zip(rows, settings) if setting.done), None)
    return {
        "name": name,
        "metric": sweep.metric,
        "mode": sweep.mode,
        "search": sweep.search,
        "scheduler": sweep.scheduler,
        "keys": [axis.key for axis in plan.axes],
        "log": [axis.key for axis in plan.axes if axis.kind == "loguniform"],
        "seeds": list(plan.seeds),
        "best": best,
        "settings": rows,
    }


def show(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "off" if value is None else str(value)


def as_table(found: Mapping[str, Any]) -> list[str]:
    """Lines for a terminal: the setting, the metric for each seed, mean and deviation."""
    seeds = found["seeds"]
    head = [*found["keys"], *(f"seed {seed}" for seed in seeds), "mean", "deviation"]
    if len(seeds) == 1:
        head = [*found["keys"], found["metric"]]
    rows = []
    for row in found["settings"]:
        cells = [show(row["choice"].get(key)) for key in found["keys"]]
        for trial in row["trials"]:
            score = "" if trial["value"] is None else f"{trial['value']:.2f}"
            cells.append(score if trial["status"] == "done" else f"{trial['status']} {score}".strip())
        if len(seeds) > 1:
            cells += ["" if row[key] is None else f"{row[key]:.2f}" for key in ("mean", "deviation")]
        rows.append(cells)
    widths = [max(len(line[place]) for line in [head, *rows]) for place in range(len(head))]
    keys = len(found["keys"])
    return [
        "  ".join(
            cell.ljust(width) if place < keys else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths))
        )
        for line in [head, *rows]
    ]
