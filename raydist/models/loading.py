"""Transformers models from folders, with one message for any fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from raydist.errors import InputError
from raydist.models.encoders import set_dropout
from raydist.models.folders import weight_files

KNOWN = (OSError, ValueError, StrictDataclassError, SafetensorError)  # their messages speak for themselves


@contextmanager
def opening(auto_class: Any, folder: Path) -> Iterator[None]:
    """Turn any error of transformers about a folder into one message; silence its warnings."""
    logging.set_verbosity_error()  # a new head is what we want, not a warning
    logging.disable_progress_bar()
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a wrong config shows as a KeyError, a ZeroDivisionError, ...
        why = " ".join(str(error).split())[:200]
        if not isinstance(error, KNOWN):
            why = f"{type(error).__name__}: {why}; its JSON files may be damaged or made by hand: copy or download them again"
        why += "; its weights are cut off or damaged, copy or download them again" if isinstance(error, SafetensorError) else ""
        raise InputError(f"{folder}: cannot be opened with {auto_class.__name__}: {why}") from None


# --- weights, by the heads of their files ----------------------------------------------------------------------------

OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # of layer normalisation, in the first BERTs


class Stored(NamedTuple):
    """A tensor of a weights file."""

    shape: tuple[int, ...]
    type: str  # F32, BF16, I8, ...


def check_weights(model: Any, auto_class: Any, folder: Path, *, trained_head: bool = False) -> None:
    """Reject weights whose names, shapes or types are not those of a model, given as its modules without weights."""
    failed = f"{folder}: cannot be opened with {auto_class.__name__}"
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    prefix = f"{model.base_model_prefix}."
    matched, weights = set(), dict(model.named_parameters())
    stored = stored_weights(auto_class, folder)
    for name, (shape, kind) in stored.items():
        same = next((other for other in _names_of(name, prefix) if other in wanted), None)
        if same is None:
            continue
        matched.add(same)
        if not kind.startswith(("F16", "F32", "F64", "BF16")) and same in weights:
            raise InputError(f"{failed}: {name} is stored as {kind}: quantized weights are not read; save them as float32")
        if shape != wanted[same]:
            raise InputError(
                f"{failed}: {name} has the shape {list(shape)} in its weights, and {list(wanted[same])} by its config.json; "
                f"copy or download both again"
            )
    if stored and not matched:
        raise InputError(f"{failed}: none of its weights is one of a {type(model).__name__}; copy or download it again")
    if trained_head:
        head = [name for name in wanted if not name.startswith(prefix)]
        refuse_missing(folder, type(model).__name__, [name for name in head if name not in matched])


def _names_of(name: str, prefix: str) -> Iterator[str]:
    """The names that a stored weight may have in a model: with or without that of the encoder, old or new."""
    start, dot, last = name.rpartition(".")
    for one in (name, f"{start}{dot}{OLD_NAMES.get(last, last)}"):
        yield from (one, prefix + one, one.removeprefix(prefix))


def stored_weights(auto_class: Any, folder: Path) -> Mapping[str, Stored]:
    """The names, shapes and types of a folder's weights, from the heads of its files."""
    found: dict[str, Stored] = {}
    for name in weight_files(folder):
        with opening(auto_class, folder), safe_open(folder / name, "np") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            found |= {key: Stored(tuple(one.get_shape()), one.get_dtype()) for key, one in slices.items()}
    return found


def refuse_missing(folder: Path, auto_class: str, missing: Sequence[str]) -> None:
    """Refuse a folder that lacks weights, a trained head for one."""
    if missing:
        raise InputError(
            f"{folder} has no weights for {', '.join(missing[:4])}; {auto_class} needs them: train or copy it again"
        )


# --- opening ---------------------------------------------------------------------------------------------------------


def open_config(folder: Path) -> Any:
    """The config of transformers in a folder."""
    with opening(AutoConfig, folder):
        return AutoConfig.from_pretrained(folder)


def load_shape(auto_class: Any, folder: Path, **settings: Any) -> Any:
    """A model of transformers as a folder's config describes it: its modules, without weights."""
    with opening(auto_class, folder), torch.device("meta"):
        return auto_class.from_config(settings.get("config") or AutoConfig.from_pretrained(folder, **settings))


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in a folder."""
    with opening(AutoTokenizer, folder):
        return AutoTokenizer.from_pretrained(folder)


def open_weights(auto_class: Any, folder: Path, **settings: Any) -> tuple[Any, list[str]]:
    """A model of transformers from a folder, in float32, and the names of the weights that the folder lacks."""
    how = {"dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    about = {"config": settings["config"]} if "config" in settings else {}
    check_weights(load_shape(auto_class, folder, **about), auto_class, folder)  # sizes that differ may not fit into memory
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
