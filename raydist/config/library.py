"""A library of passages: encoder, hybrid search, re-ranking. Section `index` sets how words are indexed."""

from __future__ import annotations

from typing import Literal

from raydist.config.retrieval import FusionConfig
from raydist.config.section import NOTHING, ROWS, SCORES, Section, key, section


class LibraryConfig(Section):
    """Passages with words and vectors side by side (docs/library.md)."""

    encoder: str | None = key("builtin:minilm", "Encoder of passages and questions; null: words alone", ROWS, later=True)
    pooling: Literal["auto", "cls", "mean"] = key(
        "auto", "Pooling of this encoder; auto: what its folder says", ROWS, later=True
    )
    question_prefix: str | None = key(None, "Text before each question; null: what the encoder's folder says", ROWS, later=True)
    passage_prefix: str | None = key(None, "Text before each passage; null: what the encoder's folder says", ROWS, later=True)
    max_question_length: int = key(96, "Length of a question", ROWS, unit="tokens", ge=4, later=True)
    max_passage_length: int = key(256, "Length of a passage with its headings", ROWS, unit="tokens", ge=8, later=True)
    headings: bool = key(True, "Whether title and headings are indexed with a passage's text", ROWS, later=True)
    fusion: FusionConfig = section(FusionConfig(kind="z"), "How the lists of words and of vectors become one")
    depth: int = key(100, "Length of both lists before they become one", SCORES, unit="passages", ge=1, later=True)
    cross_encoder: str | None = key(None, "Cross-encoder for --rerank: a folder or a name", SCORES, later=True)
    dead_share: float = key(
        0.2, "Share of deleted passages from which the index is written anew", NOTHING, ge=0, le=1, later=True
    )
    wait: float = key(0.0, "Time that a second writer waits for the first", NOTHING, unit="seconds", ge=0, later=True)
