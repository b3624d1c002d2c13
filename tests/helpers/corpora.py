"""What stages of retrieval are made from, on disk without the stages before them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from raydist.files.stage import Made, Manifest, Part, encode_table, part_name, write_part
from raydist.files.storage import Storage, folder_digest
from raydist.models.located import Model, NamedModel
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.index_stages import EncoderModel

TEXTS = {
    "built": "The bridge was built in 1907.",
    "fell": "The old tower fell.",
    "in_1907": "In 1907 the bridge was built.",  # the words of `built`
    "again": "The old tower fell!",  # the text of `fell`
    "ships": "Ships pass below it.",
}
AROUND = {"built": "Of bridges.", "fell": "Of towers.", "ships": "Of ships."}


def corpus_in(folder: Path, questions: pa.Table, gold: pa.Table, *, block: int, row_group: int | None = None) -> Corpus:
    """A corpus whose tables are written into a folder; its sentences are where `folder/table` is."""
    for name, table in (("questions", questions), ("gold", gold)):
        (folder / f"{name}-00000.parquet").write_bytes(encode_table(table, "parquet", {}, row_group))
    made = Made(Storage(str(folder)), "retrieval_set", "made")
    return Corpus("made", made, made, len(questions), num_sentences=0, num_gold=len(gold), block_questions=block)


def made_in(folder: Path, name: str, tables: Sequence[pa.Table]) -> Made:
    """A stage with a part of each table."""
    storage = Storage(str(folder / name))
    lines = [write_part(storage, part_name(number, "parquet"), Part(table)) for number, table in enumerate(tables)]
    storage.write_json("manifest.json", asdict(Manifest(name, "made", {}, lines)))
    return Made(storage, name, "made")


def tiny_encoder(*, pooling: str = "auto", context: bool = False, question: int = 32, answer: int = 32) -> EncoderModel:
    """The tiny model, with the lengths of its questions and answers."""
    lengths, prefixes = {"question": question, "answer": answer}, {"question": "", "answer": ""}
    location = NamedModel("builtin:tiny")
    model = Model(location, folder_digest(location.folder()))
    return EncoderModel(model, pooling, context, lengths, prefixes, "fp32")
