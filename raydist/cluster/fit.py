"""Ray Train around the plain loop: workers, checkpoints, evaluation during training, the run's log.

A checkpoint is taken every so many steps, at the end, and when Ray tells that a node will be taken away. It holds model,
optimizer, schedule and step. The data position and the random states are functions of (seed, step),
so a resumed run makes the same updates as an undisturbed one.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from raydist.cluster.connect import Cluster
from raydist.cluster.watch import show
from raydist.config import Config
from raydist.cores import use_cores
from raydist.errors import InputError, TrainingFailed
from raydist.files.storage import Storage, StorageError, has_model, unwritable, writing_to
from raydist.objectives.base import world_size
from raydist.terminal import Progress, say
from raydist.training.loop import NonFiniteLoss, StepReport, seed_step, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.plan import num_steps
from raydist.training.trace import write_traces
from raydist.training.trackers import Tracker, open_trackers
from raydist.training.trainable import Kind, name_questions, open_kind

RAYS_LIST = "checkpoints/checkpoint_manager_snapshot.json"
NOTICE_S = 2.0  # between questions whether a node is to be taken away; each is a short wait for all ranks


def fit(
    cluster: Cluster, config: Config, run: Storage, sets: Mapping[str, dict], callbacks: Sequence[Any] = ()
) -> dict[str, Any]:
    """Train what the config's task says; the run's folder gets checkpoints, metrics.jsonl and model/.

    Returns what is worth telling of it.

    `sets` says for "train" and "dev" which folders and parts hold the rows (see pipeline.py, retrieval.py);
    `callbacks` are Ray Train's, and hear of every checkpoint and every evaluation.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    from raydist.cluster.network import NodeAddresses
    from raydist.cluster.trainer import Trainer

    cluster.start()
    run.delete("failure.json")
    forget_torn_list(run)
    gpus = config.cluster.gpus_per_worker
    trainer = Trainer(
        train_worker,
        local=cluster.here is not None,
        train_loop_config={"config": config.model_dump(mode="json"), "run": run.uri, "sets": dict(sets), "began": time.time()},
        torch_config=NodeAddresses(backend="nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.cluster.workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": 1} | ({"GPU": gpus} if gpus else {}),
        ),
        run_config=RunConfig(
            name="checkpoints",
            storage_path=run.uri,
            failure_config=FailureConfig(max_failures=config.cluster.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=config.train.keep_checkpoints),
            callbacks=list(callbacks),
        ),
    )
    with _Watch(run, cluster):
        try:
            trainer.fit()
        except Exception as error:
            _raise_failure(run)
            if problem := storage_problem(error, run):
                raise problem from None
            raise
    _raise_failure(run)
    return run.read_json("fitted.json")


def storage_problem(error: Exception, run: Storage) -> StorageError | None:
    """A StorageError of a worker, as it looks after its journey; a disk that was full for Ray itself, in its words."""
    for text in map(str, (*getattr(error, "worker_failures", {}).values(), error)):
        if "cannot write " in text:
            return StorageError("cannot write " + text.split("cannot write ")[-1].strip())
        if os.strerror(errno.ENOSPC) in text:
            return unwritable(run.path(), OSError(errno.ENOSPC, text))
    return None


def _raise_failure(run: Storage) -> None:
    """What a worker left for the user to mend."""
    if run.exists("failure.json"):
        failure = run.read_json("failure.json")
        raise (InputError if failure["input"] else TrainingFailed)(failure["message"])


