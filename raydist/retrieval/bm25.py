"""BM25 over shards: tokenize, index, top-k; the same answer, bit for bit, for any number of shards (docs/methods.md 5.2).

score(q, d) = sum over the words t of q of  n(t, q) * idf(t) * tf / (tf + k1 * (1 - b + b * |d| / average length))

A shard holds integers only: for each of its terms the rows that contain it, and for each of these a code for the pair
(term frequency, length of the row). Everything that depends on the whole corpus (idf, average length) is applied at
query time, from statistics that are the exact sums of the shards' own counts. Hence one pass over the text, immutable
shards, and new documents as one more shard: old files stay as they are, and scores equal those of a rebuilt index.

Why the number of shards changes no bit: a row's score is a float32 sum whose terms come in an order that depends on
the query and the global statistics alone (rarest first, then by term); each addend is the float32 product of the
global weight of the term and a share that depends on (tf, length, average length) alone.
Ties go to the smaller sentence id, in the order of code points: rows of a shard are sorted by id.

    INDEX/index.json            written last, by rename: names the files in force
    INDEX/shard-00000/          ids, terms, starts, rows, codes, frequencies, lengths (.npy, memory-mapped), shard.json
    INDEX/statistics-00001/     terms, counts (.npy, memory-mapped)

A folder appears by rename once it is complete. Sizes: a shard on disk takes 6 bytes per (term, row) pair plus its ids and
terms (``estimate_bytes`` predicts it); building one takes about 35 bytes of memory per word occurrence; searching takes
4 bytes per row and thread, beyond the mapped files. The statistics hold every term once: merging them takes memory for the
vocabularies of 16 shards at a time, and for the ids of all new shards, to refuse duplicates.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import InputError
from raydist.files.shards import (
    BestRows,
    OpenShards,
    build_shards,
    load_array,
    load_strings,
    order_by_id,
    put_in_force,
    read_facts,
    refuse_repeated_ids,
    string_arrays,
    write_folder,
)
from raydist.kernels.bm25 import Backend, kernel
from raydist.retrieval.vocabulary import Vocabulary
from raydist.retrieval.words import SEPARATOR, WordRules
from raydist.retrieval.words import stop_words as stop_words

FORMAT = 1
BLOCK_ROWS = 16_384  # texts tokenized at a time
MERGE_SHARDS = 16  # vocabularies merged at a time
# For estimates: bytes of text per (term, row) pair, 7 in English (4 in Chinese, 16 in Russian); terms over the root of the
# pairs, as in sentences of encyclopedias; bytes per term.
TEXT_BYTES, TERMS, TERM_BYTES = 7, 50, 32

Idf = Literal["lucene", "robertson", "atire"]


@dataclass(frozen=True, slots=True)
class Formula:
    """Search-time settings: none of them is baked into the files."""

    k1: float = 0.9
    b: float = 0.4
    idf: Idf = "lucene"

    def __post_init__(self) -> None:
        if not self.k1 >= 0 or not 0 <= self.b <= 1:
            raise InputError(f"BM25 needs k1 >= 0 and b between 0 and 1, got k1={self.k1} and b={self.b}")
        if self.idf not in get_args(Idf):
            raise InputError(f"unknown idf {self.idf!r}; take one of {', '.join(get_args(Idf))}")

    def weight(self, df: int, num_rows: int) -> float:
        """The idf of a term that ``df`` of ``num_rows`` rows hold; never negative."""
        if self.idf == "lucene":
            return math.log(1 + (num_rows - df + 0.5) / (df + 0.5))
        if self.idf == "robertson":
            return max(0.0, math.log((num_rows - df + 0.5) / (df + 0.5)))
        return math.log(num_rows / df)

    def share(self, frequency: np.ndarray, length: np.ndarray, average_length: float) -> np.ndarray:
        """tf / (tf + k1 (1 - b + b |d| / average length)), in float32."""
        relative = length / max(average_length, 1e-9)
        return (frequency / (frequency + self.k1 * (1 - self.b + self.b * relative))).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------------- build


def build_shard(folder: Path, ids: Iterable[str], texts: Iterable[str], rules: WordRules | None = None) -> None:
    """Write one shard: the rows of ``texts``, sorted by id. Independent of the other shards."""
    rules = rules or WordRules()
    numbers: defaultdict[str, int] = defaultdict(count(1).__next__)  # word -> number, in order of appearance
    numbers[SEPARATOR] = 0
    found: list[np.ndarray] = []
    num_rows, source = 0, iter(texts)
    while block := list(islice(source, BLOCK_ROWS)):
        words = rules.words(block)
        number_of = np.fromiter(map(numbers.__getitem__, words.dictionary.to_pylist()), np.int32, len(words.dictionary))
        found.append(number_of[words.indices.to_numpy()])
        num_rows += len(block)
    sentence_ids = pa.array(ids, pa.large_string())
    if len(sentence_ids) != num_rows:
        raise InputError(f"{len(sentence_ids)} ids for {num_rows} texts: give one id for each text")
    if num_rows >= 2**31:
        raise InputError(f"{num_rows} rows are too many for one shard; cut the corpus into shards of fewer than 2**31 rows")

    sentence_ids, by_id = order_by_id(sentence_ids)
    row_of = np.empty(num_rows, np.int64)
    row_of[by_id] = np.arange(num_rows)

    term_of_word = rules.terms(list(numbers))
    terms = sorted(set(term_of_word) - {""})
    rank = {term: at for at, term in enumerate(terms)}
    number_of_word = np.array([rank.get(term, -1) for term in term_of_word], np.int64)

    occurrences = np.concatenate([*found, np.zeros(0, np.int32)])
    found.clear()
    is_end = occurrences == 0
    row = np.repeat(row_of, np.diff(np.flatnonzero(is_end), prepend=-1))
    keys = number_of_word[occurrences]
    keys <<= 32
    keys |= row
    keys = keys[keys >= 0]  # separators and stop words have a negative term
    lengths = np.bincount(keys & 0xFFFFFFFF, minlength=num_rows)
    del row, occurrences, is_end
    keys.sort()

    first = np.flatnonzero(np.diff(keys, prepend=-1))  # of each run of equal (term, row)
    frequency = np.diff(first, append=len(keys))
    keys = keys[first]
    rows = (keys & 0xFFFFFFFF).astype(np.uint32)
    keys >>= 32
    starts = np.zeros(len(terms) + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=len(terms)), out=starts[1:])
    del keys
    codes, frequencies, pair_lengths = _code_pairs(frequency, lengths[rows])
    arrays = {
        **string_arrays("ids", sentence_ids),
        **Vocabulary.arrays(pa.array(terms, pa.large_string())),
        "starts": starts,
        "rows": rows,
        "codes": codes,
        "frequencies": frequencies,
        "lengths": pair_lengths,
    }
    facts = {"format": FORMAT, "rows": num_rows, "total_length": int(lengths.sum()), "rules": _plain(rules)}
    write_folder(Path(folder), arrays, facts, "shard.json")


def estimate_bytes(num_rows: int, text_bytes: int, id_bytes: int, shards: int = 1) -> int:
    """About how large the files of an index will be, from the bytes of all texts and ids."""
    pairs = text_bytes / TEXT_BYTES
    terms = TERMS * (math.sqrt(pairs * shards) + math.sqrt(pairs))  # those of each shard, and of the statistics
    return round(6 * pairs + id_bytes + 8 * num_rows + TERM_BYTES * terms)


def _code_pairs(frequency: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number the distinct (frequency, length) pairs: sentences have a few thousand, and a code takes two bytes."""
    width = int(length.max(initial=0)) + 1
    pair = frequency * width + length
    if pair.max(initial=0) < 2**27:
        is_used = np.zeros(int(pair.max(initial=0)) + 1, bool)
        is_used[pair] = True
        distinct = np.flatnonzero(is_used)
        codes = (np.cumsum(is_used, dtype=np.uint32) - 1)[pair]
    else:
        distinct, codes = np.unique(pair, return_inverse=True)
    return codes.astype(np.uint16 if len(distinct) <= 2**16 else np.uint32), distinct // width, distinct % width


