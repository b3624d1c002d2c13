"""The paths in a config: which of them travel with a job, and which a cluster cannot see."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from raydist.config import Config
from raydist.corpus.paths import expand_paths
from raydist.errors import InputError
from raydist.submission.parcel import is_inside

NO_PATHS = {("name",), ("storage",), ("data", "root"), ("cluster", "address")}  # or handled separately
SQLITE = "sqlite:///"


class Places:
    """Translates the paths in a config into paths valid where the job runs.

    Relative paths start at the working directory. A path inside it travels; one elsewhere is valid only in a shared folder or
    for a cluster on this machine. A string that need not be a path (a hub name) counts as one if it exists.
    """

    def __init__(self, base: Path, config: Config, is_here: bool | None, shared: Sequence[str]) -> None:
        self.base, self.is_here = base, is_here  # None: unknown, because the cluster did not answer
        self.shared = [Path(os.path.normpath(folder)) for folder in shared]
        self.config = config
        self.root = base / Path(config.data.root).expanduser()
        self.files: dict[str, Path] = {}
        self.problems: list[str] = []

    def resolved(self) -> dict[str, Any]:
        """The config for the job."""
        plain = self._visit(self.config.model_dump(mode="json"), ())
        plain["storage"] = self._storage(self.config.storage)
        plain["data"]["root"] = self._root(self.config.data.root)
        plain["cluster"]["address"] = None  # Ray sets RAY_ADDRESS for the job
        plain["track"]["mlflow"] = self._tracking(self.config.track.mlflow)
        return plain

    def _visit(self, value: Any, key: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {name: self._visit(inner, (*key, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._visit(inner, key) for inner in value]
        if not isinstance(value, str) or key in NO_PATHS or key[0] == "track":  # track: names and addresses
            return value
        if key[-1] in ("files", "judgements"):
            is_elsewhere = value.startswith("sample:") or (key[0] == "documents" and "://" in value)
            return value if is_elsewhere else self._data_file(value, key)
        return self._maybe_path(value, key)

    def _data_file(self, pattern: str, key: tuple[str, ...]) -> str:
        """Translate a data file or glob, expanded as the reader does. A corpus may be a folder."""
        if "://" in pattern:
            place = pattern
        else:
            place = os.path.normpath(self.root / Path(pattern).expanduser())
            if self._is_shared(place):
                return place
        try:
            is_corpus = key[0] != "data" and os.path.isdir(place)
            paths = expand_paths([f"{place}/**"] if is_corpus else [place])
        except InputError as error:
            self.problems.append(f"{'.'.join(key)}: {error}")
            return pattern
        if is_inside(Path(place), self.base):
            self._take(map(Path, paths))
            return os.path.relpath(place, self.root)
        return self._outside(place, key)

    def _maybe_path(self, text: str, key: tuple[str, ...]) -> str:
        is_explicit = text.startswith(("/", "~", "./", "../"))
        is_model = key == ("model", "name") or key[-1] in ("model", "encoder")
        if not text or "\n" in text or "://" in text or not (is_explicit or is_model or "/" in text or Path(text).suffix):
            return text
        place = os.path.normpath(self.base / Path(text).expanduser())
        if is_explicit and self._is_shared(place):
            return place
        for start in (self.base, self.root):
            path = Path(os.path.normpath(start / Path(text).expanduser()))
            if not path.exists():
                continue
            if not is_inside(path, self.base):
                return self._outside(str(path), key)
            self._take([path] if path.is_file() else (inner for inner in path.rglob("*") if inner.is_file()))
            return os.path.relpath(path, start)
        if is_explicit:
            self.problems.append(f"{'.'.join(key)}: nothing at {text}; check the path")
        return text

    def _take(self, paths: Iterable[Path]) -> None:
        for path in paths:
            inside = Path(os.path.normpath(path))
            self.files[inside.relative_to(self.base).as_posix()] = inside

    def _outside(self, place: str, key: tuple[str, ...]) -> str:
        if self.is_here is False:
            self.problems.append(
                f"{'.'.join(key)}: {place} is on this machine only, the cluster is elsewhere; move it into the working "
                f"directory {self.base} (which travels), or say --shared FOLDER if every node mounts that folder"
            )
        return place

    def _is_shared(self, place: str) -> bool:
        return any(Path(place).is_relative_to(folder) for folder in self.shared)

    def _storage(self, storage: str) -> str:
        if "://" in storage and not storage.startswith("file://"):
            return storage
        if place := self._lasting(storage.removeprefix("file://")):
            return place
        self.problems.append(
            f"storage: {storage} is a folder of one machine, and all nodes of the cluster must see the run's files; give a URI "
            f"(storage=s3://BUCKET/runs), or a folder that every node mounts (storage=/mnt/x/runs --shared /mnt/x)"
        )
        return storage

    def _tracking(self, uri: str | None) -> str | None:
        if not uri or not uri.startswith(SQLITE):
            return uri
        if place := self._lasting(uri.removeprefix(SQLITE)):
            return SQLITE + place
        self.problems.append(
            f"track.mlflow: {uri} is a file of one machine, and training may run on any node; give a server "
            f"(http://HOST:5000), or a file in a folder that every node mounts (with --shared FOLDER)"
        )
        return uri

    def _lasting(self, text: str) -> str | None:
        """The full path of an output, since the job's own folder is deleted when the job ends; None if nodes cannot see it."""
        place = os.path.normpath(self.base / Path(text).expanduser())
        return place if self._is_shared(place) or self.is_here is not False else None

    def _root(self, root: str) -> str:
        if not root or not is_inside(self.root, self.base):
            return root and str(self.root)
        return os.path.relpath(self.root, self.base)
