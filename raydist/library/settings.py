"""Settings for building and searching a library; kept in its index.json, so that later openings use the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from raydist.files.stage import ASIDE, known_by
from raydist.retrieval.bm25 import Formula, Idf, WordRules
from raydist.retrieval.fusion import Fusion, FusionKind


@dataclass(frozen=True)
class EncoderFacts:
    """The identity of an encoder, and its settings."""

    where: Mapping[str, Any] = field(metadata=ASIDE)  # {name, revision}, for opening the model
    model: str  # digest of its folder
    pooling: str = "auto"
    lengths: Mapping[str, int] = field(default_factory=dict)  # of questions and answers, in tokens
    prefixes: Mapping[str, str] = field(default_factory=dict)  # of questions and answers
    precision: str = "fp32"


@dataclass(frozen=True)
class LibrarySettings:
    """Words, vectors, and the fusion of both. Without an encoder there are words alone."""

    encoder: EncoderFacts | None = None  # of the vectors
    headings: bool = True  # title and headings precede a passage's text, for words and vectors
    k1: float = 0.9
    b: float = 0.4
    idf: Idf = "lucene"
    min_chars: int = 2
    stop_words: tuple[str, ...] = ()
    stemmer: str = ""
    fusion: FusionKind = "z"
    dense_weight: float = 0.5
    depth: int = 100  # of both lists, before their fusion
    cross_encoder: str | None = None  # for reranking: a folder or a name
    segment_rows: int = 100_000

    def rules(self) -> WordRules:
        return WordRules(self.min_chars, frozenset(self.stop_words), self.stemmer)

    def formula(self) -> Formula:
        return Formula(self.k1, self.b, self.idf)

    def fuse(self) -> Fusion:
        return Fusion(self.fusion, self.dense_weight)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> LibrarySettings:
        known = {item.name for item in fields(cls)}
        found = {name: value for name, value in plain.items() if name in known}
        encoder = EncoderFacts(**found["encoder"]) if found.get("encoder") else None
        return cls(**found | {"stop_words": tuple(found.get("stop_words", ())), "encoder": encoder})

    def made_with(self) -> dict[str, Any]:
        """The settings that segments depend on: the same for all segments of a library."""
        names = ("encoder", "headings", "min_chars", "stop_words", "stemmer")
        return {name: known_by(getattr(self, name)) for name in names}
