"""Questions and passages -> windows of tokens, with offsets back to characters (docs/methods.md 2.1).

A window is `[CLS] question [SEP] part of the passage [SEP]` in the tokenizer's own template, or the passage comes first. A row
holds all that training and the mapping of predicted spans to text need, but no texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.draws import text_hash
from raydist.errors import InputError
from raydist.reader.metrics import normaliser

WINDOW_SCHEMA = pa.schema(
    [
        ("example", pa.int32()),  # row of its example in the source part
        ("passage", pa.int64()),  # hash of the passage
        ("answer", pa.int64()),  # hash of the normalised gold text
        ("input_ids", pa.list_(pa.int32())),
        ("token_types", pa.list_(pa.int8())),  # empty if the model has none
        ("cls", pa.int16()),  # position of the null span
        ("question_start", pa.int16()),  # [start, end) in tokens
        ("question_end", pa.int16()),
        ("passage_start", pa.int16()),
        ("passage_end", pa.int16()),
        ("start", pa.int16()),  # gold span, inclusive; the cls position where has_answer is false
        ("end", pa.int16()),
        ("has_answer", pa.bool_()),
        ("char_start", pa.list_(pa.int32())),  # passage tokens only
        ("char_end", pa.list_(pa.int32())),
    ]
)


def make_windows(
    examples: pa.Table,
    tokenizer: Any,
    *,
    max_length: int,
    max_question_length: int,
    doc_stride: int,
    no_answer_windows: str = "cls",
    passage_first: bool = False,
    rows: Sequence[int] | None = None,
) -> pa.Table:
    """All windows of the examples (or of the given rows), in their order."""
    picked = list(range(examples.num_rows)) if rows is None else list(rows)
    if not picked:
        return WINDOW_SCHEMA.empty_table()
    records = examples.take(pa.array(picked, pa.int64())).to_pylist()
    questions = cut_questions([record["question"] for record in records], tokenizer, max_question_length)
    _check_room(records, questions, tokenizer, max_length, doc_stride)
    contexts = [record["context"] for record in records]
    encoded = tokenizer(
        *((contexts, questions) if passage_first else (questions, contexts)),
        truncation="only_first" if passage_first else "only_second",
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    has_types = "token_type_ids" in tokenizer.model_input_names
    normalise = normaliser("squad")
    columns: dict[str, list] = {name: [] for name in WINDOW_SCHEMA.names}
    for number, sample in enumerate(encoded["overflow_to_sample_mapping"]):
        record, window = records[sample], encoded.encodings[number]
        ids = window.ids
        sequence = np.array([-1 if part is None else part for part in window.sequence_ids], dtype=np.int8)
        question, passage = np.flatnonzero(sequence == passage_first), np.flatnonzero(sequence == (not passage_first))
        if not len(passage):  # only blanks
            continue
        first, last = int(passage[0]), int(passage[-1]) + 1
        offsets = np.array(window.offsets, dtype=np.int32)[first:last]
        cls = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
        answer = record["answers"][0] if record["answers"] else None
        span = answer and token_span(offsets, answer["start"], answer["start"] + len(answer["text"]))
        if span is None and answer is not None and no_answer_windows == "drop":
            continue
        start, end = (first + span[0], first + span[1]) if span else (cls, cls)
        row = {
            "example": picked[sample],
            "passage": text_hash(record["passage_id"]),
            "answer": text_hash(normalise(answer["text"]) if answer else ""),
            "input_ids": ids,
            "token_types": window.type_ids if has_types else [],
            "cls": cls,
            "question_start": int(question[0]) if len(question) else 0,
            "question_end": int(question[-1]) + 1 if len(question) else 0,
            "passage_start": first,
            "passage_end": last,
            "start": start,
            "end": end,
            "has_answer": span is not None,
            "char_start": offsets[:, 0],
            "char_end": offsets[:, 1],
        }
        for name, value in row.items():
            columns[name].append(value)
    return pa.Table.from_pydict(columns, schema=WINDOW_SCHEMA)


def token_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """First and last token (inclusive) of characters [start, end), or None unless the tokens cover them all."""
    if not len(offsets) or start < offsets[0, 0] or end > offsets[-1, 1]:
        return None
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))  # the first token that ends after `start`
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1  # the last token that starts before `end`
    return (first, last) if first <= last else None


def cut_questions(questions: list[str], tokenizer: Any, longest: int) -> list[str]:
    """Questions cut at the end of their last allowed token."""
    encoded = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)
    return [
        question if len(offsets) <= longest else question[: offsets[longest - 1][1]]
        for question, offsets in zip(questions, encoded["offset_mapping"])
    ]


def _check_room(records: Sequence[Mapping], questions: list[str], tokenizer: Any, max_length: int, doc_stride: int) -> None:
    """Reject questions that leave the passage no more room than the windows' overlap: windows would never advance."""
    specials = tokenizer.num_special_tokens_to_add(pair=True)
    for record, ids in zip(records, tokenizer(questions, add_special_tokens=False)["input_ids"]):
        if max_length - len(ids) - specials <= doc_stride and max_length - len(ids) - specials < len(record["context"]):
            room = max_length - len(ids) - specials
            raise InputError(
                f"question {record['id']!r} takes {len(ids)} tokens and leaves {max(0, room)} for its passage, not more than "
                f"the windows overlap (data.doc_stride {doc_stride}); raise data.max_length (now {max_length}) or lower "
                f"data.doc_stride or data.max_question_length"
            )
