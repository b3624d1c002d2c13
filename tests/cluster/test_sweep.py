"""Sweeps on Ray: trials are runs like any other, shared stages are made once, nothing finished is done again."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.sweeps import mined_config, stages_of, sweep_config
from safetensors.torch import load_file

from raydist.cluster.trials import RayTrials, sweep_cluster, trials_at_once
from raydist.cluster.tune import make_scheduler
from raydist.config import load_config
from raydist.errors import InputError
from raydist.reader import flow
from raydist.reader.prepare import prepare
from raydist.runs.clean import unused_stages
from raydist.sweep.driver import Sweep, run_sweep
from raydist.sweep.ledger import Ledger


@pytest.fixture(scope="session")
def trials(cluster) -> RayTrials:
    """Runs trials on the cluster of all tests."""
    return RayTrials(cluster)


def finished(folder: Path) -> dict[str, float]:
    """Trials in the ledger, and when each was written."""
    return {path.stem: path.stat().st_mtime_ns for path in (folder / "finished").glob("*.json")}


def scores(folder: Path) -> dict[str, float]:
    found = json.loads((folder / "sweep.json").read_text())
    return {trial["id"]: trial["value"] for row in found["settings"] for trial in row["trials"]}


@pytest.fixture(scope="module")
def swept(trials, storage) -> Path:
    """Two settings with two seeds."""
    run_sweep(sweep_config(storage, "name=swept"), trials)
    return Path(storage, "swept")


def test_a_sweep_ranks_its_settings_and_keeps_the_best_model_alone(swept):
    found = json.loads((swept / "sweep.json").read_text())
    assert [trial["status"] for row in found["settings"] for trial in row["trials"]] == ["done"] * 4
    means = [row["mean"] for row in found["settings"]]
    assert means == sorted(means, reverse=True)
    for row in found["settings"]:
        values = [trial["value"] for trial in row["trials"]]
        assert row["mean"] == pytest.approx(sum(values) / 2)
        assert row["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    best = load_config(str(swept / "best.yaml")).config
    assert {"optim.lr": best.optim.lr} == found["best"]["choice"]
    assert (best.name, best.sweep) == ("swept-best", None)

    models = sorted(path.parent.parent.name for path in swept.glob("trials/*/model/config.json"))
    assert models == [max(found["best"]["trials"], key=lambda trial: trial["value"])["id"]]
    assert not list(swept.glob("trials/*/checkpoints"))
    assert len(list(swept.glob("trials/*/metrics.json"))) == 4  # numbers stay
    assert not (swept / "tune").exists()
    report = (swept / "report.html").read_text()
    assert "dev f1@20 against optim.lr" in report
    assert "during training" in report


def test_what_trials_share_is_made_once_and_by_no_trial(swept):
    shared = []
    for file in swept.glob("trials/*/stages.json"):
        stages = stages_of(file.parent)
        made = {title: stage for title, stage in stages.items() if title.startswith(("examples", "windows", "sample"))}
        assert {"windows of train", "windows of dev", "examples of train"} <= made.keys()
        assert all(stage.reused for stage in made.values())
        shared.append(made["windows of train"].folder)
    assert len(shared) == 4
    assert len(set(shared)) == 1  # neither the learning rate nor the seed changes what is read


def test_a_trial_equals_the_same_run_done_alone(swept, make_run):
    found = json.loads((swept / "sweep.json").read_text())
    (kept,) = [path.parent.parent for path in swept.glob("trials/*/model/config.json")]
    seed = next(trial["seed"] for trial in found["best"]["trials"] if trial["id"] == kept.name)
    run = make_run(
        "name=alone", f"optim.lr={found['best']['choice']['optim.lr']}", f"seed={seed}", "sweep=null", config="debug_sweep"
    )
    prepare(run, run.config.sets())
    flow.train(run)
    flow.evaluate(run)
    ours, theirs = (load_file(folder / "model/model.safetensors") for folder in (Path(run.folder.path()), kept))
    assert ours.keys() == theirs.keys()
    assert all(value.equal(theirs[name]) for name, value in ours.items())
    numbers = [json.loads((folder / "metrics.json").read_text()) for folder in (Path(run.folder.path()), kept)]
    ours, theirs = ({key: value for key, value in found.items() if key.startswith("dev.")} for found in numbers)
    assert ours["dev.questions"] == 20
    assert ours == theirs


def test_a_finished_sweep_is_left_alone_a_larger_one_adds_to_it_and_another_is_refused(swept, trials, machine, storage, capsys):
    before = finished(swept)
    run_sweep(sweep_config(storage, "name=swept"), trials)
    assert "4 trials, 4 finished before" in capsys.readouterr().out
    assert finished(swept) == before

    larger = Sweep(sweep_config(storage, "name=swept", "sweep.space.optim.lr=[1e-3,2e-3,3e-3]"), machine)
    larger.begin(fresh=False)
    assert larger.plan_pending()
    assert [(trial.choice, trial.seed) for trial in larger.queue] == [({"optim.lr": 2e-3}, 0), ({"optim.lr": 2e-3}, 1)]

    with pytest.raises(InputError, match="was begun with other settings") as error:
        run_sweep(sweep_config(storage, "name=swept", "train.max_steps=13"), trials)
    assert "train.max_steps: was 12, now 13" in str(error.value)
    assert "--fresh" in str(error.value)
    assert finished(swept) == before


def test_clean_leaves_the_stages_of_trials_alone(swept, storage):
    from raydist.files.storage import Storage

    used = {stage["folder"] for file in swept.glob("trials/*/stages.json") for stage in json.loads(file.read_text()).values()}
    assert len(used) >= 6
    assert not used & set(unused_stages(Storage(storage)))


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_does_no_trial_twice(swept, storage):
    folder = Path(storage, "killed")
    arguments = ["sweep", "debug_sweep", f"storage={storage}", "sweep.at_once=1", "name=killed"]
    command = [sys.executable, "-m", "raydist.cli", *arguments]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 600
    while not (half := begun(folder)):
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    before = finished(folder)
    assert 1 <= len(before) < 4
    trained = json.loads((folder / "trials" / half / "training.json").read_text())["done"]  # or was only its evaluation left?
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"4 trials, {len(before)} finished before" in done.stdout
    assert "Traceback" not in done.stderr
    after = finished(folder)
    assert len(after) == 4
    assert before.items() <= after.items()  # not written again
    progress = json.loads((folder / "trials" / half / "progress.json").read_text())
    assert trained or progress["first"] > 0  # from a checkpoint
    assert scores(folder) == scores(Path(storage, "swept"))


def begun(folder: Path) -> str | None:
    """A trial that is past its second checkpoint and not finished, once another is finished."""
    known = finished(folder)
    for trial in (folder / "trials").glob("*"):
        if known and trial.name not in known and (trial / "progress.json").exists():
            try:
                if json.loads((trial / "progress.json").read_text())["step"] >= 8:
                    return trial.name
            except ValueError:  # being written
                continue
    return None


# One good setting, and one that learns nothing: told apart by a dev score at step 30 or 90.
# a trial is stopped when Tune has heard of its score, some steps later: they must not be its last ones
UNLIKE = ("sweep.seeds=[0]", "train.max_steps=300", "train.epochs=99", "train.evaluate_every=30", "train.dev_questions=20")


def test_asha_stops_a_hopeless_trial_and_a_resume_leaves_it_alone(trials, storage, capsys):
    config = sweep_config(storage, "name=halved", "sweep.scheduler=asha", "sweep.space.optim.lr=[3e-3,1e-12]", *UNLIKE)
    found = run_sweep(config, trials)
    folder = Path(storage, "halved")
    assert [(row["choice"]["optim.lr"], row["trials"][0]["status"]) for row in found["settings"]] == [
        (3e-3, "done"),
        (1e-12, "stopped"),
    ]
    assert found["best"]["choice"] == {"optim.lr": 3e-3}
    best, stopped = (row["trials"][0]["id"] for row in found["settings"])
    assert json.loads((folder / "finished" / f"{stopped}.json").read_text())["steps"] in (30, 90)  # where ASHA compares
    assert [path.parent.name for path in folder.glob("trials/*/model")] == [best]

    before = finished(folder)
    capsys.readouterr()
    assert run_sweep(config, trials) == found
    assert "2 trials, 2 finished before" in capsys.readouterr().out
    assert finished(folder) == before


@pytest.mark.slow
def test_median_stopping_stops_what_is_below_the_others_and_survives_a_trial_without_a_score(trials, storage):
    """The loss of the first trial is not a number before it has a score; then three good ones are the measure of a bad one."""
    rates = [1e30, 3e-3, 2.5e-3, 2e-3, 1e-12]
    overrides = ("name=median", "sweep.scheduler=median", f"sweep.space.optim.lr={rates}", "optim.clip_norm=1e9", *UNLIKE)
    found = run_sweep(sweep_config(storage, *overrides, "optim.warmup_steps=0"), trials)
    ends = {row["choice"]["optim.lr"]: row["trials"][0]["status"] for row in found["settings"]}
    assert ends == {1e30: "failed", 3e-3: "done", 2.5e-3: "done", 2e-3: "done", 1e-12: "stopped"}


@pytest.mark.slow
def test_a_diverged_trial_is_recorded_and_the_others_go_on(trials, machine, storage):
    """The loss of the first one is not a number; a sweep of one good and one bad setting has a best one."""
    overrides = ("name=diverged_sweep", "sweep.space.optim.lr=[1e30,1e-3]", "sweep.seeds=[0]", "optim.warmup_steps=0")
    found = run_sweep(sweep_config(storage, *overrides, "optim.clip_norm=1e9"), trials)
    assert [trial["status"] for row in found["settings"] for trial in row["trials"]] == ["done", "failed"]
    assert found["best"]["choice"] == {"optim.lr": 1e-3}
    entries = Ledger(Sweep(sweep_config(storage, *overrides), machine).folder).entries()
    assert any("before the update" in entry.get("message", "") for entry in entries.values())


def test_median_stopping_goes_on_after_a_trial_that_ended_without_a_score():
    from ray.tune.experiment import Trial as TuneTrial

    config = load_config("debug_sweep", ["sweep.scheduler=median"]).config
    scheduler, score = make_scheduler(config), f"dev.{config.train.metric}"
    diverged, *good, bad = (TuneTrial("raydist", stub=True) for _ in range(5))
    scheduler.on_trial_complete(None, diverged, {"done": True, "training_iteration": 0})
    for trial in good:
        assert scheduler.on_trial_result(None, trial, {"step": 6, score: 50.0}) == "CONTINUE"
        scheduler.on_trial_complete(None, trial, {"step": 6, score: 50.0, "done": True})
    assert scheduler.on_trial_result(None, bad, {"step": 6, score: 1.0}) == "STOP"


@pytest.mark.parametrize(
    ("workers", "resources", "number"),
    [(1, {"CPU": 8.0}, 8), (2, {"CPU": 9.0}, 4), ("[1,4]", {"CPU": 8.0}, 2), (3, {"CPU": 2.0}, 1)],
)
def test_no_more_trials_run_at_once_than_have_all_their_workers(workers, resources, number):
    config = load_config("debug_sweep", [f"cluster.workers={workers}"]).config
    assert trials_at_once(config, resources, local=False) == number


def test_a_quota_bounds_the_trials_at_once():
    settings = ["cluster.workers=2", "cluster.max_cpus=5"]
    config = load_config("debug_sweep", settings).config
    assert trials_at_once(config, {"CPU": 64.0}, local=False) == 2
    config = load_config("debug_sweep", [*settings, "sweep.at_once=9"]).config
    assert trials_at_once(config, {"CPU": 64.0}, local=False) == 2


def test_gpus_bound_the_trials_too_and_a_local_cluster_has_cpus_for_all():
    config = load_config("debug_sweep", ["cluster.workers=2", "cluster.gpus_per_worker=1"]).config
    assert trials_at_once(config, {"CPU": 64.0, "GPU": 4.0}, local=False) == 2
    config = load_config("debug_sweep", ["cluster.workers=2", "sweep.at_once=5"]).config
    assert sweep_cluster(config).local_cpus >= 10


def test_the_job_refuses_a_wrong_space_before_ray_is_started(tmp_path):
    job = Path(__file__).resolve().parents[2] / "jobs/sweep.py"
    command = [sys.executable, str(job), "debug_sweep", "sweep.space.optim.lr=[]", "sweep.metric=nowhere.f1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "sweep.space.optim.lr: the list is empty" in done.stderr
    assert "sweep.metric: nowhere.f1 is of no data set" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_trials_of_two_workers_do_not_starve_each_other_on_four_cpus(raydist, tmp_path):
    own = ["cluster.local_cpus=4", "cluster.workers=2", "sweep.at_once=2"]
    code, out, err = raydist("sweep", "debug_sweep", f"storage={tmp_path}", *own, timeout=600)
    assert code == 0, out + err
    assert "sweep: 2 trials at once, 2 worker(s) each" in out
    found = json.loads((tmp_path / "debug_sweep/sweep.json").read_text())
    assert [trial["status"] for row in found["settings"] for trial in row["trials"]] == ["done"] * 4


@pytest.mark.slow
def test_trials_of_a_retriever_share_the_cross_encoder_and_its_scores(trials, storage, capsys):
    config = mined_config(storage)
    found = run_sweep(config, trials)
    folder = Path(storage, "mined_sweep")
    assert [row["status"] for setting in found["settings"] for row in setting["trials"]] == ["done", "done"]
    assert len(list(folder.glob("bases/*/model/config.json"))) == 1
    kept = []
    for file in folder.glob("trials/*/metrics.json"):
        numbers = json.loads(file.read_text())
        stages = stages_of(file.parent)
        shared = [title for title in stages if title.startswith(("scores", "candidates", "bm25 hits", "BM25 index"))]
        assert len(shared) >= 4
        assert all(stages[title].reused for title in shared)
        kept.append(numbers["mining.silver"])
    assert min(kept) == 0 < max(kept)  # the threshold came through
    assert not list(folder.glob("trials/*_gold"))
    vectors = [
        {stage["folder"] for stage in json.loads(file.read_text()).values() if stage["folder"].startswith("stages/vectors")}
        for file in folder.glob("trials/*/stages.json")
    ]
    assert sorted(map(len, vectors)) == [2, 3], "the pruned trial has left those that all share: of both untrained encoders"
    assert all(Path(storage, name).is_dir() for name in set.union(*vectors))

    before = finished(folder)
    capsys.readouterr()
    run_sweep(config, trials)
    assert "2 finished before" in capsys.readouterr().out
    assert finished(folder) == before


@pytest.mark.slow
def test_optuna_asks_for_trials_while_others_run(trials, storage):
    overrides = ("name=asked_live", "sweep.search=optuna", "sweep.trials=3", "sweep.seeds=[0]", "sweep.at_once=2")
    found = run_sweep(sweep_config(storage, *overrides, "sweep.space.optim.lr={loguniform: [1e-4, 1e-2]}"), trials)
    assert [trial["status"] for row in found["settings"] for trial in row["trials"]] == ["done"] * 3
    assert len({row["choice"]["optim.lr"] for row in found["settings"]}) == 3


@pytest.mark.slow
def test_trials_of_hard_learning_share_the_base_reader_and_its_lists(trials, storage):
    overrides = ("name=shared_lists", "sweep.seeds=[0]", "sweep.space={objectives.hard_learning.kappa: [0, 4]}")
    found = run_sweep(sweep_config(storage, *overrides), trials)
    assert [trial["status"] for row in found["settings"] for trial in row["trials"]] == ["done"] * 2
    folder = Path(storage, "shared_lists")
    assert len(list(folder.glob("bases/*/training.json"))) == 1, "one base reader"
    lists = []
    for file in folder.glob("trials/*/stages.json"):
        stages = {title: stage for title, stage in stages_of(file.parent).items() if "n-best" in title}
        assert stages
        assert all(stage.reused for stage in stages.values())
        lists.append({stage.folder for stage in stages.values()})
    assert len(lists) == 2
    assert lists[0] == lists[1]
