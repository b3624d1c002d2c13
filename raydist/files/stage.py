"""Stages: results identified by their inputs, and made part by part.

A stage is a frozen dataclass. Its fields and its version are its identity, its methods make its parts, and the object itself is
all that a worker receives. A part is a pure function of (stage, number): it does not depend on workers, blocks or nodes. A part
is whole once it has its name, a stage once its manifest, written last, exists.

    <storage>/stages/NAME-FINGERPRINT/   part-00000.parquet (results) or .arrow (IPC, memory-mapped), beside it other tables
                                         of the same number, and manifest.json
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.files.storage import Storage, fingerprint, read_parquet

T = TypeVar("T")

# field metadata: not part of the identity, since the field only saves work or holds a location
ASIDE = {"aside": True}
# a field added in a later version: at its default, the identity omits it, so earlier results keep their name
LATER = {"later": True}


# --- parts and manifests ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The contents of one part."""

    table: pa.Table
    beside: Mapping[str, pa.Table] = field(default_factory=dict)  # other tables of the same number, by name
    counts: Any = None  # a dataclass of plain values, kept in the manifest and in the part's schema
    row_group: int | None = None  # rows of a Parquet row group

    @property
    def info(self) -> dict[str, Any]:
        return {} if self.counts is None else dataclasses.asdict(self.counts)


@dataclass(frozen=True)
class Line:
    """A part's entry in the manifest."""

    name: str
    rows: int
    bytes: int
    checksum: str
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The list of a whole stage's parts, with its identity."""

    name: str
    fingerprint: str
    identity: Mapping[str, Any]
    parts: list[Line] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class Worker:
    """A process that makes parts: its threads, and the stage and model it opened last, since models are large."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._stage: tuple[Any, Any] = (None, None)
        self._kept: tuple[Any, Any] = (None, None)

    def opened(self, stage: Stage) -> Callable[[Any], Any]:
        """`stage.open`, once for parts of the same stage in a row."""
        if self._stage[0] != stage:
            self._stage = (None, None)  # free the old one before opening another
            self._stage = (stage, stage.open(self))
        return self._stage[1]

    def keep(self, build: Callable[..., T], *key: Any) -> T:
        """`build(*key)`, once for equal keys in a row: for objects that stages share, such as a model."""
        wanted = (build, key)
        if self._kept[0] != wanted:
            self._kept = (None, None)
            self._kept = (wanted, build(*key))
        return self._kept[1]


# --- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Results that depend only on the fields (and the version) of this object."""

    name: ClassVar[str]  # of its folders
    version: ClassVar[int] = 1  # raise when the output changes, so that older results are not reused
    kind: ClassVar[str] = "parquet"  # or "arrow"
    uses_model: ClassVar[bool] = False  # a model makes its parts, on a device if available

    @property
    def parts(self) -> int:
        """The number of parts."""
        raise NotImplementedError

    def read(self, number: int) -> Any:
        """Read a part's input, on any CPU."""
        return number

    def open(self, worker: Worker) -> Callable[[Any], Any]:
        """The function from a part's input to its contents, run on the device if there is one. Opened once per worker."""
        raise NotImplementedError

    def store(self, made: Any, number: int, folder: Storage) -> Part:
        """Turn the contents into a part, on any CPU. Files that are not tables are written to the stage's folder here."""
        return made

    def finish(self, folder: Storage, lines: list[Line]) -> list[Line]:
        """Do the work that needs all parts, before the manifest is written."""
        return lines

    @property
    def identity(self) -> dict[str, Any]:
        return {"version": self.version} | plain_fields(self)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.identity)

    @property
    def folder(self) -> str:
        """The path inside a storage."""
        return f"stages/{self.name}-{self.fingerprint}"


def plain_fields(owner: Any) -> dict[str, Any]:
    """The fields of a dataclass, as part of an identity."""

    def counts(item: dataclasses.Field) -> bool:
        is_default = item.metadata.get("later") and getattr(owner, item.name) == item.default
        return not (item.metadata.get("aside") or is_default)

    return {item.name: known_by(getattr(owner, item.name)) for item in fields(owner) if counts(item)}


