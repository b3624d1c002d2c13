"""The parts of a library that need torch: the vectors of its segments, the encoder of questions, a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from raydist.files.shards import BestRows
from raydist.library.segments import Segment
from raydist.library.settings import LibrarySettings
from raydist.retrieval.dense import DenseIndex, Shard
from raydist.retrieval.encode import reopen_encoder
from raydist.retrieval.scoring import CrossScorer as CrossScorer


class OpenVectors:
    """The vectors of some segments, and the encoder of questions."""

    def __init__(self, segments: Sequence[Segment], settings: LibrarySettings) -> None:
        assert settings.encoder is not None
        self.encoder = reopen_encoder(asdict(settings.encoder), "question")
        facts = {"settings": {}, "search": {}, "encoder": asdict(settings.encoder), "dimension": self.encoder.dimension}
        shards = [Shard(segment.folder / "dense") for segment in segments]
        self.index = DenseIndex(shards, facts | {"rows": sum(map(len, segments))})

    def search(self, questions: Sequence[str], k: int, within: np.ndarray | None) -> BestRows:
        return self.index.search(self.encoder.encode(questions, together=1), k, within=within)
