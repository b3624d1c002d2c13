"""Optuna over a space, across sessions."""

from raydist.sweep.plan import plan_sweep
from raydist.sweep.space import read_space
from raydist.sweep.study import Study


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
