"""The locations of a run's input files: paths, globs, and the embedded sample world, made on first use."""

from __future__ import annotations

import tempfile
from pathlib import Path

from raydist.files.given import expanded
from raydist.files.making import making
from raydist.files.stage import WORLD
from raydist.files.storage import Place, Storage, fingerprint
from raydist.runs.run import Run
from raydist.runs.stages import StageUse
from raydist.sample.write import VERSION, is_whole, write_sample
from raydist.terminal import Progress, say

SAMPLE = "sample:"


def locate(run: Run, pattern: str) -> Place:
    """The location of a file or glob, valid on any node: `sample:` names are in the storage's sample world; others become full
    paths, with relative ones starting at data.root.
    """
    if pattern.startswith(SAMPLE):
        return Place(pattern.removeprefix(SAMPLE), make_sample(run))
    path = expanded(run.config.data.root) / expanded(pattern)
    return Place(str(path.absolute()))


def make_sample(run: Run) -> str:
    """The URI of this config's sample world in the run's storage, made on first use."""
    sample = run.config.data.sample
    folder = f"stages/sample-{fingerprint({'version': VERSION, 'size': sample.size, 'seed': sample.seed})}"
    world = run.storage.at(folder)
    if folder in run.touched:
        return world.uri
    is_there = is_whole(world)
    run.use(StageUse(folder, "sample world", reused=is_there))
    if not is_there:
        with making(run.storage, folder, "sample world"):
            if not is_whole(world):
                say(f"sample world: writing {folder}")
                run.storage.delete(folder)  # what a deletion or a kill has left
                _write(run.storage, folder, sample.size, sample.seed)
    return world.uri


def _write(storage: Storage, folder: str, size: int | str, seed: int) -> None:
    with Progress("sample world", 0, "passages") as bar:

        def show(done: int, total: int) -> None:
            bar.update(done, total=total)

        if storage.is_local:
            write_sample(Path(storage.path(folder)), size, seed, show)
            return
        with tempfile.TemporaryDirectory() as scratch:
            write_sample(Path(scratch) / "world", size, seed, show)
            storage.upload(Path(scratch) / "world", folder, last=WORLD)
