"""Transformers models from folders, with one message for any fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import logging

from raydist.errors import InputError
from raydist.models.encoders import set_dropout


@contextmanager
def opening(auto_class: Any, folder: Path) -> Iterator[None]:
    """Turn transformers' errors about a folder into one message; silence its warnings."""
    logging.set_verbosity_error()  # a new head is what we want, not a warning
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, StrictDataclassError, SafetensorError) as error:
        why = " ".join(str(error).split())[:200]
        why += "; its weights are cut off or damaged, copy or download them again" if isinstance(error, SafetensorError) else ""
        raise InputError(f"{folder}: cannot be opened with {auto_class.__name__}: {why}") from None


def open_config(folder: Path) -> Any:
    """The config of transformers in a folder."""
    with opening(AutoConfig, folder):
        return AutoConfig.from_pretrained(folder)


def load_shape(auto_class: Any, folder: Path) -> Any:
    """A model of transformers as a folder's config describes it: its modules, without weights."""
    with opening(auto_class, folder), torch.device("meta"):
        return auto_class.from_config(AutoConfig.from_pretrained(folder))


def open_weights(auto_class: Any, folder: Path, **settings: Any) -> tuple[Any, list[str]]:
    """A model of transformers from a folder, in float32, and the names of the weights that the folder lacks."""
    how = {"dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with opening(auto_class, folder):
        model, found = auto_class.from_pretrained(folder, **how, **settings)
    if mismatched := sorted(found["mismatched_keys"]):  # transformers itself would report neither name nor shape
        name, seen, wanted = mismatched[0]
        raise InputError(
            f"{folder}: cannot be opened with {auto_class.__name__}: {name} has the shape {list(seen)} in its weights, and "
            f"{list(wanted)} by its config.json; copy or download both again"
        )
    return model, sorted(found["missing_keys"])


def load_pretrained(
    auto_class: Any, folder: Path, *, attention: str = "auto", dropout: float | None = None, seed: int = 0, **settings: Any
) -> Any:
    """A model of transformers from a folder, in float32. Missing weights (a head, say) are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with opening(auto_class, folder):
            config = AutoConfig.from_pretrained(folder, **settings)
        if dropout is not None:
            set_dropout(config, dropout)
        how = {} if attention == "auto" else {"attn_implementation": attention}
        return open_weights(auto_class, folder, config=config, **how)[0]
