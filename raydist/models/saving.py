"""Saved models: folders that other libraries open, as the model's origin was but for the weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydist.files.storage import MODEL_SETTINGS
from raydist.models.encoders import encoder_of
from raydist.models.loading import open_config


def save_model(model: Any, folder: Path, origin: Path) -> None:
    """Save a model of transformers with the dropout of the folder that it started from, not that of its training."""
    with _dropout_of(model.config, open_config(origin)):
        model.save_pretrained(folder)


def save_tokenizer(origin: Path, folder: Path, *, max_length: int | None = None) -> None:
    """Save the tokenizer of a folder without its truncation and padding, which plain `tokenizers` would apply to every text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(origin)
    if max_length:
        tokenizer.model_max_length = max_length
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def write_settings(folder: Path, task: str, settings: Mapping[str, Any]) -> None:
    (folder / MODEL_SETTINGS).write_text(json.dumps({"task": task} | dict(settings), indent=1) + "\n", encoding="utf-8")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings in a model's folder; empty for one that raydist has not written, or a damaged file."""
    try:
        found = json.loads((folder / MODEL_SETTINGS).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _dropout_of(config: Any, origin: Any) -> Iterator[None]:
    names = [name for name in encoder_of(config).dropouts if hasattr(config, name) and hasattr(origin, name)]
    trained = {name: getattr(config, name) for name in names}
    try:
        for name in names:
            setattr(config, name, getattr(origin, name))
        yield
    finally:
        for name, value in trained.items():
            setattr(config, name, value)
