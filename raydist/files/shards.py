"""The layout of any index on disk: shards of rows sorted by id, and a file that lists the active ones.

    INDEX/index.json      written last, by rename
    INDEX/shard-00000/    arrays as .npy, memory-mapped, ids among them; shard.json

A folder appears by rename once it is whole, and is never modified. So new rows become one more shard, and an unfinished index
cannot be opened. Strings are two arrays: offsets, and all UTF-8 bytes in a row.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import InputError


class BestRows(NamedTuple):
    """Best rows of each question, best first; padded with row -1 and score 0 if there are fewer than k."""

    rows: np.ndarray  # int64, questions x k; numbers within the open shards: sentence_ids gives their ids
    scores: np.ndarray  # float32, questions x k


# --------------------------------------------------------------------------------------------------------------- arrays


def load_array(folder: Path, name: str) -> np.ndarray:
    """An array of a folder, mapped."""
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))


def string_parts(strings: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets from 0, and the bytes."""
    strings = strings.cast(pa.large_string())
    if not len(strings):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, text = strings.buffers()
    ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return ends - ends[0], np.frombuffer(text or b"", np.uint8)[ends[0] : ends[-1]]


def string_array(offsets: np.ndarray, text: np.ndarray) -> pa.LargeStringArray:
    """The strings, without a copy."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))


def string_arrays(name: str, strings: pa.Array) -> dict[str, np.ndarray]:
    """A column of strings as the arrays of a folder."""
    offsets, text = string_parts(strings)
    return {f"{name}_offsets": offsets, f"{name}_bytes": text}


def load_strings(folder: Path, name: str) -> pa.LargeStringArray:
    """The strings of a folder, mapped."""
    return string_array(load_array(folder, f"{name}_offsets"), load_array(folder, f"{name}_bytes"))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder that replaces `folder` atomically when the block succeeds.

    Two processes that do this at once write the same content (a part depends on its specification alone): one result stays.
    Leftovers of a killed process begin with a dot and end in .tmp, and are never read.
    """
    building = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.tmp")
    old = building / "old"
    building.mkdir(parents=True)
    try:
        (building / "new").mkdir()
        yield building / "new"
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        try:
            (building / "new").rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_folder(
    folder: Path,
    arrays: dict[str, np.ndarray],
    facts: dict[str, Any],
    facts_name: str,
    raw: dict[str, np.ndarray] | None = None,
) -> None:
    """Write a folder of arrays that appears whole, by rename; one left by an interrupted run is replaced.

    ``raw``: files of raw bytes by full name, for libraries that map a file themselves.
    """
    with new_folder(folder) as building:
        for name, array in arrays.items():
            np.save(building / f"{name}.npy", array, allow_pickle=False)
        for name, content in (raw or {}).items():
            content.tofile(building / name)
        (building / facts_name).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


# ------------------------------------------------------------------------------------------------------------------ ids


def order_by_id(ids: pa.LargeStringArray) -> tuple[pa.LargeStringArray, np.ndarray]:
    """The ids sorted by code points, and the original position of each; a repeated id is refused."""
    order = pc.array_sort_indices(ids).to_numpy().astype(np.int64)
    ordered = ids.take(pa.array(order))
    if len(ordered) > 1:
        same = pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
        if same.any():
            raise InputError(f"the id {ordered[int(same.argmax())].as_py()!r} is given to more than one row")
    return ordered, order


def refuse_repeated_ids(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> None:
    """Refuse an id that is in two new shards, or in a new and an old one; each shard's ids are distinct and sorted.

    Shards with disjoint id ranges, as when cut from one table, are not compared.
    """
    if not new or _lie_apart([*old, *new]):
        return
    ids = pa.chunked_array(new)
    if len(new) > 1 and pc.count_distinct(ids).as_py() != len(ids):
        repeated = pa.table({"id": ids}).group_by("id").aggregate([([], "count_all")])
        first = repeated.filter(pc.greater(repeated["count_all"], 1))["id"][0].as_py()
        raise InputError(f"the id {first!r} is given to more than one row")
    for known in old:
        again = known.filter(pc.is_in(known, value_set=ids))
        if len(again):
            raise InputError(
                f"the index already has {len(again)} of these ids, {again[0].as_py()!r} for one; add new rows only"
            )


def _lie_apart(shards: Sequence[pa.Array]) -> bool:
    """Whether the id ranges of the shards, each sorted, are disjoint."""
    ends = sorted((ids[0].as_py(), ids[-1].as_py()) for ids in shards if len(ids))
    return all(last < first for (_, last), (first, _) in pairwise(ends))


# ---------------------------------------------------------------------------------------------------------------- facts


def read_facts(path: Path, kind: str, format: int) -> dict[str, Any]:
    """The contents of index.json or shard.json of an index of this kind."""
    if not path.exists():
        raise InputError(f"no {kind} index at {path.parent}: {path.name} is not there; build one with: raydist index")
    facts = json.loads(path.read_text())
    seen = facts.get("kind", kind), facts.get("format")
    if seen != (kind, format):
        raise InputError(f"{path} is of kind {seen[0]} and format {seen[1]}, wanted {kind} and {format}; build it again")
    return facts


def put_in_force(folder: Path, facts: dict[str, Any]) -> None:
    """Replace index.json atomically."""
    building = folder / f".index.json.{uuid.uuid4().hex}.tmp"
    building.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    building.replace(folder / "index.json")


def build_shards(
    folder: Path, rows: int, shards: int, build: Callable[[Path, slice], None], publish: Callable[[list[str]], None]
) -> None:
    """Build an index from all its rows: ``build`` writes a shard of some rows, ``publish`` activates the named shards."""
    bounds = [rows * at // shards for at in range(shards + 1)]
    names = [f"shard-{at:05d}" for at in range(shards)]
    (folder / "index.json").unlink(missing_ok=True)
    for name, start, end in zip(names, bounds, bounds[1:]):
        build(folder / name, slice(start, end))
    publish(names)
    for old in folder.glob("shard-?????"):  # of a previous index
        if old.name not in names:
            shutil.rmtree(old)


class OpenShards:
    """Shards open for search, their rows numbered across shards."""

    def __init__(self, ids: Iterable[pa.LargeStringArray]) -> None:
        self._shard_ids = list(ids)
        self.first_row = np.cumsum([0, *map(len, self._shard_ids)])

    def sentence_ids(self, rows: np.ndarray) -> list[str]:
        """The ids of rows that ``search`` returned (none of them -1)."""
        return self._ids(np.asarray(rows).ravel()).to_pylist()

    def _ids(self, rows: np.ndarray) -> pa.Array:
        shard_of = np.searchsorted(self.first_row, rows, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        parts = [
            ids.take(pa.array(rows[order[shard_of[order] == at]] - self.first_row[at]))
            for at, ids in enumerate(self._shard_ids)
        ]
        return pa.concat_arrays(parts).take(pa.array(np.argsort(order, kind="stable")))
