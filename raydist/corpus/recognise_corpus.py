"""The format of a corpus, by its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.corpus.columns import column_names
from raydist.corpus.formats.msmarco import CORPORA, has_judgements
from raydist.corpus.messages import some
from raydist.corpus.paths import with_or_without_gz
from raydist.corpus.recognise import recognise
from raydist.corpus.rows import read_bytes, table_rows
from raydist.errors import InputError

_LISTS = {"reqa": ("questions", "candidates", "ground_truths"), "pairs": ("questions", "answers", "question_ids")}
_WANTED = (
    "wanted a BEIR or MS MARCO folder, a zipped BEIR set, a ReQA file, three files of corpus, questions and gold, documents, "
    "or files of questions; say which with `format`"
)


def corpus_format(paths: Sequence[Path], columns: Mapping[str, Any] | None = None) -> str:
    """The name of the format of these files or of this folder; raises InputError if it is none of ours."""
    if len(paths) == 1 and paths[0].is_dir():
        return _folder_format(paths[0])
    if len(paths) == 3 and all(path.is_file() for path in paths):
        return "msmarco" if not columns and has_judgements(paths[2]) else "tables"
    first = paths[0]
    if not first.is_file():  # a glob
        first = min(first.parent.glob(first.name), default=first)
    if len(paths) == 1 and (lists := _lists_format(first)):
        return lists
    return "documents" if columns or _has_documents(first) else _questions_format(first)


def _folder_format(folder: Path) -> str:
    if with_or_without_gz(folder / "corpus.jsonl").is_file():
        return "beir"
    if any(with_or_without_gz(folder / name).is_file() for name in CORPORA):
        return "msmarco"
    raise InputError(
        f"the folder {folder} is no corpus: it holds {some(sorted(file.name for file in folder.iterdir()))}; {_WANTED}"
    )


def _lists_format(path: Path) -> str:
    if Path(path.name.removesuffix(".gz")).suffix != ".json":
        return ""
    content = read_bytes(path)
    return next((name for name, keys in _LISTS.items() if all(f'"{key}"'.encode() in content for key in keys)), "")


def _has_documents(path: Path) -> bool:
    """Whether the first row has a text and an id, and no question."""
    try:
        row: Mapping[str, Any] = next((row.value for row in table_rows(path) if not row.fault), {})
    except InputError:
        return False
    return "text" in row and ("_id" in row or "document_id" in row) and "question" not in row


def _questions_format(path: Path) -> str:
    try:
        recognise(str(path), column_names(None))
    except InputError as error:
        raise InputError(f"{path} is no corpus; {_WANTED} ({error})") from None
    return "squad"
