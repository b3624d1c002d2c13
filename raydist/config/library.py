"""A library of passages: encoder, hybrid search, reranking. The section `index` sets how words are indexed."""

from __future__ import annotations

from typing import Literal

from raydist.config.retrieval import FusionConfig
from raydist.config.section import NOTHING, ROWS, SCORES, Section, key, section


class LibraryConfig(Section):
    """An index of passages by words and vectors (docs/library.md)."""

    encoder: str | None = key("builtin:minilm", "Encoder of passages and questions; null: index words only", ROWS, later=True)
    pooling: Literal["auto", "cls", "mean"] = key(
        "auto", "Pooling of this encoder; auto: as its folder declares", ROWS, later=True
    )
    question_prefix: str | None = key(
        None, "Text before each question; null: as the encoder's folder declares", ROWS, later=True
    )
    passage_prefix: str | None = key(None, "Text before each passage; null: as the encoder's folder declares", ROWS, later=True)
    max_question_length: int = key(96, "Maximum length of a question", ROWS, unit="tokens", ge=4, later=True)
    max_passage_length: int = key(256, "Maximum length of a passage with its headings", ROWS, unit="tokens", ge=8, later=True)
    headings: bool = key(True, "Index the title and headings together with a passage's text", ROWS, later=True)
    fusion: FusionConfig = section(FusionConfig(kind="z"), "How the ranked lists of words and vectors are combined")
    depth: int = key(100, "Length of each ranked list before they are combined", SCORES, unit="passages", ge=1, later=True)
    cross_encoder: str | None = key(
        None, "Cross-encoder for --rerank: a model's folder or a Hugging Face name", SCORES, later=True
    )
    dead_share: float = key(0.2, "Share of deleted passages at which the index is rewritten", NOTHING, ge=0, le=1, later=True)
    wait: float = key(0.0, "How long a second writer waits for the first", NOTHING, unit="seconds", ge=0, later=True)
