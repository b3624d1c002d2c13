"""The files of the config, and changes since the last scan: unchanged files are not read again.

A root is a folder (or the folder before the first wildcard of a glob), on a disk or in a store. The document_id of a file is
its path below its root, prefixed with the root's name if there are several roots.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath

import pyarrow.fs as pafs

from raydist.corpus.paths import expand_paths
from raydist.corpus.rejected import BAD_NAME, LINK_OUTSIDE, NOT_A_FILE, TOO_LARGE, UNKNOWN_FORMAT, UNREADABLE, Fault
from raydist.documents.formats import FORMATS, format_of
from raydist.documents.schema import Source
from raydist.errors import InputError
from raydist.files.storage import Storage, file_digest, fingerprint
from raydist.records import Rejected

YOUNG = 2 * 10**9  # nanoseconds: a file this new at the scan may change again within one clock tick
READERS = 8  # digests computed in parallel
MAGIC = frozenset("*[")  # in a URI, ? begins its query


@dataclass(frozen=True)
class Root:
    """A location of files."""

    uri: str  # an absolute path, or a URI as given
    prefix: str = ""  # of document ids

    @cached_property
    def storage(self) -> Storage:
        return Storage(self.uri)

    @property
    def shown(self) -> str:
        """The location without a possible password."""
        return f"{self.uri.partition('://')[0]}://{self.storage.path()}" if "://" in self.uri else self.uri

    def uri_of(self, name: str) -> str:
        return f"{self.shown.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Wanted:
    """A file, folder or glob of the config."""

    root: Root
    pattern: str = "**"  # of paths below the root
    is_named: bool = False  # one file, given by its name


@dataclass(frozen=True)
class Entry:
    """A file of a root."""

    name: str
    size: int
    mtime_ns: int
    fault: Fault | None = None


@dataclass
class Scan:
    """The result of a scan."""

    sources: list[Source]
    roots: tuple[Root, ...]
    rejected: list[Rejected] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)  # files of no known format, by suffix


@dataclass(frozen=True)
class Changes:
    """The differences between two lists of sources."""

    added: list[Source]
    changed: list[Source]
    removed: list[Source]


def scan(
    files: Sequence[str], *, base: str = "", before: Iterable[Source] = (), max_bytes: int = 1 << 28, without: str = ""
) -> Scan:
    """The readable files, ordered by id; relative names start at `base`. A file in `before` with the same size and time is not
    opened. `without`: a location inside a root to skip.
    """
    wanted = _with_roots([_wanted(name, base) for name in files])
    found = Scan([], tuple(dict.fromkeys(one.root for one in wanted)))
    known = {source.document_id: source for source in before}
    seen: dict[str, tuple[Root, Entry]] = {}
    passed_over: set[str] = set()
    for one in wanted:
        for entry in _entries(one, _below(without, one.root.uri)):
            name = one.root.prefix + entry.name
            if format_of(name) or one.is_named or (entry.fault and entry.fault.reason == UNREADABLE):
                seen[name] = (one.root, entry)
            else:
                passed_over.add(name)
    found.passed_over = Counter(os.path.splitext(name)[1] or "no ending" for name in sorted(passed_over - seen.keys()))
    with ThreadPoolExecutor(READERS) as pool:
        outcomes = pool.map(lambda name: _source(name, *seen[name], known.get(name), max_bytes), sorted(seen))
        for name, outcome in zip(sorted(seen), outcomes):
            if isinstance(outcome, Fault):
                found.rejected.append(rejected_file(_shown(name), outcome))
            else:
                found.sources.append(outcome)
    return found


def changes(before: Iterable[Source], after: Iterable[Source]) -> Changes:
    """The files added, changed and removed between two scans."""
    old, new = ({source.document_id: source for source in sources} for sources in (before, after))
    return Changes(
        [source for id, source in new.items() if id not in old],
        [source for id, source in new.items() if id in old and source.digest != old[id].digest],
        [source for id, source in old.items() if id not in new],
    )


def rejected_file(name: str, fault: Fault) -> Rejected:
    """The record of a rejected file."""
    return Rejected(name, 0, name, "document", fault.reason, fault.detail, "file")


# --- files of the config ---------------------------------------------------------------------------------------------


def _wanted(name: str, base: str) -> Wanted:
    return (
        _wanted_uri(name) if "://" in name else _wanted_path(os.path.join(os.path.expanduser(base), os.path.expanduser(name)))
    )


def _wanted_path(name: str) -> Wanted:
    path = os.path.abspath(name)
    if os.path.isdir(path):
        return Wanted(Root(os.path.realpath(path)))
    if os.path.lexists(path):
        folder, file = os.path.split(path)
        return Wanted(Root(os.path.realpath(folder)), glob.escape(file), is_named=True)
    if not glob.has_magic(path):
        expand_paths([path])  # its error names similar files
    folder, pattern = _before_magic(path, glob.has_magic)
    if not os.path.isdir(folder):
        expand_paths([path])
    return Wanted(Root(os.path.realpath(folder)), pattern)


def _wanted_uri(name: str) -> Wanted:
    place, mark, query = name.partition("?")
    if place.startswith("file://"):
        return _wanted_path(Storage(place).path())
    if MAGIC & set(place):
        folder, pattern = _before_magic(place, lambda step: bool(MAGIC & set(step)))
        return Wanted(Root(folder + mark + query), pattern)
    folder, _, file = place.rstrip("/").rpartition("/")
    if "://" in folder and folder.rpartition("://")[2] and Storage(folder + mark + query).files().get(file):
        return Wanted(Root(folder + mark + query), glob.escape(file), is_named=True)
    return Wanted(Root(name))


def _before_magic(path: str, has_magic: Callable[[str], bool]) -> tuple[str, str]:
    steps = path.split("/")
    first = next(number for number, step in enumerate(steps) if has_magic(step))
    return "/".join(steps[:first]) or "/", "/".join(steps[first:])


def _with_roots(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Merge roots below another into that one; if several are left, prefix files with the root's name."""
    outermost: list[str] = []
    for uri in sorted({one.root.uri for one in wanted}, key=len):
        if not any(_below(uri, outer) for outer in outermost):
            outermost.append(uri)
    names = {uri: f"{PurePosixPath(uri.partition('?')[0]).name}/" if len(outermost) > 1 else "" for uri in outermost}
    if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise InputError(f"documents.files: two folders are called {repeated[0]!r}; give one that holds both")

    def rooted(one: Wanted) -> Wanted:
        outer = next(uri for uri in outermost if uri == one.root.uri or _below(one.root.uri, uri))
        steps = _below(one.root.uri, outer)
        return Wanted(Root(outer, names[outer]), f"{glob.escape(steps)}/{one.pattern}" if steps else one.pattern, one.is_named)

    return [rooted(one) for one in wanted]


