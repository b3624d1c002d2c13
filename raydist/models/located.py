"""A model as an input of stages: found by its location, identified by its digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydist.files.storage import Storage, file_digest, fingerprint
from raydist.models.folders import model_folder


@dataclass(frozen=True)
class NamedModel:
    """A built-in model, a folder, or a Hugging Face name."""

    name: str
    revision: str | None = None

    def folder(self) -> Path:
        """The folder on this node. It may hold two towers."""
        return model_folder(self.name, self.revision, towers=True)

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision}


@dataclass(frozen=True)
class StoredModel:
    """A run's trained model."""

    storage: str  # URI of the run
    inside: str = "model"

    def folder(self) -> Path:
        """The folder on this node, fetched once if the storage is remote."""
        return Storage(self.storage).local_copy(self.inside)

    def plain(self) -> dict[str, Any]:
        return {"storage": self.storage, "folder": self.inside}


Location = NamedModel | StoredModel


@dataclass(frozen=True)
class Model:
    """A model's files."""

    location: Location
    digest: str

    @property
    def known_by(self) -> str:
        return self.digest

    def folder(self) -> Path:
        return self.location.folder()


def tokenizer_digest(folder: Path) -> str:
    """A digest of the files that make a tokenizer."""
    words = ("token", "vocab", "merges")
    files = [path for path in sorted(folder.glob("*")) if path.suffix == ".model" or any(word in path.name for word in words)]
    return fingerprint({path.name: file_digest(path) for path in files})
