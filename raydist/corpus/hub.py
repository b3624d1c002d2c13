"""Data sets of the `datasets` library, by hub name or local folder, also one of `save_to_disk`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from raydist.corpus.recognise import language_of
from raydist.errors import InputError


def load_hub(name: str, split: str, config: str | None = None) -> Any:
    """A split of a data set, by hub name or local folder; never runs code from the data set."""
    import datasets  # takes seconds to import, needed only here

    if is_saved(Path(name)):
        return _saved_split(name, split)
    try:
        return datasets.load_dataset(name, config, split=split)
    except ConnectionError as error:
        raise InputError(
            f"data set {name!r} is neither a local folder nor to be had from the hub, which cannot be reached ({error}); "
            "go online once to fill the cache, or give local files"
        ) from error
    except (FileNotFoundError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"data set {name!r}, config {config!r}, split {split!r} cannot be loaded: {error}") from error


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def _saved_split(folder: str, split: str) -> Any:
    import datasets

    try:
        saved = datasets.load_from_disk(folder)
    except (FileNotFoundError, ValueError, OSError, KeyError) as error:
        raise InputError(f"{folder} was saved by `datasets` and cannot be loaded: {error}; save it again") from error
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split not in saved:
        raise InputError(f"{folder} has no split {split!r}, only {', '.join(saved)}: set `split` to one of them")
    return saved[split]


def hub_format(name: str, format: str = "auto") -> str:
    """The format; squad_v2 for the hub's data set of that name, whose rows do not mark impossible questions."""
    return "squad_v2" if format == "auto" and name.rstrip("/").endswith("squad_v2") else format


def hub_language(name: str, config: str | None = None) -> str | None:
    """The language in a data set's config or name, by the rule for names of files and folders."""
    names = [part for part in (config, os.path.basename(name.rstrip("/"))) if part]
    return next(filter(None, (language_of(place) for part in names for place in (part, f"{part}/"))), None)
