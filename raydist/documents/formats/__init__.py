"""The formats of documents, by file suffix. A new format is a module here, and its lines in the table.

A module has `read(file) -> Iterator[Document]`, which raises a Fault for unreadable files. One in ROWS yields a document or a
Problem for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from raydist.corpus.rejected import EMPTY_DOCUMENT, Fault
from raydist.documents.document import Document, File
from raydist.errors import InputError

FORMATS = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".txt": "text",
    ".text": "text",
    ".pdf": "pdf",
    ".docx": "docx",
    ".jsonl": "rows",
    ".ndjson": "rows",
    ".jsonlines": "rows",
    ".csv": "rows",
    ".tsv": "rows",
    ".parquet": "rows",
}
ROWS = ("rows",)


def format_of(name: str) -> str:
    """The format of a file by its name; empty if unknown."""
    name = name.lower()
    found = FORMATS.get("." + name.removesuffix(".gz").rpartition(".")[2], "") if "." in name else ""
    return "" if name.endswith(".gz") and found not in ROWS else found


def read(file: File) -> Iterator[Document]:
    """The documents of a file, read in the format of its name; raises a Fault if unreadable."""
    try:
        module = import_module(f"raydist.documents.formats.{format_of(file.name)}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{file.name}: the package {error.name} is not installed, which reads such files; pip install 'raydist[documents]'"
        ) from None
    yield from module.read(file)


def checked(document: Document) -> Document:
    """The document, if it has any text; else raises a Fault."""
    if not document.blocks:
        raise Fault(EMPTY_DOCUMENT, "there is no text in it")
    return document
