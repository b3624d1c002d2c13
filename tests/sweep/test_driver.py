"""The driver of a sweep: what runs next, what a later session takes over, trials one after another in this process."""

import json
import subprocess
import sys

import pytest
from helpers.sweeps import stages_of, sweep_config

from raydist.errors import InputError
from raydist.here import Here
from raydist.sweep.driver import LocalTrials, Sweep, run_sweep


def test_optuna_carries_on_with_what_it_asked_and_what_it_learned(tmp_path):
    """The driver's side alone: trials are answered by hand."""
    overrides = ("name=asked", "sweep.search=optuna", "sweep.trials=4", "sweep.space.optim.lr={loguniform: [1e-5, 1e-2]}")
    config = sweep_config(tmp_path, *overrides)

    def answer(sweep: Sweep, trial) -> None:
        score = 50 + 1000 * trial.choice["optim.lr"]
        entry = {"id": trial.id, "choice": dict(trial.choice), "seed": trial.seed}
        sweep.ledger.add(entry | {"status": "done", "metrics": {"dev.f1@20": score}})
        sweep.finished(trial)

    first = Sweep(config, Here())
    first.begin(fresh=True)
    assert first.plan_pending()
    trials = [first.next() for _ in range(3)]  # both seeds of one setting, one of another
    assert [trial.seed for trial in trials] == [0, 1, 0]
    for trial in trials:
        answer(first, trial)
    assert [trial.value for trial in first.session.study.study.trials] == [50 + 1000 * trials[0].choice["optim.lr"], None]

    second = Sweep(config, Here())  # the first one was killed
    second.begin(fresh=False)
    assert second.plan_pending()
    assert [trial.value for trial in second.session.study.study.trials] == [50 + 1000 * trials[0].choice["optim.lr"]]
    left = []
    while trial := second.next():
        answer(second, trial)
        left.append(trial)
    assert left[0].choice == trials[2].choice  # the open seed first
    assert left[0].seed == 1
    assert len(left) == 5  # of 4 settings x 2 seeds, three were done
    third = Sweep(config, Here())
    third.ledger.add(third.ledger.get(left[0].id) | {"data": {"train": "other windows"}})
    with pytest.raises(InputError, match=f"train changed since trial {left[0].id} was run"):
        third.plan_pending()
    results = second.write_results()
    assert len(results["settings"]) == 4
    assert results["best"]["choice"]["optim.lr"] == max(row["choice"]["optim.lr"] for row in results["settings"])


def test_a_setting_that_is_best_only_with_its_last_seed_has_its_model(tmp_path):
    sweep = Sweep(sweep_config(tmp_path, "name=late"), Here())
    sweep.begin(fresh=True)
    assert sweep.plan_pending()
    scores = {(1e-3, 0): 33.0, (3e-3, 0): 32.0, (1e-3, 1): 23.0, (3e-3, 1): 28.0}
    trials = {(trial.choice["optim.lr"], trial.seed): trial for trial in sweep.trials.values()}
    for key, score in scores.items():
        trial = trials[key]
        sweep.folder.write_bytes(f"trials/{trial.id}/model/config.json", b"{}")
        entry = {"id": trial.id, "choice": dict(trial.choice), "seed": trial.seed, "status": "done"}
        sweep.ledger.add(entry | {"metrics": {"dev.f1@20": score}})
        sweep.finished(trial)
    sweep.write_results()
    kept = [path.parent.parent.name for path in (tmp_path / "late").glob("trials/*/model/config.json")]
    assert kept == [trials[3e-3, 0].id]


def test_trials_run_one_after_another_in_this_process_and_none_twice(tmp_path, capsys):
    config = sweep_config(tmp_path, "name=here", "sweep.seeds=[0]", "data.test={}")
    results = run_sweep(config, LocalTrials())
    folder = tmp_path / "here"
    ends = [trial for row in results["settings"] for trial in row["trials"]]
    assert [trial["status"] for trial in ends] == ["done"] * 2
    assert ends[0]["value"] >= ends[1]["value"]
    assert [path.parent.parent.name for path in folder.glob("trials/*/model/config.json")] == [ends[0]["id"]]
    shared = [stages_of(path.parent)["windows of train"] for path in folder.glob("trials/*/stages.json")]
    assert [use.reused for use in shared] == [True] * 2
    assert json.loads((folder / "sweep.json").read_text()) == results

    before = {path: path.stat().st_mtime_ns for path in folder.glob("finished/*.json")}
    capsys.readouterr()
    assert run_sweep(config, LocalTrials()) == results
    assert "2 trials, 2 finished before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.glob("finished/*.json")} == before

    values = [f"storage={tmp_path}", "name=here", "sweep.at_once=1", "sweep.seeds=[0]", "data.test={}"]
    code = f"import sys; from raydist.cli import job; status = job('sweep', ['debug_sweep', *{values!r}])\n"
    code += "sys.exit('ray was loaded' if 'ray' in sys.modules else status)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + "the command for a cluster leaves alone what was finished here, without Ray"
    assert "2 trials, 2 finished before" in done.stdout


def test_a_metric_that_no_trial_has_stops_the_sweep_after_one(tmp_path):
    config = sweep_config(tmp_path, "sweep.metric=dev.f2", "sweep.seeds=[0]", "data.test={}")
    with pytest.raises(InputError, match=r"a trial has no dev.f2; it has .*dev.f1"):
        run_sweep(config, LocalTrials())
    assert len(list(tmp_path.glob("*/finished/*.json"))) == 1


def test_trials_one_after_another_are_not_stopped_early(tmp_path):
    config = sweep_config(tmp_path, "sweep.scheduler=asha", "data.test={}")
    with pytest.raises(InputError, match=r"sweep.scheduler: asha compares trials that run side by side.*leave it out"):
        run_sweep(config, LocalTrials())
