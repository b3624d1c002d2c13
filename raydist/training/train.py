"""A whole training: steps, evaluation, checkpoints, log, early stop. Runs in a notebook as in a worker of a cluster.

A cluster adds a `Host`: the location of checkpoints, the other ranks, and notice of a node's removal.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from raydist.config import Config, OptimConfig, TrainConfig
from raydist.cores import use_cores
from raydist.errors import InputError, TrainingFailed
from raydist.files.storage import Storage, has_model, writing_to
from raydist.runs.trackers import open_trackers
from raydist.training.checkpoints import (
    SavedCheckpoint,
    forget_lost_best,
    keep_best,
    restore,
    write_checkpoint,
)
from raydist.training.log import RunLog, Show, Watch, show_nothing
from raydist.training.loop import NonFiniteLoss, TrainBatch, TrainRows, seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.stop import StopRequest
from raydist.training.trace import write_traces
from raydist.training.trainable import Evaluation, Trainable, TrainingSets, name_questions, open_trainable

NOTICE_S = 2.0  # between looks for notices; each makes all ranks wait briefly


class Host(Protocol):
    """The training process and its peers."""

    rank: int
    ranks: int

    def wrap(self, task: nn.Module) -> nn.Module:
        """Wrap the task so that gradients cover all ranks."""
        ...

    def checkpoints(self) -> tuple[list[SavedCheckpoint], bool]:
        """Checkpoints to resume from, latest first; and whether one of them must be readable."""
        ...

    def report(self, metrics: Mapping[str, Any], checkpoint: Path | None = None) -> None:
        """Called by every rank alike; a checkpoint's folder comes from rank 0."""
        ...

    def agree(self, step: int) -> int:
        """Ensure that all ranks start after the same step; returns the number of nodes."""
        ...

    def is_leaving(self) -> bool:
        """Whether a node is about to be removed."""
        ...

    def asks_to_stop(self) -> bool:
        """Whether the training shall end after this step, as by Ctrl-C."""
        ...


@dataclass
class Alone:
    """A single process, with a run's folder for checkpoints, or none."""

    run: Storage | None = None
    keep: int = 2
    rank: int = 0
    ranks: int = 1
    stop: StopRequest | None = None

    def wrap(self, task: nn.Module) -> nn.Module:
        return task

    def checkpoints(self) -> tuple[list[SavedCheckpoint], bool]:
        if self.run is None:
            return [], False
        folder = self.run.at("checkpoints")
        return [SavedCheckpoint(name, folder.path(), self._opener(folder, name)) for name in self._names()], False

    def _names(self) -> list[str]:
        assert self.run is not None
        names = [name for name in self.run.folders("checkpoints") if name.startswith("checkpoint_") and ".tmp" not in name]
        return sorted(names, reverse=True)

    def _opener(self, folder: Storage, name: str) -> Callable[[], contextlib.AbstractContextManager[Path]]:
        return lambda: contextlib.nullcontext(folder.local_copy(name))

    def report(self, metrics: Mapping[str, Any], checkpoint: Path | None = None) -> None:
        if checkpoint is None or self.run is None:
            return
        name = f"checkpoint_{datetime.now():%Y-%m-%d_%H-%M-%S.%f}"  # Ray Train's format: each can resume from the other's
        self.run.upload(checkpoint, f"checkpoints/{name}", last="state.json")
        for old in self._names()[self.keep :]:
            self.run.delete(f"checkpoints/{old}")

    def agree(self, step: int) -> int:
        return 1

    def is_leaving(self) -> bool:
        return False

    def asks_to_stop(self) -> bool:
        return bool(self.stop and self.stop.asked)


