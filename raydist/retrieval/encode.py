"""Texts to unit vectors with any encoder folder, plain or in sentence-transformers layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raydist.corpus.sentence_table import SentenceTable
from raydist.errors import InputError
from raydist.files.storage import folder_digest
from raydist.models.folders import model_folder, open_model, tower_folder
from raydist.models.packed import PackedEncoder, load_for_inference
from raydist.retrieval.pooling import longest_text, resolve_pooling
from raydist.retrieval.rows import tokenize_texts

ENCODE_ROWS = 128  # encoded together: rounding depends on a vector's neighbours, so these must not depend on shards
READ_ROWS = 16 * ENCODE_ROWS  # read and tokenized at once: work for many threads


class TextEncoder:
    """An encoder of texts: the vectors that ``SentenceTransformer.encode(normalize_embeddings=True)`` gives.

    >>> import raydist
    >>> encoder = raydist.TextEncoder("builtin:tiny", pooling="mean")           # built in, a folder, or a Hugging Face name
    >>> vectors = encoder.encode(["Who built the bridge?", "Mina Orlov built the bridge."])
    >>> vectors.shape, vectors.dtype
    ((2, 64), dtype('float32'))
    >>> bool(abs((vectors**2).sum(1) - 1).max() < 1e-6)                         # of length 1: a product is a cosine
    True
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        pooling: str = "auto",
        max_length: int | None = None,
        token_budget: int | None = None,
        device: str | None = None,
        prefix: str = "",
        precision: str = "fp32",
    ) -> None:
        self.prefix = prefix
        self.folder = model_folder(str(folder))
        self.pooling = resolve_pooling(pooling, self.folder)
        model, self.tokenizer = load_for_inference("AutoModel", self.folder, device)
        self.encoder = PackedEncoder(model, token_budget, precision)
        self.max_length = min(
            max_length or longest_text(self.folder) or self.tokenizer.model_max_length, self.encoder.max_tokens
        )
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        if self.max_length <= special:
            raise InputError(f"max_length {self.max_length} leaves no room for text beside {special} special tokens")

    @property
    def dimension(self) -> int:
        return self.encoder.base.config.hidden_size

    def encode(self, texts: Sequence[str], contexts: Sequence[str] | None = None, *, together: int | None = None) -> np.ndarray:
        """Unit vectors, float32 [number of texts, H]; with contexts, each is the second segment of its text, as in training.
        With ``together``, vectors equal those of separate calls with that many texts each, in less time.
        """
        if contexts is not None and len(contexts) != len(texts):
            raise InputError(f"{len(contexts)} contexts for {len(texts)} texts: give one for each")
        whole = [self.prefix + text for text in texts] if self.prefix else texts
        ids, kinds = tokenize_texts(self.tokenizer, whole, contexts, max_length=self.max_length)
        types = kinds if any(kinds) else None
        vectors = self.encoder.encode(ids, types, pooling=self.pooling, together=together)
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            raise InputError(f"{self.folder} gives {len(bad)} texts vectors that are not finite; one is {texts[bad[0]][:80]!r}")
        return vectors

    def encode_sentences(self, table: SentenceTable, rows: np.ndarray, *, context: bool) -> np.ndarray:
        """The vectors of some sentences, each with its paragraph if ``context``; held in memory once."""
        vectors = np.empty((len(rows), self.dimension), np.float32)
        for first in range(0, len(rows), READ_ROWS):
            block = rows[first : first + READ_ROWS]
            around = [text or "" for text in table.passage_texts(block).to_pylist()] if context else None
            vectors[first : first + len(block)] = self.encode(table.texts(block).to_pylist(), around, together=ENCODE_ROWS)
        return vectors


def open_encoder(where: Mapping[str, Any], tower: str, **settings: Any) -> TextEncoder:
    """The encoder at a location (``open_model``), or its ``query`` or ``answer`` tower if it has two."""
    return TextEncoder(tower_folder(open_model(where), tower), **settings)


def reopen_encoder(facts: Mapping[str, Any], of: str) -> TextEncoder:
    """The encoder that made an index's vectors, for a "question" or an "answer"; a changed model is refused."""
    folder = open_model(facts["where"])
    if folder_digest(folder) != facts["model"]:
        raise InputError(
            f"the model in {folder} is not the one that made this index; build the index again with `raydist index`"
        )
    settings = {"pooling": facts["pooling"], "max_length": facts["lengths"].get(of)}
    settings |= {"prefix": facts.get("prefixes", {}).get(of, ""), "precision": facts.get("precision", "fp32")}
    return open_encoder(facts["where"], {"question": "query", "answer": "answer"}[of], **settings)
