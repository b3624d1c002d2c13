"""Documents -> passages -> sentences with stable ids.

    document   "Warsaw"              cut at blank lines into
    passage    "Warsaw#0003"         cut by ``split_sentences``, or by the boundaries of MultiReQA, into
    sentence   "Warsaw#0003#002"     text[start:end] of its passage

Tables are Arrow (``schemas``). ``cut_documents`` and ``cut_passages`` are functions of one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.corpus.sentences import BLANK_LINE, split_sentences

Spans = Sequence[tuple[int, int]]


def cut_documents(documents: pa.Table) -> pa.Table:
    """Passages of documents {document_id, text, title?, language?}: the text between blank lines."""
    rows = []
    for document in documents.to_pylist():
        parts = [part.strip() for part in BLANK_LINE.split(document["text"])]
        for number, part in enumerate(part for part in parts if part):
            rows.append(
                {
                    "passage_id": f"{document['document_id']}#{number:04d}",
                    "document_id": document["document_id"],
                    "title": document.get("title") or "",
                    "text": part,
                    "language": document.get("language") or "en",
                }
            )
    return pa.Table.from_pylist(rows, PASSAGE_SCHEMA)


def cut_passages(passages: pa.Table, boundaries: Mapping[str, Spans] | None = None) -> pa.Table:
    """Sentences of passages; cut at their ``boundaries`` (by passage id), if given, else by rule."""
    rows = []
    for passage in passages.to_pylist():
        spans = (boundaries or {}).get(passage["passage_id"])
        for number, (start, end) in enumerate(spans or split_sentences(passage["text"], passage["language"])):
            text = passage["text"][start:end]
            ids = {"passage_id": passage["passage_id"], "document_id": passage["document_id"]}
            rows.append(sentence_row(f"{passage['passage_id']}#{number:03d}", text, start, end, passage["language"], **ids))
    return pa.Table.from_pylist(rows, SENTENCE_SCHEMA)


def sentence_row(
    id: str, text: str, start: int = -1, end: int = -1, language: str = "en", passage_id: str = "", document_id: str = ""
) -> dict[str, Any]:
    """A row of a table of sentences, with its duplicate keys."""
    text_key, bag_key = duplicate_keys(text)
    return {
        "sentence_id": id,
        "text": text,
        "passage_id": passage_id,
        "document_id": document_id,
        "start": start,
        "end": end,
        "language": language,
        "text_key": text_key,
        "bag_key": bag_key,
    }


def fits(spans: Spans, length: int) -> bool:
    """Whether the spans (at least one) are non-empty, disjoint and within a text of this length."""
    ordered = sorted(spans)
    return bool(ordered) and all(
        0 <= start < end <= after for (start, end), after in zip(ordered, [*(start for start, _ in ordered[1:]), length])
    )