def train(
    task: nn.Module,
    rows: TrainRows,
    *,
    train: TrainConfig | None = None,
    optim: OptimConfig | None = None,
    seed: int = 0,
    pad_id: int = 0,
    evaluation: Evaluation | None = None,
    run: Storage | None = None,
    host: Host | None = None,
) -> dict[str, Any]:
    """Train a task on rows, by the config sections `train` and `optim`; returns a summary.

    With `run`, its folder gets checkpoints and metrics.jsonl, and the same call resumes from the last checkpoint; Ctrl-C takes
    one, and only then interrupts. `evaluation` is a function from the task to scores; `train.metric` names the one that chooses
    the best step and stops early.

    >>> from raydist.config import TrainConfig, load_config
    >>> from raydist.files.storage import Storage
    >>> from raydist.here import Here
    >>> from raydist.models.folders import model_folder
    >>> from raydist.reader.prepare import prepare
    >>> from raydist.runs.run import Run
    >>> from raydist.training.tasks import build_reader_task
    >>> from raydist.training.train import train
    >>> from raydist.training.trainable import DevEvaluation, open_windows
    >>> config = load_config("debug_reader", ["data.train.questions=20", "data.dev.questions=10", "data.test={}"]).config
    >>> with Run(config, Here()) as run:  # reads the data and cuts them into windows, in this process
    ...     sets = prepare(run, ["train", "dev"])
    sample world: ...
    >>> task = build_reader_task(config, model_folder("builtin:tiny"))  # any module with `weights(step)` that returns terms
    >>> fitted = train(
    ...     task,
    ...     open_windows(sets["train"]),
    ...     train=TrainConfig(batch_size=8, max_steps=4, evaluate_every=2, early_stop=3, checkpoint_every=2),
    ...     evaluation=DevEvaluation(config, sets["dev"], pad_id=0, rank=0, ranks=1),
    ...     run=Storage("runs/notebook"),
    ... )
    >>> fitted["steps"], sorted(fitted)
    (4, ['best_step', 'dev.em', 'dev.f1', 'loss', 'steps'])
    """
    settings = train or TrainConfig()
    with contextlib.nullcontext() if host or run is None else StopRequest() as stop:
        host = host or Alone(run, settings.keep_checkpoints, stop=stop)
        return Training(task, rows, settings, optim or OptimConfig(), seed, pad_id, host, evaluation, run).finish()


