"""The format of a file of questions, by its content, and the language of its passages, by its name."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from raydist.corpus.formats import READER_FORMATS
from raydist.corpus.languages import language_code
from raydist.corpus.messages import kind, nearest, short, some
from raydist.corpus.rows import HEAD_BYTES, csv_records, load_document, read_bytes
from raydist.errors import InputError
from raydist.files.given import parse_json

WANTED = (
    "wanted SQuAD, MRQA, HotpotQA, QED, Natural Questions, TriviaQA, NewsQA, TyDi QA, CMRC or DuReader JSON, rows with a "
    "question and a context, Parquet or CSV"
)

_LANGUAGES = frozenset(
    "ar bn cs da de el en es fa fi fr he hi hu it ja ko nl pl pt ro ru sv sw te th tr uk ur vi zh".split()  # noqa: SIM905
)
_TRANSLATED_BACK = re.compile(r"translate-test[-.]", re.IGNORECASE)  # MLQA's: from any language, now in English
_LANGUAGE_IN_NAME = re.compile(  # the hub's mlqa.ar.de has Arabic passages
    r"translate\.(?:train|test)\.[a-z]{2}-([a-z]{2})\b"  # XTREME: from one language into the other
    r"|(?<![a-z0-9])([a-z]{2})_squad-translate-train"  # MLQA
    r"|(?:xquad|mlqa|mlqa-translate-train)\.([a-z]{2})\b|context-([a-z]{2})-question-[a-z]{2}\b"
    rf"|squad[-_]({'|'.join(sorted(_LANGUAGES))})(?![a-z0-9])",
    re.IGNORECASE,
)
_MMARCO = re.compile(r"([a-z]+)_(?:collection|queries)\b")  # german_collection.tsv
_OTHER_FORMATS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PK\x03\x04": "a ZIP archive",
    b"%PDF": "a PDF document",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"ARROW1": "an Arrow file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"<": "HTML or XML",
}

Names = Mapping[str, str]


def language_of(path: str) -> str | None:
    """The language of the passages, from a name in the pattern of XQuAD, MLQA, XTREME or SQuAD-es, or a folder such as es/.
    None if neither states it."""
    if _TRANSLATED_BACK.search(os.path.basename(path)):
        return "en"
    if named := _MMARCO.match(os.path.basename(path)):
        return language_code(named[1])
    match = _LANGUAGE_IN_NAME.search(os.path.basename(path))
    if match and match.lastindex:
        return match[match.lastindex].lower()
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder in _LANGUAGES else None


# --- rows and documents ----------------------------------------------------------------------------------------------


def row_format(row: Mapping[str, Any], names: Names) -> str:
    """The format of a row with these keys; empty if unknown."""
    return next((name for name, format in READER_FORMATS.items() if format.recognises(row, names)), "")


def document_format(document: Any, names: Names) -> str:
    """The format of a JSON object that is more than a row; empty if unknown."""
    if not isinstance(document, dict):
        return ""
    as_row = row_format(document, names)
    return next((name for name, format in READER_FORMATS.items() if format.recognises_document(document, as_row)), "")


def unknown_rows(path: str, row: Any, names: Names) -> InputError:
    """The error for rows that are no questions, with their keys."""
    if not isinstance(row, dict):
        return InputError(f"{path}: a JSON list of {kind(row)}; {WANTED}")
    near = "".join(nearest(names[name], row) for name in ("question", "context") if names[name] not in row)
    return InputError(
        f"{path}: rows with the keys {some(row)}; {WANTED}{near}"
        "; where question and context have other names, map them with columns: {question: NAME, context: NAME}"
    )


# --- files -----------------------------------------------------------------------------------------------------------


def recognise(path: str, names: Names) -> tuple[str, str]:
    """Format and layout, from the first bytes if they suffice, else from the whole file."""
    head = read_bytes(path, HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet", "parquet"
    for magic, name in _OTHER_FORMATS.items():
        if head.lstrip().startswith(magic):
            raise InputError(f"{path} is {name}; {WANTED}; plain or gzipped")
    text = _without_mark(head)
    if not text:
        raise InputError(f"{path} is empty; {WANTED}")
    is_whole = len(head) < HEAD_BYTES
    if text[0] == "[":
        return _recognise_list(path, text, names), "document"
    if text[0] == "{":
        return _recognise_object(path, text, is_whole, names)
    _check_csv(path, head, text, is_whole, names)
    return "csv", "csv"


def _without_mark(data: bytes) -> str:
    return data.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")


def _recognise_list(path: str, text: str, names: Names) -> str:
    try:
        first = json.JSONDecoder().raw_decode(text, len(text) - len(text[1:].lstrip()))[0]
    except (ValueError, RecursionError):
        document = load_document(path)
        if not document:
            raise InputError(f"{path} holds no question, only an empty list; {WANTED}") from None
        first = document[0]
    format = row_format(first, names) if isinstance(first, dict) else ""
    if not format:
        raise unknown_rows(path, first, names)
    return format


def _recognise_object(path: str, text: str, is_whole: bool, names: Names) -> tuple[str, str]:
    """JSON Lines, if at least half of the first lines are objects; else a document."""
    begun = next((name for name, format in READER_FORMATS.items() if format.begins(text)), "")
    if begun and not ("\n" in text.rstrip() and _objects([text.split("\n", 1)[0]])):  # lines may begin like this, too
        return begun, "document"
    if not is_whole and "\n" not in text:  # a first line longer than the head
        text, is_whole = _without_mark(read_bytes(path)), True
    lines = text.split("\n") if is_whole else text.split("\n")[:-1]
    lines = [line for line in lines if line and not line.isspace()][:20]
    rows = _objects(lines)
    format = next(filter(None, (row_format(row, names) for row in rows)), "")
    is_document = len(lines) == len(rows) == 1 and not format and document_format(rows[0], names)
    if 2 * len(rows) < len(lines) or not rows or is_document:
        document = load_document(path)
        format = document_format(document, names) or row_format(document, names)
        if not format:
            raise unknown_rows(path, document, names)
        return format, "document"
    if not format:
        raise unknown_rows(path, rows[0], names)
    return format, "lines"


def _objects(lines: list[str]) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    rows = []
    for line in lines:
        try:
            rows.append(parse_json(line))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def _check_csv(path: str, head: bytes, text: str, is_whole: bool, names: Names) -> None:
    """Require a table: a header of several columns, and rows of the same width."""
    records = csv_records(path, io.BytesIO(head.removeprefix(b"\xef\xbb\xbf")))
    header = next(records)[1]
    second = next(records, None) if is_whole else None
    is_ours = names["question"] in header and names["context"] in header  # then a row of another width is only a bad row
    if len(header) < 2 or not all(header) or (second and len(second[1]) != len(header) and not is_ours):
        raise InputError(f"{path} starts with {short(text[:60])}, which is plain text or unknown; {WANTED}")
