"""Training on Ray: the same updates whatever the workers, whatever dies."""

import contextlib
import json
import os
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
import torch
from helpers.own_workers import own_workers
from lab import title
from pyarrow.fs import LocalFileSystem
from safetensors.torch import load_file, save_file

from raydist.cluster import pipeline
from raydist.cluster.fit import (
    RAYS_LIST,
    RunLog,
    _Watch,
    checkpoints_of,
    forget_lost_best,
    forget_torn_list,
    keep_best,
    restore,
    steps_until_asking,
    storage_problem,
)
from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.training.loop import StepReport

# 24 steps of 16 rows: a few seconds, long enough to be hit by a kill
STEPS = (
    "data.train.questions=400",
    "train.batch_size=16",
    "train.max_steps=24",
    "train.epochs=2",
    "train.checkpoint_every=5",
    "train.evaluate_every=12",
    "train.dev_questions=20",
    "optim.lr=1e-3",
)


def weights(run) -> dict:
    return load_file(run.folder.path("model", "model.safetensors"))


def losses(run) -> dict[int, float]:
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.equal(b[name]), f"{name} differs"


@pytest.fixture(scope="module")
def undisturbed(cluster, storage):
    """Finished runs with one and with two workers, to compare with."""
    runs = {}
    for workers in (1, 2):
        overrides = [f"storage={storage}", f"name=undisturbed_{workers}", f"cluster.workers={workers}", *STEPS]
        run = pipeline.Run(load_config("debug_reader", overrides).config, cluster)
        run.begin()
        pipeline.train(run)
        runs[workers] = run
    return runs


def test_one_and_two_workers_have_the_same_loss_at_every_step(make_run):
    found = {}
    for workers in (1, 2):
        run = make_run(*STEPS, f"name=plain_{workers}", f"cluster.workers={workers}", "model.dropout=0", "train.max_steps=20")
        pipeline.train(run)
        found[workers] = losses(run)
    assert found[1].keys() == set(range(1, 21))
    assert found[2] == pytest.approx(found[1], abs=1e-5)


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
    pipeline.train(run)
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


def test_a_training_that_was_over_before_anyone_looked_leaves_ray_as_it_was(tmp_path):
    """The watch looks once a second, and a last time at the end, when it first hears of such a training."""
    asked = []
    cluster = SimpleNamespace(here=SimpleNamespace(stand_back=lambda whether=True: asked.append(whether)))
    run = Storage(str(tmp_path))
    with _Watch(run, cluster):
        log = RunLog(run, {"step": 0}, total=1, per_epoch=1, batch_size=8)
        log.close()
    assert asked == [True, False]


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
    pipeline.train(run)
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
    assert "train: going on after step" in done.stdout
    assert_same(weights(run), weights(undisturbed[workers]))


