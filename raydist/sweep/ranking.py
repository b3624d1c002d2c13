"""The results of a sweep: its settings ranked, as sweep.json and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.config import Config
from raydist.files.storage import fingerprint
from raydist.sweep.plan import Plan, Trial


@dataclass(frozen=True)
class SettingScores:
    """The scores of one setting's trials: by seed, and together."""

    choice: dict[str, Any]
    trials: dict[int, str]  # seed -> id
    status: dict[int, str]  # of finished trials, by seed
    values: dict[int, float]  # scores, including those of stopped trials

    @property
    def done(self) -> list[float]:
        return [value for seed, value in self.values.items() if self.status[seed] == "done"]

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.trials)

    @property
    def mean(self) -> float | None:
        """Over trials that ran to their end; over stopped ones only if there are no others."""
        values = self.done or list(self.values.values())
        return statistics.fmean(values) if values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds (of the sample); None for a single trial."""
        return statistics.stdev(self.done) if len(self.done) > 1 else None


def rank(trials: Iterable[Trial], entries: Mapping[str, Mapping], metric: str, mode: str) -> list[SettingScores]:
    """Settings, the best first: complete ones, then those with a missing or failed seed, then stopped ones, then the rest."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(fingerprint(dict(trial.choice)), []).append(trial)
    sign = -1 if mode == "max" else 1

    def order(setting: SettingScores) -> tuple:
        mean = setting.mean
        return (not setting.complete, not setting.done, mean is None, sign * mean if mean is not None else 0.0)

    return sorted((scores_of(group, entries, metric) for group in groups.values()), key=order)


def scores_of(trials: Sequence[Trial], entries: Mapping[str, Mapping], metric: str) -> SettingScores:
    """The scores of one setting's trials."""
    ended = {trial.seed: entries[trial.id] for trial in trials if trial.id in entries}
    scores = {seed: entry.get("metrics", {}).get(metric) for seed, entry in ended.items()}
    return SettingScores(
        dict(trials[0].choice),
        {trial.seed: trial.id for trial in trials},
        {seed: entry["status"] for seed, entry in ended.items()},
        {seed: float(score) for seed, score in scores.items() if isinstance(score, int | float)},
    )


def best_trials(settings: Iterable[SettingScores], number: int, mode: str) -> list[str]:
    """The ids of trials whose models are kept: best setting first, and best score first within a setting."""
    sign = -1 if mode == "max" else 1
    ids = [
        setting.trials[seed]
        for setting in settings
        for seed in sorted(setting.values, key=lambda seed: sign * setting.values[seed])
        if setting.status[seed] == "done"
    ]
    return ids[:number]


def summary(name: str, config: Config, plan: Plan, settings: Sequence[SettingScores]) -> dict[str, Any]:
    """sweep.json: all data of the table and the report."""
    sweep = config.sweep
    assert sweep is not None
    rows = [_row(setting) for setting in settings]
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


def _row(setting: SettingScores) -> dict[str, Any]:
    trials = [
        {"seed": seed, "id": id, "status": setting.status.get(seed, "open"), "value": setting.values.get(seed)}
        for seed, id in setting.trials.items()
    ]
    return {
        "choice": setting.choice,
        "mean": setting.mean,
        "deviation": setting.deviation,
        "complete": setting.complete,
        "trials": trials,
    }


def show(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "off" if value is None else str(value)


def as_table(sweep: Mapping[str, Any]) -> list[str]:
    """A summary as lines for a terminal: the setting, the metric for each seed, mean and deviation."""
    keys, seeds = sweep["keys"], sweep["seeds"]
    head = [*keys, *(f"seed {seed}" for seed in seeds), "mean", "deviation"] if len(seeds) > 1 else [*keys, sweep["metric"]]
    lines = [head, *(_cells(row, keys, len(seeds) > 1) for row in sweep["settings"])]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return [
        "  ".join(
            cell.ljust(width) if place < len(keys) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    ]


def _cells(row: Mapping[str, Any], keys: Sequence[str], has_seeds: bool) -> list[str]:
    cells = [show(row["choice"].get(key)) for key in keys]
    for trial in row["trials"]:
        score = "" if trial["value"] is None else f"{trial['value']:.2f}"
        cells.append(score if trial["status"] == "done" else f"{trial['status']} {score}".strip())
    if has_seeds:
        cells += ["" if row[key] is None else f"{row[key]:.2f}" for key in ("mean", "deviation")]
    return cells
