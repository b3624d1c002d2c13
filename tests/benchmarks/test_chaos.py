"""benchmarks/chaos.py without Ray: which processes it may kill, what it takes for the same files, how it goes on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import chaos
import lab
import psutil
import pytest
from chaos import next_reach, table, try_fault
from lab import Family, Lab, Missed, Moment, alive, choose, committed, differing, kill, title


@pytest.fixture
def family(tmp_path):
    """A command of the shell with all that it starts; ended afterwards."""
    made = []

    def family(script: str) -> Family:
        made.append(Family(["bash", "-c", script], tmp_path, tmp_path / "log", dict(os.environ)))
        return made[-1]

    yield family
    for one in made:
        one.end()


def soon(what) -> None:
    ends = time.monotonic() + 20
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.02)


def titles(family: Family) -> list[str]:
    return [title(process) for process in family.members()]


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_family_is_all_that_a_command_started_and_nothing_else(family):
    stranger = subprocess.Popen(["sleep", "100"])
    try:
        one = family("sleep 100 & setsid sleep 100 & sleep 100; true")
        soon(lambda: titles(one) == ["bash", "sleep", "sleep", "sleep"])  # a fork is the shell, or setsid, for a moment
        assert one.status is None
        one.end()
        assert one.members() == []
        assert one.status == -signal.SIGKILL
        assert one.tell() == "killed by SIGKILL"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_orphans_are_still_of_the_family(family):
    one = family("sleep 100 & sleep 100 & wait")
    soon(lambda: titles(one) == ["bash", "sleep", "sleep"])
    kill(psutil.Process(one.root.pid))
    assert one.status == -signal.SIGKILL, "the exit status was not taken away"
    left = one.members()
    assert [title(process) for process in left] == ["sleep", "sleep"]
    one.end()
    assert not any(map(alive, left))


def test_workers_of_ray_are_known_by_their_title(family):
    one = family("exec -a 'ray::RayTrainWorker.execute' sleep 100")
    soon(lambda: one.titled("RayTrainWorker"))
    assert title(one.titled("RayTrainWorker")) == "RayTrainWorker"
    assert one.titled("MapBatches") is None
    script = family(f"exec {sys.executable} -c 'import time; time.sleep(100)' /somewhere/log_monitor.py")
    soon(lambda: script.titled("log_monitor"))


def test_a_victim_is_of_any_kind_with_the_same_chance(family):
    one = family("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; wait")
    soon(lambda: [process.name() for process in one.members()].count("sleep") == 8)  # each is the shell for a moment
    draw = random.Random(0)
    drawn = [choose(one.members(), one.root.pid, draw) for _ in range(60)]
    kinds = [kind for kind, _ in drawn]
    assert set(kinds) == {"driver", "sleep"}
    assert 20 <= kinds.count("driver") <= 40
    assert {process.pid for kind, process in drawn if kind == "driver"} == {one.root.pid}
    assert len({process.pid for kind, process in drawn if kind == "sleep"}) > 4
    again = random.Random(0)
    assert [choose(one.members(), one.root.pid, again) for _ in range(60)] == drawn
    assert choose([], 1, draw) is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            "echo reading; echo 'train: resuming after step 10 of 60'; echo report in x",
            "exit 0: train: resuming after step 10 of 60",
        ),
        ("echo report in x", "exit 0: report in x"),
        ("echo 'failed: the disk is full'; echo noise; exit 1", "exit 1: failed: the disk is full"),
        ("exit 3", "exit 3: (no output)"),
    ],
)
def test_what_the_user_sees_is_the_line_that_matters(family, script, told):
    one = family(script)
    soon(lambda: one.status is not None)
    assert one.tell() == told


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path) -> Path:
    """Something like the files of a run."""
    files = {
        "stages/windows-12/part-00000.arrow": "rows",
        "stages/windows-12/manifest.json": json.dumps({"name": "windows", "parts": [{"rows": 3}], "seconds": 1.5}),
        "reader/config.yaml": "name: reader\ncluster: {address: null}\n",
        "reader/metrics.json": json.dumps({"dev.f1": 71.5, "train.seconds": 8.1}),
        "reader/metrics.jsonl": '{"step": 1, "loss": 2.5, "examples_per_s": 3}\n{"step": 2, "loss": 2.25}\n',
        "reader/model/model.safetensors": "weights",
        "reader/report.html": "drawn in 3 s",
        "reader/workers.json": "[]",
        "reader/checkpoints/checkpoint_2026/state.json": "{}",
        "reader/tensorboard/events": "times",
        "stages/windows-12/part-00001.arrow.12ab.tmp": "hal",
        "reader/model.12ab.tmp/config.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_text(text)
    return tmp_path / "runs"


def test_times_places_and_what_is_unfinished_are_not_compared(runs, tmp_path):
    calm = committed(runs)
    assert len(calm) == 6
    other = tmp_path / "other"
    shutil.copytree(runs, other)
    for name in ("reader/checkpoints", "reader/tensorboard", "reader/model.12ab.tmp"):
        shutil.rmtree(other / name)
    (other / "reader/workers.json").write_text('[{"step": 5}]')
    (other / "stages/windows-12/manifest.json").write_text('{"seconds": 99, "parts": [{"rows": 3}], "name": "windows"}')
    (other / "reader/metrics.json").write_text('{"dev.f1": 71.5, "train.seconds": 9}')
    lines = [json.loads(line) | {"examples_per_s": 7} for line in (runs / "reader/metrics.jsonl").read_text().splitlines()]
    (other / "reader/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (other / "reader/config.yaml").write_text("name: reader\ncluster: {address: '127.0.0.1:1'}\n")
    assert differing(committed(other), calm) == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("reader/model/model.safetensors", "weightz", "other"),
        ("stages/windows-12/part-00000.arrow", None, "missing"),
        ("stages/windows-12/part-00002.arrow", "rows", "new"),
        ("reader/metrics.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.2500001}\n', "other"),
        ("reader/metrics.json", '{"dev.f1": 71.', "other"),
        ("reader/config.yaml", "name: writer\n", "other"),
        ("reader/config.yaml", "", "other"),
    ],
)
def test_another_byte_is_seen_and_named(runs, name, text, told):
    calm = committed(runs)
    if text is None:
        (runs / name).unlink()
    else:
        (runs / name).write_text(text)
    assert differing(committed(runs), calm) == [f"{told}: {name}"]


# --- what was lost ---------------------------------------------------------------------------------------------------


def snapshot(run: Path, *steps: int) -> None:
    """Ray's account of a run's checkpoints."""
    run.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
    known = [{"checkpoint_dir_name": f"checkpoint_{step}", "metrics": {"step": step}} for step in steps]
    (run / "checkpoints/checkpoint_manager_snapshot.json").write_text(json.dumps({"checkpoint_results": known}))


def test_steps_since_a_checkpoint_may_be_lost_and_nothing_older(tmp_path):
    with Lab(tmp_path, "lost", ("reader",), 10) as one:
        assert one.moment().checkpoint == 0
        part = one.storage / "stages/windows-12/part-00000.arrow"
        part.parent.mkdir(parents=True)
        part.write_text("rows")
        snapshot(one.run, 5, 10)
        (one.run / "progress.json").write_text('{"step": 12, "first": 0}')
        moment = one.moment()
        assert (moment.step, moment.checkpoint) == (12, 10)
        assert one.checkpoints()["reader"][-1] == (10, one.run / "checkpoints/checkpoint_10")
        assert not one.is_past(moment)
        (one.run / "progress.json").write_text('{"step": 13, "first": 10}')
        assert one.is_past(moment)
        assert one.lost(moment, True) == ("2 steps since the checkpoint of step 10", False)
        assert one.lost(moment, False) == ("nothing", False)
        (one.run / "progress.json").write_text('{"step": 13, "first": 5}')
        told, is_committed = one.lost(moment, True)
        assert is_committed
        assert "began again at step 5, though there was a checkpoint of step 10" in told
        os.utime(part, ns=(1, 1))
        assert one.lost(moment, False) == ("COMMITTED WORK: 1 parts were made again", True)
        assert one.lost(Moment(0, 0, 0, {}), True) == ("nothing", False)


# --- a poisoned model ------------------------------------------------------------------------------------------------


def test_a_poisoned_model_has_no_loss_at_its_step_and_one_before(tmp_path):
    """The plain loop, on windows of the sample, up to the step."""
    import torch

    from raydist.config import load_config
    from raydist.here import Here
    from raydist.models.folders import model_folder
    from raydist.reader.prepare import prepare
    from raydist.runs.run import Run
    from raydist.training.loop import NonFiniteLoss, train_step, training_steps
    from raydist.training.optim import build_optimizer, build_schedule
    from raydist.training.tasks import build_reader_task
    from raydist.training.trainable import open_windows

    settings = ["train.batch_size=10", "train.accumulate=1", "data.train.questions=100", "data.dev=null", "data.test=null"]
    config = load_config("debug_reader", [f"storage={tmp_path}", f"name={chaos.READER[0]}", *settings]).config
    with Run(config, Here()) as run:
        rows = open_windows(prepare(run, ["train"])["train"])

    tokens = chaos.tokens_of_steps(tmp_path, 6)
    assert len(tokens) == 6
    chaos.poison(model_folder("builtin:tiny"), tmp_path / "poisoned", chaos.new_token(tokens, 4))
    torch.set_num_threads(1)
    task = build_reader_task(config, tmp_path / "poisoned").train()
    optimizer = build_optimizer(task, config.optim)
    schedule = build_schedule(optimizer, config.optim, 20, 10)
    steps = training_steps(rows, seed=0, batch_size=10, accumulate=1, first=0, last=6, rank=0, ranks=1, pad_id=0)
    for step, batches in steps:
        if step == 4:
            with pytest.raises(NonFiniteLoss, match="span is nan at step 4, before the update"):
                train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)
            break
        train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)


def test_a_token_must_be_new_in_its_step():
    assert chaos.new_token([{1, 2}, {2, 3}, {3, 4, 9}], 2) == 4
    with pytest.raises(Missed, match="step 1 has no token of its own"):
        chaos.new_token([{1, 2}, {2}], 1)


# --- faults ----------------------------------------------------------------------------------------------------------

PIPELINE = """
import os, subprocess, sys, time
from pathlib import Path

