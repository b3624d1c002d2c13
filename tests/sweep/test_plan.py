"""Plans of sweeps: which trials there are, and what is refused."""

import pytest

from raydist.config import ConfigError, load_config, shipped_configs
from raydist.sweep.plan import plan_sweep
from raydist.sweep.space import applied


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


SWEEPS = [path for path in sorted(shipped_configs().rglob("*.yaml")) if "cluster" not in path.parts]


def test_every_shipped_sweep_ranks_by_dev_and_its_dev_is_of_no_test_set():
    sweeps = {path.stem: config for path in SWEEPS if (config := load_config(str(path)).config).sweep}
    assert len(sweeps) >= 15
    for name, config in sweeps.items():
        assert config.sweep.metric.startswith("dev."), name
        assert config.sweep.metric_is_test == "refuse", name
        if config.task == "retriever":
            assert config.corpus.has_dev, name
        else:
            tested = {file for source in config.data.test.values() for file in source.files}
            assert not tested & set(config.data.dev.files), name


@pytest.mark.parametrize(
    ("name", "given", "way"),
    [
        ("debug_reader", ["sweep.metric=adversarial.addsent_f1"], "rank by a score of data.dev, such as dev.f1, or set"),
        (
            "debug_retrieval",
            ["sweep.metric=retrieval.sample.gold_silver_weighted.P@1"],
            "rank by dev.mrr, with corpus.dev_share",
        ),
    ],
)
def test_a_test_set_ranks_settings_only_where_that_is_allowed(name, given, way):
    given = [*given, "sweep.space.optim.lr=[1e-3,1e-4]"]
    with pytest.raises(ConfigError, match=way) as error:
        plan_sweep(load_config(name, given).config)
    assert "sweep.metric_is_test: allow" in str(error.value)
    assert plan_sweep(load_config(name, [*given, "sweep.metric_is_test=allow"]).config).trials


def test_a_retriever_is_ranked_by_questions_that_are_held_out_and_searched_for():
    given = ["sweep.space.mining.threshold=[0,1]", "sweep.metric=dev.mrr"]
    with pytest.raises(ConfigError, match=r"set corpus.dev_share or corpus.dev\n.*leave out train.evaluate_every: 0"):
        plan_sweep(load_config("debug_retrieval", given).config)
    given += ["corpus.dev_share=0.1", "train.evaluate_every=2", "sweep.scheduler=asha"]
    assert len(plan_sweep(load_config("debug_retrieval", given).config).trials) == 2