class _Watch:
    """Shows the workers' progress, which rank 0 leaves in progress.json."""

    def __init__(self, run: Storage, cluster: Cluster) -> None:
        self.run, self.cluster, self.over = run, cluster, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.bar: Progress | None = None
        self.began: float | None = None  # when the workers did
        self.warned: set[str] = set()

    def __enter__(self) -> None:
        self.run.delete("progress.json")
        say("train: starting workers")
        self.thread.start()

    def __exit__(self, kind: object, *rest: object) -> None:
        self.over.set()
        self.thread.join()
        self._see()  # the last steps; all of them, where training took less than a look
        if self.cluster.here:
            self.cluster.here.stand_back(False)
        if self.bar:
            self.bar.__exit__(kind, *rest)

    def _look(self) -> None:
        while not self.over.wait(1.0):
            self._see()

    def _see(self) -> None:
        try:
            seen = self.run.read_json("progress.json")
        except (OSError, ValueError):
            return
        if seen["began"] != self.began:  # workers have begun, or begun anew
            self.began = seen["began"]
            if self.cluster.here:
                self.cluster.here.stand_back()
        if self.bar is None:
            if seen["first"]:
                say(f"train: going on after step {seen['first']:,} of {seen['total']:,}")
            self.bar = Progress("train", seen["total"], "steps", seen["first"]).__enter__()
        self.bar.update(seen["step"], seen["note"])
        for text in seen["warnings"]:
            if text not in self.warned:
                self.bar.say(text)
                self.warned.add(text)


# --- in a worker -----------------------------------------------------------------------------------------------------


def train_worker(given: dict[str, Any]) -> None:
    """One Ray Train worker. What trying again would not mend is left in failure.json instead of raised."""
    import ray.train

    run = Storage(given["run"])
    if run.exists("failure.json"):  # of the attempt before this one: nothing would change
        return
    try:
        _train(Config.model_validate(given["config"]), run, given["sets"], given["began"])
    except NonFiniteLoss as error:  # raised by every rank alike
        if ray.train.get_context().get_world_rank() == 0:
            questions = name_questions(given["config"]["task"], given["sets"]["train"], error.rows)
            run.write_json("failure.json", {"message": f"{error}. In the batch: {questions}", "input": False})
    except InputError as error:  # perhaps on this node alone: the others must not wait for it
        run.write_json("failure.json", {"message": str(error), "input": True})
        raise


