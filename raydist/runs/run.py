"""A run: its folder, config, stages and metrics, and the machine that does its work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from raydist.config import ClusterConfig, Config, flatten, override, to_yaml
from raydist.errors import InputError
from raydist.files.given import expanded
from raydist.files.making import make_stages
from raydist.files.stage import Executor, Made, Stage
from raydist.files.storage import Storage
from raydist.models.folders import is_folder, model_folder
from raydist.runs import trackers
from raydist.runs.owners import run_lease
from raydist.runs.stages import StageUse, read_stages, write_stages
from raydist.terminal import say


class Machine(Protocol):
    """Does a run's work: on a Ray cluster, or in this process."""

    def executor(self, settings: ClusterConfig) -> Executor:
        """The executor that makes parts of stages."""
        ...

    def fit(self, config: Config, run: Storage, sets: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        """Train the config's task on prepared rows; returns the contents of the run's fitted.json."""
        ...

    def show(self, name: str, value: float, /, **tags: str) -> None:
        """Set a monitoring gauge."""
        ...


@dataclass
class Owned:
    """The runs that a command holds."""

    stack: ExitStack
    names: set[str] = field(default_factory=set)

    def add(self, run: Run, wait: float = 0.0) -> None:
        if run.config.name not in self.names:
            self.stack.enter_context(run_lease(run.folder, run.config.name, wait=wait))
            self.names.add(run.config.name)


@dataclass
class Run:
    """A run. As a context manager it belongs to this command alone and calls `begin` first; finally it repeats the number of
    rejected input rows.
    """

    config: Config
    machine: Machine
    base: str | None = None  # the run of its base reader or cross-encoder, if trials share one
    stages: dict[str, StageUse] = field(default_factory=dict)  # by folder
    touched: set[str] = field(default_factory=set)  # folders of stages that this command has used
    prepared: dict[str, Any] = field(default_factory=dict)  # data sets read by this command, by name
    rejected: dict[str, int] = field(default_factory=dict)  # number of rows by data set
    owned: Owned | None = None  # what this command holds: this run, and those beside it that it has begun
    replaced: bytes | None = None  # the config of an earlier command, as `begin` has found it
    _ending: ExitStack = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the paths of models and of a tracker's database absolute: workers start in other folders."""
        flat = flatten(self.config)
        names = {key: flat.get(key) for key in ("model.name", "cross_encoder.model.name", "mining.encoder", "predict.model")}
        local = {key: str(expanded(name).absolute()) for key, name in names.items() if name and is_folder(name)}
        if uri := self.config.track.mlflow:
            local["track.mlflow"] = trackers.full_uri(uri)
        changes = {key: path for key, path in local.items() if path != flat[key]}
        if changes:
            self.config = override(self.config, changes)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.held())
            self.begin()
            self._ending = stack.pop_all()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._ending:
            if kind is None:
                self.report_rejected()

    @contextmanager
    def held(self, *, wait: float = 0.0) -> Iterator[None]:
        """While the block runs, no other command can begin this run, nor those beside it that the block begins."""
        with ExitStack() as stack:
            self.owned = Owned(stack)
            try:
                self.owned.add(self, wait)
                yield
            finally:
                self.owned = None

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
        """Threads per actor."""
        cluster = self.config.cluster
        return cluster.threads_per_worker or max(1, (os.cpu_count() or 1) // cluster.num_actors)

    def beside(self, name: str, changes: Mapping[str, Any] | None = None) -> Run:
        """Another run in the same storage, with some settings changed."""
        is_shared = bool(self.base) and name.startswith(str(self.base))  # the driver of the sweep holds it
        owned = None if is_shared else self.owned
        return Run(override(self.config, {**(changes or {}), "name": name}), self.machine, owned=owned)

    def begin(self) -> None:
        """Write the resolved config, unless the run is trained and keeps its own; load the stages used by earlier commands."""
        trackers.check_installed(self.config.track)
        self.storage.check_reachable()
        if self.owned:
            self.owned.add(self)
        trained = self.folder.exists("training.json")
        if self.config.evaluate.predictions and self.config.task == "reader" and (trained or self.folder.sizes("predictions")):
            raise InputError(
                f"run {self.config.name!r} in {self.folder.path()} has answers of its own, and evaluate.predictions would put "
                f"another tool's scores in place of theirs: give those a run of their own (name=...)"
            )
        self.replaced = self.folder.read_bytes("config.yaml") if self.folder.exists("config.yaml") else None
        if not trained:
            self.save_config()
        self.stages = read_stages(self.folder)

    def restore_config(self) -> None:
        """Put back the config that `begin` replaced, for a command that was refused."""
        if self.replaced is not None:
            self.folder.write_bytes("config.yaml", self.replaced)

    def save_config(self) -> None:
        self.folder.write_bytes("config.yaml", to_yaml(self.config).encode())

    # --- stages ------------------------------------------------------------------------------------------------------

    def make(self, stage: Stage, title: str, label: str | None = None) -> Made:
        """Make or reuse a stage; `title` is its readable name, `label` that of its progress."""
        return self.make_all({"": (stage, title)}, label=label or stage.name.replace("_", " "))[""]

    def make_all(self, stages: Mapping[str, tuple[Stage, str]], *, label: str) -> dict[str, Made]:
        """Make several stages in one execution; equal stages are made once."""
        unique = {stage.fingerprint: (stage, title) for stage, title in stages.values()}
        before = {stage.folder for stage, _ in unique.values() if self.storage.exists(f"{stage.folder}/manifest.json")}
        for stage, title in stages.values():  # in advance, so that `raydist clean` keeps it
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
        """Record a stage. It replaces those of earlier commands with the same title."""
        stale = [old.folder for old in self.stages.values() if old.title == use.title and old.folder not in self.touched]
        for folder in stale:
            del self.stages[folder]
        self.touched.add(use.folder)
        self.stages[use.folder] = use
        write_stages(self.folder, self.stages)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def reject(self, name: str, rows: int) -> None:
        """Record the number of rejected rows of a data set."""
        self.rejected[name] = rows
        self.machine.show("raydist_rejected_rows", rows, run=self.config.name, set=name)

    def report_rejected(self) -> None:
        """Report rejected input at the end of a command."""
        if self.rejected:
            listed = ", ".join(f"{number:,} of {name}" for name, number in self.rejected.items())
            say(f"rejected rows: {listed}; see {self.folder.path('rejected')}")

    def add_metrics(self, values: Mapping[str, Any], instead_of: str | None = None) -> None:
        """Add final numbers to metrics.json, replacing those with the same prefix (by default, the same first word)."""
        known = self.folder.read_json("metrics.json") if self.folder.exists("metrics.json") else {}
        prefixes = (instead_of,) if instead_of else tuple({key.split(".")[0] + "." for key in values})
        kept = {key: value for key, value in known.items() if not key.startswith(prefixes)}
        self.folder.write_json("metrics.json", dict(sorted({**kept, **values}.items())))
