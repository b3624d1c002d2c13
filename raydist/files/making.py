"""Completing stages: keep whole ones, make missing parts, and record finished parts.

Of two commands that need a stage, one makes it and the other waits: whoever makes a stage holds its lease, stages/NAME.lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from raydist.files.lease import Lease, Owner, owner_of
from raydist.files.stage import (
    MANIFEST,
    WORLD,
    Executor,
    Job,
    Line,
    Made,
    Manifest,
    Stage,
    describe_part,
    part_name,
    read_manifest,
    whole_manifest,
    write_manifest,
)
from raydist.files.storage import Storage, Unreachable
from raydist.terminal import Progress, say

JOURNAL_SECONDS = 10.0  # between writes of finished parts' lines; those that a kill loses are read again
LOOK_SECONDS = 1.0  # between looks at a stage that another command makes
READERS = 16  # parts of an interrupted stage that are looked at together


def make_stages(
    executor: Executor,
    storage: Storage,
    stages: Sequence[tuple[Stage, str]],
    *,
    label: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Made]:
    """Make stages, each given with its readable title, in one execution; `label` names its progress."""
    folders = [storage.at(stage.folder) for stage, _ in stages]
    manifests = [whole_manifest(folder) for folder in folders]
    for (_, title), manifest in zip(stages, manifests):
        if manifest:
            say(f"{title}: already done ({manifest.rows:,} rows)")
    with contextlib.ExitStack() as held:
        unfinished = [place for place, manifest in enumerate(manifests) if manifest is None]
        for place in sorted(unfinished, key=lambda place: stages[place][0].folder):  # in the order of all who want several
            stage, title = stages[place]
            held.enter_context(making(storage, stage.folder, title))
            if manifest := whole_manifest(folders[place]):
                say(f"{title}: made by another command meanwhile ({manifest.rows:,} rows)")
                manifests[place] = manifest
        _make_missing(executor, stages, folders, manifests, label, progress)
    return [_made(stage, folder, manifest) for (stage, _), folder, manifest in zip(stages, folders, manifests) if manifest]


@contextlib.contextmanager
def making(storage: Storage, folder: str, title: str) -> Iterator[None]:
    """Hold a stage's folder while it is made, after another command that makes it."""
    lease, told = _lease(storage, folder), False
    while other := lease.take():
        if not told:
            say(f"{title}: {other} makes it, and this command waits")
            told = True
        time.sleep(LOOK_SECONDS)
    with contextlib.closing(lease):
        yield


def maker_of(storage: Storage, folder: str) -> Owner | None:
    """The command that makes (or deletes) a stage's folder at the moment."""
    return owner_of(*_place(storage, folder))


def delete_stage(storage: Storage, folder: str, is_used: Callable[[], Owner | None]) -> Owner | None:
    """Delete a stage's folder; or return who makes or uses it. What marks it as whole goes first, so that what an interrupted
    deletion leaves is made again.
    """
    lease = _lease(storage, folder)
    if other := lease.take():
        return other
    with contextlib.closing(lease):
        if other := is_used():
            return other
        for name in (MANIFEST, WORLD):
            storage.delete(f"{folder}/{name}")
        storage.delete(folder)
    return None


def _lease(storage: Storage, folder: str) -> Lease:
    return Lease(*_place(storage, folder), str)


def _place(storage: Storage, folder: str) -> tuple[Storage, str]:
    above, _, name = folder.rpartition("/")
    return storage.at(above), name


def _make_missing(
    executor: Executor,
    stages: Sequence[tuple[Stage, str]],
    folders: Sequence[Storage],
    manifests: list[Manifest | None],
    label: str,
    progress: Callable[[int, int], None],
) -> None:
    """Make the stages without a manifest, and fill in theirs."""
    unfinished = [place for place, manifest in enumerate(manifests) if manifest is None]
    started = time.monotonic()
    found = [finished_parts(stages[place][0], folders[place]) for place in unfinished]
    jobs = [_job(stages[place][0], folders[place], parts) for place, parts in zip(unfinished, found)]
    missing, before = sum(len(job.numbers) for job in jobs), sum(map(len, found))
    if missing:
        if before:
            say(f"{label}: resuming after {before} finished part" + "s" * (before > 1))
        with Progress(label, missing + before, "parts", before) as bar, contextlib.ExitStack() as stack:
            journals = [stack.enter_context(_Journal(job.folder)) for job in jobs]
            for done, (place, number, line) in enumerate(executor.lines(jobs), before + 1):
                found[place][number] = line
                journals[place].add(line)
                bar.update(done)
                progress(done, missing + before)
    for place, parts in zip(unfinished, found):
        manifests[place] = _finish(stages[place][0], folders[place], parts, started)


