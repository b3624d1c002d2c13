"""Ray Data stages. A stage is a list of parts; a part's content is a function of its specification alone.

Ray Data schedules, spreads and retries the parts; each worker writes its part whole and sends back one line about it. So the
result does not depend on workers, blocks or nodes, a killed stage goes on with the parts that are missing, and nothing but
those lines passes through the driver. Memory: one part per worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.cluster.connect import Cluster
from raydist.errors import InputError
from raydist.progress import Progress, say
from raydist.storage import Manifest, Stage, Storage, StorageError, describe_part, encode_table


@dataclass(frozen=True)
class Work:
    """A stage and what its parts are to be made of, one specification per part."""

    stage: Stage
    specs: Sequence[Mapping[str, Any]]
    title: str  # for people: "windows of train"


class PartWriter:
    """A Ray Data worker: makes parts and writes them. What it makes them with is built once."""

    def __init__(self, maker: Callable, kwargs: Mapping[str, Any]) -> None:
        self.maker, self.kwargs = maker, kwargs
        self.make: Callable[[dict], dict] | None = None

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        lines = []
        for text in batch["task"]:
            task = json.loads(text)
            try:
                line = {"work": task["work"], "number": task["number"]} | self._write(task)
            except (InputError, StorageError) as error:  # as data: an exception would come back wrapped and without its kind
                line = {"error": str(error), "input": isinstance(error, InputError)}
            lines.append(json.dumps(line))
        return {"line": lines}

    def _write(self, task: dict) -> dict:
        storage, name = Storage(task["folder"]), task["name"]
        self.make = self.make or self.maker(**self.kwargs)  # not in the constructor: what fails there is tried for ever
        made = self.make(task["spec"])
        for extra, table in made.get("beside", {}).items():  # written first: the part's name is what says that all is there
            beside = name.replace("part-", f"{extra}-").rpartition(".")[0] + ".parquet"
            storage.write_bytes(beside, encode_table(table, "parquet", {}))
        content = encode_table(made["part"], name.rpartition(".")[2], made.get("info", {}), made.get("row_group"))
        storage.write_bytes(name, content)
        return describe_part(name, content)


def run_parts(
    cluster: Cluster,
    works: Sequence[Work],
    maker: Callable,
    kwargs: Mapping[str, Any],
    *,
    label: str,
    actors: int = 1,
    gpus: float = 0,
    finish: Callable[[Work, list[dict]], list[dict]] | None = None,
) -> list[Manifest]:
    """Bring some stages to their end: what is whole is left alone, what is missing is made, in one Ray Data execution.

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
                progress.update(sum(len(done) for done in parts.values()))
    for number, work in open_works.items():
        lines = [parts[number][part] for part in range(len(work.specs))]
        if finish:
            lines = finish(work, lines)
        manifests[number] = work.stage.finish(lines, time.monotonic() - started)
    return [manifest for manifest in manifests if manifest]


def _existing(work: Work) -> dict[int, dict]:
    """Parts of an earlier, interrupted run of the same stage."""
    names = work.stage.storage.sizes(work.stage.folder)
    numbered = {work.stage.part(number): number for number in range(len(work.specs))}
    found = {}
    for name in names.keys() & numbered.keys():
        try:
            found[numbered[name]] = describe_part(name, work.stage.storage.read_bytes(f"{work.stage.folder}/{name}"))
        except (pa.ArrowException, OSError, ValueError):  # damaged: made again
            continue
    return found


def _stream(tasks: list[dict], maker: Callable, kwargs: Mapping[str, Any], actors: int, gpus: float):
    import ray.data
    from ray.data import ActorPoolStrategy

    items = [{"task": json.dumps(task, ensure_ascii=False)} for task in tasks]
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        PartWriter,
        fn_constructor_kwargs={"maker": maker, "kwargs": dict(kwargs)},
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=max(1, min(actors, len(items)))),
        num_cpus=1,
        num_gpus=gpus or None,
    )
    for batch in dataset.iter_batches(batch_size=None):
        for text in batch["line"]:
            line = json.loads(text)
            if "error" in line:
                raise (InputError if line["input"] else StorageError)(line["error"])
            yield line
