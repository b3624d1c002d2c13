"""The sets Z of hard learning (methods 6.1): the n-best spans of a base reader for every training window, gold among them.

A set holds character spans of a question; a window sees those wholly inside it. Rows match the windows one to one, in files of
the same order.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.errors import InputError
from raydist.objectives.hard_learning import put_gold_in, span_types
from raydist.reader.rows import WindowRows

OUTSIDE = -1  # an element outside this window

SET_SCHEMA = pa.schema(
    [
        ("nbest_start", pa.list_(pa.int16())),  # tokens of the window, inclusive
        ("nbest_end", pa.list_(pa.int16())),
        ("nbest_type", pa.list_(pa.int8())),  # 0 gold, 1 one boundary agrees, 2 neither
        ("nbest_gold", pa.int16()),  # position of gold in the lists; -1 in a window without the answer, whose lists are empty
    ]
)


def make_sets(rows: WindowRows, examples: pa.Table, predictions: pa.Table, size: int) -> pa.Table:
    """One row (SET_SCHEMA) per window. `predictions` (PREDICTION_SCHEMA) may be in any order."""
    spans = _spans_by_question(predictions)
    ids, languages = examples["id"].to_pylist(), examples["language"].to_pylist()
    columns: dict[str, list] = {name: [] for name in SET_SCHEMA.names}
    start, end, has = rows.column("start"), rows.column("end"), rows.column("has_answer")
    first = rows.column("passage_start")
    for row in range(len(rows)):
        if not has[row]:
            values: tuple[Any, ...] = ([], [], [], OUTSIDE)
        else:
            id, language = ids[rows.examples[row]], languages[rows.examples[row]]
            found = spans.get((id, language), spans.get((f"{language}:{id}", language)))
            if found is None:
                raise InputError(
                    f"the n-best sets have no list for training question {id!r}: they were made from another data file, or "
                    f"from a choice of it; recreate them with `raydist predict ... predict.split=train`"
                )
            char_start, char_end = rows.values("char_start", row), rows.values("char_end", row)
            gold = (int(char_start[start[row] - first[row]]), int(char_end[end[row] - first[row]]))
            kept, place = put_gold_in(found, gold, size)
            token_start, token_end = _tokens_of(kept, char_start, char_end)
            token_start[place], token_end[place] = start[row] - first[row], end[row] - first[row]
            inside = (token_start >= 0) & (token_end >= token_start)
            values = (
                np.where(inside, token_start + first[row], OUTSIDE),
                np.where(inside, token_end + first[row], OUTSIDE),
                span_types(kept, gold),
                place,
            )
        for name, value in zip(SET_SCHEMA.names, values):
            columns[name].append(value)
    return pa.Table.from_pydict(columns, schema=SET_SCHEMA)


def _spans_by_question(predictions: pa.Table) -> dict[tuple[str, str], np.ndarray]:
    """Character spans [K, 2], best first, by id and language (translations share the ids of their source)."""
    keys = zip(predictions["id"].to_pylist(), predictions["language"].to_pylist())
    lists = predictions["nbest"].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):  # no rows at all
        return {}
    fields = lists.flatten()
    spans = np.stack([fields.field("start").to_numpy(), fields.field("end").to_numpy()], axis=1).astype(np.int64)
    cuts = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))[:-1]
    return dict(zip(keys, np.split(spans, cuts)))


def _tokens_of(spans: np.ndarray, char_start: np.ndarray, char_end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Passage tokens whose characters begin and end exactly where the spans do; -1 if none does."""
    start = np.searchsorted(char_start, spans[:, 0], side="left")
    end = np.searchsorted(char_end, spans[:, 1], side="right") - 1
    at_start = (start < len(char_start)) & (char_start[np.minimum(start, len(char_start) - 1)] == spans[:, 0])
    at_end = (end >= 0) & (char_end[np.maximum(end, 0)] == spans[:, 1])
    return np.where(at_start, start, OUTSIDE), np.where(at_end, end, OUTSIDE)


def check_sets_file(path: str, wanted: dict[str, Any], size: int) -> None:
    """Reject lists made for other questions or by another tokenizer; `raydist predict` records both in the file."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except FileNotFoundError:
        raise InputError(
            f"objectives.hard_learning.sets: there is no {path}; write it with `raydist predict ... predict.split=train`, or "
            f"leave the key out: then a base reader is trained first"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"objectives.hard_learning.sets: {path} is no Parquet file ({error})") from None
    made = json.loads(metadata.get(b"raydist", b"{}"))
    if not wanted.keys() <= made.keys():
        raise InputError(
            f"objectives.hard_learning.sets: {path} does not record how it was made; give the predictions/train.parquet "
            f"that `raydist predict ... predict.split=train` writes"
        )
    if made.get("n_best", 0) < size:
        raise InputError(
            f"objectives.hard_learning.sets: {path} has lists of {made.get('n_best', 0)}, and size is {size}: lower it, or "
            f"recreate the lists with predict.n_best={size}"
        )
    names = {
        "tokenizer": "another tokenizer",
        "examples": "another data file",
        "max_answer_length": "another max_answer_length",
    }
    for key, value in wanted.items():
        if made[key] != value:
            raise InputError(
                f"objectives.hard_learning.sets: {path} was made with {names.get(key, key)} than this run's ({key} "
                f"{made[key]}, wanted {value}); recreate it with `raydist predict ... predict.split=train`"
            )
