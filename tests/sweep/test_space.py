"""A space over dotted keys: what it means, and what is drawn from it."""

from raydist.sweep.plan import plan_sweep
from raydist.sweep.space import applied, draw, read_space


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


def test_a_section_and_a_key_of_it_do_not_leak_into_each_other(sweep_of):
    config = sweep_of("  space: {objectives.pfa: [{align: cos}, {}], objectives.pfa.alpha: [0.1, 0.9]}\n")
    for _ in range(2):
        plan = plan_sweep(config)
        assert [trial.choice["objectives.pfa"] for trial in plan.trials] == [{"align": "cos"}] * 2 + [{}] * 2
        found = [applied(plan.base, trial.choice).objectives.pfa for trial in plan.trials]
        assert [(pfa.align, pfa.alpha) for pfa in found] == [("cos", 0.1), ("cos", 0.9), ("w1", 0.1), ("w1", 0.9)]
