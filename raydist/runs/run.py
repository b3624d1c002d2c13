"""A run: its folder, its config, the stages it used, its metrics; and where its work is done."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from raydist.config import ClusterConfig, Config, flatten, override, to_yaml
from raydist.errors import InputError
from raydist.files.making import make_stages
from raydist.files.stage import Executor, Made, Stage
from raydist.files.storage import Storage
from raydist.models.folders import is_folder, model_folder
from raydist.runs import trackers
from raydist.runs.stages import StageUse, read_stages, write_stages
from raydist.terminal import say


class Machine(Protocol):
    """Where work is done: on a Ray cluster, or in this process."""

    def executor(self, settings: ClusterConfig) -> Executor:
        """What makes the parts of stages."""
        ...

    def fit(self, config: Config, run: Storage, sets: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        """Train what the config's task says, on rows that are there; what the run's fitted.json holds."""
        ...

    def show(self, name: str, value: float, /, **tags: str) -> None:
        """Set a gauge for those who watch the machine."""
        ...


@dataclass
class Run:
    """A run. As a context manager it begins at the start and repeats at the end how many input rows were rejected."""

    config: Config
    machine: Machine
    base: str | None = None  # the name of its base reader's run, or of its cross-encoder's, where trials share one
    stages: dict[str, StageUse] = field(default_factory=dict)  # by folder
    touched: set[str] = field(default_factory=set)  # folders of stages that this command has used
    prepared: dict[str, Any] = field(default_factory=dict)  # data sets that this command has read, by name
    rejected: dict[str, int] = field(default_factory=dict)  # rows of each data set

    def __post_init__(self) -> None:
        """Folders of models and a tracker's database as full paths: workers start elsewhere."""
        flat = flatten(self.config)
        names = {key: flat.get(key) for key in ("model.name", "cross_encoder.model.name", "mining.encoder", "predict.model")}
        local = {key: str(Path(name).expanduser().absolute()) for key, name in names.items() if name and is_folder(name)}
        if uri := self.config.track.mlflow:
            local["track.mlflow"] = trackers.full_uri(uri)
        changes = {key: path for key, path in local.items() if path != flat[key]}
        if changes:
            self.config = override(self.config, changes)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.report_rejected()

    @cached_property
    def storage(self) -> Storage:
        return Storage(self.config.storage)

    @cached_property
    def folder(self) -> Storage:
        return self.storage.at(self.config.name)

    @cached_property
    def model_folder(self) -> Path:
        may_have_two = self.config.task == "retriever" and self.config.retriever.towers != "shared"
        return model_folder(self.config.model.name, self.config.model.revision, towers=may_have_two)

    @property
    def threads(self) -> int:
        """Of each actor."""
        cluster = self.config.cluster
        return cluster.threads_per_worker or max(1, (os.cpu_count() or 1) // cluster.actors)

    def beside(self, name: str, changes: Mapping[str, Any] | None = None) -> Run:
        """Another run in the same storage, with some settings changed."""
        return Run(override(self.config, {**(changes or {}), "name": name}), self.machine)

    def begin(self) -> None:
        """Write the resolved config, unless a trained run has its own; remember the stages that earlier commands used."""
        trackers.check_installed(self.config.track)
        trained = self.folder.exists("training.json")
        if self.config.evaluate.predictions and self.config.task == "reader" and (trained or self.folder.sizes("predictions")):
            raise InputError(
                f"run {self.config.name!r} in {self.folder.path()} has answers of its own, and evaluate.predictions would put "
                f"another tool's scores in place of theirs: give those a run of their own (name=...)"
            )
        if not trained:
            self.save_config()
        self.stages = read_stages(self.folder)

    def save_config(self) -> None:
        self.folder.write_bytes("config.yaml", to_yaml(self.config).encode())

    # --- stages ------------------------------------------------------------------------------------------------------

    def make(self, stage: Stage, title: str, label: str | None = None) -> Made:
        """Make a stage, or take it as it is; `title` names it for people, `label` its progress."""
        return self.make_all({"": (stage, title)}, label=label or stage.name.replace("_", " "))[""]

    def make_all(self, stages: Mapping[str, tuple[Stage, str]], *, label: str) -> dict[str, Made]:
        """Make several stages in one execution; the same stage asked for twice is made once."""
        unique = {stage.fingerprint: (stage, title) for stage, title in stages.values()}
        before = {stage.folder for stage, _ in unique.values() if self.storage.exists(f"{stage.folder}/manifest.json")}
        for stage, title in stages.values():  # before it is made, so that `raydist clean` leaves it alone
            self.use(StageUse(stage.folder, title, reused=stage.folder in before, parts=stage.parts))

        def show(done: int, total: int) -> None:
            self.machine.show("raydist_stage_parts", done, run=self.config.name, stage=label, state="done")
            self.machine.show("raydist_stage_parts", total, run=self.config.name, stage=label, state="total")

        executor = self.machine.executor(self.config.cluster)
        made = make_stages(executor, self.storage, list(unique.values()), label=label, progress=show)
        whole = dict(zip(unique, made))
        for stage, title in stages.values():
            manifest = whole[stage.fingerprint].manifest
            self.use(StageUse(stage.folder, title, manifest.rows, manifest.seconds, stage.folder in before))
        return {name: whole[stage.fingerprint] for name, (stage, _) in stages.items()}

    def use(self, use: StageUse) -> None:
        """Note a stage. Those of an earlier command with the same title give way."""
        stale = [old.folder for old in self.stages.values() if old.title == use.title and old.folder not in self.touched]
        for folder in stale:
            del self.stages[folder]
        self.touched.add(use.folder)
        self.stages[use.folder] = use
        write_stages(self.folder, self.stages)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def reject(self, name: str, rows: int) -> None:
        """Note how many rows of a data set were rejected."""
        self.rejected[name] = rows
        self.machine.show("raydist_rejected_rows", rows, run=self.config.name, set=name)

    def report_rejected(self) -> None:
        """At the end of a command: how much of its input was left out."""
        if self.rejected:
            listed = ", ".join(f"{number:,} of {name}" for name, number in self.rejected.items())
            say(f"rejected rows: {listed}; see {self.folder.path('rejected')}")

    def add_metrics(self, values: Mapping[str, Any], instead_of: str | None = None) -> None:
        """Final numbers, added to metrics.json in place of those that begin alike (by default, with the same first word)."""
        known = self.folder.read_json("metrics.json") if self.folder.exists("metrics.json") else {}
        prefixes = (instead_of,) if instead_of else tuple({key.split(".")[0] + "." for key in values})
        kept = {key: value for key, value in known.items() if not key.startswith(prefixes)}
        self.folder.write_json("metrics.json", dict(sorted({**kept, **values}.items())))
