"""MLflow and Weights & Biases: copies of a run's log, beside its own files. Both are extras, and neither changes a result.

Each tracker has its own thread, so that a slow server delays no step. A tracker that fails is dropped with one message: the run
continues, and its own files have every value. The id that a tracker assigned is kept in the run's folder (mlflow.json,
wandb.json), so that a resumed run continues there, too, instead of appearing twice.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from raydist import __version__
from raydist.config import Config, TrackConfig, flatten
from raydist.errors import InputError
from raydist.files.given import expanded
from raydist.files.storage import Storage, fingerprint
from raydist.terminal import say

PATIENCE_S = 60.0  # for values still in transit when a run ends
BATCH = 100  # values that MLflow takes in one request
PRIVATE = ("storage", "track")  # sections not sent: their addresses may contain passwords


def check_installed(track: TrackConfig) -> None:
    """Reject a tracker whose package is not installed. A folder of that name, like the one wandb creates, is not a package."""
    for name in track.on:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise InputError(
                f"track.{name} is set, and {name} is not installed: pip install 'raydist[{name}]', or leave track.{name} out"
            )


def full_uri(uri: str) -> str:
    """The URI with a database file's path made absolute; other addresses unchanged."""
    start = "sqlite:///"
    return f"{start}{expanded(uri.removeprefix(start)).absolute()}" if uri.startswith(start) else uri


class Tracker:
    """One tracker of a run. Its methods never raise, and only `close` waits, for a limited time; `problem` is the error."""

    def __init__(self, name: str, config: Config, run: Storage) -> None:
        self.name, self.problem = name, ""
        self._waiting: queue.SimpleQueue[tuple[dict[str, float], int | None] | str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(config, run), name=f"track-{name}", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Log the values of a step or, without a step, final values."""
        if self._thread.is_alive():
            self._waiting.put(({name.replace(".", "/"): value for name, value in values.items()}, step))

    def close(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._waiting.put(status)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._give_up(f"it took more than {PATIENCE_S:.0f} s to end")

    def _work(self, config: Config, run: Storage) -> None:
        try:
            remote = REMOTES[self.name](config, run)
            while not isinstance(given := self._waiting.get(), str):
                remote.log(*given)
            remote.close(given)
        except Exception as error:
            self._give_up(" ".join(str(error).split())[:300] or type(error).__name__)

    def _give_up(self, why: str) -> None:
        self.problem = self.problem or (
            f"{self.name}: {why}; nothing more is sent there, the run goes on, and metrics.jsonl and metrics.json have it all"
        )


def open_trackers(config: Config, run: Storage) -> list[Tracker]:
    """The trackers that the config requests; they continue the run's earlier log, if any."""
    check_installed(config.track)
    if config.track.mlflow:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on import: send data only where the config says
    for name in config.track.on:
        importlib.import_module(name)  # not in a thread: others may be importing
    return [Tracker(name, config, run) for name in config.track.on]


def tell_end(config: Config, run: Storage, status: str = "FINISHED") -> None:
    """Report how a run ended; if well, with its final numbers (metrics.json) under `final`."""
    if not config.track.on:
        return
    values: dict[str, float] = {}
    if status == "FINISHED" and run.exists("metrics.json"):
        found = run.read_json("metrics.json")
        values = {f"final.{key}": value for key, value in found.items() if type(value) in (int, float)}
    for tracker in open_trackers(config, run):
        if values:
            tracker.log(values)
        tracker.close(status)
        if tracker.problem:
            say(tracker.problem)


# --- what trackers receive about a run -------------------------------------------------------------------------------


def _tags(config: Config, run: Storage) -> dict[str, str]:
    tags = {"task": config.task, "seed": str(config.seed), "path": run.path(), "raydist": __version__}
    if run.exists("training.json"):
        tags["fingerprint"] = fingerprint(run.read_json("training.json")["identity"])
    return tags | ({"group": config.track.group} if config.track.group else {})


def _known(run: Storage, name: str, at: str) -> str | None:
    """The run's id at this address; None if it is new there."""
    known = run.read_json(f"{name}.json") if run.exists(f"{name}.json") else {}
    return known["id"] if known.get("at") == at else None


# --- the trackers ----------------------------------------------------------------------------------------------------


class Remote(Protocol):
    """The run on a tracker's side."""

    def log(self, values: Mapping[str, float], step: int | None) -> None: ...

    def close(self, status: str) -> None: ...


class MlflowRun:
    """An MLflow run. No step of a value is logged twice, even if it is repeated after a resume."""

    def __init__(self, config: Config, run: Storage) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # we report its errors
        uri = config.track.mlflow
        assert uri is not None
        self.client = MlflowClient(tracking_uri=uri)
        self.last: dict[str, int] = {}
        known = _known(run, "mlflow", uri)
        self.resumed = known is not None
        if known:
            self.id = known
            self.client.update_run(known, status="RUNNING")
            return
        made = self.client.create_run(self._experiment(config), run_name=config.name, tags=_tags(config, run))
        self.id = made.info.run_id
        run.write_json("mlflow.json", {"id": self.id, "at": uri})
        settings = {key: value for key, value in flatten(config).items() if key.split(".")[0] not in PRIVATE}
        for some in _batches([Param(_allowed(key), str(value)) for key, value in settings.items()]):
            self.client.log_batch(self.id, params=some)

    def _experiment(self, config: Config) -> str:
        """The experiment's id: create first, then look up, since trials start at the same time."""
        from mlflow.exceptions import MlflowException

        try:
            return self.client.create_experiment(config.track.experiment)
        except MlflowException:
            found = self.client.get_experiment_by_name(config.track.experiment)
            if found is None:
                raise
            return found.experiment_id

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        names = {_allowed(name): value for name, value in values.items()}
        new = {name: value for name, value in names.items() if step is None or step > self._last(name)}
        self.last |= dict.fromkeys(new, step or 0)
        for some in _batches([Metric(name, float(value), now, step or 0) for name, value in new.items()]):
            self.client.log_batch(self.id, metrics=some)

    def _last(self, name: str) -> int:
        """The last step logged for this value, now or before a resume."""
        if name not in self.last:
            history = self.client.get_metric_history(self.id, name) if self.resumed else []
            self.last[name] = max((metric.step for metric in history), default=-1)
        return self.last[name]

    def close(self, status: str) -> None:
        self.client.set_terminated(self.id, status)


def _allowed(name: str) -> str:
    """The name without characters that MLflow rejects: P@1 becomes P_1."""
    return re.sub(r"[^\w./: -]", "_", name)


def _batches(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + BATCH] for start in range(0, len(values), BATCH))


