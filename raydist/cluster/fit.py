"""Ray Train around the plain loop: workers on a cluster, and the location of their checkpoints.

A checkpoint is saved every so many steps, at the end, when Ray announces the loss of a node, and when the driver is to stop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from pyarrow.fs import FileSelector, FileType
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

from raydist.cluster.connect import Cluster
from raydist.cluster.machine import set_gauge
from raydist.cluster.network import NodeAddresses
from raydist.cluster.trainer import Trainer
from raydist.config import Config
from raydist.cores import use_cores
from raydist.files.storage import Storage, StorageError, unwritable
from raydist.terminal import say
from raydist.training.checkpoints import SavedCheckpoint
from raydist.training.log import Watch
from raydist.training.stop import StopRequest
from raydist.training.train import raise_failure, train_run
from raydist.training.trainable import TrainingSets

STOP = "stop"  # in a run's folder: its workers end after a checkpoint
LOOK_S = {True: 0.2, False: 2.0}  # between a worker's looks for it: on a disk, in a store
RAYS_LIST = "checkpoints/checkpoint_manager_snapshot.json"


def fit(cluster: Cluster, config: Config, run: Storage, sets: TrainingSets, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Train the config's task on Ray Train's workers; returns the contents of the run's fitted.json.

    `callbacks` are Ray Train's; they receive every checkpoint and every evaluation.
    """
    cluster.start()
    for old in ("failure.json", STOP):
        run.delete(old)
    forget_torn_list(run)
    trainer = _trainer(cluster, config, run, sets, callbacks)
    say("train: starting workers")
    try:
        with StopRequest(lambda: run.write_bytes(STOP, b"")), Watch(run, started=lambda: _stand_back(cluster)):
            trainer.fit()
            raise_failure(run)
    except Exception as error:
        raise_failure(run)
        if problem := storage_problem(error, run):
            raise problem from None
        raise
    finally:
        _stand_back(cluster, False)
        with contextlib.suppress(OSError):
            run.delete(STOP)
    return run.read_json("fitted.json")


def _trainer(cluster: Cluster, config: Config, run: Storage, sets: TrainingSets, callbacks: Sequence[Any]) -> Trainer:
    gpus = config.cluster.gpus_per_worker
    given = {"config": config.model_dump(mode="json"), "run": run.uri, "sets": dict(sets), "began": time.time()}
    return Trainer(
        train_worker,
        local=cluster.here is not None,
        train_loop_config=given,
        torch_config=NodeAddresses(backend="nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.cluster.num_workers,
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


def _stand_back(cluster: Cluster, wanted: bool = True) -> None:
    """A local Ray's other processes yield CPU to training."""
    if cluster.here:
        cluster.here.stand_back(wanted)


def storage_problem(error: Exception, run: Storage) -> StorageError | None:
    """Recover a worker's StorageError from Ray's wrapping, or a full disk that Ray itself reported."""
    for text in map(str, (*getattr(error, "worker_failures", {}).values(), error)):
        if "cannot write " in text:
            return StorageError("cannot write " + text.split("cannot write ")[-1].strip())
        if os.strerror(errno.ENOSPC) in text:
            return unwritable(run.path(), OSError(errno.ENOSPC, text))
    return None


def forget_torn_list(run: Storage) -> None:
    """Delete Ray's list of checkpoints if a kill truncated it (it is written in place) or if it names a missing one: Ray would
    refuse to resume. The workers find the checkpoints themselves.
    """
    if not run.exists(RAYS_LIST):
        return
    try:
        listed = [result["checkpoint_dir_name"] for result in run.read_json(RAYS_LIST)["checkpoint_results"]]
    except (ValueError, KeyError, TypeError):
        listed = [""]
    if any(not name or not run.exists(f"checkpoints/{name}") for name in listed):
        run.delete(RAYS_LIST)


# --- in a worker -----------------------------------------------------------------------------------------------------


def train_worker(given: dict[str, Any]) -> None:
    """One Ray Train worker."""
    run = Storage(given["run"])
    if run.exists("failure.json"):  # from the previous attempt: a retry would fail alike
        return
    config, host = Config.model_validate(given["config"]), RayWorker(run)
    if not config.cluster.gpus_per_worker:
        cores = os.cpu_count() or 1
        use_cores(config.cluster.threads_per_worker or max(1, cores // host.context.get_local_world_size()))
    train_run(config, run, given["sets"], host, show=set_gauge, began=given["began"])


class RayWorker:
    """A worker of Ray Train, as the loop sees it."""

    def __init__(self, run: Storage) -> None:
        self.run, self.looked_at = run, time.monotonic()
        self.context = ray.train.get_context()
        self.rank, self.ranks = self.context.get_world_rank(), self.context.get_world_size()

    def wrap(self, task: torch.nn.Module) -> torch.nn.Module:
        several = {"gradient_as_bucket_view": True} if self.ranks > 1 else None
        return ray.train.torch.prepare_model(task, parallel_strategy_kwargs=several)

    def checkpoints(self) -> tuple[list[SavedCheckpoint], bool]:
        """The checkpoint that Ray names, then earlier ones: any later one was incomplete when its worker was killed."""
        stored, named = self.context.get_storage(), ray.train.get_checkpoint()
        found = checkpoints_of(stored.experiment_fs_path, stored.storage_filesystem)
        if named:
            found = [named, *(other for other in found if Path(other.path).name < Path(named.path).name)]
        return [saved_checkpoint(checkpoint) for checkpoint in found], named is not None

    def report(self, metrics: Mapping[str, Any], checkpoint: Path | None = None) -> None:
        ray.train.report(dict(metrics), checkpoint=Checkpoint.from_directory(checkpoint) if checkpoint else None)

    def agree(self, step: int) -> int:
        places = [(ray.get_runtime_context().get_node_id(), step)] * self.ranks
        if self.ranks > 1:
            torch.distributed.all_gather_object(places, places[0])
        nodes, steps = ({place[i] for place in places} for i in range(2))
        if len(steps) > 1:  # a worker failed to read a checkpoint that another could; Ray restarts them
            raise RuntimeError(f"train workers read checkpoints of different steps: {sorted(steps)}")
        return len(nodes)

    def is_leaving(self) -> bool:
        is_watched = os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER") != "0"
        return is_watched and ray.train.get_preemption_info() is not None

    def asks_to_stop(self) -> bool:
        """Whether the driver asked for it; rank 0 looks on behalf of all."""
        if self.rank or time.monotonic() - self.looked_at < LOOK_S[self.run.is_local]:
            return False
        self.looked_at = time.monotonic()
        return self.run.exists(STOP)


def saved_checkpoint(checkpoint: Checkpoint) -> SavedCheckpoint:
    path = Path(checkpoint.path)
    return SavedCheckpoint(path.name, str(path.parent), checkpoint.as_directory)


def checkpoints_of(folder: str, filesystem: Any) -> list[Checkpoint]:
    """The checkpoints in a folder, latest first: their names are dates."""
    infos = filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
    names = [info.base_name for info in infos if info.type == FileType.Directory and info.base_name.startswith("checkpoint_")]
    return [Checkpoint(f"{folder}/{name}", filesystem) for name in sorted(names, reverse=True)]
