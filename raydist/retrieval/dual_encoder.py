"""The dual encoder (docs/methods.md 5.7): a question tower, an answer tower, pooling, unit vectors.

One shared tower is saved as one folder in the layout of sentence-transformers, two towers as the folders ``query`` and
``answer``, each in that layout. ``SentenceTransformer(folder).encode(texts)`` then gives the same vectors; an answer with its
paragraph is a pair there, ``encode([(sentence, paragraph), ...])``. It truncates as ``tokenize_texts`` does, at the folder's
length: for a shared tower that of answers, so a question beyond its own limit is cut later there than in training.

Shapes: B texts, T tokens, H hidden units.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from raydist.errors import InputError
from raydist.models.folders import TOWERS
from raydist.models.loading import load_pretrained
from raydist.models.packed import Pooling
from raydist.models.saving import save_model, save_tokenizer
from raydist.objectives.base import masked_mean
from raydist.objectives.pairs import Tokens
from raydist.retrieval.pooling import KNOWN_MODULES, resolve_pooling


class DualEncoder(nn.Module):
    """Two towers over any transformers encoder; without a second one they share the first."""

    def __init__(self, question_tower: Any, answer_tower: Any = None, *, pooling: Pooling = "cls") -> None:
        super().__init__()
        self.question_tower: Any = question_tower
        self.separate_answer_tower: Any = answer_tower
        self.pooling = pooling
        for tower in (question_tower, answer_tower):  # saved with the rest, but no vector depends on it
            for parameter in tower.pooler.parameters() if getattr(tower, "pooler", None) is not None else ():
                parameter.requires_grad_(False)

    @property
    def is_shared(self) -> bool:
        return self.separate_answer_tower is None

    @property
    def answer_tower(self) -> Any:
        return self.question_tower if self.is_shared else self.separate_answer_tower

    def embed_questions(self, tokens: Tokens) -> Tensor:
        return self._embed(self.question_tower, tokens)

    def embed_answers(self, tokens: Tokens) -> Tensor:
        return self._embed(self.answer_tower, tokens)

    def _embed(self, tower: Any, tokens: Tokens) -> Tensor:
        hidden_BTH = tower(**tokens.inputs()).last_hidden_state.float()
        pooled_BH = hidden_BTH[:, 0] if self.pooling == "cls" else masked_mean(hidden_BTH, tokens.attention_BT, dim=1)
        return F.normalize(pooled_BH, dim=1)

    def save(
        self,
        folder: Path,
        tokenizer_folder: Path,
        *,
        max_question_length: int = 96,
        max_answer_length: int = 384,
        prefixes: Mapping[str, str] | None = None,
    ) -> None:
        """Save folders that SentenceTransformer and plain transformers open: one, or ``query`` and ``answer`` in it.

        ``prefixes`` (of ``question`` and ``answer``) are their prompts, which ``encode_query`` and ``encode_document`` put
        before a text; a separate tower has one prompt for all its texts.
        """
        before = {name: (prefixes or {}).get(of, "") for name, of in (("query", "question"), ("document", "answer"))}
        if self.is_shared:
            told: dict[str, Any] = {"prompts": before} if any(before.values()) else {}
            self._save_tower(self.question_tower, Path(folder), tokenizer_folder, max_answer_length, told)
        else:
            lengths = (max_question_length, max_answer_length)
            for name, tower, length, prompt in zip(TOWERS, (self.question_tower, self.answer_tower), lengths, before):
                told = {"prompts": {prompt: before[prompt]}, "default_prompt_name": prompt} if before[prompt] else {}
                self._save_tower(tower, Path(folder) / name, tokenizer_folder, length, told)

    def _save_tower(self, tower: Any, folder: Path, tokenizer_folder: Path, max_length: int, told: dict[str, Any]) -> None:
        save_model(tower, folder, tokenizer_folder)
        save_tokenizer(tokenizer_folder, folder)
        paths = ("", "1_Pooling", "2_Normalize")
        modules = [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{layer}"}
            for number, (layer, path) in enumerate(zip(KNOWN_MODULES, paths))
        ]
        pooling = {
            "word_embedding_dimension": tower.config.hidden_size,
            "pooling_mode_cls_token": self.pooling == "cls",
            "pooling_mode_mean_tokens": self.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        }
        written = {
            "modules.json": modules,
            "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
            "config_sentence_transformers.json": {"similarity_fn_name": "cosine", **told},
            "1_Pooling/config.json": pooling,
        }
        for name in paths[1:]:
            (folder / name).mkdir(exist_ok=True)
        for name, value in written.items():
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def load_dual_encoder(
    folder: Path,
    *,
    towers: str = "auto",
    pooling: str = "auto",
    attention: str = "auto",
    dropout: float | None = None,
    seed: int = 0,
) -> DualEncoder:
    """The encoder in a folder as a dual encoder. ``towers``: auto (as saved; one folder is shared), shared, separate."""
    from transformers import AutoModel

    folder = Path(folder)
    if towers not in ("auto", "shared", "separate"):
        raise InputError(f"towers is {towers!r}; it is one of auto, shared, separate")
    two = all((folder / name / "config.json").is_file() for name in TOWERS)
    if two and towers == "shared":
        raise InputError(f"{folder} holds two towers; use towers: separate, or one of its folders {' and '.join(TOWERS)}")
    folders = [folder / name for name in TOWERS] if two else [folder]
    found = [resolve_pooling(pooling, each) for each in folders]
    if len(set(found)) > 1:
        raise InputError(
            f"{folder}: pooling is {found[0]} in {TOWERS[0]} and {found[1]} in {TOWERS[1]}; set pooling to one of them"
        )
    models = [load_pretrained(AutoModel, each, attention=attention, dropout=dropout, seed=seed) for each in folders]
    if towers == "separate" and not two:
        models.append(copy.deepcopy(models[0]))
    return DualEncoder(*models, pooling=found[0])
