"""The tables of a corpus: passages, sentences, questions, and gold pairs of question and sentence."""

from __future__ import annotations

import pyarrow as pa

PASSAGE_SCHEMA = pa.schema(
    [
        ("passage_id", pa.string()),
        ("document_id", pa.string()),  # empty if documents are unknown
        ("title", pa.string()),
        ("text", pa.string()),
        ("language", pa.string()),
    ]
)

SENTENCE_SCHEMA = pa.schema(
    [
        ("sentence_id", pa.string()),
        ("text", pa.string()),
        ("passage_id", pa.string()),  # its context is that passage's text; empty without a passage
        ("document_id", pa.string()),
        ("start", pa.int32()),  # characters of the passage, [start, end); -1 without a passage
        ("end", pa.int32()),
        ("language", pa.string()),
        ("text_key", pa.int64()),  # equal for exact duplicates
        ("bag_key", pa.int64()),  # equal for near duplicates
    ]
)

QUESTION_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("text", pa.string()),
        ("language", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
    ]
)

GOLD_SCHEMA = pa.schema([("question_id", pa.string()), ("sentence_id", pa.string()), ("relevance", pa.int32())])
