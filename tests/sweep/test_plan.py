"""Sweeps without Ray: what a space means, what is refused, how finished trials are counted and ranked."""

import math

import pytest

from raydist.config import ConfigError, load_config, shipped_configs
from raydist.files.storage import Storage
from raydist.sweep.plan import (
    Ledger,
    Study,
    Trial,
    applied,
    as_table,
    best_trials,
    draw,
    is_finished,
    plan_sweep,
    rank,
    read_space,
    summary,
)


@pytest.fixture
def sweep_of(tmp_path):
    """A config with this section `sweep`."""

    def sweep_of(text: str, *overrides: str):
        (tmp_path / "sweep.yaml").write_text(
            "name: tried\ndata: {train: train.json, dev: dev.json}\nobjectives: {pfa: {}}\nsweep:\n" + text
        )
        return load_config(str(tmp_path / "sweep.yaml"), overrides).config

    return sweep_of


def test_a_grid_is_every_combination_with_every_seed(sweep_of):
    plan = plan_sweep(
        sweep_of("  space: {objectives.pfa.bottleneck: [1, 50], optim.lr: [1e-4, 3e-4, 1e-3]}\n  seeds: [0, 7]\n")
    )
    assert len(plan.settings) == 6
    assert plan.settings[0] == {"objectives.pfa.bottleneck": 1, "optim.lr": 1e-4}  # YAML's string "1e-4" as a number
    assert [trial.seed for trial in plan.trials] == [0, 7] * 6
    assert len({trial.id for trial in plan.trials}) == 12
    assert plan.base.sweep is None
    assert applied(plan.base, plan.settings[5]).optim.lr == 1e-3


def test_a_trial_keeps_its_id_when_the_grid_grows(sweep_of):
    small = {trial.id for trial in plan_sweep(sweep_of("  space: {optim.lr: [1e-4, 3e-4]}\n")).trials}
    large = [trial.id for trial in plan_sweep(sweep_of("  space: {optim.lr: [5e-5, 1e-4, 3e-4]}\n")).trials]
    assert small == set(large[1:])


def test_all_that_is_wrong_is_told_at_once(sweep_of):
    config = sweep_of(
        "  space:\n"
        "    objectives.infomx.weight: [0.1]\n"
        "    optim.lr: [-1, 1e-4]\n"
        "    optim.weight_decay: []\n"
        "    objectives.pfa.alpha: {uniform: [0.9, 0.1]}\n"
        "    optim.eps: {loguniform: [0, 1]}\n"
        "    objectives.pfa.bottleneck: {int: [1, 2.5]}\n"
        "    objectives.pfa.gamma: 3\n"
        "    seed: [0, 1]\n"
        "    cluster.workers: [1, 2]\n"
        "  metric: test.f1\n"
        "  scheduler: asha\n",
        "train.epochs=1",
    )
    with pytest.raises(ConfigError) as error:
        plan_sweep(config)
    said = str(error.value)
    for part in (
        "objectives.infomx: unknown key; did you mean objectives.infomax?",
        "optim.lr: should be greater than 0, got -1",
        "sweep.space.optim.weight_decay: the list is empty",
        "sweep.space.objectives.pfa.alpha: low is more than high: [0.9, 0.1]",
        "sweep.space.optim.eps: loguniform needs a low above 0",
        "sweep.space.objectives.pfa.bottleneck: int takes two whole numbers",
        "sweep.space.objectives.pfa.gamma: should be a list",
        "sweep.space.seed: cannot be swept over; use sweep.seeds",
        "sweep.space.cluster.workers: cannot be swept over; it changes no result",
        "sweep.metric: test.f1 is of no data set that is scored; there are dev",
        "sweep.scheduler: asha needs dev scores during training: set train.evaluate_every",
        "11 problems",
    ):
        assert part in said


def test_a_value_is_judged_in_its_setting(sweep_of):
    """96 leaves no room beside the default stride of 128, but does beside 16."""
    space = "  space: {data.max_length: [96], data.doc_stride: [16]}\n"
    assert len(plan_sweep(sweep_of(space)).settings) == 1
    with pytest.raises(ConfigError, match="max_length 96 leaves no room"):
        plan_sweep(sweep_of("  space: {data.max_length: [96]}\n"))


def test_a_section_and_a_key_of_it_do_not_leak_into_each_other(sweep_of):
    config = sweep_of("  space: {objectives.pfa: [{align: cos}, {}], objectives.pfa.alpha: [0.1, 0.9]}\n")
    for _ in range(2):
        plan = plan_sweep(config)
        assert [trial.choice["objectives.pfa"] for trial in plan.trials] == [{"align": "cos"}] * 2 + [{}] * 2
        found = [applied(plan.base, trial.choice).objectives.pfa for trial in plan.trials]
        assert [(pfa.align, pfa.alpha) for pfa in found] == [("cos", 0.1), ("cos", 0.9), ("w1", 0.1), ("w1", 0.9)]


def test_an_override_on_the_command_line_replaces_an_axis(sweep_of):
    config = sweep_of("  space: {optim.lr: [1e-4, 3e-4]}\n", "sweep.space.optim.lr=[0.5]")
    assert [trial.choice for trial in plan_sweep(config).trials] == [{"optim.lr": 0.5}]


