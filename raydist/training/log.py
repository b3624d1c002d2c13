"""A run's log: metrics.jsonl and progress.json, and the same values for TensorBoard and the trackers."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.files.storage import Storage, writing_to
from raydist.runs.trackers import Tracker
from raydist.terminal import Progress, say
from raydist.training.checkpoints import TrainState
from raydist.training.loop import StepReport

Show = Callable[..., None]  # sets a gauge: (name, value, **tags)


def show_nothing(name: str, value: float, /, **tags: str) -> None:
    """No gauges. Positional-only, since one of the tags is called `value`."""


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; a line torn by an interrupted write has none."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")


class RunLog:
    """metrics.jsonl and progress.json of a run, written by rank 0. Lines after the step a run resumes from are dropped.

    The same values go to TensorBoard, the trackers, and the gauges of the machine.
    """

    def __init__(
        self,
        run: Storage,
        state: TrainState,
        total: int,
        per_epoch: int,
        batch_size: int,
        trackers: Sequence[Tracker] = (),
        warnings: Sequence[str] = (),
        show: Show = show_nothing,
    ) -> None:
        """`state`: the state that training resumes from."""
        step = state.step
        self.trackers, self.warnings, self.show = trackers, list(warnings), show
        self.run, self.first, self.total, self.per_epoch, self.batch_size = run, step, total, per_epoch, batch_size
        old = run.read_bytes("metrics.jsonl").decode().splitlines() if run.exists("metrics.jsonl") else []
        self.lines = [line for line in old if _step_of(line) <= step] if step else []
        self.latest: dict[str, float] = {}
        self.recent = [(StepReport(*report), weights) for report, weights in state.log.get("untold", [])]
        self.name = Path(run.path()).name
        self.flush()
        self.begun = self.seen_at = time.monotonic()
        self.created, self.seen, self.startup = time.time(), step, 0.0
        self.before, self.evaluating = state.log.get("seconds", 0.0), state.log.get("evaluating", 0.0)
        self._progress(step, "")
        from tensorboardX import SummaryWriter

        self.scratch = None if run.is_local else tempfile.TemporaryDirectory()
        folder = self.scratch.name if self.scratch else run.path("tensorboard")
        self.board = SummaryWriter(folder, purge_step=step, flush_secs=10)

    def started(self, seconds: float) -> None:
        """Record the time from the command to the first step."""
        self.startup = round(seconds, 2)
        self.begun = self.seen_at = time.monotonic()

    def seen_step(self, report: StepReport, weights: Mapping[str, float]) -> None:
        """Keep a step for the next log line; lines hold means, since some objectives act only in some steps."""
        self.recent.append((report, dict(weights)))

    def step(self, step: int, lr: float) -> None:
        now = time.monotonic()
        rate = (step - self.seen) * self.batch_size / max(1e-9, now - self.seen_at)
        self.seen, self.seen_at = step, now
        reports = [report for report, _ in self.recent]
        loss = sum(report.loss for report in reports) / len(reports)
        line: dict[str, float] = {"step": step, "epoch": round(step / self.per_epoch, 4), "loss": loss}
        for name in reports[-1].terms:
            rows = sum(report.rows[name] for report in reports)
            value = sum(report.terms[name] * report.rows[name] for report in reports) / max(1.0, rows)
            line |= {f"loss.{name}": value, f"rows.{name}": rows}
            if name in self.recent[-1][1]:
                counted = sum(weights[name] * report.terms[name] for report, weights in self.recent)
                line[f"weighted.{name}"] = counted / len(reports)
        grad_norm = sum(report.grad_norm for report in reports) / len(reports)
        self.recent.clear()
        line |= {"lr": lr, "grad_norm": grad_norm, "examples_per_s": round(rate, 2)}
        self.latest |= line
        self._add(line)
        scores = "".join(
            f" dev {name} {self.latest[f'dev.{name}']:.1f}" for name in ("em", "f1", "mrr") if f"dev.{name}" in self.latest
        )
        self._progress(step, f"loss {loss:.3f}{scores}")

    def scores(self, step: int, scores: Mapping[str, float], seconds: float) -> None:
        line = {"step": step, "epoch": round(step / self.per_epoch, 4)} | {
            f"dev.{name}": value for name, value in scores.items()
        }
        self.latest |= line | {"dev.step": step}
        self._add(line)
        self.evaluating += seconds
        self.seen_at += seconds

    def times(self) -> dict[str, float]:
        """Seconds of the whole training with evaluations, without the steps lost with a worker."""
        return {"seconds": self.before + time.monotonic() - self.begun, "evaluating": self.evaluating}

    def kept(self) -> dict[str, Any]:
        """The log's state for a checkpoint: times, and the steps since the last line."""
        return self.times() | {"untold": self.recent}

    def summary(self, state: TrainState) -> dict[str, Any]:
        times = self.times()
        rate = state.step * self.batch_size / max(1e-9, times["seconds"] - times["evaluating"])
        summary = {
            "steps": state.step,
            "seconds": round(times["seconds"], 1),
            "startup_s": self.startup,
            "examples_per_s": round(rate, 2),
        }
        return summary | ({"best_step": state.best_step} if state.best_step else {})

    def flush(self) -> None:
        """Write the whole file at once."""
        self.run.write_bytes("metrics.jsonl", "".join(line + "\n" for line in self.lines).encode())

    def close(self) -> None:
        self.flush()
        for tracker in self.trackers:
            tracker.close()
        self._progress(self.seen, self.note)  # with the trackers' final errors
        self.board.close()
        if self.scratch:
            self.run.upload(Path(self.scratch.name), "tensorboard")
            self.scratch.cleanup()

    def _add(self, line: dict) -> None:
        self.lines.append(json.dumps(line))
        for name, value in line.items():
            if name != "step":
                self.board.add_scalar(name.replace(".", "/"), value, line["step"])
                self.show("raydist_train", value, run=self.name, value=name)
        for tracker in self.trackers:
            tracker.log({name: value for name, value in line.items() if name != "step"}, line["step"])
        if self.run.is_local:
            path = self.run.path("metrics.jsonl")
            with writing_to(path), open(path, "a", encoding="utf-8") as file:
                file.write(self.lines[-1] + "\n")

    def _progress(self, step: int, note: str) -> None:
        self.note = note
        warnings = self.warnings + [tracker.problem for tracker in self.trackers if tracker.problem]
        seen = {"step": step, "first": self.first, "total": self.total, "note": note, "warnings": warnings}
        self.run.write_json("progress.json", seen | {"began": self.created})