@dataclass
class Training:
    """One training, in the order of events."""

    task: nn.Module
    rows: TrainRows
    settings: TrainConfig
    optim: OptimConfig
    seed: int
    pad_id: int
    host: Host
    evaluation: Evaluation | None = None
    run: Storage | None = None
    export: Callable[[nn.Module, Path], None] | None = None  # the model in its own layout
    config: Config | None = None  # for trackers
    warnings: Sequence[str] = ()
    show: Show = show_nothing
    began: float = field(default_factory=time.time)  # start time of its command
    metric: str | None = None  # chooses the best model, in place of `settings.metric`

    def __post_init__(self) -> None:
        settings = self.settings
        self.per_epoch = -(-len(self.rows) // settings.batch_size)
        self.total = settings.num_steps(len(self.rows))
        self.wrapped = self.host.wrap(self.task)
        self.optimizer = build_optimizer(self.task, self.optim)
        self.schedule = build_schedule(self.optimizer, self.optim, self.total, settings.batch_size)
        checkpoints, needed = self.host.checkpoints()
        self.state, damaged = restore(checkpoints, self.task, self.optimizer, self.schedule, needed=needed)
        if settings.choose == "best" and self.run is not None and self.export:  # else its model was never written
            forget_lost_best(self.run, self.state)
        self.log = self._open_log(damaged) if self.host.rank == 0 and self.run is not None else None
        self.last_scores: dict[str, float] = {}
        self.notices = Notices(self.host, self.state.step, self.task)
        self.stopped = False
        self.batches: Sequence[TrainBatch] = ()
        self.loss: float | None = None  # of the last step
        self.lr = 0.0

    def _open_log(self, damaged: Sequence[str]) -> RunLog:
        assert self.run is not None
        warnings = list(self.warnings)
        if damaged:
            warnings.append(f"{', '.join(damaged)} cannot be read: an older checkpoint is used")
        trackers = open_trackers(self.config, self.run) if self.config else []
        return RunLog(self.run, self.state, self.total, self.per_epoch, self.settings.batch_size, trackers, warnings, self.show)

    def finish(self) -> dict[str, Any]:
        """Run the remaining steps; returns the content of fitted.json."""
        nodes = self.host.agree(self.state.step)
        if self.log and self.run is not None:
            self.log.started(time.time() - self.began)
            note_attempt(self.run, self.state.step, self.host.ranks, nodes)
        self.wrapped.train()
        for step in self._steps():
            self._evaluate_and_save(step + 1)
            if self.state.over or self.stopped:
                break
        if self.log and self.run is not None:
            if self.export and not self.stopped and not has_model(self.run):  # finished earlier, model deleted since
                self._export_final()
            self.log.close()
        scores = {f"dev.{name}": value for name, value in self.last_scores.items()}
        return {"steps": self.state.step, "best_step": self.state.best_step, "loss": self.loss} | scores

    def _steps(self) -> Iterator[int]:
        """Make the updates; yields the number of steps done after each."""
        if self.state.over:
            return
        settings, host = self.settings, self.host
        steps = training_steps(
            self.rows,
            seed=self.seed,
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            first=self.state.step,
            last=self.total,
            rank=host.rank,
            ranks=host.ranks,
            pad_id=self.pad_id,
        )
        for step, self.batches in steps:
            seed_step(self.seed, step, host.rank)
            weights = self.task.weights(step)  # type: ignore[operator]
            lr = float(self.schedule.get_last_lr()[0])
            report = train_step(
                self.wrapped,
                self.batches,
                self.optimizer,
                self.schedule,
                weights,
                clip_norm=self.optim.clip_norm,
                precision=settings.precision,
            )
            self.state.step = step + 1
            if self.log:
                self.log.seen_step(report, weights)
                if self.state.step % settings.log_every == 0 or self.is_last:
                    self.log.step(self.state.step, lr)
            self.lr, self.loss = lr, report.loss
            yield step

    @property
    def is_last(self) -> bool:
        return self.state.step == self.total

    def _evaluate_and_save(self, done: int) -> None:
        """After a step: scores if due, a checkpoint if due, a look for nodes that leave and for a request to stop."""
        evaluated = bool(self.evaluation) and (done % (self.settings.evaluate_every or self.per_epoch) == 0 or self.is_last)
        if evaluated:
            self._evaluate(done)
        ended = self.is_last or self.state.over
        is_due = done % self.settings.checkpoint_every == 0
        if is_due or ended:
            if self.log and ended:
                self._write_model()
            self._save()
        elif evaluated:  # on every rank, since a report is a barrier
            self.host.report((self.log.latest if self.log else {}) | {"step": done, "total": self.total})
        if not ended:
            leaving, self.stopped = self.notices.look(done)
            if (leaving or self.stopped) and not is_due:
                self._save()

    def _evaluate(self, done: int) -> None:
        assert self.evaluation
        settings, state, began = self.settings, self.state, time.monotonic()
        scores = self.last_scores = self.evaluation(self.task)
        seconds = time.monotonic() - began
        score = scores[self.metric or settings.metric]
        better = score > state.best
        state.waited = 0 if better else state.waited + 1
        if better:
            state.best, state.best_step = score, done
        if self.log:
            self.log.scores(done, scores, seconds)
            if better and settings.choose == "best" and self.export:
                self._export(f"best/{done}")
        state.over = bool(settings.early_stop and state.waited >= settings.early_stop)
        if self.log and state.over and self.log.recent:  # no later step will log these
            self.log.step(done, self.lr)

    # --- files -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """A checkpoint, by rank 0; every rank takes part, since a report is a barrier."""
        if self.host.rank != 0:
            self.host.report({"step": self.state.step})
            return
        if self.log:
            self.state.log = self.log.kept()
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder), self.task, self.optimizer, self.schedule, self.state)
            if self.log:
                self.log.flush()
            metrics = (self.log.latest if self.log else {}) | {"step": self.state.step, "total": self.total}
            with writing_to(self.run.path("checkpoints") if self.run is not None else folder):
                self.host.report(metrics, Path(folder))
        if self.run is not None:
            keep_best(self.run, self.state)

    def _write_model(self) -> None:
        """Write the final model and the summary of its training."""
        assert self.log
        assert self.run is not None
        fitted = self.log.summary(self.state)  # writing the model does not count as training
        if self.export:
            fitted["model"] = self._export_final()
        if self.last_scores:
            metric = self.metric or self.settings.metric
            fitted[f"dev.{metric}"] = self.state.best if fitted.get("model") == "best" else self.last_scores[metric]
        self.run.write_json("fitted.json", fitted)
        write_traces(self.task, self.batches[0], self.run)

    def _export(self, name: str) -> None:
        assert self.export
        assert self.run is not None
        with tempfile.TemporaryDirectory() as folder:
            self.export(self.task, Path(folder))
            self.run.upload(Path(folder), name)

    def _export_final(self) -> str:
        """Write model/, of the best step or the last."""
        assert self.run is not None
        best = f"best/{self.state.best_step}"
        if self.settings.choose == "best" and self.state.best_step and has_model(self.run, best):
            self.run.upload(self.run.local_copy(best), "model")
            return "best"
        self._export("model")
        return "last"


