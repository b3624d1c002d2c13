"""A trial of a sweep as an ordinary run in <sweep>/trials/ID."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raydist.config import Config, override
from raydist.errors import InputError, TrainingFailed
from raydist.files.given import expanded
from raydist.files.lease import DEAD_SECONDS
from raydist.files.storage import Storage, fingerprint
from raydist.models.folders import is_folder
from raydist.runs import trackers
from raydist.runs.run import Machine, Run
from raydist.sweep.ledger import Ledger
from raydist.sweep.plan import Trial


class TrialFlow(Protocol):
    """A task's trials, with their shared and their own stages: `reader/trials.py`, `retrieval/trials.py`."""

    def shared_settings(self, config: Config, *, all_stages: bool = True) -> dict[str, Any]:
        """The settings behind the stages that trials share."""
        ...

    def base_settings(self, config: Config) -> dict[str, Any] | None:
        """The settings that define the base reader or the cross-encoder; None if there is none."""
        ...

    def prepare_trials(self, run: Run, *, all_stages: bool = True) -> dict[str, str]:
        """Make all shared stages, or only those of data sets; returns the fingerprints of the data sets."""
        ...

    def run_trial(self, run: Run, *, callbacks: Sequence[Any] = ()) -> dict[str, str]:
        """Train and score one trial; returns the fingerprints of its data sets."""
        ...


def trial_flow(config: Config) -> TrialFlow:
    """The trial flow of a config's task."""
    if config.task == "retriever":
        from raydist.retrieval import trials as retrieval_trials

        return retrieval_trials
    from raydist.reader import trials as reader_trials

    return reader_trials


@dataclass(frozen=True)
class TrialOrder:
    """A trial as its runner gets it; as JSON it crosses to any process."""

    trial: Trial
    sweep: str  # the folder's URI
    config: Config
    base: str | None  # the run shared with other trials

    def to_json(self) -> str:
        plain = {"choice": dict(self.trial.choice), "seed": self.trial.seed, "sweep": self.sweep, "base": self.base}
        return json.dumps(plain | {"config": self.config.model_dump(mode="json")})

    @classmethod
    def from_json(cls, text: str) -> TrialOrder:
        plain = json.loads(text)
        trial = Trial(plain["choice"], plain["seed"])
        return cls(trial, plain["sweep"], Config.model_validate(plain["config"]), plain["base"])


def run_trial(order: TrialOrder, machine: Machine, *, callbacks: Sequence[Any] = ()) -> None:
    """Train and score a trial whose shared stages exist, and write its entry in the ledger."""
    began = time.time()
    entry = order.trial.entry
    try:
        run = Run(order.config, machine, base=order.base)
        with run.held(wait=2 * DEAD_SECONDS):  # its process may have died on another node, or be ending with a killed driver
            run.begin()
            entry["data"] = trial_flow(order.config).run_trial(run, callbacks=callbacks)
        metrics = run.folder.read_json("metrics.json")
        entry |= {"status": "done", "steps": metrics.get("train.steps"), "metrics": metrics}
    except TrainingFailed as error:
        entry |= {"status": "failed", "message": str(error)}
    except Exception as error:
        lines = str(error).strip().splitlines()
        message = str(error) if isinstance(error, InputError) else lines[-1] if lines else type(error).__name__
        entry |= {"status": "error", "message": message, "input": isinstance(error, InputError)}
    Ledger(Storage(order.sweep)).add(entry | {"seconds": round(time.time() - began, 1)})


def trial_config(config: Config, sweep: str, trial: Trial, *, threads: int | None = None) -> Config:
    """A trial's own config. Its paths are absolute: it runs in another folder, perhaps on another node."""
    storage = Storage(config.storage)
    own: dict[str, Any] = {
        "name": f"{sweep}/trials/{trial.id}",
        "data.root": str(expanded(config.data.root).absolute()),
    }
    if storage.is_local:
        own["storage"] = storage.path()
    models = {"model.name": config.model.name}
    if config.task == "retriever":
        own["retriever.variants"] = []  # a trial is compared with the other trials
        models |= {"mining.encoder": config.mining.encoder, "cross_encoder.model.name": config.cross_encoder.model.name}
    for key, name in models.items():
        if is_folder(name):
            own[key] = str(expanded(name).absolute())
    if threads and not config.cluster.threads_per_worker:
        own["cluster.threads_per_worker"] = threads
    if config.track.on:
        own["track.group"] = sweep
    if config.track.mlflow:
        own["track.mlflow"] = trackers.full_uri(config.track.mlflow)
    return override(config, own)


def base_name(sweep: str, config: Config) -> str | None:
    """The run of the base reader or cross-encoder, shared by all trials with the same settings for it; None for a one-stage
    reader.
    """
    settings = trial_flow(config).base_settings(config)
    return None if settings is None else f"{sweep}/bases/{fingerprint(settings)[:12]}"
