"""Segments from passages: encoded, indexed, written; by a writer, or by a stage on many nodes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from raydist.files.given import expanded
from raydist.files.shards import new_folder, order_by_id
from raydist.files.storage import folder_digest
from raydist.library.segments import indexed_texts
from raydist.library.settings import EncoderFacts, LibrarySettings
from raydist.models.folders import is_folder, model_folder
from raydist.retrieval import bm25, dense
from raydist.retrieval.encode import ENCODE_ROWS, READ_ROWS, TextEncoder, reopen_encoder
from raydist.retrieval.pooling import resolve_prefixes

BATCH_ROWS = 65_536  # of passages.arrow: texts of a batch must not reach 2 GiB


def known_encoder(
    name: str,
    *,
    pooling: str = "auto",
    question_length: int = 96,
    passage_length: int = 256,
    question_prefix: str | None = None,
    passage_prefix: str | None = None,
    precision: str = "fp32",
) -> EncoderFacts:
    """The facts of an encoder (a folder, a Hugging Face name or a built-in one) for a library's settings."""
    folder = model_folder(name, towers=True)
    full_name = str(expanded(name).absolute()) if is_folder(name) else name
    lengths = {"question": question_length, "answer": passage_length}
    prefixes = resolve_prefixes(question_prefix, passage_prefix, folder)
    return EncoderFacts({"name": full_name, "revision": None}, folder_digest(folder), pooling, lengths, prefixes, precision)


class PassageEncoder:
    """Passages -> vectors. On a CPU each is encoded by itself, so that no other passage changes a bit of its vector."""

    def __init__(self, facts: EncoderFacts) -> None:
        self.encoder: TextEncoder = reopen_encoder(asdict(facts), "answer")
        self.together = 1 if self.encoder.encoder.is_packed else ENCODE_ROWS

    def encode(self, texts: list[str]) -> np.ndarray:
        vectors = np.empty((len(texts), self.encoder.dimension), np.float32)
        for first in range(0, len(texts), READ_ROWS):
            block = texts[first : first + READ_ROWS]
            vectors[first : first + len(block)] = self.encoder.encode(block, together=self.together)
        return vectors


def encode_passages(passages: pa.Table, settings: LibrarySettings, encoder: PassageEncoder | None) -> np.ndarray | None:
    """The vectors of some passages; None in a library without an encoder."""
    return encoder.encode(indexed_texts(passages, settings.headings)) if encoder else None


def build_segment(folder: Path, passages: pa.Table, vectors: np.ndarray | None, settings: LibrarySettings) -> None:
    """Write a segment; vectors are in the order of the passages, None in a library without an encoder."""
    ids, by_id = order_by_id(pa.concat_arrays(passages["passage_id"].cast(pa.large_string()).chunks))
    passages = passages.take(pa.array(by_id))
    with new_folder(folder) as building:
        with pa.ipc.new_file(str(building / "passages.arrow"), passages.schema) as writer:
            writer.write_table(passages, max_chunksize=BATCH_ROWS)
        bm25.build_shard(building / "bm25", ids, indexed_texts(passages, settings.headings), settings.rules())
        if vectors is not None:
            dense.build_shard(building / "dense", ids, vectors[by_id])