class Watch:
    """Shows a training's progress, which rank 0 writes to progress.json, while the block runs."""

    def __init__(self, run: Storage, started: Callable[[], None] = lambda: None) -> None:
        """`started` is called when workers have started or restarted."""
        self.run, self.started, self.over = run, started, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.bar: Progress | None = None
        self.began: float | None = None  # start time of the workers
        self.warned: set[str] = set()

    def __enter__(self) -> None:
        self.run.delete("progress.json")
        self.thread.start()

    def __exit__(self, kind: object, *rest: object) -> None:
        self.over.set()
        self.thread.join()
        self.see()  # the last steps; all steps of a training shorter than the interval
        if self.bar:
            self.bar.__exit__(kind, *rest)

    def _look(self) -> None:
        while not self.over.wait(1.0):
            self.see()

    def see(self) -> None:
        """Read the progress once."""
        try:
            seen = self.run.read_json("progress.json")
        except (OSError, ValueError):
            return
        if seen["began"] != self.began:
            self.began = seen["began"]
            self.started()
        if self.bar is None:
            if seen["first"]:
                say(f"train: resuming after step {seen['first']:,} of {seen['total']:,}")
            self.bar = Progress("train", seen["total"], "steps", seen["first"]).__enter__()
        self.bar.update(seen["step"], seen["note"])
        for text in seen["warnings"]:
            if text not in self.warned:
                self.bar.say(text)
                self.warned.add(text)
