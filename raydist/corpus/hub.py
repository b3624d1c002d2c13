"""Data sets that `datasets` has by hub name or local folder."""

from __future__ import annotations

import os
from typing import Any

from raydist.corpus.recognise import language_of
from raydist.errors import InputError


def load_hub(name: str, split: str, config: str | None = None) -> Any:
    """A split of a data set that `datasets` has by hub name or local folder; no code from the data set is ever run."""
    import datasets  # seconds to import, and only needed here

    try:
        return datasets.load_dataset(name, config, split=split)
    except ConnectionError as error:
        raise InputError(
            f"data set {name!r} is neither a local folder nor to be had from the hub, which cannot be reached ({error}); "
            "go online once to fill the cache, or give local files"
        ) from error
    except (FileNotFoundError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"data set {name!r}, config {config!r}, split {split!r} cannot be loaded: {error}") from error


def hub_format(name: str, format: str = "auto") -> str:
    """In the hub's squad_v2 a question without answers is impossible, which its rows do not say."""
    return "squad_v2" if format == "auto" and name.rstrip("/").endswith("squad_v2") else format


def hub_language(name: str, config: str | None = None) -> str | None:
    """The language in a data set's config or its own name, by the rule for names of files and folders."""
    names = [part for part in (config, os.path.basename(name.rstrip("/"))) if part]
    return next(filter(None, (language_of(place) for part in names for place in (part, f"{part}/"))), None)
