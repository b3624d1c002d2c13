"""Files that are whole or absent: written beside and renamed on a disk, sent in one put to an object store."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raydist.errors import Failure, InputError
from raydist.files.given import check_regular, expanded, home_cache

MODEL_SETTINGS = "raydist.json"  # in a model's folder: how it was trained to be used
FETCH_BYTES = 16 << 20  # of a remote file in one request
P = ParamSpec("P")
T = TypeVar("T")


class StorageError(Failure):
    """Writing failed: the disk is full, or the store refused. Files that were whole before still are."""


class Unreachable(StorageError, OSError):
    """An object store does not answer, or refuses."""


@contextlib.contextmanager
def writing_to(path: str | Path) -> Iterator[None]:
    """Turn a write failure in the block into a StorageError with advice."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: str | Path, error: OSError) -> StorageError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "no space is left on the device" if full else _short(error)
    way = "Free some space" if full else "Mend that"
    return StorageError(f"cannot write {path}: {why}. {way} and run the same command again: finished work is kept.")


def _short(error: Exception) -> str:
    """The first line of a store's message, which may go on for pages."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first if len(first) <= 300 else f"{first[:300]}..."


def _reaching(method: Callable[Concatenate[Storage, P], T]) -> Callable[Concatenate[Storage, P], T]:
    """A method that reads or deletes; a remote store's errors become one short message."""

    @wraps(method)
    def wrapped(self: Storage, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(self, *arguments, **named)
        except (FileNotFoundError, Unreachable):
            raise
        except (OSError, pa.ArrowException) as error:
            if self.is_local:
                raise
            raise Unreachable(
                f"storage {self._shown}: no answer, or a refusal ({_short(error)}); check its address, the network and the "
                f"credentials in the environment, and run the same command again: what is done stays done"
            ) from None

    return wrapped


@dataclass(frozen=True)
class Storage:
    """A folder on a disk or under a URI. Paths given to its methods are relative to it, with forward slashes."""

    uri: str

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.uri:
            return pafs.LocalFileSystem(), str(expanded(self.uri).absolute())
        uri = self.uri
        if uri.startswith("s3://") and "allow_delayed_open=" not in uri:  # small files take one put, not three requests
            uri += ("&" if "?" in uri else "?") + "allow_delayed_open=true"
        try:
            return pafs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            java = "; hdfs:// needs Java and Hadoop's libhdfs on this machine" if uri.startswith("hdfs://") else ""
            raise InputError(
                f"storage {self._shown}: cannot be opened ({_short(error)}){java}; give a folder or an s3://, gs:// or "
                "hdfs:// URI"
            ) from None

    def __reduce__(self):
        return Storage, (self.uri,)

    @property
    def _shown(self) -> str:
        """The URI without a password, for messages."""
        return re.sub(r"//[^/@]*@", "//***@", self.uri)

    @property
    def is_local(self) -> bool:
        return isinstance(self._opened[0], pafs.LocalFileSystem)

    def path(self, *parts: str) -> str:
        """The full path, as this storage's filesystem takes it."""
        return posixpath.join(self._opened[1], *parts)

    def at(self, *parts: str) -> Storage:
        """A folder inside this one."""
        if self.is_local:
            return Storage(self.path(*parts))
        base, mark, query = self.uri.partition("?")
        return Storage(posixpath.join(base, *parts) + mark + query)

    def check_reachable(self) -> None:
        """Require an answer of the store, before a command relies on it."""
        try:
            if not self.is_local:
                self.exists("")
        except Unreachable as error:
            raise InputError(str(error)) from None

    @_reaching
    def exists(self, name: str) -> bool:
        return self._opened[0].get_file_info(self.path(name)).type != pafs.FileType.NotFound

    @_reaching
    def files(self, folder: str = "") -> dict[str, pafs.FileInfo]:
        """The files directly in a folder, by name; empty if the folder does not exist."""
        infos = self._opened[0].get_file_info(pafs.FileSelector(self.path(folder), allow_not_found=True))
        return {info.base_name: info for info in infos if info.type == pafs.FileType.File}

    @_reaching
    def tree(self) -> list[pafs.FileInfo]:
        """Everything in this folder, recursively; empty if it does not exist."""
        return self._opened[0].get_file_info(pafs.FileSelector(self.path(), recursive=True, allow_not_found=True))

    def sizes(self, folder: str = "") -> dict[str, int]:
        return {name: info.size for name, info in self.files(folder).items()}

    @_reaching
    def newest(self, folder: str = "") -> float:
        """The latest write time of a file directly in a folder, in seconds since 1970; 0 if there is none."""
        infos = self._opened[0].get_file_info(pafs.FileSelector(self.path(folder), allow_not_found=True))
        return max((info.mtime_ns / 1e9 for info in infos if info.type == pafs.FileType.File and info.mtime_ns), default=0.0)

    @_reaching
    def folders(self, folder: str = "") -> list[str]:
        infos = self._opened[0].get_file_info(pafs.FileSelector(self.path(folder), allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    @_reaching
    def read_bytes(self, name: str) -> bytes:
        with self._opened[0].open_input_stream(self.path(name)) as stream:
            return stream.read()

    def read_json(self, name: str) -> Any:
        return json.loads(self.read_bytes(name))

    @_reaching
    def open_input(self, name: str) -> pa.NativeFile:
        return self._opened[0].open_input_file(self.path(name))

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[str]:
        """The path of a file to write, after its folder is made; write failures become StorageErrors."""
        path = self.path(name)
        with writing_to(path):
            if self._opened[0].type_name != "s3":  # folders there are only names
                self._opened[0].create_dir(posixpath.dirname(path), recursive=True)
            yield path

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write the whole file, or nothing."""
        if self.is_local:
            with self.writing(name) as file:
                file.write(content)
            return
        with self._new_file(name) as path, self._opened[0].open_output_stream(path) as stream:
            stream.write(content)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write, for content too large for memory: it appears, whole, when the block succeeds."""
        with self._new_file(name) as path:
            if not self.is_local:
                with tempfile.TemporaryFile() as spool:
                    yield spool
                    spool.seek(0)
                    with self._opened[0].open_output_stream(path) as stream:
                        shutil.copyfileobj(spool, stream, 1 << 20)
                return
            beside = f"{path}.{uuid.uuid4().hex}.tmp"
            try:
                with open(beside, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(beside, path)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise

    def write_json(self, name: str, value: Any) -> None:
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    @_reaching
    def delete(self, name: str) -> None:
        """Delete a file or a folder, if it is there."""
        filesystem, path = self._opened[0], self.path(name)
        kind = filesystem.get_file_info(path).type
        if kind == pafs.FileType.Directory:
            filesystem.delete_dir(path)
        elif kind == pafs.FileType.File:
            filesystem.delete_file(path)

    def upload(self, folder: Path, name: str, last: str = "config.json") -> None:
        """Copy a local folder here, replacing an old one. On a disk it appears whole, by rename; elsewhere the file named
        `last` is written last and marks it as complete.
        """
        if not self.is_local:
            files = [path for path in folder.rglob("*") if path.is_file()]
            self.delete(name)
            for file in sorted(files, key=lambda path: (path.name == last, path)):
                self.write_bytes(posixpath.join(name, file.relative_to(folder).as_posix()), file.read_bytes())
            return
        beside = f"{name}.{uuid.uuid4().hex}.tmp"
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.write_bytes(posixpath.join(beside, file.relative_to(folder).as_posix()), file.read_bytes())
        self.delete(name)
        os.replace(self.path(beside), self.path(name))

    @_reaching
    def local_copy(self, folder: str) -> Path:
        """The folder as a local path: itself on a disk, else fetched once per node."""
        if self.is_local:
            return Path(self.path(folder))
        infos = self._opened[0].get_file_info(pafs.FileSelector(self.path(folder), recursive=True))
        seen = sorted((info.path, info.size, info.mtime_ns) for info in infos)  # changed content gets a new copy
        key = hashlib.blake2b(f"{self.uri}/{folder} {seen}".encode(), digest_size=8).hexdigest()
        target = home_cache() / f"{posixpath.basename(folder)}-{key}"
        if not target.exists():
            beside = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
            beside.mkdir(parents=True)  # copy_files makes only the folders below it
            try:
                pafs.copy_files(self.path(folder), str(beside), source_filesystem=self._opened[0], chunk_size=FETCH_BYTES)
                beside.rename(target)
            except OSError:
                shutil.rmtree(beside, ignore_errors=True)
                if not target.exists():  # else another process of this node was faster
                    raise
        return target


@dataclass(frozen=True)
class Place:
    """The location of a file or folder, valid on any node: a name inside a storage, or a plain path without one."""

    name: str
    storage: str = ""

    def fetch(self) -> Path:
        """The file or folder on this node."""
        return Storage(self.storage).local_copy("") / self.name if self.storage else Path(self.name)

    @property
    def shown(self) -> str | None:
        """A name that is the same on all nodes; None if the path on this node already is."""
        return Storage(self.storage).path(self.name) if self.storage else None


def has_model(run: Storage, name: str = "model") -> bool:
    """Whether a run has a whole model: one folder, or two towers. config.json is written last."""
    towers = [f"{name}/{tower}/config.json" for tower in ("query", "answer")]
    return run.exists(f"{name}/config.json") or all(run.exists(file) for file in towers)


# --- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(value: Any) -> str:
    """A short name for a plain value: equal values, equal names, on any machine."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def file_digest(path: str | Path) -> str:
    """Digest of a file's bytes, independent of its name."""
    check_regular(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def folder_digest(folder: str | Path) -> str:
    """Digest of all files in a folder, recursively: names and bytes; but for those that only tell how to use a run's model."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if (Path(folder) / MODEL_SETTINGS).is_file():
        files = [path for path in files if path.name not in (MODEL_SETTINGS, "README.md")]
    return fingerprint({path.relative_to(folder).as_posix(): file_digest(path) for path in files})


# --- tables -----------------------------------------------------------------------------------------------------------


def read_parquet(storage: Storage, name: str, columns: Iterable[str] | None = None) -> pa.Table:
    with storage.open_input(name) as file:
        return pq.read_table(file, columns=list(columns) if columns else None)


def read_rows(storage: Storage, name: str, first: int, last: int) -> pa.Table:
    """Rows first..last of a Parquet file; reads only the row groups that contain them."""
    with storage.open_input(name) as file:
        parquet = pq.ParquetFile(file)
        sizes = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        starts = np.append(0, np.cumsum(sizes))
        groups = [number for number in range(len(sizes)) if starts[number] < last and starts[number + 1] > first]
        table = parquet.read_row_groups(groups)
        return table.slice(first - int(starts[groups[0]]) if groups else 0, last - first)


def read_between(storage: Storage, name: str, column: str, least: str, greatest: str) -> pa.Table:
    """Rows with a column value from `least` to `greatest`, both included; a sorted Parquet file is read like `read_rows`."""
    with storage.open_input(name) as file:
        return pq.read_table(file, filters=(pc.field(column) >= least) & (pc.field(column) <= greatest))
