"""A trial as a run: which base it shares with others, and as what it crosses to another process."""

import shutil
from pathlib import Path

from helpers.sweeps import sweep_config

from raydist.config import load_config
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.sweep.driver import Sweep
from raydist.sweep.trial import TrialOrder


def test_trials_share_a_base_whatever_folder_the_sweep_is_run_from(tmp_path, monkeypatch):
    """Two jobs of one command: the working directory is unpacked elsewhere, paths in the config are the same."""
    sweeps = {
        "debug_sweep": ["objectives.hard_learning={}"],
        "debug_retrieval": [
            *("sweep.space.mining.threshold=[0,1]", "sweep.metric=retrieval.sample.gold_silver_weighted.MRR@100"),
            "sweep.metric_is_test=allow",
        ],
    }
    for config, given in sweeps.items():
        bases = []
        for place in ("one", "two"):
            shutil.copytree(model_folder("builtin:tiny"), tmp_path / config / place / "model")
            monkeypatch.chdir(tmp_path / config / place)
            same = [f"storage={tmp_path}", "model.name=model", "data.root=."]
            sweep = Sweep(load_config(config, [*same, *given]).config, Here())
            bases.append([sweep.base_of(trial) for trial in sweep.trials.values()])
            absolute = sweep.config_of(next(iter(sweep.trials.values())))
            assert absolute.model.name == str(tmp_path / config / place / "model"), "a trial runs in another folder"
        assert bases[0] == bases[1]
        assert None not in bases[0]


def test_a_trial_is_the_same_on_the_other_side_of_json(tmp_path):
    sweep = Sweep(sweep_config(tmp_path), Here())
    for trial in sweep.trials.values():
        order = sweep.order(trial)
        there = TrialOrder.from_json(order.to_json())
        assert there == order
        assert there.trial.id == trial.id
        assert Path(order.config.storage, order.config.name) == tmp_path / sweep.config.name / "trials" / trial.id