def test_ctrl_c_ends_a_training_with_status_130_and_a_word_on_how_to_go_on(make_run, storage):
    run = make_run(*STEPS, "name=interrupted", "train.max_steps=2000", "train.epochs=80")
    command = [sys.executable, "-m", "raydist.cli", "train", "debug_reader", f"storage={storage}", *STEPS]
    command += ["name=interrupted", "train.max_steps=2000", "train.epochs=80"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which tests in the background of a script do not
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    deadline = time.monotonic() + 240
    while _step(run) < 7:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 130, errors
    assert "interrupted; the same command goes on where this one stopped" in errors
    assert not run.folder.exists("fitted.json")


def _step(run) -> int:
    try:
        return run.folder.read_json("progress.json")["step"]
    except (OSError, ValueError):
        return 0


def test_a_finished_run_is_left_alone_and_another_config_is_refused(make_run, undisturbed, capsys):
    before = Path(undisturbed[1].folder.path("model", "model.safetensors")).stat().st_mtime_ns
    pipeline.train(make_run(*STEPS, "name=undisturbed_1"))
    assert "train: already done (24 steps)" in capsys.readouterr().out
    with pytest.raises(InputError, match="was trained with other settings") as error:
        pipeline.train(make_run(*STEPS, "name=undisturbed_1", "optim.lr=2e-3", "seed=1"))
    assert "optim.lr: was 0.001, now 0.002" in str(error.value)
    assert "seed: was 0, now 1" in str(error.value)
    assert "--fresh" in str(error.value)
    assert Path(undisturbed[1].folder.path("model", "model.safetensors")).stat().st_mtime_ns == before


def test_started_over_nothing_of_the_old_model_is_left_to_be_taken_for_the_new_ones(no_ray, tmp_path, monkeypatch):
    config = load_config("debug_reader", [f"storage={tmp_path}", "data.sample.size=200"]).config
    run = pipeline.Run(config, no_ray)
    run.begin()
    left = {"config.yaml", "stages.json", "training.json"}
    old = "predictions/dev.json evaluation/dev.parquet trace/pfa.json report.html metrics.json metrics.jsonl progress.json"
    for name in old.split():
        run.folder.write_json(name, {"dev.f1": 12.5})
    run.folder.write_json("training.json", {"identity": {}, "done": True})

    def stopped(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raydist.cluster.fit.fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        pipeline.train(run, fresh=True)
    assert {file.name for file in Path(run.folder.path()).rglob("*") if file.is_file()} == left
    assert not run.folder.read_json("training.json")["done"]


def test_the_exported_reader_is_plain_and_gives_the_same_answers(undisturbed):
    """AutoModelForQuestionAnswering alone: same logits as our reader."""
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    from raydist.reader.model import load_reader
    from raydist.reader.rows import WindowRows

    run = undisturbed[1]
    folder = run.folder.path("model")
    plain, report = AutoModelForQuestionAnswering.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    where = pipeline.prepare(run, ["train"])["train"].where
    rows = WindowRows([Path(where["windows_folder"]) / name for name in where["windows"]])
    batch = rows.batch(torch.arange(4).numpy(), pad_id=AutoTokenizer.from_pretrained(folder).pad_token_id)
    with torch.inference_mode():
        ours = load_reader(Path(folder)).eval()(batch)
        theirs = plain.eval()(batch.input_ids_BT, batch.attention_BT.long(), batch.token_types_BT)
    torch.testing.assert_close(ours.start_BT, theirs.start_logits, rtol=0, atol=0)
    torch.testing.assert_close(ours.end_BT, theirs.end_logits, rtol=0, atol=0)


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_term_step_and_rows(make_run):
    from raydist.errors import TrainingFailed

    run = make_run(*STEPS, "name=diverged", "optim.lr=1e30", "optim.warmup_steps=0", "optim.clip_norm=1e9")
    with pytest.raises(TrainingFailed, match=r"span is (nan|inf) at step \d+, before the update; windows \d+") as error:
        pipeline.train(run)
    assert "lower optim.lr" in str(error.value)
    assert "In the batch: t0" in str(error.value)  # the questions' ids
    assert not run.folder.exists("model")


def test_training_stops_early_and_keeps_the_model_of_its_best_step(make_run):
    settings = ("train.evaluate_every=2", "train.early_stop=1", "train.checkpoint_every=2", "train.keep_checkpoints=20")
    run = make_run(*STEPS, *settings, "name=early", "train.choose=best", "train.log_every=3", "optim.lr=1e-7")
    pipeline.train(run)
    fitted = run.folder.read_json("fitted.json")
    assert fitted["steps"] == 4  # the second evaluation was not better than the first
    assert (fitted["best_step"], fitted["model"]) == (2, "best")
    assert run.folder.folders("best") == ["2"]
    assert list(losses(run)) == [3, 4], "the step after the last line is told, too"
    by_step = {}
    for checkpoint in checkpoints_of(run.folder.path("checkpoints"), LocalFileSystem()):
        folder = Path(checkpoint.path)
        by_step[json.loads((folder / "state.json").read_text())["step"]] = load_file(folder / "task.safetensors")
    head = "qa_outputs.weight"
    ours = weights(run)[head]
    assert ours.equal(by_step[2][f"reader.question_answering.{head}"])
    assert not ours.equal(by_step[4][f"reader.question_answering.{head}"])


@pytest.mark.parametrize("file", ["task.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("left", [0, 0.6])
def test_a_checkpoint_that_was_cut_off_is_passed_over_for_the_one_before(tmp_path, file, left):
    module, optimizer, _ = small_training()
    for step in (3, 6):
        folder = tmp_path / f"checkpoint_2026-01-01_00-00-0{step}"
        folder.mkdir()
        module(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        save_file(module.state_dict(), folder / "task.safetensors")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        (folder / "state.json").write_text(json.dumps({"step": step, "schedule": step}))
    found = checkpoints_of(str(tmp_path), LocalFileSystem())
    assert restore(found, *small_training(), needed=True) == ({"step": 6}, [])

    damage(tmp_path / "checkpoint_2026-01-01_00-00-06" / file, left)
    fresh = small_training()
    assert restore(found, *fresh, needed=True) == ({"step": 3}, ["checkpoint_2026-01-01_00-00-06"])
    wanted = load_file(tmp_path / "checkpoint_2026-01-01_00-00-03" / "task.safetensors")
    assert_same(fresh[0].state_dict(), wanted)

    damage(tmp_path / "checkpoint_2026-01-01_00-00-03" / file, left)
    with pytest.raises(InputError, match=r"no checkpoint can be read .*; start over with --fresh"):
        restore(found, *small_training(), needed=True)
    state, _ = restore(found, *small_training(), needed=False)
    assert state["step"] == 0


def test_a_list_of_checkpoints_that_was_torn_is_forgotten_and_a_whole_one_kept(tmp_path):
    run = Storage(str(tmp_path))
    forget_torn_list(run)  # there is none yet
    (tmp_path / "checkpoints" / "checkpoint_1").mkdir(parents=True)
    whole = json.dumps({"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_1"}]})
    for content, stays in ((whole, True), (whole[:20], False), ("", False), (whole.replace("_1", "_2"), False)):
        run.write_bytes(RAYS_LIST, content.encode())
        forget_torn_list(run)
        assert run.exists(RAYS_LIST) == stays


def test_the_best_model_of_steps_that_were_lost_is_not_taken_for_the_best(tmp_path):
    run = Storage(str(tmp_path))
    for step in (6, 12):  # 12 came after the last checkpoint
        run.write_json(f"best/{step}/config.json", {})
    state = {"best": 40.0, "best_step": 6}
    forget_lost_best(run, state)
    assert state == {"best": 40.0, "best_step": 6}
    keep_best(run, state)
    assert run.folders("best") == ["6"]
    earlier = {"best": 30.0, "best_step": 3}  # the checkpoint of step 6 could not be read
    forget_lost_best(run, earlier)
    assert earlier == {"best": -1.0, "best_step": 0}


def test_a_resumed_training_tells_the_time_and_the_speed_of_all_its_steps(tmp_path):
    log = RunLog(Storage(str(tmp_path)), {"step": 6, "seconds": 60.0, "evaluating": 20.0}, 9, 3, 16)
    told = log.summary({"step": 9, "best_step": 0})
    log.close()
    assert 60 <= told["seconds"] < 70
    assert 9 * 16 / 50 < told["examples_per_s"] <= 9 * 16 / 40


def test_a_line_of_the_log_tells_of_the_steps_before_a_checkpoint_too(tmp_path):
    def log_steps(log: RunLog, first: int, last: int) -> dict:
        for step in range(first, last + 1):
            log.seen_step(StepReport(1 / step, {"span": 0.5 / step}, {"span": 10.0 + step}, 0.1 * step), {"span": 1.0})
            if step % 10 == 0:
                log.step(step, 1e-3)
        return json.loads(json.dumps({"step": last} | log.kept()))  # as state.json holds it

    def lines(folder: Path) -> list[dict]:
        found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "examples_per_s"} for line in found]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    log_steps(RunLog(Storage(str(whole)), {"step": 0}, 20, 5, 16), 1, 20)
    state = log_steps(RunLog(Storage(str(cut)), {"step": 0}, 20, 5, 16), 1, 15)
    log_steps(RunLog(Storage(str(cut)), state, 20, 5, 16), 16, 20)
    assert [line["step"] for line in lines(whole)] == [10, 20]
    assert lines(cut) == lines(whole)


def test_what_each_term_adds_to_the_loss_is_logged_as_its_weight_times_the_term(tmp_path):
    log = RunLog(Storage(str(tmp_path)), {"step": 0}, 20, 5, 16)
    rows = {"span": 16.0, "answer_contrast": 12.0, "answer_contrast.nearest": 12.0, "other": 12.0}
    # two steps of one line; the contrast begins with the second: (0 * 4 + 0.25 * 2) / 2, and (1 * 3 + 0.5 * 1) / 2 of the span
    for span, contrast, weights in ((3.0, 4.0, (1.0, 0.0)), (1.0, 2.0, (0.5, 0.25))):
        terms = {"span": span, "answer_contrast": contrast, "answer_contrast.nearest": 0.9, "other": 7.0}
        by_name = {"span": weights[0], "answer_contrast": weights[1], "answer_contrast.nearest": 0.0}
        loss = sum(weight * terms[name] for name, weight in by_name.items())
        log.seen_step(StepReport(loss, terms, rows, 1.0), by_name)
    log.step(2, 1e-3)
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    told = {name: value for name, value in line.items() if name.startswith("weighted.")}
    assert told == {
        "weighted.span": 1.75,
        "weighted.answer_contrast": 0.25,
        "weighted.answer_contrast.nearest": 0.0,  # logged only; what has no weight at all is no part of the loss
    }
    assert sum(told.values()) == line["loss"]
    assert (line["loss.span"], line["loss.answer_contrast"], line["loss.other"]) == (2.0, 3.0, 7.0)


def small_training():
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    return module, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def damage(file: Path, left: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * left)])


@pytest.mark.parametrize(("step_s", "steps"), [(60.0, 1), (24.0, 1), (0.5, 4), (0.02, 100), (0.0, 2000)])
def test_a_notice_of_preemption_is_asked_for_by_the_clock_however_long_a_step_is(step_s, steps):
    assert steps_until_asking(step_s, torch.nn.Linear(1, 1)) == steps


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
        assert ("going on after step" in told) == (server == "raylet"), "the second command went on where the first stopped"
        step = _step(run) + 5
        run.folder.delete("progress.json")
