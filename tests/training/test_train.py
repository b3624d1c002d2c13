"""The whole loop in this process, as a notebook calls it: steps, evaluation, checkpoints, early stop, going on."""

import doctest
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from raydist.config import Config, OptimConfig, TrainConfig, load_config
from raydist.exits import sigterm_as_ctrl_c
from raydist.files.storage import Storage
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.reader import flow
from raydist.reader.prepare import prepare
from raydist.runs.run import Run
from raydist.training.tasks import ReaderTask, build_reader_task
from raydist.training.train import Alone, Notices, steps_until_asking, train
from raydist.training.trainable import DevEvaluation, open_windows

CONFIG = Config(model={"name": "builtin:tiny"})
SETTINGS = {"batch_size": 10, "max_steps": 18, "epochs": 9, "checkpoint_every": 5, "evaluate_every": 4, "log_every": 3}


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("storage"))


@pytest.fixture(scope="module")
def windows(storage) -> dict:
    """A few questions of the sample world, cut into windows."""
    small = ["data.sample.size=200", "data.train.questions=40", "data.dev.questions=10", "data.test={}"]
    with Run(load_config("debug_reader", [f"storage={storage}", "name=windows", *small]).config, Here()) as run:
        return prepare(run, ["train", "dev"])


def new_task() -> ReaderTask:
    return build_reader_task(CONFIG, model_folder("builtin:tiny"))


def weights(task: torch.nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in task.state_dict().items()}


def near_the_start(task: ReaderTask) -> Callable[[ReaderTask], dict[str, float]]:
    """Scores that get worse with every step: minus the distance to the weights that training began with."""
    before = {name: value.clone() for name, value in task.state_dict().items()}
    return lambda now: {"f1": 100 - sum(float((value - before[name]).norm()) for name, value in now.state_dict().items())}


def interrupted(evaluation: Callable, call: int, times: int = 2, number: int = signal.SIGINT) -> Callable:
    """The same until a call, in which somebody presses Ctrl-C: twice, and it ends at once."""
    calls = []

    def evaluate(task: ReaderTask) -> dict[str, float]:
        calls.append(task)
        for _ in range(times if len(calls) == call else 0):
            signal.raise_signal(number)
        return evaluation(task)

    return evaluate


class Notebook:
    """What stands in a cell that trains, and the folder that it gives as `run`."""

    def __init__(self, windows: dict, folder: Path, **settings) -> None:
        self.windows, self.run = windows, Storage(str(folder))
        self.settings = TrainConfig(**SETTINGS | settings)

    def train(self, stop_at: int = 0, **how) -> tuple[ReaderTask, dict]:
        torch.set_num_threads(1)
        task = new_task()
        evaluation = interrupted(near_the_start(task), stop_at, **how)
        rows, optim = open_windows(self.windows["train"]), OptimConfig(lr=1e-3)
        return task, train(task, rows, train=self.settings, optim=optim, seed=3, evaluation=evaluation, run=self.run)

    def lines(self) -> list[dict]:
        """metrics.jsonl, but for the speed, which no two trainings share."""
        lines = map(json.loads, self.run.read_bytes("metrics.jsonl").decode().splitlines())
        return [{key: value for key, value in line.items() if key != "examples_per_s"} for line in lines]

    def checkpoints(self) -> list[int]:
        folders = self.run.folders("checkpoints")
        return [self.run.read_json(f"checkpoints/{name}/state.json")["step"] for name in sorted(folders)]


def test_a_reader_is_trained_in_a_few_lines_and_scored_on_the_way(windows, tmp_path):
    task, run = new_task(), Storage(str(tmp_path))
    judge = DevEvaluation(load_config("debug_reader").config, windows["dev"], 0, 0, 1)
    before = judge(task)["f1"]
    rows, optim = open_windows(windows["train"]), OptimConfig(lr=3e-3)
    fitted = train(task, rows, train=TrainConfig(**SETTINGS), optim=optim, evaluation=judge, run=run)
    assert fitted.keys() == {"steps", "best_step", "loss", "dev.em", "dev.f1"}
    assert (fitted["steps"], fitted["dev.f1"]) == (18, judge(task)["f1"])
    assert fitted["dev.f1"] != before
    lines = [json.loads(line) for line in run.read_bytes("metrics.jsonl").decode().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [3, 6, 9, 12, 15, 18]
    assert [line["step"] for line in lines if "dev.f1" in line] == [4, 8, 12, 16, 18]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.5, "it learns"
    assert run.read_json("progress.json")["step"] == 18
    assert run.read_json("fitted.json")["steps"] == 18


def test_the_example_of_its_docstring_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(train, "train", globs={})
    shown: list[str] = []
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=shown.append).failed == 0, "".join(shown)
    assert Storage("runs/notebook").folders("checkpoints")
    assert Path("runs/notebook/metrics.jsonl").is_file()


