"""What a sweep reached: settings ranked, and the table."""

import math

import pytest
from helpers.ledger import entry

from raydist.sweep.plan import Trial, plan_sweep
from raydist.sweep.ranking import as_table, best_trials, rank, summary


def test_settings_are_ranked_by_their_mean_and_incomplete_ones_come_after():
    trials = {(value, seed): Trial({"a": value}, seed) for value in "pqrs" for seed in (0, 1)}
    entries = [
        *(entry(trials["p", 0], 70.0), entry(trials["p", 1], 74.0)),
        *(entry(trials["q", 0], 60.0), entry(trials["q", 1], 86.0)),
        *(entry(trials["r", 0], 99.0), entry(trials["r", 1], None, "failed")),
        *(entry(trials["s", 0], 90.0, "stopped"), entry(trials["s", 1], 91.0, "stopped")),
    ]
    known = {one["id"]: one for one in entries}
    ranked = rank(trials.values(), known, "dev.f1", "max")
    assert [setting.choice["a"] for setting in ranked] == ["q", "p", "r", "s"]
    assert (ranked[0].mean, ranked[1].mean) == (73.0, 72.0)
    assert ranked[0].deviation == pytest.approx(26 / math.sqrt(2))  # of the sample: |60 - 86| / sqrt(2)
    assert ranked[2].deviation is None
    assert [setting.choice["a"] for setting in rank(trials.values(), known, "dev.f1", "min")] == ["p", "q", "r", "s"]
    best = best_trials(ranked, 3, "max")
    assert best == [trials["q", 1].id, trials["q", 0].id, trials["p", 1].id]  # stopped and failed ones keep no model


def test_the_table_shows_every_seed_and_what_was_stopped(sweep_of):
    config = sweep_of("  space: {optim.lr: [1e-4, 3e-4]}\n  seeds: [0, 1]\n")
    plan = plan_sweep(config)
    trials = plan.trials
    scores = [(70.0, "done"), (72.0, "done"), (50.0, "stopped")]
    entries = {trial.id: entry(trial, value, status) for trial, (value, status) in zip(trials, scores)}
    found = summary("tried", config, plan, rank(trials, entries, "dev.f1", "max"))
    assert found["best"]["choice"] == {"optim.lr": 1e-4}
    lines = as_table(found)
    assert lines[0].split() == ["optim.lr", "seed", "0", "seed", "1", "mean", "deviation"]
    assert lines[1].split() == ["0.0001", "70.00", "72.00", "71.00", "1.41"]
    assert lines[2].split() == ["0.0003", "stopped", "50.00", "open", "50.00"]
