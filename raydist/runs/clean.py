"""The stages that runs of a storage use, and those that none uses any more."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase

from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.runs.stages import FILE, read_stages

# folders inside a run that hold no runs
RUN_FOLDERS = {"checkpoints", "best", "model", "tensorboard", "wandb", "predictions", "evaluation", "rejected"}


def unused_stages(storage: Storage, keep_runs: Sequence[str] = ()) -> list[str]:
    """Stage folders not named in any run's stages.json; with `keep_runs` (names or patterns), in any of these runs'."""
    if not storage.folders():
        raise InputError(f"{storage.uri} holds no runs; give the folder that `storage` names in the config")
    runs = list(runs_in(storage))
    for name in keep_runs:
        if not any(_is_called(run, name) for run in runs):
            raise InputError(f"--keep-runs {name}: no such run in {storage.uri}; there are {', '.join(runs) or 'none'}")
    left_out = {run for run in runs if keep_runs and not any(_is_called(run, name) for name in keep_runs)}
    used = used_stages(storage, but=left_out)
    return [f"stages/{name}" for name in storage.folders("stages") if f"stages/{name}" not in used]


def used_stages(storage: Storage, *, but: Container[str] = ()) -> set[str]:
    """Stage folders named in the stages.json of any run, except the runs in `but`."""
    return {folder for run in runs_in(storage) if run not in but for folder in read_stages(storage.at(run))}


def runs_in(storage: Storage, folder: str = "") -> Iterator[str]:
    """Every folder with a stages.json; a run's name may contain slashes, like those of a sweep's trials."""
    for name in storage.folders(folder):
        inner = f"{folder}/{name}" if folder else name
        if inner == "stages":
            continue
        if storage.exists(f"{inner}/{FILE}"):
            yield inner
        if name not in RUN_FOLDERS:
            yield from runs_in(storage, inner)


def _is_called(run: str, name: str) -> bool:
    """Whether a run has this name or is in a folder of this name, like a sweep's trials; `*` matches anything."""
    return fnmatchcase(run, name) or fnmatchcase(run, f"{name}/*")