def _job(stage: Stage, folder: Storage, parts: dict[int, Line]) -> Job:
    return Job(stage, folder, [number for number in range(stage.parts) if number not in parts])


def _finish(stage: Stage, folder: Storage, parts: dict[int, Line], started: float) -> Manifest:
    lines = stage.finish(folder, [parts[number] for number in range(stage.parts)])
    manifest = write_manifest(folder, stage, lines, time.monotonic() - started)
    for name in _journals(folder):
        folder.delete(name)
    return manifest


def _made(stage: Stage, folder: Storage, manifest: Manifest) -> Made:
    made = Made(folder, stage.name, stage.fingerprint, stage.kind)
    made.__dict__["manifest"] = manifest  # already loaded
    return made


# --- resuming --------------------------------------------------------------------------------------------------------


def finished_parts(stage: Stage, folder: Storage) -> dict[int, Line]:
    """The intact parts of a stage that was interrupted, or of a finished one.

    A part older than the journal (or manifest) that lists it is checked by size; any other is read. A damaged one is deleted,
    so that it is made again.
    """
    files = folder.files()
    numbers = {part_name(number, stage.kind): number for number in range(stage.parts)}
    names = [name for name in files if name in numbers]
    if not names:
        return {}
    noted, checksums = _noted(folder, files)

    def described(name: str) -> Line | None:
        file = files[name]
        if name in noted and noted[name][0].bytes == file.size and (file.mtime_ns or 0) < noted[name][1]:
            return noted[name][0]
        try:
            line = describe_part(name, folder.read_bytes(name))
            if checksums.get(name, line.checksum) == line.checksum:
                return line
        except Unreachable:  # which says nothing of the part
            raise
        except (pa.ArrowException, OSError, ValueError):
            pass
        folder.delete(name)
        return None

    with ThreadPoolExecutor(READERS) as pool:
        return {numbers[name]: line for name, line in zip(names, pool.map(described, names)) if line}


def _noted(folder: Storage, files: dict) -> tuple[dict[str, tuple[Line, int]], dict[str, str]]:
    """Lines of journals with their journal's write time, and the checksums in the manifest."""
    noted: dict[str, tuple[Line, int]] = {}
    for name in filter(_is_journal, files):
        written = files[name].mtime_ns or 0
        noted |= {line.name: (line, written) for line in _read_journal(folder, name)}
    manifest = read_manifest(folder).parts if MANIFEST in files else []
    return noted, {line.name: line.checksum for line in manifest}


def _is_journal(name: str) -> bool:
    return name.startswith("journal-")


def _journals(folder: Storage) -> list[str]:
    return [name for name in folder.files() if _is_journal(name)]


def _read_journal(folder: Storage, name: str) -> Iterator[Line]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        for text in folder.read_bytes(name).decode().splitlines():
            yield Line(**json.loads(text))


class _Journal:
    """Records the lines of parts every few seconds, so that an interrupted stage of many parts need not read them all."""

    def __init__(self, folder: Storage) -> None:
        self.folder, self.written, self.number = folder, time.monotonic(), 0
        self.lines: list[Line] = []

    def __enter__(self) -> _Journal:
        return self

    def add(self, line: Line) -> None:
        self.lines.append(line)
        if time.monotonic() - self.written > JOURNAL_SECONDS:
            self.write()

    def write(self) -> None:
        if not self.lines:
            return
        if not self.number:
            self.number = 1 + max((int(name[8:].partition(".")[0]) for name in _journals(self.folder)), default=-1)
        text = "".join(json.dumps(dataclasses.asdict(line)) + "\n" for line in self.lines)
        self.folder.write_bytes(f"journal-{self.number:05d}.jsonl", text.encode())
        self.lines, self.written, self.number = [], time.monotonic(), self.number + 1

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:  # else the manifest comes next
            with contextlib.suppress(Exception):
                self.write()
