"""The products of documents: passages, and records of their source files."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

PASSAGES = pa.schema(
    [
        ("passage_id", pa.string()),  # document_id, "#" and the number within the document: "guide.md#3"
        ("document_id", pa.string()),  # path relative to the given folder, with /; for a row, its own id
        ("title", pa.string()),
        ("headings", pa.list_(pa.string())),  # above the passage, outermost first
        ("page", pa.int32()),  # the first, from 1; null without pages
        ("line", pa.int32()),  # the first, from 1, in the file; null if lines are meaningless
        ("text", pa.string()),
        ("language", pa.string()),  # ISO 639-1; "" if unknown
    ]
)

# types of metadata columns, which follow the columns of PASSAGES
METADATA_TYPES = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, order=True)
class Source:
    """The record of a file that identifies it as unchanged."""

    document_id: str  # of the file: rows of a table have ids of their own
    uri: str  # its location: a path, or a URI
    size: int
    mtime_ns: int  # 0 if a store has none
    digest: str  # of its bytes

    @property
    def known_by(self) -> dict[str, str]:
        """A file's identity is its name and bytes, regardless of location and age."""
        return {"document_id": self.document_id, "digest": self.digest}