storage = Path(next(word for word in sys.argv if word.startswith("storage=")).removeprefix("storage="))
worker = subprocess.Popen(["sleep", "100"])
for number in range(30):
    part = storage / f"stages/numbers-12/part-{number:05d}.txt"
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.exists() and number not in MADE_AGAIN:
        continue
    time.sleep(0.05)
    if worker.poll() is not None:
        sys.exit(f"failed: worker {worker.pid} died")
    part.with_suffix(".tmp").write_text(str(number))
    os.replace(part.with_suffix(".tmp"), part)
worker.kill()
print("report in nowhere")
"""


@pytest.fixture
def fake_pipeline(tmp_path, monkeypatch):
    """In place of raydist: a command of two seconds with one worker, which goes on where it was stopped."""
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE.replace("MADE_AGAIN", "()"))
    monkeypatch.setattr(lab, "RAYDIST", (sys.executable, str(script)))
    monkeypatch.setattr(lab, "GRACE_S", 0.3)
    monkeypatch.setattr(chaos, "REACH_S", 1.0)
    monkeypatch.setattr(chaos, "PIPELINES", {"numbers": ("numbers",)})
    return script


def test_random_kills_leave_the_same_files_and_no_process(fake_pipeline, tmp_path, capsys):
    families = []

    def fault(one: Lab):
        row = chaos.random_kills(one, 6, seed=1)
        families.extend(one.families)
        return row

    row = try_fault(tmp_path, "kills", "numbers", fault, patience=60)
    assert row["ok"], row
    assert row["equal"]
    assert row["lost"] == "nothing committed"
    assert " x exit 0: report in nowhere" in row["sees"]
    assert row["notes"][0].startswith("6 kills over one run: ")
    assert capsys.readouterr().out.count(": kill ") == 6
    assert len(families) > 1
    assert not any(one.members() for one in families)
    assert read(tmp_path / "calm/numbers.json")["seconds"] > 1.5


def test_work_that_is_done_twice_is_told(fake_pipeline, tmp_path):
    fake_pipeline.write_text(PIPELINE.replace("MADE_AGAIN", "(0,)"))

    def fault(one: Lab):
        run = one.start()
        one.until(lambda: len(one.parts()) > 3, run, "the fourth part")
        kill(psutil.Process(run.root.pid))
        return one.make_good(run)

    row = try_fault(tmp_path, "twice", "numbers", fault, patience=60)
    assert row["equal"], row
    assert row["ok"] is False
    assert row["lost"] == "COMMITTED WORK: 1 parts were made again"
    assert row["sees"] == "killed by SIGKILL → exit 0: report in nowhere"
    assert row["recovery_s"] > 0
    assert any("still there" in note and "sleep" in note for note in row["notes"])
    assert (tmp_path / "kept/twice/stages/numbers-12/part-00029.txt").is_file(), "kept to be looked at"


def test_a_hung_command_is_ended_and_told(fake_pipeline, tmp_path):
    def fault(one: Lab):
        run = one.start()
        one.until(lambda: len(one.parts()) > 3, run, "the fourth part")
        run.members()[0].suspend()
        return one.make_good(run)

    row = try_fault(tmp_path, "hung", "numbers", fault, patience=3)
    assert row["sees"] == "HUNG: nothing written for 3 s, ended by hand → exit 0: report in nowhere"
    assert row["equal"]
    assert not row["ok"], "a user would wait for ever"


def test_a_full_disk_is_mounted_made_larger_and_gone_afterwards(tmp_path):
    with Lab(tmp_path, "disk", ("reader",), 10) as one:
        try:
            one.mount(1 << 20)
        except Missed as error:
            pytest.skip(str(error))
        with pytest.raises(OSError, match="No space left"):
            (one.storage / "large").write_bytes(bytes(2 << 20))
        one.resize(4 << 20)
        (one.storage / "large").write_bytes(bytes(2 << 20))
        one.shrink(64 << 10)
        with pytest.raises(OSError, match="No space left"):
            (one.storage / "more").write_bytes(bytes(1 << 20))
    assert not one.storage.is_mount()
    assert list(one.storage.iterdir()) == []


def test_a_fault_that_cannot_be_tried_is_a_row_and_ends_its_processes(fake_pipeline, tmp_path):
    started = []

    def fault(one: Lab):
        started.append(one.start())
        raise KeyError("a mistake")

    row = try_fault(tmp_path, "broken", "numbers", fault, patience=60)
    assert row["ok"] is None
    assert row["sees"] == "not tried: KeyError: 'a mistake'"
    assert started[0].members() == []

    def ended(one: Lab):
        one.until(lambda: one.step() > 3, one.start(), "step 3")

    row = try_fault(tmp_path, "ended", "numbers", ended, patience=60)
    assert row["sees"] == "not tried: the command ended before step 3: exit 0: report in nowhere"


def test_what_is_done_is_not_done_again(fake_pipeline, tmp_path, monkeypatch, capsys):
    tried = []

    def faults(kills: int, seed: int):
        def fine(one: Lab):
            tried.append("fine")
            return one.make_good(one.start())

        def unknown(one: Lab):
            tried.append("unknown")
            raise Missed("there is no way")

        return {"fine": ("numbers", fine), "unknown": ("numbers", unknown)}

    monkeypatch.setattr(chaos, "faults", faults)
    before = signal.getsignal(signal.SIGTERM)
    try:
        for arguments in ([], [], ["--only", "fine"], ["--only", "fine", "--again"]):
            monkeypatch.setattr(sys, "argv", ["chaos.py", "--out", str(tmp_path / "out"), *arguments])
            assert chaos.main() == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert tried == ["fine", "unknown", "unknown", "fine"]
    assert "fine: already done" in capsys.readouterr().out
    written = (tmp_path / "out/chaos.md").read_text()
    assert "| fine | exit 0: report in nowhere | nothing |" in written
    assert "| unknown | not tried: there is no way | ? |  | ? |" in written
    assert list(read(tmp_path / "out/chaos.json")) == ["fine", "unknown"]


def read(file: Path) -> dict:
    return json.loads(file.read_text())


# --- the rest --------------------------------------------------------------------------------------------------------


def test_kills_come_later_until_the_run_gets_on():
    assert next_reach(15.0, True) == 12.0
    assert next_reach(15.0, False) == 22.5
    assert next_reach(5.1, True) == 5.0
    assert next_reach(239.0, False) == 240.0


def test_a_kill_is_due_when_the_run_is_ahead_of_its_share():
    assert not chaos.is_due(0.0, 0, 20)
    assert chaos.is_due(0.06, 0, 20)
    assert not chaos.is_due(0.06, 1, 20)
    assert chaos.is_due(0.96, 19, 20), "the last one comes before the end"


def test_the_table_is_markdown_whatever_the_command_said():
    row = {"sees": "exit 1: a | b\nc", "lost": "nothing", "recovery_s": 3.14, "equal": True, "differing": [], "notes": ["2 MB"]}
    bad = row | {"equal": False, "differing": ["other: x"], "recovery_s": None, "notes": [], "sees": "x" * 1000}
    lines = table({"worker_killed": row, "disk_full": bad}).splitlines()
    assert lines[2] == "| worker killed | exit 1: a \\| b c (2 MB) | nothing | 3.1 s | yes |"
    assert lines[3].endswith("... | nothing |  | NO: 1 differ |")
    assert len(lines[3]) < 500


def test_every_fault_strikes_a_pipeline_whose_config_is_right():
    from raydist.config import load_config

    for name, (pipeline, fault) in chaos.faults(20, 0).items():
        config = load_config(chaos.PIPELINES[pipeline][0], chaos.PIPELINES[pipeline][1:]).config
        assert config.name == chaos.PIPELINES[pipeline][0]
        assert config.cluster.threads_per_worker == 1
        assert callable(fault), name