def known_by(value: Any) -> Any:
    """A field's value as part of an identity: plain, and independent of locations."""
    if hasattr(value, "known_by"):
        return value.known_by
    if dataclasses.is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {key: known_by(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [known_by(inner) for inner in value]
    return value


@dataclass(frozen=True)
class Made:
    """A whole stage: its fingerprint identifies it as an input, its folder is where it is read."""

    folder: Storage
    name: str
    fingerprint: str
    kind: str = "parquet"

    @property
    def known_by(self) -> str:
        return self.fingerprint

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # without the manifest, which is read on demand

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder)

    @property
    def rows(self) -> int:
        return self.manifest.rows

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.manifest.identity

    def part(self, number: int) -> str:
        return part_name(number, self.kind)

    def files(self) -> list[Path]:
        """All parts as files of this node."""
        folder = self.folder.local_copy("")
        return [folder / line.name for line in self.manifest.parts]

    def file(self, number: int) -> Path:
        """One part as a file of this node."""
        return self.folder.local_copy("") / self.part(number)

    def table(self, number: int, columns: Iterable[str] | None = None) -> pa.Table:
        """One part's rows."""
        return read_parquet(self.folder, self.part(number), columns)

    def tables(self, columns: Iterable[str] | None = None) -> Iterator[pa.Table]:
        """The rows of each part, in order."""
        columns = list(columns) if columns else None
        return (read_parquet(self.folder, line.name, columns) for line in self.manifest.parts)

    def row_group(self, number: int, group: int) -> pa.Table:
        """One row group of a part."""
        with self.folder.open_input(self.part(number)) as file:
            return pq.ParquetFile(file).read_row_group(group)


# --- files -----------------------------------------------------------------------------------------------------------

MANIFEST = "manifest.json"
WORLD = "world.json"  # in its place, of the sample world


def part_name(number: int, kind: str) -> str:
    return f"part-{number:05d}.{kind}"


def write_part(folder: Storage, name: str, part: Part) -> Line:
    """Write a part, other tables first: the part's own file marks it as complete."""
    for title, table in part.beside.items():
        beside = name.replace("part-", f"{title}-").rpartition(".")[0] + ".parquet"
        folder.write_bytes(beside, encode_table(table, "parquet", {}, part.row_group))
    content = encode_table(part.table, name.rpartition(".")[2], part.info, part.row_group)
    folder.write_bytes(name, content)
    return describe_part(name, content)


def encode_table(table: pa.Table, kind: str, info: Mapping[str, Any], row_group: int | None = None) -> bytes:
    """A part file's bytes. The schema holds `info`, so that a manifest can be rebuilt from the parts alone."""
    table = table.replace_schema_metadata({"raydist": json.dumps(info, sort_keys=True)})
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, sink, compression="zstd", row_group_size=row_group)
    else:
        table = table.combine_chunks()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def describe_part(name: str, content: bytes) -> Line:
    """A part's line in the manifest, from its bytes."""
    if name.endswith(".parquet"):
        file = pq.ParquetFile(io.BytesIO(content))
        rows, metadata = file.metadata.num_rows, file.schema_arrow.metadata
    else:
        reader = pa.ipc.open_file(content)
        rows, metadata = reader.read_all().num_rows, reader.schema.metadata
    info = json.loads((metadata or {}).get(b"raydist", b"{}"))
    rows = info.get("rows", rows)  # of files beside it, if `info` counts those
    return Line(name, rows, len(content), checksum(content), info)


def checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_manifest(folder: Storage) -> Manifest:
    found = folder.read_json(MANIFEST)
    return Manifest(**found | {"parts": [Line(**part) for part in found["parts"]]})


def write_manifest(folder: Storage, stage: Stage, lines: Sequence[Line], seconds: float) -> Manifest:
    """Write the manifest, which makes the stage whole."""
    manifest = Manifest(stage.name, stage.fingerprint, stage.identity, list(lines), round(seconds, 3))
    folder.write_json(MANIFEST, dataclasses.asdict(manifest))
    return manifest


def whole_manifest(folder: Storage) -> Manifest | None:
    """The manifest of a whole stage: all listed parts have the right size and, if not older than the manifest, the right
    checksum. (Bytes corrupted on disk without a write go unnoticed: detecting them would mean reading everything.)
    """
    files = folder.files()
    if MANIFEST not in files:
        return None
    manifest, written = read_manifest(folder), files[MANIFEST].mtime_ns or 0

    def is_whole(line: Line) -> bool:
        file = files.get(line.name)
        if file is None or file.size != line.bytes:
            return False
        return (file.mtime_ns or 0) < written or checksum(folder.read_bytes(line.name)) == line.checksum

    return manifest if all(map(is_whole, manifest.parts)) else None


# --- executors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A stage, its folder, and the numbers of its missing parts."""

    stage: Stage
    folder: Storage
    numbers: Sequence[int]


class Executor(Protocol):
    """Makes parts: with Ray Data on a cluster, or in this process."""

    def lines(self, jobs: Sequence[Job]) -> Iterator[tuple[int, int, Line]]:
        """(position of the job, number of the part, its line) as parts are completed, in any order."""
        ...