class WandbRun:
    """A Weights & Biases run. It ignores steps it already has. Offline, `wandb sync` uploads RUN/wandb."""

    def __init__(self, config: Config, run: Storage) -> None:
        import wandb

        project = config.track.wandb
        assert project is not None
        known = _known(run, "wandb", project)
        id = known or uuid.uuid4().hex[:16]
        run.write_json("wandb.json", {"id": id, "at": project})
        tags = _tags(config, run)
        settings = {key: value for key, value in config.model_dump(mode="json").items() if key not in PRIVATE}
        self.folder = run
        self.scratch = None if run.is_local else tempfile.TemporaryDirectory()
        wandb.setup(settings=wandb.Settings(silent=True, console="off"))  # also never prompts for a key
        self.run = wandb.init(
            entity=project.rpartition("/")[0] or None,
            project=project.rpartition("/")[2],
            id=id,
            name=config.name,
            group=config.track.group,
            tags=[f"{key}:{tags[key]}" for key in ("task", "seed", "fingerprint") if key in tags],
            config=settings | {"path": tags["path"], "raydist": tags["raydist"]},
            allow_val_change=True,  # a resumed run may have another number of workers
            dir=self.scratch.name if self.scratch else run.path(),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(finish_timeout=PATIENCE_S - 5, finish_timeout_raises=True),
        )

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        if step is None:
            self.run.summary.update(dict(values))
        else:
            self.run.log(dict(values), step=step)

    def close(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "FINISHED" else 1)
        if self.scratch:
            if self.run.offline:
                self.folder.upload(Path(self.scratch.name, "wandb"), "wandb")
            self.scratch.cleanup()


REMOTES: dict[str, Callable[[Config, Storage], Remote]] = {"mlflow": MlflowRun, "wandb": WandbRun}
