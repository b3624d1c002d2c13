"""Ray Data stages. A stage is a list of parts; a part's content is a function of its specification alone.

Ray Data schedules, spreads and retries the parts; each worker writes its part whole and sends back one line about it. So the
result does not depend on workers, blocks or nodes, a killed stage goes on with the parts that are missing, and nothing but
those lines passes through the driver. Memory: one part per worker.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.cluster.connect import Cluster
from raydist.cluster.watch import show
from raydist.errors import InputError
from raydist.files.stage import Manifest, Stage, describe_part, encode_table
from raydist.files.storage import Storage, StorageError, fingerprint
from raydist.terminal import Progress, say

STOP = "stop"  # in a stage's folder: a part of it failed, and the others are not to be begun


@dataclass(frozen=True)
class Work:
    """A stage and what its parts are to be made of, one specification per part."""

    stage: Stage
    specs: Sequence[Mapping[str, Any]]
    title: str  # for people: "windows of train"


def write_parts(batch: dict[str, np.ndarray], maker: Callable, kwargs: str, once: str) -> dict[str, list]:
    """In a worker: make the parts that a batch names, and write them. What they are made with is built once and kept."""
    lines = []
    for text in batch["task"]:
        task = json.loads(text)
        if Storage(task["folder"]).exists(STOP):
            lines.append(json.dumps({"skipped": True}))
            continue
        try:
            line = {"work": task["work"], "number": task["number"]} | _write(task, _made_with(maker, kwargs, once))
        except (InputError, StorageError) as error:  # as data: an exception would come back wrapped and without its kind
            line = {"error": str(error), "input": isinstance(error, InputError)}
        lines.append(json.dumps(line))
    return {"line": lines}


@lru_cache(maxsize=1)
def _made_with(maker: Callable, kwargs: str, once: str) -> Callable[[dict], dict]:
    """One at a time: a worker serves many stages, and models are large. `once` names the stages: a folder's content may
    have changed since another stage was made with it."""
    return maker(**json.loads(kwargs))


def _write(task: dict, make: Callable[[dict], dict]) -> dict:
    storage, name = Storage(task["folder"]), task["name"]
    made = make(task["spec"])
    for extra, table in made.get("beside", {}).items():  # written first: the part's name is what says that all is there
        beside = name.replace("part-", f"{extra}-").rpartition(".")[0] + ".parquet"
        storage.write_bytes(beside, encode_table(table, "parquet", {}, made.get("row_group")))
    content = encode_table(made["part"], name.rpartition(".")[2], made.get("info", {}), made.get("row_group"))
    storage.write_bytes(name, content)
    return describe_part(name, content)


class PartWriter:
    """The same as an actor, for GPUs: Ray ends a worker after a task that had one, and its model with it."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        return write_parts(batch, **self.given)


def run_parts(
    cluster: Cluster,
    works: Sequence[Work],
    maker: Callable,
    kwargs: Mapping[str, Any],
    *,
    label: str,
    run: str = "",
    actors: int = 1,
    gpus: float = 0,
    finish: Callable[[Work, list[dict]], list[dict]] | None = None,
) -> list[Manifest]:
    """Bring some stages to their end: what is whole is left alone, what is missing is made, in one Ray Data execution. Its
    progress is shown under `label`, and among Ray's metrics with the `run` it is made for.

    `maker(**kwargs)` builds, once per actor, a function from a part's specification to {"part": table, "info": ..., ...}.
    """
    manifests: list[Manifest | None] = [work.stage.manifest() for work in works]
    for work, manifest in zip(works, manifests):
        if manifest:
            say(f"{work.title}: already done ({manifest.rows:,} rows)")
    open_works = {number: work for number, work in enumerate(works) if manifests[number] is None}
    started = time.monotonic()
    parts: dict[int, dict[int, dict]] = {number: _existing(work) for number, work in open_works.items()}
    tasks = [
        {"work": number, "number": part, "folder": work.stage.uri, "name": work.stage.part(part), "spec": spec}
        for number, work in open_works.items()
        for part, spec in enumerate(work.specs)
        if part not in parts[number]
    ]
    if tasks:
        found = sum(len(done) for done in parts.values())
        if found:
            say(f"{label}: going on after {found} finished part" + "s" * (found > 1))
        cluster.start()
        with Progress(label, len(tasks) + found, "parts", found) as progress:
            for line in _stream(tasks, maker, kwargs, actors, gpus):
                parts[line.pop("work")][line.pop("number")] = line
                made = sum(len(done) for done in parts.values())
                progress.update(made)
                show("raydist_stage_parts", made, run=run, stage=label, state="done")
                show("raydist_stage_parts", len(tasks) + found, run=run, stage=label, state="total")
    for number, work in open_works.items():
        lines = [parts[number][part] for part in range(len(work.specs))]
        if finish:
            lines = finish(work, lines)
        manifests[number] = work.stage.finish(lines, time.monotonic() - started)
    return [manifest for manifest in manifests if manifest]


def _existing(work: Work) -> dict[int, dict]:
    """Parts of an earlier, interrupted run of the same stage; of a finished one, those that are as they were."""
    names, known = work.stage.storage.sizes(work.stage.folder), work.stage.checksums()
    numbered = {work.stage.part(number): number for number in range(len(work.specs))}
    found = {}
    for name in names.keys() & numbered.keys():
        try:
            part = describe_part(name, work.stage.storage.read_bytes(f"{work.stage.folder}/{name}"))
            if known.get(name, part["checksum"]) == part["checksum"]:
                found[numbered[name]] = part
        except (pa.ArrowException, OSError, ValueError):  # damaged: made again
            continue
    return found


def _stream(tasks: list[dict], maker: Callable, kwargs: Mapping[str, Any], actors: int, gpus: float):
    import ray.data
    from ray.data import ActorPoolStrategy, TaskPoolStrategy

    items = [{"task": json.dumps(task, ensure_ascii=False)} for task in tasks]
    dataset = ray.data.from_items(items, override_num_blocks=len(items))
    workers = max(1, min(actors, len(items)))
    folders = sorted({task["folder"] for task in tasks})
    given = {"maker": maker, "kwargs": json.dumps(dict(kwargs), sort_keys=True), "once": fingerprint(folders)}
    if gpus:
        pool = ActorPoolStrategy(min_size=1, max_size=workers)
        dataset = dataset.map_batches(
            PartWriter, fn_constructor_kwargs=given, batch_size=1, compute=pool, num_cpus=1, num_gpus=gpus
        )
    else:  # tasks: the workers of one stage, with all that they have imported, serve the next one
        dataset = dataset.map_batches(
            write_parts, fn_kwargs=given, batch_size=1, compute=TaskPoolStrategy(size=workers), num_cpus=1
        )
    for folder in folders:
        Storage(folder).delete(STOP)
    problem: Exception | None = None
    for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):  # else a part is told when the next one is done
        for text in batch["line"]:
            line = json.loads(text)
            if "error" in line and problem is None:
                problem = (InputError if line["input"] else StorageError)(line["error"])
                for folder in folders:  # and wait for what has begun: the next command must not meet it
                    with contextlib.suppress(StorageError):
                        Storage(folder).write_bytes(STOP, b"")
            elif "skipped" in line and problem is None:
                problem = StorageError("a part of this stage failed in another command; run the same command again")
            elif problem is None:
                yield line
    if problem:
        for folder in folders:
            Storage(folder).delete(STOP)
        raise problem
