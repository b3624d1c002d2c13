"""Training on Ray: the same updates whatever the workers, whatever dies."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from helpers.own_workers import own_workers
from lab import title
from safetensors.torch import load_file

from raydist.cluster.fit import RAYS_LIST, STOP, fit, forget_torn_list, storage_problem
from raydist.config import load_config
from raydist.errors import TrainingFailed
from raydist.files.storage import Storage
from raydist.here import Here
from raydist.reader import flow
from raydist.runs.run import Run
from raydist.training.checkpoints import TrainState
from raydist.training.log import RunLog, show_nothing
from raydist.training.train import Alone, train_run

# 24 steps of 16 rows: a few seconds, long enough to be hit by a kill
STEPS = (
    "data.train.questions=400",
    "train.batch_size=16",
    "train.max_steps=24",
    "train.epochs=2",
    "train.checkpoint_every=5",
    "train.keep_finished=true",
    "train.evaluate_every=12",
    "train.dev_questions=20",
    "optim.lr=1e-3",
    "cluster.threads_per_worker=1",
)


def weights(run) -> dict:
    return load_file(run.folder.path("model", "model.safetensors"))


def losses(run) -> dict[int, float]:
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def timeless_lines(run) -> list[dict]:
    """metrics.jsonl, but for the speed, which no two trainings share."""
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "examples_per_s"} for line in lines]


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.equal(b[name]), f"{name} differs"


@pytest.fixture(scope="module")
def undisturbed(machine, storage):
    """Finished runs with one and with two workers, to compare with."""
    runs = {}
    for workers in (1, 2):
        overrides = [f"storage={storage}", f"name=undisturbed_{workers}", f"cluster.workers={workers}", *STEPS]
        run = Run(load_config("debug_reader", overrides).config, machine)
        run.begin()
        flow.train(run)
        runs[workers] = run
    return runs


def test_one_and_two_workers_have_the_same_loss_at_every_step(make_run):
    found = {}
    for workers in (1, 2):
        run = make_run(*STEPS, f"name=plain_{workers}", f"cluster.workers={workers}", "model.dropout=0", "train.max_steps=20")
        flow.train(run)
        found[workers] = losses(run)
    assert found[1].keys() == set(range(1, 21))
    assert found[2] == pytest.approx(found[1], abs=1e-5)


# --- with Ray and without -------------------------------------------------------------------------------------------


class Interrupted(Alone):
    """One process in which somebody presses Ctrl-C after the second checkpoint."""

    def report(self, metrics, checkpoint=None) -> None:
        super().report(metrics, checkpoint)
        if len(self.run.folders("checkpoints")) == 2:
            raise KeyboardInterrupt


class InterruptedHere(Here):
    def fit(self, config, run, sets, callbacks=()):
        train_run(config, run, sets, Interrupted(run, config.train.keep_checkpoints), show=show_nothing)


def test_training_in_this_process_makes_the_weights_and_the_lines_of_training_on_ray(undisturbed, storage):
    overrides = [f"storage={storage}", "name=trained_here", *STEPS]
    with Run(load_config("debug_reader", overrides).config, Here()) as run:
        flow.train(run)
    assert_same(weights(run), weights(undisturbed[1]))
    assert timeless_lines(run) == timeless_lines(undisturbed[1])
    ours, theirs = (one.folder.read_json("training.json") for one in (run, undisturbed[1]))
    assert ours["identity"] == theirs["identity"], "each takes the other's for its own"
    assert ours["fitted"].keys() == theirs["fitted"].keys()


def test_a_training_that_began_in_this_process_goes_on_on_ray(make_run, undisturbed, storage, capsys):
    overrides = [f"storage={storage}", "name=begun_here", *STEPS]
    with pytest.raises(KeyboardInterrupt), Run(load_config("debug_reader", overrides).config, InterruptedHere()) as run:
        flow.train(run)
    run = make_run(*STEPS, "name=begun_here")
    flow.train(run)
    assert "train: resuming after step 10 of 24" in capsys.readouterr().out
    assert_same(weights(run), weights(undisturbed[1]))
    assert timeless_lines(run) == timeless_lines(undisturbed[1])


def test_a_training_that_began_on_ray_goes_on_in_this_process(undisturbed, storage, capsys):
    begun = Path(storage, "begun_on_ray")
    shutil.copytree(undisturbed[1].folder.path(), begun)  # as a kill before the last checkpoint leaves it
    shutil.rmtree(begun / "model")
    shutil.rmtree(max(begun.glob("checkpoints/checkpoint_*[0-9]")))
    (begun / "fitted.json").unlink()
    training = json.loads((begun / "training.json").read_text())
    (begun / "training.json").write_text(json.dumps({"identity": training["identity"], "done": False}))
    with Run(load_config("debug_reader", [f"storage={storage}", "name=begun_on_ray", *STEPS]).config, Here()) as run:
        flow.train(run)
    assert "train: resuming after step 20 of 24" in capsys.readouterr().out
    assert_same(weights(run), weights(undisturbed[1]))
    assert timeless_lines(run) == timeless_lines(undisturbed[1])


# --- what dies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_costs_nothing_but_time(make_run, undisturbed, workers):
    run = make_run(*STEPS, f"name=killed_worker_{workers}", f"cluster.workers={workers}")
    killed = threading.Event()

    def kill_one() -> None:
        while not killed.is_set():
            if _step(run) >= 7:
                for process in own_workers("RayTrainWorker")[-1:]:
                    process.kill()
                    killed.set()
            time.sleep(0.02)

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    flow.train(run)
    assert killed.is_set(), "training ended before a worker could be killed"
    assert run.folder.read_json("workers.json")[-1]["step"] >= 5, "it went on from a checkpoint"
    assert_same(weights(run), weights(undisturbed[workers]))
    assert losses(run) == losses(undisturbed[workers])


@pytest.mark.parametrize(
    ("failures", "said", "told"),
    [
        (
            {0: "StorageError: cannot write a/b: no space is left. Free some"},
            "training failed",
            "cannot write a/b: no space is left",
        ),
        (
            {0: "OSError: [Errno 28] Error writing bytes: No space left on device"},
            "training failed",
            "no space is left on the device",
        ),
        ({}, "ControllerError: [Errno 28] No space left on device", "no space is left on the device. Free some space and run"),
        ({0: "ValueError: something else"}, "it failed", None),
    ],
)
def test_a_full_disk_is_told_whoever_met_with_it(tmp_path, failures, said, told):
    error = RuntimeError(said)
    error.worker_failures = {rank: RuntimeError(text) for rank, text in failures.items()}
    problem = storage_problem(error, Storage(str(tmp_path)))
    assert (told in str(problem)) if told else problem is None


def test_a_training_that_was_over_before_anyone_looked_leaves_ray_as_it_was(tmp_path, monkeypatch):
    """The watch looks once a second, and a last time at the end, when it first hears of such a training."""
    asked = []
    here = SimpleNamespace(stand_back=lambda whether=True: asked.append(whether))
    cluster = SimpleNamespace(start=lambda: None, here=here)
    config, run = load_config("debug_reader").config, Storage(str(tmp_path))

    def train() -> None:
        RunLog(run, TrainState(), total=1, per_epoch=1, batch_size=8).close()
        run.write_json("fitted.json", {"steps": 1})

    monkeypatch.setattr("raydist.cluster.fit._trainer", lambda *_: SimpleNamespace(fit=train))
    assert fit(cluster, config, run, {}) == {"steps": 1}
    assert asked == [True, False]


def test_ctrl_c_reaches_the_workers_by_a_file_of_the_run_and_ends_the_driver_after_them(tmp_path, monkeypatch):
    run = Storage(str(tmp_path))
    run.write_bytes(STOP, b"")  # of a command that was killed

    def train() -> None:
        assert not run.exists(STOP)
        signal.raise_signal(signal.SIGINT)
        until = time.monotonic() + 30
        while not run.exists(STOP):
            assert time.monotonic() < until
            time.sleep(0.01)

    monkeypatch.setattr("raydist.cluster.fit._trainer", lambda *_: SimpleNamespace(fit=train))
    cluster = SimpleNamespace(start=lambda: None, here=None)
    with pytest.raises(KeyboardInterrupt):
        fit(cluster, load_config("debug_reader").config, run, {})
    assert not run.exists(STOP)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has SCHED_IDLE")
def test_what_only_waits_gives_way_to_what_trains_also_to_a_worker_that_came_later(make_run):
    run = make_run(*STEPS, "name=gives_way", "train.max_steps=200", "train.epochs=100")
    seen = []

    def policy(name: str) -> int | None:
        with contextlib.suppress(psutil.Error, OSError, IndexError):
            return os.sched_getscheduler(own_workers(name)[0].pid)
        return None

    def wait_until(reached) -> None:
        while _step(run) < 200 and not reached():
            time.sleep(0.02)

    def look() -> None:
        wait_until(lambda: _step(run) >= 7 and policy("_StatsActor") == os.SCHED_IDLE)
        (worker,) = own_workers("RayTrainWorker")
        seen.append((policy("RayTrainWorker"), policy("_StatsActor"), worker.pid))
        worker.kill()
        wait_until(lambda: any(other != worker for other in own_workers("RayTrainWorker")))
        wait_until(lambda: policy("RayTrainWorker") == os.SCHED_OTHER and _step(run) >= 20)
        seen.append((policy("RayTrainWorker"), policy("_StatsActor"), own_workers("RayTrainWorker")[0].pid))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    flow.train(run)
    thread.join()
    before, after = seen
    assert before[:2] == after[:2] == (os.SCHED_OTHER, os.SCHED_IDLE)
    assert before[2] != after[2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_driver_started_again_ends_at_the_same_weights(make_run, undisturbed, storage, workers):
    name = f"killed_driver_{workers}"
    run = make_run(*STEPS, f"name={name}", f"cluster.workers={workers}")
    arguments = ["train", "debug_reader", f"storage={storage}", *STEPS, f"name={name}", f"cluster.workers={workers}"]
    command = [sys.executable, "-m", "raydist.cli", *arguments]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 240
    while _step(run) < 12:
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    assert not run.folder.exists("fitted.json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train: resuming after step" in done.stdout
    assert_same(weights(run), weights(undisturbed[workers]))


@pytest.mark.parametrize(
    ("workers", "goes_on"),
    [(1, False), pytest.param(1, True, marks=pytest.mark.slow), pytest.param(2, False, marks=pytest.mark.slow)],
)
def test_ctrl_c_takes_a_checkpoint_and_ends_a_training_with_status_130(make_run, storage, workers, goes_on):
    long = [*STEPS, "train.max_steps=300", "train.epochs=12", "train.checkpoint_every=1000", "train.evaluate_every=100"]
    long.append(f"name=interrupted_{workers}_{goes_on}")
    run = make_run(*long)
    command = [sys.executable, "-m", "raydist.cli", "train", "debug_reader", f"storage={storage}", *long]
    command.append(f"cluster.workers={workers}")
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which tests in the background of a script do not
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    driver = subprocess.Popen(command, preexec_fn=listen, start_new_session=True, **pipes)
    deadline = time.monotonic() + 240
    while _step(run) < 7:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: Ray's processes get it, too
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 130, errors
    assert "stopping: a checkpoint is taken after this step" in errors
    assert "interrupted; the same command goes on where this one stopped" in errors
    assert not run.folder.exists("fitted.json")
    (checkpoint,) = run.folder.folders("checkpoints")
    step = run.folder.read_json(f"checkpoints/{checkpoint}/state.json")["step"]
    assert 7 <= step < 300
    assert max(losses(run)) == step, "no step was made that is lost"
    if goes_on:
        for name in (f"interrupted_{workers}_{goes_on}", "calm"):
            with Run(load_config("debug_reader", [f"storage={storage}", *long, f"name={name}"]).config, Here()) as run:
                flow.train(run)
        interrupted, calm = make_run(*long), run
        assert [attempt["step"] for attempt in interrupted.folder.read_json("workers.json")] == [0, step]
        assert_same(weights(interrupted), weights(calm))
        assert timeless_lines(interrupted) == timeless_lines(calm)


def _step(run) -> int:
    try:
        return run.folder.read_json("progress.json")["step"]
    except (OSError, ValueError):
        return 0


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_term_step_and_rows(make_run):
    run = make_run(*STEPS, "name=diverged", "optim.lr=1e30", "optim.warmup_steps=0", "optim.clip_norm=1e9")
    with pytest.raises(TrainingFailed, match=r"span is (nan|inf) at step \d+, before the update; windows \d+") as error:
        flow.train(run)
    assert "lower optim.lr" in str(error.value)
    assert "In the batch: t0" in str(error.value)  # the questions' ids
    assert not run.folder.exists("model")


def test_a_list_of_checkpoints_that_was_torn_is_forgotten_and_a_whole_one_kept(tmp_path):
    run = Storage(str(tmp_path))
    forget_torn_list(run)  # there is none yet
    (tmp_path / "checkpoints" / "checkpoint_1").mkdir(parents=True)
    whole = json.dumps({"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_1"}]})
    for content, stays in ((whole, True), (whole[:20], False), ("", False), (whole.replace("_1", "_2"), False)):
        run.write_bytes(RAYS_LIST, content.encode())
        forget_torn_list(run)
        assert run.exists(RAYS_LIST) == stays


def test_a_dead_server_of_rays_is_told_at_once_and_the_same_command_goes_on(make_run, storage):
    long = [*STEPS, "name=no_server", "train.max_steps=3000", "train.epochs=120"]
    run = make_run(*long)
    command = [sys.executable, "-m", "raydist.cli", "train", "debug_reader", f"storage={storage}", *long]
    step = 7
    for server in ("gcs_server", "raylet"):
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 240
        while _step(run) < step:
            assert driver.poll() is None, driver.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (victim,) = [process for process in psutil.Process(driver.pid).children(recursive=True) if title(process) == server]
        victim.kill()
        told, errors = driver.communicate(timeout=30)
        assert driver.returncode == 1
        assert f"failed: {server}, without which Ray cannot work, died or was killed" in errors
        assert ("resuming after step" in told) == (server == "raylet"), "the second command went on where the first stopped"
        step = _step(run) + 5
        run.folder.delete("progress.json")
