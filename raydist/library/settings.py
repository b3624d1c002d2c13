"""What a library is made and searched with; kept in its index.json, so that whoever opens it later does the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from raydist.files.storage import folder_digest
from raydist.models.folders import is_folder, model_folder
from raydist.retrieval.bm25 import Formula, Idf, WordRules
from raydist.retrieval.fusion import Fusion, FusionKind
from raydist.retrieval.pooling import resolve_prefixes


@dataclass(frozen=True)
class LibrarySettings:
    """Words, vectors, and how both make one list. Without an encoder there are words alone."""

    encoder: Mapping[str, Any] | None = None  # what made the vectors (`encoder_facts`)
    headings: bool = True  # title and headings stand before a passage's text, for words and vectors
    k1: float = 0.9
    b: float = 0.4
    idf: Idf = "lucene"
    min_chars: int = 2
    stop_words: tuple[str, ...] = ()
    stemmer: str = ""
    fusion: FusionKind = "rrf"
    dense_weight: float = 0.5
    depth: int = 100  # of both lists, before they become one
    cross_encoder: str | None = None  # that ranks anew: a folder or a name
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
        return cls(**found | {"stop_words": tuple(found.get("stop_words", ()))})

    def made_with(self) -> dict[str, Any]:
        """The settings that segments depend on: those of one library have the same."""
        names = ("encoder", "headings", "min_chars", "stop_words", "stemmer")
        found = {name: self.plain()[name] for name in names}
        if found["encoder"]:
            found["encoder"] = {name: value for name, value in found["encoder"].items() if name != "where"}
        return found | {"stop_words": list(self.stop_words)}


def encoder_facts(
    name: str,
    *,
    pooling: str = "auto",
    question_length: int = 64,
    passage_length: int = 256,
    question_prefix: str | None = None,
    passage_prefix: str | None = None,
    precision: str = "fp32",
) -> dict[str, Any]:
    """How an encoder is used, and by what it is known: a folder, a Hugging Face name or one that is built in."""
    folder = model_folder(name, towers=True)
    full_name = str(Path(name).expanduser().absolute()) if is_folder(name) else name
    return {
        "where": {"name": full_name, "revision": None},
        "model": folder_digest(folder),
        "pooling": pooling,
        "lengths": {"question": question_length, "answer": passage_length},
        "prefixes": resolve_prefixes(question_prefix, passage_prefix, folder),
        "precision": precision,
    }
