"""The sentences of a corpus on disk, by number: the lookup table of negatives, candidates, scoring and encoding.

A sentence's number (its row) is its rank among all ids in code point order. So the files depend only on the set of sentences,
not on its division into tables or their order, and a draw by row is the same everywhere.

    FOLDER/sentences.json            counts
    ids, texts                       strings: offsets and bytes
    text_keys, bag_keys              equal for exact and for near duplicates (``passages.duplicate_keys``)
    bags, bag_rows                   the bag keys sorted, and the row of each: finds duplicates
    documents                        the document's number by row, -1 if unknown
    document_starts, document_rows   the rows of each document
    passages                         the passage's number by row, -1 if none
    passage_texts                    strings by passage number

All arrays are memory-mapped .npy: opening reads next to nothing, the workers of a node share the pages. On disk a sentence
takes its id, its text and about 60 bytes; building takes memory for three copies of the ids, about 100 bytes per sentence and
one block of texts. The folder appears complete, by rename.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import InputError
from raydist.files.shards import load_array, load_strings, new_folder, order_by_id, string_array, string_parts

FORMAT = 1
BLOCK_ROWS = 65_536  # texts sorted at a time
NONE, UNKNOWN = -1, -2  # in place of a number: no name; an unknown name


class SentenceTable:
    """A corpus open for lookups. Rows are numbers from 0; the module docstring defines their order."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        facts = self.folder / "sentences.json"
        if not facts.exists():
            raise InputError(f"no sentence table at {folder}: {facts.name} is not there; build it from the corpus again")
        if (seen := json.loads(facts.read_text()).get("format")) != FORMAT:
            raise InputError(f"{facts} is of format {seen}, this version reads {FORMAT}; build the sentence table again")
        load, strings = partial(load_array, self.folder), partial(load_strings, self.folder)
        self._ids, self._texts = strings("ids"), strings("texts")
        self.text_keys, self.bag_keys = load("text_keys"), load("bag_keys")
        self._bags, self._bag_rows = load("bags"), load("bag_rows")
        self.documents = load("documents")
        self._document_starts, self._document_rows = load("document_starts"), load("document_rows")
        self.passages = load("passages")
        self._passage_texts = strings("passage_texts")

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self):  # a worker opens the files again
        return SentenceTable, (str(self.folder),)

    def ids(self, rows: np.ndarray) -> pa.LargeStringArray:
        """The ids of some rows."""
        return self._ids.take(pa.array(rows))

    def texts(self, rows: np.ndarray) -> pa.LargeStringArray:
        """The texts of some rows."""
        return self._texts.take(pa.array(rows))

    def passage_texts(self, rows: np.ndarray) -> pa.LargeStringArray:
        """The texts of some rows' passages; null without a passage."""
        passages = self.passages[rows]
        return self._passage_texts.take(pa.array(passages, mask=passages < 0))

    def find(self, ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> np.ndarray:
        """The row of each id, -1 if missing."""
        return _find(self._ids, ids)

    def rows_of(self, ids: pa.Array | pa.ChunkedArray | Sequence[str], what: str) -> np.ndarray:
        """The row of each id; rejects missing ids, with ``what`` as their origin."""
        rows = self.find(ids)
        if (rows < 0).any():
            first = str(ids[int((rows < 0).argmax())])
            raise InputError(
                f"{what} {first!r} is not in the corpus at {self.folder} ({len(self):,} sentences), nor are "
                f"{(rows < 0).sum() - 1} others; take the corpus that it was made from"
            )
        return rows

    def document_rows(self, row: int) -> np.ndarray:
        """All rows of this row's document, including itself, ascending; none if documents are unknown."""
        document = int(self.documents[row])
        if document < 0:
            return self._document_rows[:0]
        return self._document_rows[self._document_starts[document] : self._document_starts[document + 1]]

    def with_words(self, bag_key: int) -> np.ndarray:
        """All rows with these words, in any order."""
        first, last = np.searchsorted(self._bags, bag_key), np.searchsorted(self._bags, bag_key, side="right")
        return self._bag_rows[first:last]

    def duplicates(self, row: int, near: bool = False) -> np.ndarray:
        """All rows with the same normalised text, including itself; with ``near`` also the same words in another order."""
        rows = self.with_words(int(self.bag_keys[row]))  # exact duplicates share it, too
        return rows if near else rows[self.text_keys[rows] == self.text_keys[row]]


def build_sentence_table(folder: Path | str, sentences: Iterable[pa.Table], passages: Iterable[pa.Table] = ()) -> SentenceTable:
    """Write the sentences (``SENTENCE_SCHEMA``), given in blocks of any size and order, and open them.

    ``passages`` (``PASSAGE_SCHEMA``) are optional, for context; if any is given, all passages of the sentences are required.
    """
    folder = Path(folder)
    with new_folder(folder) as building:
        facts = _write(building, sentences, passages)
        (building / "sentences.json").write_text(json.dumps({"format": FORMAT} | facts, indent=1) + "\n")
    return SentenceTable(folder)


def _write(folder: Path, sentences: Iterable[pa.Table], passages: Iterable[pa.Table]) -> dict[str, int]:
    def save(name: str, array: np.ndarray) -> None:
        np.save(folder / f"{name}.npy", array, allow_pickle=False)

    passage_ids, passage_order, lengths, _ = _spool(folder, passages, "passage_id", [])
    _save_strings(folder, "passage_texts", lengths, passage_order)
    passage_ids = passage_ids.take(pa.array(passage_order))

    others = ["text_key", "bag_key", "document_id", "passage_id"]
    ids, order, lengths, columns = _spool(folder, sentences, "sentence_id", others)
    if not len(ids):
        raise InputError("the corpus is empty; wanted at least one sentence")
    _save_strings(folder, "texts", lengths, order)
    offsets, text = string_parts(ids.take(pa.array(order)))
    save("ids_offsets", offsets)
    save("ids_bytes", text)
    row_type = np.int32 if len(ids) < 2**31 else np.int64
    text_keys, bag_keys = (np.concatenate([part.to_numpy() for part in columns[name]])[order] for name in others[:2])
    save("text_keys", text_keys)
    save("bag_keys", bag_keys)
    by_bag = np.argsort(bag_keys, kind="stable")
    save("bags", bag_keys[by_bag])
    save("bag_rows", by_bag.astype(row_type))

    of_passage = _numbers(columns["passage_id"], passage_ids)[order]
    if len(passage_ids) and (of_passage == UNKNOWN).any():
        first = ids[int(order[(of_passage == UNKNOWN).argmax()])].as_py()
        raise InputError(f"the passage of sentence {first!r} is not among the passages; give all of them, or none")
    save("passages", np.maximum(of_passage, NONE).astype(row_type))

    document_ids = pc.unique(pa.chunked_array([column.dictionary for column in columns["document_id"]], pa.large_string()))
    document_ids = document_ids.take(pc.array_sort_indices(document_ids))
    documents = _numbers(columns["document_id"], document_ids)[order]
    by_document = np.argsort(documents, kind="stable")
    save("documents", documents.astype(row_type))
    save("document_rows", by_document.astype(row_type))
    save("document_starts", np.searchsorted(documents[by_document], np.arange(len(document_ids) + 1)))
    return {"sentences": len(ids), "documents": len(np.unique(documents[documents >= 0])), "passages": len(passage_ids)}


def _spool(
    folder: Path, tables: Iterable[pa.Table], id_column: str, others: Sequence[str]
) -> tuple[pa.LargeStringArray, np.ndarray, np.ndarray, dict[str, list[pa.Array]]]:
    """Spool texts to a file; returns the ids, their sort order, the texts' lengths in bytes, the other columns."""
    ids: list[pa.Array] = []
    lengths: list[np.ndarray] = []
    columns: dict[str, list[pa.Array]] = {name: [] for name in others}
    with (folder / "spool").open("wb") as file:
        for table in tables:
            for name in (id_column, "text", *others):
                if name not in table.column_names:
                    raise InputError(f"a table of the corpus has no column {name!r}, only {', '.join(table.column_names)}")
                if table[name].null_count:
                    raise InputError(f"a row of the corpus has no {name}; wanted one in every row")
            ids.append(_one_array(table[id_column]))
            lengths.append(_spool_texts(file, _one_array(table["text"])))
            for name in others:
                column = table[name].combine_chunks()
                columns[name].append(_one_array(column).dictionary_encode() if name.endswith("_id") else column)
    all_ids = pa.concat_arrays([*ids, pa.array([], pa.large_string())])
    _, order = order_by_id(all_ids)
    return all_ids, order, np.concatenate([*lengths, np.zeros(0, np.int64)]), columns


def _spool_texts(file: IO[bytes], texts: pa.LargeStringArray) -> np.ndarray:
    offsets, text = string_parts(texts)
    file.write(text.tobytes())
    return np.diff(offsets)


def _save_strings(folder: Path, name: str, lengths: np.ndarray, order: np.ndarray) -> None:
    """Write the spooled texts, sorted, as offsets and bytes."""
    spool = folder / "spool"
    offsets = np.append(0, np.cumsum(lengths[order]))
    np.save(folder / f"{name}_offsets.npy", offsets, allow_pickle=False)
    if not offsets[-1]:
        np.save(folder / f"{name}_bytes.npy", np.zeros(0, np.uint8), allow_pickle=False)
    else:
        spooled = string_array(np.append(0, np.cumsum(lengths)), np.asarray(np.memmap(spool, np.uint8, "r")))
        target = np.lib.format.open_memmap(folder / f"{name}_bytes.npy", "w+", np.uint8, (int(offsets[-1]),))
        for first in range(0, len(order), BLOCK_ROWS):
            _, text = string_parts(spooled.take(pa.array(order[first : first + BLOCK_ROWS])))
            target[offsets[first] : offsets[first] + len(text)] = text
        target.flush()
    spool.unlink()


def _numbers(columns: Sequence[pa.DictionaryArray], known: pa.LargeStringArray) -> np.ndarray:
    """The position of each name among the known names, which are sorted."""
    parts = []
    for column in columns:
        number = _find(known, column.dictionary)
        number[number < 0] = UNKNOWN
        number[pc.equal(column.dictionary, "").to_numpy(zero_copy_only=False)] = NONE
        parts.append(number[column.indices.to_numpy()])
    return np.concatenate(parts)


def _find(known: pa.LargeStringArray, asked: pa.Array | pa.ChunkedArray | Sequence[str]) -> np.ndarray:
    """The position of each string in sorted strings, -1 if missing."""
    wanted = _one_array(asked)
    if not len(known) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(pc.search_sorted(known, wanted).to_numpy().astype(np.int64), len(known) - 1)
    return np.where(pc.equal(known.take(pa.array(at)), wanted).to_numpy(zero_copy_only=False), at, -1)


def _one_array(strings: pa.Array | pa.ChunkedArray | Sequence[str]) -> pa.LargeStringArray:
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    return strings.cast(pa.large_string()) if isinstance(strings, pa.Array) else pa.array(strings, pa.large_string())