def test_without_a_folder_nothing_is_written_and_the_weights_are_the_same(windows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_run, _ = Notebook(windows, tmp_path / "run").train()
    before, task = sorted(tmp_path.rglob("*")), new_task()
    settings = TrainConfig(**SETTINGS | {"evaluate_every": 0, "choose": "last"})
    fitted = train(task, open_windows(windows["train"]), train=settings, optim=OptimConfig(lr=1e-3), seed=3)
    assert fitted["steps"] == 18
    assert weights(task) == weights(with_run)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("early_stop", [None, 2])
def test_interrupted_the_same_call_goes_on_and_ends_at_the_same_bytes(windows, tmp_path, early_stop):
    calm = Notebook(windows, tmp_path / "calm", early_stop=early_stop)
    cut = Notebook(windows, tmp_path / "cut", early_stop=early_stop)
    task, fitted = calm.train()
    assert (fitted["steps"], fitted["best_step"]) == (12 if early_stop else 18, 4), "4 is better than 8 and 12"
    with pytest.raises(KeyboardInterrupt):
        cut.train(stop_at=2)
    assert cut.checkpoints() == [5]
    assert not cut.run.exists("fitted.json")
    again, there = cut.train()
    assert cut.run.read_json("progress.json")["first"] == 5
    assert weights(again) == weights(task)
    assert there == fitted
    assert cut.lines() == calm.lines()
    assert [attempt["step"] for attempt in cut.run.read_json("workers.json")] == [0, 5]


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_one_ctrl_c_takes_a_checkpoint_after_the_step_and_the_same_call_goes_on_there(windows, tmp_path, capfd, number, at):
    calm, cut = Notebook(windows, tmp_path / "calm"), Notebook(windows, tmp_path / "cut")
    task, fitted = calm.train()
    before = signal.getsignal(signal.SIGINT)
    with sigterm_as_ctrl_c(), pytest.raises(KeyboardInterrupt):
        cut.train(stop_at=at, times=1, number=number)
    assert signal.getsignal(signal.SIGINT) is before
    step = 4 * at  # of the evaluation in which the signal came; checkpoints are due at 5, 10 and 15
    assert "a checkpoint is taken after this step; Ctrl-C again ends at once" in capfd.readouterr().err
    assert cut.checkpoints()[-1] == step
    assert not cut.run.exists("fitted.json")
    assert not cut.run.exists("model")
    again, there = cut.train()
    assert cut.run.read_json("progress.json")["first"] == step
    assert weights(again) == weights(task)
    assert there == fitted
    assert cut.lines() == calm.lines()


def test_finished_the_same_call_makes_no_step_more(windows, tmp_path):
    notebook = Notebook(windows, tmp_path)
    task, fitted = notebook.train()
    lines = notebook.lines()
    again, there = notebook.train()
    assert notebook.lines() == lines
    assert weights(again) == weights(task)
    assert there == {"steps": 18, "best_step": fitted["best_step"], "loss": None}


@pytest.mark.parametrize(("keep", "kept"), [(1, [18]), (2, [15, 18]), (20, [5, 10, 15, 18])])
def test_as_many_checkpoints_are_kept_as_were_asked_for(windows, tmp_path, keep, kept):
    notebook = Notebook(windows, tmp_path, keep_checkpoints=keep)
    notebook.train()
    assert notebook.checkpoints() == kept


@pytest.mark.parametrize("file", ["task.safetensors", "optimizer.pt", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_with_a_word_for_the_one_before(windows, tmp_path, file):
    calm, cut = Notebook(windows, tmp_path / "calm"), Notebook(windows, tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        cut.train(stop_at=3)
    assert cut.checkpoints() == [5, 10]
    newest = max(cut.run.folders("checkpoints"))
    damaged = Path(cut.run.path("checkpoints", newest, file))
    os.truncate(damaged, damaged.stat().st_size // 2)
    task, _ = cut.train()
    seen = cut.run.read_json("progress.json")
    assert seen["first"] == 5
    assert seen["warnings"] == [f"{newest} cannot be read: an older checkpoint is used"]
    assert weights(task) == weights(calm.train()[0])
    assert cut.lines() == calm.lines()


@pytest.mark.parametrize(("step_s", "steps"), [(60.0, 1), (24.0, 1), (0.5, 4), (0.02, 100), (0.0, 2000)])
def test_a_notice_of_preemption_is_asked_for_by_the_clock_however_long_a_step_is(step_s, steps):
    assert steps_until_asking(step_s) == steps


class Rank(Alone):
    """One of two: the first is asked to stop after the second step, and the second is told of a node that leaves."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank=rank, ranks=2)
        self.looks = 0

    def asks_to_stop(self) -> bool:
        self.looks += 1
        return self.rank == 0 and self.looks > 1

    def is_leaving(self) -> bool:
        return self.rank == 1


def look_as(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    notices = Notices(Rank(rank), 0, torch.nn.Linear(1, 1))
    seen = []
    for done in range(1, 4):
        time.sleep(1.1 * rank)  # a rank may be slow: they look after the same steps all the same
        seen.append(notices.look(done))
    Path(folder, f"seen-{rank}").write_text(repr(seen))


def test_all_ranks_see_a_notice_after_the_same_step_whichever_of_them_got_it(tmp_path):
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=look_as, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    seen = [(tmp_path / f"seen-{rank}").read_text() for rank in range(2)]
    assert seen == ["[(True, False), (False, True), (False, True)]"] * 2


# --- a run's training ------------------------------------------------------------------------------------------------

# 24 steps of 16 rows
STEPS = (
    "data.sample.size=200",
    "data.train.questions=400",
    "data.dev.questions=60",
    "train.batch_size=16",
    "train.max_steps=24",
    "train.epochs=20",
    "train.checkpoint_every=5",
    "train.evaluate_every=12",
    "train.dev_questions=20",
    "optim.lr=1e-3",
    "cluster.threads_per_worker=1",
)


def trained(storage: str, *overrides: str) -> Run:
    with Run(load_config("debug_reader", [f"storage={storage}", *STEPS, *overrides]).config, Here()) as run:
        flow.train(run)
    return run


def test_the_exported_reader_is_plain_and_gives_the_same_answers(storage):
    """AutoModelForQuestionAnswering alone: same logits as our reader."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    from raydist.reader.model import load_reader

    run = trained(storage, "name=exported", "train.max_steps=6", "train.evaluate_every=6")
    folder = run.folder.path("model")
    plain, report = AutoModelForQuestionAnswering.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    rows = open_windows(prepare(run, ["train"])["train"])
    batch = rows.batch(torch.arange(4).numpy(), pad_id=AutoTokenizer.from_pretrained(folder).pad_token_id)
    with torch.inference_mode():
        ours = load_reader(Path(folder)).eval()(batch)
        theirs = plain.eval()(batch.input_ids_BT, batch.attention_BT.long(), batch.token_types_BT)
    torch.testing.assert_close(ours.start_BT, theirs.start_logits, rtol=0, atol=0)
    torch.testing.assert_close(ours.end_BT, theirs.end_logits, rtol=0, atol=0)


def test_training_stops_early_and_keeps_the_model_of_its_best_step(storage):
    settings = (
        "train.evaluate_every=2",
        "train.early_stop=1",
        "train.checkpoint_every=2",
        "train.keep_checkpoints=20",
        "train.keep_finished=true",
    )
    run = trained(storage, *settings, "name=early", "train.choose=best", "train.log_every=3", "optim.lr=1e-7")
    fitted = run.folder.read_json("fitted.json")
    assert fitted["steps"] == 4  # the second evaluation was not better than the first
    assert (fitted["best_step"], fitted["model"]) == (2, "best")
    assert run.folder.folders("best") == ["2"]
    lines = [json.loads(line) for line in run.folder.read_bytes("metrics.jsonl").decode().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [3, 4], "the step after the last line is told, too"
    by_step = {}
    for name in run.folder.folders("checkpoints"):
        folder = Path(run.folder.path("checkpoints", name))
        by_step[json.loads((folder / "state.json").read_text())["step"]] = load_file(folder / "task.safetensors")
    head = "qa_outputs.weight"
    ours = load_file(run.folder.path("model", "model.safetensors"))[head]
    assert ours.equal(by_step[2][f"reader.question_answering.{head}"])
    assert not ours.equal(by_step[4][f"reader.question_answering.{head}"])
