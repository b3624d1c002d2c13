"""Texts to unit vectors with any encoder folder, plain or in sentence-transformers layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raydist.errors import InputError
from raydist.models import model_folder
from raydist.packed import PackedEncoder, PairFormat, load_for_inference, tokenize
from raydist.retriever.pooling import resolve_pooling


class TextEncoder:
    """Holds an encoder; gives the vectors that ``SentenceTransformer.encode(normalize_embeddings=True)`` gives."""

    def __init__(
        self,
        folder: Path | str,
        *,
        pooling: str = "auto",
        max_length: int | None = None,
        token_budget: int | None = None,
        device: str | None = None,
    ) -> None:
        self.folder = model_folder(str(folder))
        self.pooling = resolve_pooling(pooling, self.folder)
        model, self.tokenizer = load_for_inference("AutoModel", self.folder, device)
        self.encoder = PackedEncoder(model, token_budget)
        self.format = PairFormat(self.tokenizer)
        self.max_length = min(max_length or self._folder_length(), self.encoder.max_tokens)
        if self.max_length <= self.format.num_special:
            raise InputError(
                f"max_length {self.max_length} leaves no room for text beside {self.format.num_special} special tokens"
            )

    def _folder_length(self) -> int:
        """The length that the folder's authors chose; sentence-transformers keeps it in a file of its own."""
        path = self.folder / "sentence_bert_config.json"
        stated = json.loads(path.read_text(encoding="utf-8")).get("max_seq_length") if path.is_file() else None
        return stated or self.tokenizer.model_max_length

    @property
    def dimension(self) -> int:
        return self.encoder.base.config.hidden_size

    def encode(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> np.ndarray:
        """Unit vectors, float32 [number of texts, H]; with contexts, each as the second segment, cut to what room is left."""
        if contexts is None:
            rows = self.tokenizer(list(texts), truncation=True, max_length=self.max_length) if len(texts) else {"input_ids": []}
            ids, types = rows["input_ids"], rows.get("token_type_ids")
        else:
            if len(contexts) != len(texts):
                raise InputError(f"{len(contexts)} contexts for {len(texts)} texts: give one for each")
            room = self.max_length - self.format.num_special
            first, second = tokenize(self.tokenizer, texts, room), tokenize(self.tokenizer, contexts, room)
            pairs = [self.format.pair(a, b, self.max_length) for a, b in zip(first, second)]
            ids, types = [ids for ids, _ in pairs], [types for _, types in pairs]
        vectors = self.encoder.encode(ids, types, pooling=self.pooling)
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            raise InputError(f"{self.folder} gives {len(bad)} texts vectors that are not finite; one is {texts[bad[0]][:80]!r}")
        return vectors
