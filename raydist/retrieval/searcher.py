"""A searchable folder: an index, the texts of its sentences, and later additions.

    INDEX/          index.json, shard-*/, statistics-*/    as bm25.py and dense.py write them
    INDEX/texts-00000/                                     a sentence table (corpus/sentences.py); one more for each addition

Shards and tables are immutable: an addition leaves every file as it is and puts index.json in force last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import pyarrow as pa

from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.errors import InputError
from raydist.files.shards import new_folder, put_in_force
from raydist.retrieval.bm25 import Index, add_rows


class Hit(NamedTuple):
    """A sentence of an index."""

    sentence_id: str
    score: float
    text: str


def publish(folder: Path, index: Path, table: Path, search: dict[str, Any]) -> None:
    """Put an index and its texts into one folder, by hard links where the disk allows; an earlier one is replaced.

    `search` holds this folder's search settings ({"formula": BM25's} or {"search": a dense index's}); the index has none.
    """
    if has_additions(folder):
        raise InputError(f"{folder} holds documents that were added to it; delete it first, or give the run another name")
    facts = json.loads((index / "index.json").read_text())
    # only the files in force: a stage folder also has parts, and leftovers of killed commands
    sources = {name: index / name for name in (*facts["shards"], facts.get("statistics")) if name} | {"texts-00000": table}
    with new_folder(folder) as beside:
        for name, source in sources.items():
            (beside / name).mkdir()
            for file in sorted(source.iterdir()):
                try:
                    os.link(file, beside / name / file.name)
                except OSError:
                    shutil.copy2(file, beside / name / file.name)
        put_in_force(beside, facts | search)


def has_additions(folder: Path) -> bool:
    """Whether a folder is an index to which documents were added."""
    return (folder / "index.json").is_file() and len(_tables(folder)) > 1


def _tables(folder: Path) -> list[Path]:
    """The text tables in force: the corpus's, then one per addition. A table has the number of its first shard."""
    in_force = len(json.loads((folder / "index.json").read_text())["shards"])
    return sorted(path for path in folder.glob("texts-?????") if int(path.name[-5:]) < in_force)


def _kind(folder: Path) -> str:
    path = folder / "index.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no index; make one with `raydist index CONFIG`, it is in RUN/index then")
    return json.loads(path.read_text()).get("kind", "bm25")


class Searcher:
    """An index that `raydist index` made, open for questions.

    >>> import raydist
    >>> searcher = raydist.Searcher.open("runs/library")                        # a run, or its folder `index`
    >>> hit = searcher.search("Who built the bridge?", k=1)[0]
    >>> hit.sentence_id, hit.text
    ('p1#000', 'Mina Orlov built the bridge in 1894.')
    >>> both = searcher.search(["Who built the bridge?", "When did it fall?"])   # a list for each question, best first
    >>> [hits[0].text for hits in both]
    ['Mina Orlov built the bridge in 1894.', 'It fell in 1911.']
    """

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """The index in a folder, or of a run."""
        return cls(folder)

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not (self.folder / "index.json").is_file() and (self.folder / "index" / "index.json").is_file():
            self.folder = self.folder / "index"  # a run
        self.kind = _kind(self.folder)
        if self.kind == "library":
            raise InputError(f"{self.folder} holds passages of documents: open it with raydist.Library, or `raydist search`")
        self.tables = [SentenceTable(path) for path in _tables(self.folder)]
        self._index: Any
        if self.kind == "dense":
            from raydist.retrieval.dense import DenseIndex
            from raydist.retrieval.encode import reopen_encoder

            self._index = DenseIndex.open(self.folder)
            self._encode = reopen_encoder(self._index.encoder, "question").encode
        else:
            self._index = Index.open(self.folder)

    @overload
    def search(self, questions: str, k: int = 10) -> list[Hit]: ...  # type: ignore[overload-overlap]  # a str is a sequence, too
    @overload
    def search(self, questions: Sequence[str], k: int = 10) -> list[list[Hit]]: ...
    def search(self, questions: str | Sequence[str], k: int = 10) -> list[Hit] | list[list[Hit]]:
        """The k best sentences for a question, or for each of several: their `sentence_id`, `score` and `text`."""
        if isinstance(questions, str):
            return self._search([questions], k)[0]
        return self._search(list(questions), k)

    def _search(self, questions: list[str], k: int) -> list[list[Hit]]:
        k = min(k, max(1, sum(map(len, self.tables))))
        found = self._index.search(self._encode(questions) if self.kind == "dense" else questions, k)
        lists = []
        for rows, scores in zip(found.rows, found.scores):
            ids = self._index.sentence_ids(rows[rows >= 0])
            lists.append([Hit(id, float(value), self._text(id)) for id, value in zip(ids, scores[rows >= 0])])
        return lists

    def _text(self, id: str) -> str:
        for table in self.tables:
            row = table.find([id])
            if row[0] >= 0:
                return table.texts(row)[0].as_py()
        return ""


def _already(ids: pa.ChunkedArray, table: SentenceTable) -> list[str]:
    return ids.filter(pa.array(table.find(ids) >= 0)).to_pylist()


def add_sentences(folder: Path | str, sentences: pa.Table, passages: Iterable[pa.Table] = ()) -> int:
    """Add sentences (SENTENCE_SCHEMA) to an index as one more shard; nothing is rebuilt, statistics stay exact."""
    searcher = Searcher(folder)
    folder = searcher.folder
    shards = len(json.loads((folder / "index.json").read_text())["shards"])
    known = [id for table in searcher.tables for id in _already(sentences["sentence_id"], table)]
    if known:
        raise InputError(f"{len(known)} of these sentences are in the index already, {known[0]!r} for one; leave them out")
    table = build_sentence_table(folder / f"texts-{shards:05d}", [sentences], passages)  # visible once its shard is in force
    rows = np.arange(len(table))
    ids = table.ids(rows).to_pylist()
    if searcher.kind == "bm25":
        add_rows(folder, ids, table.texts(rows).to_pylist())
        return len(ids)
    from raydist.retrieval.dense import build_shard, publish_index
    from raydist.retrieval.encode import reopen_encoder

    facts = json.loads((folder / "index.json").read_text())
    encoder = reopen_encoder(facts["encoder"], "answer")
    vectors = encoder.encode_sentences(table, rows, context=facts["encoder"]["context"])
    name = f"shard-{len(facts['shards']):05d}"
    build_shard(folder / name, ids, vectors, searcher._index.settings)
    publish_index(folder, [*facts["shards"], name], facts["encoder"])
    return len(ids)