def test_random_settings_lie_in_their_ranges_and_more_of_them_begin_with_the_same():
    axes, problems = read_space(
        {
            "a": {"uniform": [0.2, 0.4]},
            "b": {"loguniform": ["1e-6", 1]},
            "c": {"int": [3, 5]},
            "d": ["x", "y"],
        }
    )
    assert not problems
    settings = draw(axes, 200, seed=1)
    assert draw(axes, 50, seed=1) == settings[:50]
    assert draw(axes, 50, seed=2) != settings[:50]
    assert all(0.2 <= s["a"] <= 0.4 and 1e-6 <= s["b"] <= 1 for s in settings)
    assert {s["c"] for s in settings} == {3, 4, 5}
    assert {s["d"] for s in settings} == {"x", "y"}
    low = sum(s["b"] < 1e-3 for s in settings)  # half of the logarithm's range: 100 of 200, deviation 7
    assert 65 < low < 135


def test_a_finite_space_is_drawn_without_repeats_until_it_is_empty():
    axes, _ = read_space({"a": [1, 2], "b": {"int": [1, 2]}})
    assert sorted(tuple(s.values()) for s in draw(axes, 20, seed=0)) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_optuna_comes_closer_to_the_best_and_uses_what_it_is_told():
    axes, _ = read_space({"x": {"uniform": [0, 1]}, "kind": ["bad", "good"]})

    def score(choice: dict) -> float:
        return -((choice["x"] - 0.7) ** 2) - (choice["kind"] == "bad")

    study = Study(axes, seed=0, mode="max")
    asked = []
    for _ in range(40):
        question, choice = study.ask()
        study.tell(question, score(choice))
        asked.append(choice)
    assert all(0 <= choice["x"] <= 1 for choice in asked)
    at_random, guided = ([score(choice) for choice in part] for part in (asked[:10], asked[10:]))  # TPE begins with ten draws
    assert sum(guided) / 30 > sum(at_random) / 10

    resumed = Study(axes, seed=1, mode="max")
    assert all(resumed.know(choice, score(choice)) for choice in asked)
    assert not resumed.know({"x": 2.0, "kind": "good"}, 1.0)  # outside the space
    assert not resumed.know({"x": 0.5}, 1.0)
    assert len(resumed.study.trials) == 40
    question, _ = resumed.ask()
    resumed.tell(question, None)  # a trial that failed


def test_a_study_knows_a_value_again_that_yaml_took_for_a_string(sweep_of):
    plan = plan_sweep(sweep_of("  space: {optim.lr: ['3e-5', 1.0e-4]}\n  search: optuna\n"))
    assert Study(plan.axes, seed=0, mode="max").know({"optim.lr": 3e-5}, 50.0)  # as the ledger has it


def entry(trial: Trial, value: float | None, status: str = "done") -> dict:
    metrics = {} if value is None else {"dev.f1": value}
    return {"id": trial.id, "choice": dict(trial.choice), "seed": trial.seed, "status": status, "metrics": metrics}


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


def test_the_ledger_keeps_the_end_of_a_trial_and_lets_an_error_be_tried_again(tmp_path):
    ledger = Ledger(Storage(str(tmp_path)))
    one, two = Trial({"a": 1}, 0), Trial({"a": 2}, 0)
    ledger.add(entry(one, 50.0, "stopped"))
    ledger.add(entry(one, None, "error"))  # what a stopped trial says while it is taken down
    assert ledger.entries()[one.id]["status"] == "stopped"
    ledger.add(entry(two, None, "error"))
    assert not is_finished(ledger.get(two.id))
    ledger.forget(two.id)
    assert ledger.get(two.id) is None
    assert is_finished(ledger.get(one.id))


def test_pbt_is_refused_with_the_reason(sweep_of):
    with pytest.raises(ConfigError, match="population-based training is left out: it changes settings while it trains"):
        sweep_of("  space: {optim.lr: [1]}\n  scheduler: pbt\n")


@pytest.mark.parametrize(
    ("preset", "key", "values"),
    [
        ("infomax", "objectives.infomax.weight", [0.05, 0.1, 0.3, 0.5]),
        ("infomax", "objectives.infomax.context", [3, 5, 10]),
        ("infomax_batch", "train.batch_size", [5, 12, 32]),
        ("pfa_bottleneck", "objectives.pfa.bottleneck", [1, 2, 10, 50, 300, 500, 768, 1000]),
        ("pfa_alpha", "objectives.pfa.alpha", [0.1, 0.3, 0.5, 0.7, 0.9]),
        ("pfa_delta", "objectives.pfa.delta", [0.1, 0.3, 0.5, 0.7, 0.9]),
        ("xmrc", "objectives.answer_contrast.alpha", [0.1, 0.3, 0.5, 0.7, 0.9]),
        ("xmrc", "objectives.answer_contrast.theta", [1, 10, 20]),
        ("xmrc_tau", "objectives.answer_contrast.tau", [0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 10, 12, 20]),
        ("xmrc_sets", "objectives.hard_learning.size", [1, 5, 10, 20, 50]),
        ("mining", "mining.threshold", [0.5, 0.7, 0.9]),
        ("mining", "mining.power", [0, 1, 2, 4]),
        ("retriever_scale", "retriever.scale", [20, 50, 100]),
    ],
)
def test_a_preset_tries_the_published_values(preset, key, values):
    trials = plan_sweep(load_config(f"sweeps/{preset}").config).trials
    assert sorted({trial.choice[key] for trial in trials}) == values


@pytest.mark.parametrize(
    "name",
    sorted(path.stem for path in (shipped_configs() / "sweeps").glob("*.yaml")),
)
def test_every_preset_is_right(name):
    assert plan_sweep(load_config(f"sweeps/{name}").config).trials
