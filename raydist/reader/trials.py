"""The shared work of a sweep's reader trials, and the work of each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydist.config import Config
from raydist.config.roles import plain_settings
from raydist.reader import flow, two_stage
from raydist.reader.prepare import prepare, report_overlap
from raydist.reader.stages import WindowSet
from raydist.runs.run import Run


def shared_settings(config: Config, *, all_stages: bool = True) -> dict[str, Any]:
    """The settings behind the shared work: data sets and, with all stages of hard learning, n-best sets."""
    plain = plain_settings(config)
    settings = {key: plain[key] for key in ("data", "model")}
    if config.objectives.hard_learning and all_stages:
        settings |= {key: plain[key] for key in ("seed", "train", "optim", "predict")}
        settings |= {"sets": plain["objectives"]["hard_learning"], "span": plain["objectives"]["span"]}
    return settings


def base_settings(config: Config) -> dict[str, Any] | None:
    """The settings that define the base reader; None for a one-stage reader."""
    if config.objectives.hard_learning is None:
        return None
    plain = plain_settings(config)
    settings = {key: plain[key] for key in ("data", "model", "seed", "train", "optim", "predict")}
    settings["span"] = plain["objectives"]["span"]
    if (
        folds := config.objectives.hard_learning.nbest_folds
    ) > 1:  # each reader leaves out a fold: another share, another reader
        settings["folds"] = folds
    return settings


def prepare_trials(run: Run, *, all_stages: bool = True) -> dict[str, str]:
    """Make all that is independent of a trial's own settings; returns the fingerprints of its data sets."""
    sets = prepare(run, run.config.sets())
    if all_stages:
        report_overlap(run, run.config.sets(), is_ranked=True)
    if run.config.objectives.hard_learning and all_stages:
        flow.check_contrast(run, sets["train"].rows)
        two_stage.with_nbest_sets(run, sets["train"])
    return _fingerprints(sets)


def run_trial(run: Run, *, callbacks: Sequence[Any] = ()) -> dict[str, str]:
    """Train and score one trial; returns the fingerprints of its data sets."""
    sets = prepare(run, run.config.sets())
    flow.train_reader(run, callbacks=callbacks)
    flow.score_sets(run)
    return _fingerprints(sets)


def _fingerprints(sets: Mapping[str, WindowSet]) -> dict[str, str]:
    return {name: rows.windows.fingerprint for name, rows in sets.items()}