def _train(config: Config, run: Storage, sets: dict[str, dict], began: float) -> None:
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    if not config.cluster.gpus_per_worker:
        cores = os.cpu_count() or 1
        use_cores(config.cluster.threads_per_worker or max(1, cores // context.get_local_world_size()))
    kind = open_kind(config, sets, rank, ranks)
    train = kind.rows
    total = num_steps(
        len(train), batch_size=config.train.batch_size, epochs=config.train.epochs, max_steps=config.train.max_steps
    )
    settings = config.train
    per_epoch = -(-len(train) // settings.batch_size)
    plain = kind.build_task(per_epoch)
    task = ray.train.torch.prepare_model(
        plain, parallel_strategy_kwargs={"gradient_as_bucket_view": True} if ranks > 1 else None
    )
    optimizer = build_optimizer(plain, config.optim)
    schedule = build_schedule(optimizer, config.optim, total, config.train.batch_size)
    stored, given = context.get_storage(), ray.train.get_checkpoint()
    checkpoints = checkpoints_of(stored.experiment_fs_path, stored.storage_filesystem)
    if given:  # a later one was not whole when its worker was killed
        checkpoints = [given, *(found for found in checkpoints if Path(found.path).name < Path(given.path).name)]
    state, damaged = restore(checkpoints, plain, optimizer, schedule, needed=given is not None)
    if settings.choose == "best":
        forget_lost_best(run, state)
    evaluation = kind.evaluation() if "dev" in sets and config.train.evaluate_every != 0 else None
    log = None
    if rank == 0:
        warnings = kind.remarks()
        if damaged:
            warnings.append(f"{', '.join(damaged)} cannot be read: an older checkpoint is used")
        trackers = open_trackers(config, run)
        log = RunLog(run, state, total, per_epoch, config.train.batch_size, trackers, warnings)
    every = config.train.evaluate_every or per_epoch
    places = [(ray.get_runtime_context().get_node_id(), state["step"])] * ranks
    if ranks > 1:
        torch.distributed.all_gather_object(places, places[0])
    nodes, begins = ({place[i] for place in places} for i in range(2))
    if len(begins) > 1:  # one could not read what another could; Ray starts them anew
        raise RuntimeError(f"train workers read checkpoints of different steps: {sorted(begins)}")
    if log:
        log.started(time.time() - began)
        note_attempt(run, state["step"], ranks, len(nodes))

    steps = training_steps(
        train,
        seed=config.seed,
        batch_size=settings.batch_size,
        accumulate=settings.accumulate,
        first=state["step"],
        last=total,
        rank=rank,
        ranks=ranks,
        pad_id=kind.pad_id,
    )
    task.train()
    over = state["over"]
    watched = os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER") != "0"
    asked, asked_at, ask_next = state["step"], time.monotonic(), state["step"] + 1
    for step, batches in steps:
        if over:
            break
        seed_step(config.seed, step, rank)
        weights = plain.weights(step)
        lr = float(schedule.get_last_lr()[0])
        report = train_step(
            task, batches, optimizer, schedule, weights, clip_norm=config.optim.clip_norm, precision=settings.precision
        )
        done = step + 1
        state["step"] = done
        if log:
            log.seen_step(report, weights)
            if done % settings.log_every == 0 or done == total:
                log.step(done, lr)
        evaluate = evaluation and (done % every == 0 or done == total)
        if evaluation and evaluate:
            evaluating = time.monotonic()
            scores = evaluation(plain)
            evaluating = time.monotonic() - evaluating
            better = scores[settings.metric] > state["best"]
            state["waited"] = 0 if better else state["waited"] + 1
            if better:
                state |= {"best": scores[settings.metric], "best_step": done}
            if log:
                log.scores(done, scores, evaluating)
                if better and settings.choose == "best":
                    _export(kind, plain, run, f"best/{done}")
            over = state["over"] = bool(settings.early_stop and state["waited"] >= settings.early_stop)
            if log and over and log.recent:  # no later step will tell of these
                log.step(done, lr)
        if done % settings.checkpoint_every == 0 or done == total or over:
            if log and (done == total or over):
                fitted = log.summary(state)  # before the model is written, which is no training
                fitted["model"] = _export_final(kind, plain, run, state["best_step"] if settings.choose == "best" else 0)
                run.write_json("fitted.json", fitted)
                write_traces(plain, batches[0], run)
            save(plain, optimizer, schedule, state, log, rank)
        elif evaluate:  # by every rank, since report() is a barrier
            ray.train.report((log.latest if log else {}) | {"step": done, "total": total})
        if not watched or done < ask_next or done == total or over:
            continue
        if ray.train.get_preemption_info() is not None:  # a barrier, too: hence by steps, and not by the clock
            watched = False
            save(plain, optimizer, schedule, state, log, rank)
        ask_next = done + steps_until_asking((time.monotonic() - asked_at) / (done - asked), plain)
        asked, asked_at = done, time.monotonic()
    if log:
        if not has_model(run):  # finished before, and its model was deleted since
            _export_final(kind, plain, run, state["best_step"] if settings.choose == "best" else 0)
        log.close()


def steps_until_asking(step_s: float, task: torch.nn.Module) -> int:
    """How many steps `NOTICE_S` holds, one at least; by the slowest rank's time of a step, so that all ask after the same."""
    slowest = torch.tensor(step_s, device=next(task.parameters()).device)
    if world_size() > 1:
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
    return max(1, int(NOTICE_S / max(float(slowest), 1e-3)))


def note_attempt(run: Storage, step: int, workers: int, nodes: int) -> None:
    """workers.json: from which step on how many workers have trained, and on how many nodes; a line for each start."""
    before = run.read_json("workers.json") if step and run.exists("workers.json") else []
    run.write_json("workers.json", [*before, {"step": step, "workers": workers, "nodes": nodes}])


def _export(kind: Kind, task: torch.nn.Module, run: Storage, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kind.save(task, Path(folder))
        run.upload(Path(folder), name)


def _export_final(kind: Kind, task: torch.nn.Module, run: Storage, best_step: int) -> str:
    """model/: that of the best step, or the last."""
    if best_step and has_model(run, f"best/{best_step}"):
        run.upload(run.local_copy(f"best/{best_step}"), "model")
        return "best"
    _export(kind, task, run, "model")
    return "last"


def save(task, optimizer, schedule, state: dict, log: RunLog | None, rank: int) -> None:
    """A checkpoint, by rank 0; every rank takes part, since report() is a barrier."""
    import ray.train
    from ray.train import Checkpoint
    from safetensors.torch import save_file

    if rank != 0:
        ray.train.report({"step": state["step"]})
        return
    assert log is not None
    state |= log.kept()
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: value.contiguous() for name, value in task.state_dict().items()}, f"{folder}/task.safetensors")
        torch.save(optimizer.state_dict(), f"{folder}/optimizer.pt")
        Path(folder, "state.json").write_text(json.dumps(state | {"schedule": schedule.state_dict()["last_epoch"]}))
        log.flush()
        metrics = log.latest | {"step": state["step"], "total": log.total}
        with writing_to(log.run.path("checkpoints")):
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    keep_best(log.run, state)


def keep_best(run: Storage, state: Mapping[str, Any]) -> None:
    """Of best/STEP delete all but the one that the checkpoint just taken names: a run may have gone on from one before it."""
    for name in run.folders("best"):
        if name != str(state["best_step"]):
            run.delete(f"best/{name}")


def forget_lost_best(run: Storage, state: dict[str, Any]) -> None:
    """Where the model of a checkpoint's best step is gone, since steps after it were lost, the best is of those to come."""
    if state["best_step"] and not has_model(run, f"best/{state['best_step']}"):
        state |= {"best": -1.0, "best_step": 0}


def forget_torn_list(run: Storage) -> None:
    """Delete Ray's list of checkpoints where a kill tore it (it is written in place), or where it names one that is gone: Ray
    would refuse to go on. The workers find the checkpoints themselves.
    """
    if not run.exists(RAYS_LIST):
        return
    try:
        listed = [result["checkpoint_dir_name"] for result in run.read_json(RAYS_LIST)["checkpoint_results"]]
    except (ValueError, KeyError, TypeError):
        listed = [""]
    if any(not name or not run.exists(f"checkpoints/{name}") for name in listed):
        run.delete(RAYS_LIST)


def checkpoints_of(folder: str, filesystem: Any) -> list:
    """The checkpoints in a folder, latest first: their names are dates."""
    from pyarrow.fs import FileSelector, FileType
    from ray.train import Checkpoint

    found = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
    names = [info.base_name for info in found if info.type == FileType.Directory and info.base_name.startswith("checkpoint_")]
    return [Checkpoint(f"{folder}/{name}", filesystem) for name in sorted(names, reverse=True)]


def restore(checkpoints: list, task, optimizer, schedule, *, needed: bool) -> tuple[dict[str, Any], list[str]]:
    """Put a checkpoint's state back, which says at which step it was taken. One that cannot be read is passed over for the one
    before it; their names are given, too. Where none is `needed`, all may be what was left of a first one: then from the start.
    """
    damaged: list[str] = []
    for candidate in checkpoints:
        try:
            weights, moments, state = _read_checkpoint(candidate)
            break
        except (OSError, EOFError, ValueError, RuntimeError, KeyError, SafetensorError, UnpicklingError):
            damaged.append(Path(candidate.path).name)
    else:
        if not needed:
            return {"step": 0, "best": -1.0, "best_step": 0, "waited": 0, "over": False}, damaged
        raise InputError(
            f"no checkpoint can be read ({', '.join(damaged)} in {Path(checkpoints[0].path).parent}); start over with --fresh"
        )
    task.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    position = state.pop("schedule")
    schedule.last_epoch = position
    shares = [share(position) for share in schedule.lr_lambdas]
    schedule._last_lr = [base * share for base, share in zip(schedule.base_lrs, shares)]
    for group, lr in zip(optimizer.param_groups, schedule._last_lr):
        group["lr"] = lr
    return state, damaged


def _read_checkpoint(checkpoint) -> tuple[dict, dict, dict]:
    """Weights, the optimizer's state, ours: all of it, or an error."""
    from safetensors.torch import load_file

    with checkpoint.as_directory() as folder:
        weights = load_file(f"{folder}/task.safetensors")
        moments = torch.load(f"{folder}/optimizer.pt", weights_only=True)
        return weights, moments, json.loads(Path(folder, "state.json").read_text())


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; one that was torn when the run was stopped belongs to none."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")


class RunLog:
    """metrics.jsonl and progress.json of a run, written by rank 0. Lines after the step a run resumes from are dropped.

    The same values go to TensorBoard, Ray's metrics and the trackers.
    """

    def __init__(
        self,
        run: Storage,
        state: Mapping[str, Any],
        total: int,
        per_epoch: int,
        batch_size: int,
        trackers: Sequence[Tracker] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        """`state` is what training goes on from: a checkpoint's."""
        step = state["step"]
        self.trackers, self.warnings = trackers, list(warnings)
        self.run, self.first, self.total, self.per_epoch, self.batch_size = run, step, total, per_epoch, batch_size
        old = run.read_bytes("metrics.jsonl").decode().splitlines() if run.exists("metrics.jsonl") else []
        self.lines = [line for line in old if _step_of(line) <= step] if step else []
        self.latest: dict[str, float] = {}
        self.recent = [(StepReport(*report), weights) for report, weights in state.get("untold", [])]
        self.name = Path(run.path()).name
        self.flush()
        self.begun = self.seen_at = time.monotonic()
        self.created, self.seen, self.startup = time.time(), step, 0.0
        self.before, self.evaluating = state.get("seconds", 0.0), state.get("evaluating", 0.0)
        self._progress(step, "")
        from tensorboardX import SummaryWriter

        self.scratch = None if run.is_local else tempfile.TemporaryDirectory()
        folder = self.scratch.name if self.scratch else run.path("tensorboard")
        self.board = SummaryWriter(folder, purge_step=step, flush_secs=10)

    def started(self, seconds: float) -> None:
        """How long it took from the command to the first step."""
        self.startup = round(seconds, 2)
        self.begun = self.seen_at = time.monotonic()

    def seen_step(self, report: StepReport, weights: Mapping[str, float]) -> None:
        """Remember a step until the next line, which tells means: an objective may act in some steps only."""
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
            f" dev {name} {self.latest[f'dev.{name}']:.1f}" for name in ("em", "f1") if f"dev.{name}" in self.latest
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
        """Seconds of the whole training, evaluations among them: what was lost with a worker is not counted."""
        return {"seconds": self.before + time.monotonic() - self.begun, "evaluating": self.evaluating}

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds of the log: times, and the steps since the last line, so that the next one tells of as many
        as it would have."""
        return self.times() | {"untold": self.recent}

    def summary(self, state: Mapping[str, Any]) -> dict[str, Any]:
        times = self.times()
        rate = state["step"] * self.batch_size / max(1e-9, times["seconds"] - times["evaluating"])
        summary = {
            "steps": state["step"],
            "seconds": round(times["seconds"], 1),
            "startup_s": self.startup,
            "examples_per_s": round(rate, 2),
        }
        return summary | ({"best_step": state["best_step"]} if state["best_step"] else {})

    def flush(self) -> None:
        """The whole file, at once."""
        self.run.write_bytes("metrics.jsonl", "".join(line + "\n" for line in self.lines).encode())

    def close(self) -> None:
        self.flush()
        for tracker in self.trackers:
            tracker.close()
        self._progress(self.seen, self.note)  # with what the trackers met with at the end
        self.board.close()
        if self.scratch:
            self.run.upload(Path(self.scratch.name), "tensorboard")
            self.scratch.cleanup()

    def _add(self, line: dict) -> None:
        self.lines.append(json.dumps(line))
        for name, value in line.items():
            if name != "step":
                self.board.add_scalar(name.replace(".", "/"), value, line["step"])
                show("raydist_train", value, run=self.name, value=name)
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
