"""The parts of an asker in a run's folder: the library, the config's section `asking`, the calibration."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from raydist.asking.retriever import Retriever
from raydist.config.asking import AskingConfig
from raydist.errors import InputError
from raydist.files.given import expanded

LIBRARY = "raydist.library.library"  # the module, loaded when a folder is opened
CALIBRATION = "asking/calibration.json"  # in a run's folder
A_READER = "{} is a reader: give it a text (--passage FILE), or take it for an index of documents (--reader)"
SAMPLES, SAMPLE_BYTES = 16, 1 << 12


@dataclass(frozen=True)
class Places:
    """The parts of an asker that a run's folder names."""

    reader: str | None = None
    cross_encoder: str | None = None
    calibration: Path | None = None
    precision: float | None = None
    threshold: float | None = None
    products: str = AskingConfig().products
    settings: Mapping[str, Any] = field(default_factory=dict)  # other settings of an Asker


def find_places(library: Path | str) -> Places:
    """The places of the run that holds a library; empty for a library without a run."""
    folder = expanded(library)
    if (folder / "config.json").is_file():
        raise InputError(A_READER.format(folder))
    run = next((place for place in (folder, folder.absolute().parent) if (place / "config.yaml").is_file()), None)
    if run is None:
        return Places()
    try:
        found = yaml.load((run / "config.yaml").read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        asking = AskingConfig.model_validate((found or {}).get("asking") or {})
        task = (found or {}).get("task")
    except (yaml.YAMLError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{run}/config.yaml: its section asking cannot be read ({why})") from None
    if task in (None, "reader"):
        raise InputError(A_READER.format(run))
    own = run / CALIBRATION if (run / CALIBRATION).is_file() else None
    calibration = expanded(asking.calibration) if asking.calibration else own
    settings = {"kind": asking.kind, "k": asking.k, "depth": asking.depth}
    return Places(
        asking.reader, asking.cross_encoder, calibration, asking.precision, asking.threshold, asking.products, settings
    )


def open_library(folder: Path | str) -> Retriever:
    """The library in a folder, or of a run."""
    return import_module(LIBRARY).Library.open(folder)


def weights_digest(folder: Path) -> str:
    """A model's identity for a calibration: its config, the size of its weights and some of their bytes, nearly all of which
    training changes.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            for sample in range(SAMPLES):
                file.seek(sample * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1), os.SEEK_SET)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