def _plain(rules: WordRules) -> dict[str, Any]:
    return {**asdict(rules), "stop_words": sorted(rules.stop_words)}


def write_statistics(folder: Path, counts: Iterable[pa.Table], rows: int, total_length: int) -> None:
    """Write what scores need of the whole corpus: summed ``counts`` of shards, rows, total length. MERGE_SHARDS at a time."""
    waiting = iter(counts)
    whole = _sum_counts([next(waiting)])
    while block := list(islice(waiting, MERGE_SHARDS)):
        whole = _sum_counts([whole, *block])
    term = pa.array(whole["term"], pa.large_string()) if not whole.num_rows else whole["term"].chunk(0)
    df = whole["df"].to_numpy()
    facts = {"rows": rows, "total_length": total_length}
    write_folder(folder, {**Vocabulary.arrays(term), "counts": df}, facts, "statistics.json")


def _sum_counts(parts: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(parts)
    if len(parts) > 1:
        table = table.group_by("term").aggregate([("df", "sum")]).rename_columns(["term", "df"]).sort_by("term")
    return table.combine_chunks()


def publish_index(folder: Path, shards: Sequence[str], formula: Formula | None = None) -> None:
    """Sum the counts of the named shards of this folder and put them in force, all at once. One caller at a time."""
    folder = Path(folder)
    opened = [Shard(folder / name) for name in shards]
    if not sum(shard.num_rows for shard in opened):
        raise InputError(f"nothing to index in {folder}: the corpus is empty")
    for name, shard in zip(shards, opened):
        if shard.rules != opened[0].rules:
            raise InputError(f"{folder / name} was built with other word rules than {shards[0]}; build it again with the same")
    before = _read_json(folder / "index.json") if (folder / "index.json").exists() else {}
    known = set(before.get("shards", ()))
    refuse_repeated_ids(
        [shard.ids for name, shard in zip(shards, opened) if name in known],
        [shard.ids for name, shard in zip(shards, opened) if name not in known],
    )
    generation = before.get("generation", 0) + 1
    statistics = f"statistics-{generation:05d}"
    facts = {"rows": sum(s.num_rows for s in opened), "total_length": sum(s.total_length for s in opened)}
    write_statistics(folder / statistics, (shard.counts() for shard in opened), **facts)
    index = {
        "format": FORMAT,
        "kind": "bm25",
        "generation": generation,
        "statistics": statistics,
        "shards": list(shards),
        "rules": _plain(opened[0].rules),
        "formula": asdict(formula or Formula(**before.get("formula", {}))),
        **facts,
    }
    put_in_force(folder, index)
    for old in folder.glob("statistics-*"):  # the previous one stays for readers that are opening it
        if old.name not in (statistics, before.get("statistics")):
            shutil.rmtree(old)


def build_index(
    folder: Path,
    ids: Sequence[str],
    texts: Sequence[str],
    shards: int = 1,
    rules: WordRules | None = None,
    formula: Formula | None = None,
) -> None:
    """Build an index from rows in memory, in the given number of shards."""
    folder = Path(folder)
    build_shards(
        folder,
        len(texts),
        shards,
        lambda shard, rows: build_shard(shard, ids[rows], texts[rows], rules),
        lambda names: publish_index(folder, names, formula),
    )


def add_rows(folder: Path, ids: Iterable[str], texts: Iterable[str]) -> None:
    """Add rows to an index as one more shard: nothing is rebuilt, and scores equal those of a rebuilt index."""
    folder = Path(folder)
    index = _read_json(folder / "index.json")
    name = f"shard-{len(index['shards']):05d}"
    build_shard(folder / name, ids, texts, _rules(index["rules"]))
    publish_index(folder, [*index["shards"], name])


def _read_json(path: Path) -> dict[str, Any]:
    return read_facts(path, "bm25", FORMAT)


def _rules(plain: dict[str, Any]) -> WordRules:
    return WordRules(**{**plain, "stop_words": frozenset(plain["stop_words"])})


# --------------------------------------------------------------------------------------------------------------- search


class Shard:
    """A shard with mapped arrays."""

    def __init__(self, folder: Path) -> None:
        facts = _read_json(folder / "shard.json")
        self.num_rows: int = facts["rows"]
        self.total_length: int = facts["total_length"]
        self.rules = _rules(facts["rules"])
        self.ids = load_strings(folder, "ids")
        self.vocabulary = Vocabulary(folder)
        self.starts, self.rows, self.codes = (load_array(folder, name) for name in ("starts", "rows", "codes"))
        self.frequencies, self.lengths = load_array(folder, "frequencies"), load_array(folder, "lengths")

    def counts(self, kept: np.ndarray | None = None) -> pa.Table:
        """The number of this shard's rows that contain each term; with ``kept`` (a mask), of the kept rows."""
        df = np.diff(self.starts)
        if kept is not None and len(df):
            df = np.add.reduceat(kept[self.rows], self.starts[:-1], dtype=np.int64)  # every term has a row
        return pa.table({"term": self.vocabulary.terms, "df": df}).filter(pa.array(df > 0))

    def length_of(self, kept: np.ndarray) -> int:
        """The total length of the kept rows, in term occurrences."""
        is_kept = kept[self.rows]
        return int(self.frequencies[self.codes[is_kept]].sum())


class _Query(NamedTuple):
    """Questions as terms and weights; question i spans bounds[i] to bounds[i + 1]."""

    bounds: np.ndarray
    terms: np.ndarray
    weights: np.ndarray

    def with_terms(self, numbers: np.ndarray) -> _Query:
        """The same with renumbered terms, without those numbered -1 or of weight 0."""
        terms = numbers[self.terms]
        is_used = (terms >= 0) & (self.weights > 0)
        return _Query(np.append(0, np.cumsum(is_used))[self.bounds], terms[is_used], self.weights[is_used])


class Index(OpenShards):
    """An index, or some of its shards, open for search. All arrays are mapped: opening reads next to nothing."""

    def __init__(self, shards: Sequence[Shard], statistics: Path, rules: WordRules, formula: Formula) -> None:
        facts = json.loads((statistics / "statistics.json").read_text())
        self.rules, self.formula = rules, formula
        self.num_rows: int = facts["rows"]  # of the whole index, even if only some shards are open
        self.average_length = facts["total_length"] / max(1, facts["rows"])
        self.vocabulary = Vocabulary(statistics)
        self.counts = load_array(statistics, "counts")
        self.shards = list(shards)
        super().__init__(shard.ids for shard in self.shards)
        self._shares = [self.formula.share(s.frequencies, s.lengths, self.average_length) for s in self.shards]

    @classmethod
    def open(cls, folder: Path, shards: Sequence[int] | None = None, formula: Formula | None = None) -> Index:
        """Open all shards, or those of the given numbers, always with the statistics of the whole index."""
        folder = Path(folder)
        facts = _read_json(folder / "index.json")
        names = facts["shards"] if shards is None else [facts["shards"][at] for at in shards]
        opened = [Shard(folder / name) for name in names]
        return cls(opened, folder / facts["statistics"], _rules(facts["rules"]), formula or Formula(**facts["formula"]))

    def search(
        self,
        questions: Sequence[str] | Sequence[Sequence[str]],
        k: int = 10,
        threads: int = 1,
        backend: Backend = "auto",
        within: np.ndarray | None = None,
    ) -> BestRows:
        """The k best rows of the open shards for each question, a text or a list of terms; ties by sentence id. ``within``: a
        mask of the rows to search.
        """
        if k < 1:
            raise InputError(f"search needs k of 1 or more, got {k}")
        if not questions:
            return BestRows(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
        terms, query = self._weigh(questions)
        hits = []
        for shard, shares, first_row in zip(self.shards, self._shares, self.first_row):
            here = query.with_terms(shard.vocabulary.find(terms))
            allowed = np.zeros(0, bool) if within is None else within[first_row : first_row + shard.num_rows]
            rows, scores = _search_shard(shard, shares, here, allowed, k, threads, backend)
            hits.append(BestRows(np.where(rows >= 0, rows + first_row, -1), scores))
        return hits[0] if len(hits) == 1 else self._merge(hits, k)

    def _weigh(self, questions: Sequence[str] | Sequence[Sequence[str]]) -> tuple[list[str], _Query]:
        """The distinct terms of all questions, and each question as term numbers with weights, rarest first."""
        if isinstance(questions[0], str):
            words = self.rules.words(questions)  # type: ignore[arg-type]
            terms = self.rules.terms(words.dictionary.to_pylist())
        else:
            words = pa.array([word for question in questions for word in (*question, SEPARATOR)]).dictionary_encode()
            terms = words.dictionary.to_pylist()
        word = words.indices.to_numpy()
        place = self.vocabulary.find(terms)[word]
        question = np.cumsum(word == pc.index(words.dictionary, SEPARATOR).as_py())[place >= 0]
        place = place[place >= 0]  # separators have none

        order = np.lexsort((place, self.counts[place], question))
        place, question = place[order], question[order]
        is_first = (np.diff(place, prepend=-1) != 0) | (np.diff(question, prepend=-1) != 0)
        times = np.diff(np.flatnonzero(is_first), append=len(place))
        distinct, number = np.unique(place[is_first], return_inverse=True)
        idf = np.array([self.formula.weight(int(df), self.num_rows) for df in self.counts[distinct]])
        bounds = np.searchsorted(question[is_first], np.arange(len(questions) + 1))
        terms = self.vocabulary.terms.take(pa.array(distinct)).to_pylist()
        return terms, _Query(bounds, number, (times * idf[number]).astype(np.float32))

    def _merge(self, hits: Sequence[BestRows], k: int) -> BestRows:
        rows = np.concatenate([part.rows for part in hits], axis=1)
        scores = np.concatenate([part.scores for part in hits], axis=1)
        least = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
        question, column = np.nonzero((scores > 0) & (scores >= least))
        kept_rows, kept_scores = rows[question, column], scores[question, column]
        order, rank = merge_top_k(question, self._ids(kept_rows), kept_scores, k)
        best = BestRows(np.full((len(rows), k), -1, np.int64), np.zeros((len(rows), k), np.float32))
        best.rows[question[order], rank] = kept_rows[order]
        best.scores[question[order], rank] = kept_scores[order]
        return best


def merge_top_k(question: np.ndarray, sentence_id: pa.Array, score: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge candidates from several shards: indices to keep (by question, best first, ties by id) and their ranks, from 0."""
    table = pa.table({"question": question, "score": score, "id": sentence_id})
    order = pc.sort_indices(table, [("question", "ascending"), ("score", "descending"), ("id", "ascending")]).to_numpy()
    ordered = np.asarray(question)[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return order[rank < k], rank[rank < k]


def _search_shard(
    shard: Shard, shares: np.ndarray, query: _Query, allowed: np.ndarray, k: int, threads: int, backend: Backend
) -> tuple[np.ndarray, np.ndarray]:
    num_questions = len(query.bounds) - 1
    best = np.full((num_questions, k), -1, np.int64)
    scores = np.zeros((num_questions, k), np.float32)
    search = kernel(backend)

    def part(first: int, last: int) -> None:
        search(
            shard.starts, shard.rows, shard.codes, shares, query.bounds, query.terms, query.weights,
            shard.num_rows, allowed, first, last, best, scores,
        )  # fmt: skip

    cuts = [num_questions * at // max(1, threads) for at in range(max(1, threads) + 1)]
    if len(cuts) == 2:
        part(0, num_questions)
    else:
        with ThreadPoolExecutor(threads) as pool:  # the compiled kernel releases the GIL
            list(pool.map(part, cuts, cuts[1:]))
    return best, scores