class Notices:
    """Looks for a node's removal and for a request to stop; several ranks look together, every so many steps."""

    def __init__(self, host: Host, step: int, task: nn.Module) -> None:
        self.host, self.is_left, self.device = host, False, next(task.parameters()).device
        self.asked, self.asked_at, self.next = step, time.monotonic(), step + 1

    def look(self, done: int) -> tuple[bool, bool]:
        """Whether a node is about to leave, which is reported once, and whether to stop; the same on every rank."""
        is_due, host = done >= self.next, self.host
        if host.ranks > 1 and not is_due:
            return False, False
        step_s = (time.monotonic() - self.asked_at) / (done - self.asked)
        seen = torch.tensor([step_s, is_due and host.is_leaving(), host.asks_to_stop()], device=self.device)
        if host.ranks > 1:
            torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX)
        if is_due:
            self.asked, self.asked_at, self.next = done, time.monotonic(), done + steps_until_asking(float(seen[0]))
        is_news = bool(seen[1]) and not self.is_left
        self.is_left = self.is_left or is_news
        return is_news, bool(seen[2])


def steps_until_asking(step_s: float) -> int:
    """Steps per `NOTICE_S`, at least one; by the slowest rank's step time, so that all ranks agree."""
    return max(1, int(NOTICE_S / max(step_s, 1e-3)))


def note_attempt(run: Storage, step: int, workers: int, nodes: int) -> None:
    """Append a start to workers.json: its step, and the numbers of workers and nodes."""
    before = run.read_json("workers.json") if step and run.exists("workers.json") else []
    run.write_json("workers.json", [*before, {"step": step, "workers": workers, "nodes": nodes}])


# --- a run's training ------------------------------------------------------------------------------------------------


def train_run(config: Config, run: Storage, sets: TrainingSets, host: Host, *, show: Show, began: float | None = None) -> None:
    """Train the config's task. The run's folder gets checkpoints, metrics.jsonl, model/ and fitted.json; errors that a retry
    would not fix go to failure.json.
    """
    try:
        trainable = open_trainable(config, sets, host.rank, host.ranks)
        training_of(trainable, run, host, show=show, began=began or time.time()).finish()
    except NonFiniteLoss as error:  # raised by every rank alike
        if host.rank == 0:
            questions = name_questions(config.task, sets["train"], error.rows)
            run.write_json("failure.json", {"message": f"{error}. In the batch: {questions}", "input": False})
    except InputError as error:  # perhaps only on this node: the others must not wait for it
        run.write_json("failure.json", {"message": str(error), "input": True})
        raise


def training_of(trainable: Trainable, run: Storage, host: Host, *, show: Show, began: float) -> Training:
    config, settings = trainable.config, trainable.config.train
    per_epoch = -(-len(trainable.rows) // settings.batch_size)
    judged = "dev" in trainable.sets and settings.evaluate_every != 0
    return Training(
        trainable.build_task(per_epoch),
        trainable.rows,
        settings,
        config.optim,
        config.seed,
        trainable.pad_id,
        host,
        trainable.evaluation() if judged else None,
        run,
        trainable.save,
        config,
        trainable.remarks(),
        show,
        began,
        config.dev_metric,
    )


def raise_failure(run: Storage) -> None:
    """Raise the error that a worker left for the user to fix."""
    if run.exists("failure.json"):
        failure = run.read_json("failure.json")
        raise (InputError if failure["input"] else TrainingFailed)(failure["message"])


def fit_here(config: Config, run: Storage, sets: TrainingSets) -> dict[str, Any]:
    """Train in this process; returns the content of the run's fitted.json."""
    began = time.time()
    run.delete("failure.json")
    if not config.cluster.gpus_per_worker:
        use_cores(config.cluster.threads_per_worker or os.cpu_count() or 1)
    with StopRequest() as stop, Watch(run):
        host = Alone(run, config.train.keep_checkpoints, stop=stop)
        train_run(config, run, sets, host, show=show_nothing, began=began)
        raise_failure(run)
    return run.read_json("fitted.json")