def _below(uri: str, outer: str) -> str:
    """The path of `uri` relative to `outer`; empty if it is not inside."""
    (path, _, query), (above, _, same) = uri.partition("?"), outer.partition("?")
    return path.removeprefix(above.rstrip("/") + "/") if query == same and path.startswith(above.rstrip("/") + "/") else ""


# --- files found -----------------------------------------------------------------------------------------------------


def _entries(wanted: Wanted, without: str = "") -> Iterator[Entry]:
    """The wanted files below a root, each once; names that begin with a dot only if the pattern has them."""
    steps = wanted.pattern.split("/")
    is_local = "://" not in wanted.root.uri
    found = False
    for entry in _local_entries(wanted.root.uri, steps, without) if is_local else _stored_entries(wanted.root):
        if _matches(entry.name.split("/"), steps) and not (without and entry.name.startswith(f"{without}/")):
            found = True
            yield entry
    if not found and (not is_local or steps[-1] != "**"):  # a folder of this machine may be empty
        raise InputError(f"documents.files: no file at {wanted.root.uri_of('')}{wanted.pattern}; check the place")


def _local_entries(root: str, pattern: Sequence[str], without: str = "") -> Iterator[Entry]:
    """Files below a folder that match the pattern. Follows links to files below the same root, never to folders."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            found = sorted(os.scandir(os.path.join(root, folder)), key=lambda entry: entry.name)
        except OSError as error:
            yield Entry(folder.rstrip("/") or ".", 0, 0, Fault(UNREADABLE, error.strerror or str(error)))
            continue
        for one in found:
            name = folder + one.name
            if one.is_dir(follow_symlinks=False):
                if _leads(name.split("/"), pattern) and name != without:
                    waiting.append(f"{name}/")
            elif not one.is_dir():
                yield _local_entry(root, name)
            elif not _is_below(root, name):
                yield Entry(name, 0, 0, Fault(LINK_OUTSIDE, f"leads to {os.path.realpath(os.path.join(root, name))}"))


def _local_entry(root: str, name: str) -> Entry:
    path = os.path.join(root, name)
    try:
        if os.path.islink(path) and not _is_below(root, name):
            raise Fault(LINK_OUTSIDE, f"leads to {os.path.realpath(path)}")
        seen = os.stat(path)
        if not stat.S_ISREG(seen.st_mode):
            raise Fault(NOT_A_FILE, f"is {_kind(seen.st_mode)}")
    except Fault as fault:
        return Entry(name, 0, 0, fault)
    except OSError as error:
        return Entry(name, 0, 0, Fault(UNREADABLE, error.strerror or str(error)))
    return Entry(name, seen.st_size, seen.st_mtime_ns)


def _is_below(root: str, name: str) -> bool:
    return Path(os.path.realpath(os.path.join(root, name))).is_relative_to(root)


def _kind(mode: int) -> str:
    kinds = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
    return next((name for is_one, name in kinds.items() if is_one(mode)), "something else")


def _stored_entries(root: Root) -> Iterator[Entry]:
    start = root.storage.path().rstrip("/") + "/"
    for info in sorted(root.storage.tree(), key=lambda info: info.path):
        if info.type == pafs.FileType.File:
            yield Entry(info.path.removeprefix(start), info.size, info.mtime_ns or 0)


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a glob, both given as steps."""
    if not name or not pattern:
        return not name and all(step == "**" for step in pattern)
    if pattern[0] == "**":
        return _matches(name, pattern[1:]) or (_is_step(name[0], "*") and _matches(name[1:], pattern))
    return _is_step(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


def _leads(folder: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a folder may hold matches of a glob."""
    if not folder or not pattern:
        return bool(pattern)
    if pattern[0] == "**":
        return _leads(folder, pattern[1:]) or (_is_step(folder[0], "*") and _leads(folder[1:], pattern))
    return _is_step(folder[0], pattern[0]) and _leads(folder[1:], pattern[1:])


def _is_step(name: str, pattern: str) -> bool:
    """Whether one step matches; only patterns with a leading dot match names with one."""
    return (pattern.startswith(".") or not name.startswith(".")) and fnmatchcase(name, pattern)


# --- sources ---------------------------------------------------------------------------------------------------------


def _source(name: str, root: Root, entry: Entry, known: Source | None, max_bytes: int) -> Source | Fault:
    """The Source of a file, or a Fault if it cannot be read."""
    if entry.fault:
        return entry.fault
    if _shown(name) != name:
        return Fault(BAD_NAME, "rename it")
    if not format_of(name):
        return Fault(UNKNOWN_FORMAT, f"its name ends in none of {', '.join(FORMATS)}")
    if entry.size > max_bytes:
        return Fault(TOO_LARGE, f"{entry.size:,} bytes, and documents.max_file_bytes is {max_bytes:,}")
    if known and entry.mtime_ns and (known.size, known.mtime_ns) == (entry.size, entry.mtime_ns):
        return Source(name, root.uri_of(entry.name), entry.size, entry.mtime_ns, known.digest)
    try:
        digest = _digest(root, entry)
    except OSError as error:
        return Fault(UNREADABLE, error.strerror or str(error))
    is_young = time.time_ns() - entry.mtime_ns < YOUNG
    return Source(name, root.uri_of(entry.name), entry.size, 0 if is_young else entry.mtime_ns, digest)


def _digest(root: Root, entry: Entry) -> str:
    """The digest of a file's bytes; in a store, of its size and time, so that only the worker that reads it fetches it."""
    if "://" not in root.uri:
        return file_digest(os.path.join(root.uri, entry.name))
    return fingerprint([entry.size, entry.mtime_ns])


_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _shown(name: str) -> str:
    """A file's name as valid text, whatever its bytes."""
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], name)


def places(sources: Sequence[Source], roots: Sequence[Root]) -> Mapping[str, tuple[Root, str]]:
    """The root of each document_id, and its name there."""
    by_prefix = {root.prefix: root for root in roots}

    def place(id: str) -> tuple[Root, str]:
        prefix = "" if "" in by_prefix else f"{id.partition('/')[0]}/"
        return by_prefix[prefix], id.removeprefix(prefix)

    return {source.document_id: place(source.document_id) for source in sources}
