"""A model's folder, looked at without loading its weights: what opening it would refuse, said before any work begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydist.errors import InputError
from raydist.models.folders import TOWERS, tower_folder
from raydist.models.loading import check_weights, load_shape, open_tokenizer, opening


def check_model(folder: Path, auto_class: str, *, trained_head: bool = False, **settings: Any) -> None:
    """Reject a folder whose model or tokenizer cannot be opened, or do not fit each other. `trained_head`: the head that this
    class of transformers has on top of the encoder must be among the weights, too. `settings`: changes of its config.
    """
    import transformers

    for tower in sorted({tower_folder(folder, name) for name in TOWERS}):
        opener = getattr(transformers, auto_class)
        model = load_shape(opener, tower, **settings)
        check_weights(model, opener, tower, trained_head=trained_head)
        tokenizer = open_tokenizer(tower)
        with opening(transformers.AutoTokenizer, tower):  # what it holds shows only when it is used
            check_tokenizer(tokenizer, model.config, tower)


def check_tokenizer(tokenizer: Any, config: Any, folder: Path) -> None:
    """Reject a tokenizer without words or special tokens, or with ids that the model has no embedding for."""
    ids = tokenizer.get_vocab().values()
    again = "copy the tokenizer of this very model again"
    if not isinstance(tokenizer.model_max_length, int | float):
        raise InputError(
            f"{folder}: its tokenizer's model_max_length is {tokenizer.model_max_length!r}, and no number; {again}"
        )
    if len(ids) <= len(tokenizer.all_special_ids):
        raise InputError(f"{folder}: its tokenizer has {len(ids)} tokens, special ones included; {again}")
    if tokenizer.pad_token_id is None or not tokenizer.num_special_tokens_to_add(pair=True):
        raise InputError(
            f"{folder}: its tokenizer has no special tokens for padding, or none around a pair of texts (such as [PAD], [CLS] "
            f"and [SEP]); {again}"
        )
    rows = getattr(config, "vocab_size", None)
    if rows and not (min(ids) >= 0 and max(ids) < rows):
        beyond = max(ids) if max(ids) >= rows else min(ids)
        raise InputError(f"{folder}: its tokenizer has the id {beyond}, and the model {rows:,} embeddings; {again}")
