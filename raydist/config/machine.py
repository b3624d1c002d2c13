"""Where a run is computed and logged; none of it changes a result."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from raydist.config.section import NOTHING, Section, key

Workers = Annotated[int, Field(ge=1)]


class ClusterConfig(Section):
    """Where the work runs. Nothing here changes a result, but for dropout, which is drawn per worker, and rounding: sums depend
    on train workers and on threads. With threads_per_worker set, the number of actors changes no bit.
    """

    address: str | None = key(None, "Address of a running cluster; null: RAY_ADDRESS, else a local one is started", NOTHING)
    local_cpus: int | None = key(
        None, "Logical CPUs of a local cluster; null: enough for workers and Ray Data", NOTHING, unit="CPUs", ge=1
    )
    workers: Workers | tuple[Workers, Workers] = key(
        1, "Training workers, a number or [min, max]; they share each batch", NOTHING, unit="processes"
    )
    threads_per_worker: int | None = key(
        None, "Threads of each worker or actor; null: this machine's cores divided among them", NOTHING, unit="threads", ge=1
    )
    gpus_per_worker: float = key(0, "GPUs of each training worker; fractions are allowed", NOTHING, unit="GPUs", ge=0)
    actors: int = key(1, "Model replicas of a Ray Data stage", NOTHING, unit="processes", ge=1)
    max_cpus: int | None = key(
        None,
        "CPUs of the cluster that a run takes at once, for training workers, actors and tasks; null: what they ask for",
        NOTHING,
        unit="CPUs",
        ge=1,
        later=True,
    )
    max_failures: int = key(3, "Lost training workers that a run tolerates; -1: any number", NOTHING, unit="failures", ge=-1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if isinstance(self.workers, tuple) and self.workers[0] > self.workers[1]:
            raise ValueError(f"workers [min, max] should not fall, got {list(self.workers)}")
        least = self.workers[0] if isinstance(self.workers, tuple) else self.workers
        if self.max_cpus and least > self.max_cpus:
            raise ValueError(f"workers take a CPU each: {least} are more than max_cpus ({self.max_cpus}) allows")
        return self

    @property
    def max_workers(self) -> int:
        most = self.workers[1] if isinstance(self.workers, tuple) else self.workers
        return min(most, self.max_cpus or most)

    @property
    def num_workers(self) -> int | tuple[int, int]:
        """The number of train workers, or its range."""
        return (self.workers[0], self.max_workers) if isinstance(self.workers, tuple) else self.workers

    @property
    def num_actors(self) -> int:
        return min(self.actors, self.max_cpus or self.actors)


class TrackConfig(Section):
    """Experiment trackers, in addition to the run's own files. Nothing here changes a result."""

    mlflow: str | None = key(None, "Tracking URI of MLflow: http://HOST:5000, sqlite:///runs/mlflow.db", NOTHING)
    wandb: str | None = key(None, "Project of Weights & Biases: PROJECT or TEAM/PROJECT", NOTHING)
    experiment: str = key("raydist", "MLflow experiment of the run", NOTHING)
    group: str | None = key(None, "Group name shared by related runs; trials get the name of their sweep", NOTHING)

    @field_validator("mlflow")
    @classmethod
    def _no_folder_no_password(cls, value: str | None) -> str | None:
        if value and (value.startswith("file:") or not ("://" in value or value.startswith("databricks"))):
            raise ValueError(f"MLflow no longer keeps runs in folders: give a server or sqlite:///mlflow.db, got {value!r}")
        if value and value.startswith("http") and "@" in value.split("/")[2]:
            raise ValueError(
                "an address in a config is shown in reports: leave user and password out of it, and put them into "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return value

    @property
    def on(self) -> list[str]:
        """The trackers in use; each is a package and an extra of the same name."""
        return [name for name in ("mlflow", "wandb") if getattr(self, name)]
