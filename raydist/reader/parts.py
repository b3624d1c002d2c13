"""What makes one part of a reader's stages: a specification in, Arrow tables out. No cluster is needed to call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist.draws import keyed_uniform
from raydist.files.storage import Storage, fetch
from raydist.records import examples_table, rejected_table

Made = dict[str, Any]  # part: the table; beside: other tables of the part; info: plain values; row_group: rows


def example_part_maker(*, row_group: int) -> Callable[[dict], Made]:
    """Splits of files -> checked examples, and the rejected rows beside them."""
    from raydist.corpus.examples import Split, read_rows, read_split
    from raydist.corpus.hub import load_hub

    def read(spec: dict):
        if "hub" not in spec:
            place = spec["path"]
            named = Storage(place["folder"]).path(place["name"]) if place["folder"] else None  # the same on all nodes
            split = Split(**spec | {"path": str(fetch(place)), "columns": tuple(map(tuple, spec["columns"]))})
            return read_split(split, named)
        rows = load_hub(*spec["hub"]).select(range(spec["start"], spec["end"]))
        return read_rows(rows, first_line=spec["start"] + 1, **spec["reading"])

    def make(spec: dict) -> Made:
        examples, rejected, counts = read(spec)
        return {
            "part": examples_table(examples),
            "beside": {"rejected": rejected_table(rejected)},
            "info": asdict(counts),
            "row_group": row_group,
        }

    return make


def read_examples(storage: Storage, name: str, row_group: int | None = None) -> pa.Table:
    """The examples of a part file, or of one of its row groups."""
    with storage.open_input(name) as file:
        parquet = pq.ParquetFile(file)
        return parquet.read() if row_group is None else parquet.read_row_group(row_group)


def draw_questions(ids: Sequence[str], seed: int, adversarial: bool) -> np.ndarray:
    """A number in [0, 1) for each question; the copies of an adversarial set draw with their original."""
    from raydist.draws import text_hash

    keys = [text_hash(id.split("-", 1)[0] if adversarial else id) for id in ids]
    return keyed_uniform(seed, 0, "choose", np.array(keys, np.int64))


def chosen(ids: Sequence[str], choice: dict) -> np.ndarray:
    """Which questions a seeded choice takes: those whose draw is low enough, and not of the fold that is left out."""
    taken = draw_questions(ids, choice["seed"], choice["adversarial"]) <= choice["highest"]
    if choice["leave_out"]:
        taken &= ~in_fold(ids, choice["seed"], *choice["leave_out"])
    return taken


def in_fold(ids: Sequence[str], seed: int, fold: int, folds: int) -> np.ndarray:
    """Whether each question was drawn for a fold."""
    from raydist.draws import text_hash

    keys = np.array([text_hash(id) for id in ids], np.int64)
    return (keyed_uniform(seed, 0, "fold", keys) * folds).astype(np.int64) == fold


def window_part_maker(*, model: str, revision: str | None) -> Callable[[dict], Made]:
    """A row group of examples -> its windows."""
    from transformers import AutoTokenizer

    from raydist.models.loading import model_folder
    from raydist.reader.features import make_windows

    tokenizer = AutoTokenizer.from_pretrained(model_folder(model, revision))

    def make(spec: dict) -> Made:
        examples = read_examples(Storage(spec["folder"]), spec["part"], spec["row_group"])
        rows = None
        if spec["choice"]:
            rows = np.flatnonzero(chosen(examples["id"].to_pylist(), spec["choice"])).tolist()
        windows = make_windows(examples, tokenizer, rows=rows, **spec["lengths"])
        return {
            "part": windows,
            "info": {"examples": examples.num_rows, "chosen": examples.num_rows if rows is None else len(rows)},
        }

    return make


def prediction_part_maker(
    *, model: str, threads: int, settings: dict[str, Any], storage: str | None = None
) -> Callable[[dict], Made]:
    """The windows of a part and the examples they were made of -> n-best lists. A model in a storage is fetched per node."""
    import torch
    from transformers import AutoTokenizer

    from raydist.models.loading import model_folder
    from raydist.reader.model import load_reader
    from raydist.reader.predict import predict_examples
    from raydist.reader.rows import WindowRows

    torch.set_num_threads(threads)
    folder = Storage(storage).local_copy(model) if storage else model_folder(model)
    reader = load_reader(folder).to("cuda" if torch.cuda.is_available() else "cpu")
    pad_id = AutoTokenizer.from_pretrained(folder).pad_token_id

    def make(spec: dict) -> Made:
        rows = WindowRows([Storage(spec["windows_folder"]).local_copy("") / spec["windows"]])
        examples = read_examples(Storage(spec["folder"]), spec["part"], spec["row_group"])
        asked = np.unique(rows.examples) if spec["choice"] else None
        if spec.get("fold"):  # cross-fitting: the questions that this reader was not trained on
            asked = np.arange(examples.num_rows) if asked is None else asked
            asked = asked[in_fold(examples["id"].take(asked).to_pylist(), *spec["fold"])]
        return {"part": predict_examples(reader, rows, examples, asked, pad_id=pad_id, **settings)}

    return make
