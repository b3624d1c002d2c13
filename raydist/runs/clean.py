"""The stages that runs of a storage use, and those that none uses any more."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase

from raydist.errors import InputError
from raydist.files.lease import Owner
from raydist.files.making import delete_stage, maker_of
from raydist.files.storage import Storage
from raydist.runs.owners import LEASE, run_owner
from raydist.runs.stages import FILE, read_stages
from raydist.terminal import say

LOOK_SECONDS = 1.0
# folders inside a run that hold no runs
RUN_FOLDERS = {f"{LEASE}.lock", "checkpoints", "best", "model", "tensorboard", "wandb", "predictions", "evaluation", "rejected"}


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
    found = {_stage_of(name) for name in storage.folders("stages")}
    return [folder for name in sorted(found) if (folder := f"stages/{name}") not in used]


def clean_storage(storage: Storage, keep_runs: Sequence[str], *, yes: bool) -> None:
    """Delete unused stages, or list them; what a command makes or uses at the moment is left alone."""
    storage.check_reachable()
    unused, users = unused_stages(storage, keep_runs), StageUsers(storage)
    would_go = 0
    for stage in unused:
        user = delete_unused(storage, stage, users) if yes else users.of(stage) or maker_of(storage, stage)
        if user:
            say(f"left alone: {stage}, which {user} uses")
            continue
        say(("deleted " if yes else "unused: ") + stage)
        would_go += 1
    if not unused:
        say("nothing to clean: every stage is used by a run that is kept")
    elif would_go and not yes:
        say(f"{would_go} stages would go; add --yes to delete them")


class StageUsers:
    """The stages that commands use at the moment, looked up again after a second."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.found, self.seen_at = storage, dict[str, Owner](), float("-inf")

    def of(self, stage: str) -> Owner | None:
        if time.monotonic() - self.seen_at > LOOK_SECONDS:
            owners = {run: owner for run in runs_in(self.storage) if (owner := _working_on(self.storage, run))}
            self.found = {folder: owner for run, owner in owners.items() for folder in read_stages(self.storage.at(run))}
            self.seen_at = time.monotonic()
        return self.found.get(stage)


def delete_unused(storage: Storage, stage: str, users: StageUsers) -> Owner | None:
    """Delete a stage with all that its writing has left; or return who makes or uses it."""
    if other := delete_stage(storage, stage, lambda: users.of(stage)):
        return other
    for name in storage.folders("stages"):
        if f"stages/{_stage_of(name)}" == stage:
            storage.delete(f"stages/{name}")
    return None


def _working_on(storage: Storage, run: str) -> Owner | None:
    """The command that works on a run, or on the sweep whose trial it is."""
    steps = run.split("/")
    above = ("/".join(steps[:end]) for end in range(len(steps), 0, -1))
    return next((owner for name in above if (owner := run_owner(storage.at(name)))), None)


def _stage_of(name: str) -> str:
    """The stage that a folder belongs to: itself, its claims (NAME.lock), or a scratch folder (.NAME.*.tmp)."""
    return name.lstrip(".").partition(".")[0]


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
