"""All checks that are possible before a job is sent, without Ray.

    job = prepare("train", "mine.yaml", ["optim.lr=2e-5"], address="http://127.0.0.1:8265")  # raises with all problems at once

The job's parcel holds the user's working directory without excluded files, the files that the config names, raydist itself, and
the resolved config. So the job needs neither raydist nor a config on the cluster, and runs the code that checked it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import raydist
from raydist.config import Config, load_config
from raydist.errors import InputError
from raydist.submission.parcel import EXCLUDES, Parcel, collect_files, is_inside
from raydist.submission.places import Places
from raydist.submission.target import Target, dashboard_url, is_loopback, reach
from raydist.sweep.plan import plan_sweep


@dataclass(frozen=True)
class Job:
    """A job that has passed preflight, ready to be sent."""

    target: Target
    command: str
    arguments: list[str]  # after the config
    config: Config
    parcel: Parcel


def prepare(
    command: str,
    config: str,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    working_dir: Path = Path("."),
    exclude: Iterable[str] = (),
    shared: Iterable[str] = (),
    insecure: bool = False,
    options: Sequence[str] = (),
    commands: Mapping[str, Iterable[str]] | None = None,
) -> Job:
    """Run every check that is possible before anything is sent; an InputError lists all problems.

    `commands` maps each command that can run as a job to the options it takes; `options` are the requested ones. Every node
    mounts the folders in `shared`, so paths in them stay unchanged.
    """
    problems = list(_option_problems(command, options, commands))
    loaded: Config | None = None
    with _noted(problems):
        loaded = _load(command, config, overrides)
    target: Target | None = None
    with _noted(problems, by_line=True):
        target = reach(address, insecure=insecure, same_versions=True)
    base, parcel = Path(os.path.abspath(working_dir.expanduser())), Parcel({}, {})
    if base.is_dir():
        problems += _fill(parcel, base, loaded, _is_here(target, address), exclude, list(shared))
    else:
        problems.append(f"working directory {working_dir}: no such folder; give one with --working-dir")
    if problems or loaded is None or target is None:
        count = f"{len(problems)} problem" + "s" * (len(problems) > 1)
        raise InputError(f"nothing was submitted: {count}\n  " + "\n  ".join(text.replace("\n", "\n  ") for text in problems))
    _add_raydist(parcel)
    return Job(target, command, list(options), loaded, parcel)


def _option_problems(command: str, options: Sequence[str], commands: Mapping[str, Iterable[str]] | None) -> Iterator[str]:
    offered = dict(commands) if commands is not None else {command: options}
    if command not in offered:
        yield f"{command}: cannot run as a job; these can: {', '.join(sorted(offered))}"
        return
    for option in options:
        if option not in offered[command]:
            yield f"{command} has no option {option}"


def _load(command: str, config: str, overrides: Sequence[str]) -> Config:
    loaded = load_config(config, overrides).config
    if command == "sweep":
        plan_sweep(loaded)
    return loaded


def _fill(
    parcel: Parcel, base: Path, config: Config | None, is_here: bool | None, exclude: Iterable[str], shared: Sequence[str]
) -> list[str]:
    """Add the working directory and the config's files to the parcel; returns the problems."""
    problems: list[str] = []
    with _noted(problems):
        parcel.files |= collect_files(base, [*EXCLUDES, "/runs", *exclude, *_own_storage(base, config)])
    if config:
        places = Places(base, config, is_here, shared)
        parcel.config = places.resolved()
        parcel.files |= places.files
        problems += places.problems
    with _noted(problems):
        parcel.check_size(base)
    return problems


def _own_storage(base: Path, config: Config | None) -> Iterator[str]:
    """The exclude pattern of a storage folder inside the working directory."""
    if config and "://" not in config.storage and is_inside(storage := base / Path(config.storage).expanduser(), base):
        yield "/" + os.path.relpath(storage, base)


def _add_raydist(parcel: Parcel) -> None:
    """Add the running raydist, unless the working directory has one."""
    if "raydist/__init__.py" not in parcel.files:
        own = collect_files(Path(raydist.__file__).parent, EXCLUDES)
        parcel.files |= {f"raydist/{name}": path for name, path in own.items()}


def _is_here(target: Target | None, address: str | None) -> bool | None:
    """Whether the cluster is on this machine; None if unknown, because it refused access."""
    if target:
        return target.is_here
    with contextlib.suppress(InputError):
        return None if is_loopback(dashboard_url(address)) else False
    return None


@contextlib.contextmanager
def _noted(problems: list[str], *, by_line: bool = False) -> Iterator[None]:
    """Collect input errors, so that the next check can run."""
    try:
        yield
    except InputError as error:
        problems += str(error).split("\n") if by_line else [str(error)]
