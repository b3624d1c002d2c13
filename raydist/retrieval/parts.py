"""What makes one part of the retrieval stages: a specification in, Arrow tables out. No cluster is needed to call them.

Where a stage makes files that are no tables (a sentence table, shards of an index), they are written into the stage's folder
first and the part, a row of counts, after them: as everywhere, the part's name is what says that all is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydist.corpus.duplicates import count_duplicates, duplicate_keys
from raydist.corpus.formats import open_corpus
from raydist.corpus.open_set import OpenSet, RetrievalSet
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.errors import InputError
from raydist.files.storage import Storage, fetch, read_between, read_parquet, read_rows
from raydist.models.loading import open_model, tower_folder
from raydist.records import SCORED_SCHEMA, SILVER_SCHEMA, name_rejected, rejected_table

if TYPE_CHECKING:
    from raydist.retrieval.encode import TextEncoder

ROW_GROUP = 4096  # of a set's tables: a block reads the groups that its questions are in, and no other
Made = dict[str, Any]  # part: the table; beside: other tables of the part; info: plain values; row_group: rows


# --- where things are ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def open_sentences(uri: str) -> SentenceTable:
    """The sentence table of a stage."""
    return SentenceTable(Storage(uri).local_copy("") / "table")


def build_into(uri: str, name: str, build: Callable[[Path], Any]) -> None:
    """Let `build` write a folder into a stage: in place on a disk, else beside and then sent there."""
    storage = Storage(uri)
    if storage.is_local:
        build(Path(storage.path(name)))
        return
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder) / name)
        storage.upload(Path(folder) / name, name)


def read_questions(spec: Mapping[str, Any]) -> pa.Table:
    """The block's questions: {folder, name, first, last}, rows of a table that is in their order."""
    where = spec["block"]
    return read_rows(Storage(where["folder"]), where["name"], where["first"], where["last"])


def read_gold(spec: Mapping[str, Any], questions: pa.Table) -> pa.Table:
    """The gold answers of a block's questions, from a table in the order of the questions: {folder, name}."""
    where, ids = spec["gold"], questions["question_id"]
    return read_between(Storage(where["folder"]), where["name"], "question_id", ids[0].as_py(), ids[-1].as_py())


def read_part(spec: Mapping[str, Any], of: str) -> pa.Table:
    """What another stage made of the block: {folder, name}."""
    return read_parquet(Storage(spec[of]["folder"]), spec[of]["name"])


# --- corpus ----------------------------------------------------------------------------------------------------------


def retrieval_set_part_maker() -> Callable[[dict], Made]:
    """Files -> sentences and passages, written as they are read; questions, gold and rejected rows; the part is their counts.

    Memory: a block of rows, about 50 bytes for each sentence, and all of the questions and gold.
    """

    def make(spec: dict) -> Made:
        storage, found = Storage(spec["stage"]), open_retrieval_set(spec)
        keys = []
        with (
            _written(storage, "sentences-00000.parquet", SENTENCE_SCHEMA) as sentences,
            _written(storage, "passages-00000.parquet", PASSAGE_SCHEMA) as passages,
        ):
            for block, around in found.blocks():
                sentences.add(block)
                passages.add(around)
                keys.append(block.select(["text_key", "bag_key"]))
        questions, gold = found.questions_and_gold()
        questions_read = questions.num_rows
        if spec["questions"] is not None and spec["questions"] < questions.num_rows:
            from raydist.reader.parts import draw_questions

            draws = draw_questions(questions["question_id"].to_pylist(), spec["seed"], False)
            questions = questions.take(np.sort(np.argsort(draws, kind="stable")[: spec["questions"]]))
            gold = gold.filter(pc.is_in(gold["question_id"], value_set=questions["question_id"].combine_chunks()))
        if not questions.num_rows and spec["format"] != "documents":
            names = ", ".join(place["name"] for place in spec["files"])
            raise InputError(
                f"{names or 'sample:'}: no question has a gold sentence in the corpus; wanted gold whose ids are those of "
                f"questions and sentences{name_rejected(found.rejected)}"
            )
        order = [("question_id", "ascending")]
        return {
            "part": pa.table({"sentences": [sentences.rows]}),
            "beside": {
                "questions": questions.sort_by(order),
                "gold": gold.sort_by([*order, ("sentence_id", "ascending")]),
                "rejected": rejected_table(found.rejected),
            },
            "info": {
                "rows": sentences.rows,
                "questions": questions.num_rows,
                "questions_read": questions_read,  # before some were chosen
                "gold": gold.num_rows,
                "passages": passages.rows,
                "rejected": len(found.rejected),
                "notes": found.notes,
                "duplicates": count_duplicates(pa.concat_tables(keys)),
                "digests": {"sentences": sentences.digest.hexdigest(), "passages": passages.digest.hexdigest()},
            },
            "row_group": ROW_GROUP,
        }

    return make


class _Blocks:
    """A table that is written block by block: its rows so far, and a digest of them."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer, self.rows, self.digest = writer, 0, hashlib.blake2b(digest_size=16)

    def add(self, block: pa.Table) -> None:
        for batch in block.combine_chunks().to_batches():
            if batch.num_rows:
                self.writer.write_batch(batch)
                self.digest.update(batch.serialize())
                self.rows += batch.num_rows


@contextlib.contextmanager
def _written(storage: Storage, name: str, schema: pa.Schema) -> Iterator[_Blocks]:
    with storage.writing(name) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield _Blocks(writer)


def open_retrieval_set(spec: Mapping[str, Any]) -> OpenSet | RetrievalSet:
    """A corpus, questions and gold answers, by its format; what may be large is read as it is gone through."""
    boundaries = fetch(spec["boundaries"]) if spec.get("boundaries") else None
    paths = [fetch(place) for place in spec["files"]]
    return open_corpus(spec["format"], paths, split=spec["split"], columns=spec.get("columns"), boundaries=boundaries)


def sentence_table_part_maker() -> Callable[[dict], Made]:
    """All sentences and passages of a set -> a memory-mapped table of them. Memory: about 100 bytes a sentence."""

    def make(spec: dict) -> Made:
        def blocks(name: str) -> Iterator[pa.Table]:
            with Storage(spec["set"]).open_input(name) as file:
                for batch in pq.ParquetFile(file).iter_batches():
                    yield pa.Table.from_batches([batch])

        def build(folder: Path) -> None:
            build_sentence_table(folder, blocks(spec["sentences"]), blocks(spec["passages"]))

        build_into(spec["stage"], "table", build)
        return {"part": pa.table({"sentences": [len(open_sentences(spec["stage"]))]})}

    return make


# --- indexes ---------------------------------------------------------------------------------------------------------


def bm25_shard_part_maker(*, rules: dict[str, Any]) -> Callable[[dict], Made]:
    """Some rows of a sentence table -> a shard of a BM25 index."""
    from raydist.retrieval.bm25 import WordRules, build_shard

    words = WordRules(**rules | {"stop_words": frozenset(rules["stop_words"])})

    def make(spec: dict) -> Made:
        table = open_sentences(spec["sentences"])
        rows = np.arange(spec["first"], spec["last"])
        ids, texts = table.ids(rows).to_pylist(), table.texts(rows).to_pylist()
        build_into(spec["stage"], spec["name"], lambda folder: build_shard(folder, ids, texts, words))
        return {"part": pa.table({"rows": [len(rows)]})}

    return make


def dense_shard_part_maker(
    *, model: dict, encoder: dict[str, Any], context: bool, threads: int, settings: dict[str, Any]
) -> Callable[[dict], Made]:
    """Some rows of a sentence table -> their vectors, a shard of a dense index."""
    from raydist.retrieval.dense import DenseSettings, build_shard

    tower = _text_encoder(model, encoder, threads, "answer")

    def make(spec: dict) -> Made:
        table = open_sentences(spec["sentences"])
        rows = np.arange(spec["first"], spec["last"])
        vectors = tower.encode_sentences(table, rows, context=context)
        ids = table.ids(rows).to_pylist()
        build_into(spec["stage"], spec["name"], lambda folder: build_shard(folder, ids, vectors, DenseSettings(**settings)))
        return {"part": pa.table({"rows": [len(rows)]})}

    return make


def _text_encoder(model: dict, encoder: dict[str, Any], threads: int, tower: str) -> TextEncoder:
    from raydist.cores import use_cores
    from raydist.retrieval.encode import open_encoder

    use_cores(threads, keep_all=False)
    return open_encoder(model, tower, **encoder)


def bm25_hits_part_maker(*, k: int, threads: int, formula: dict[str, Any]) -> Callable[[dict], Made]:
    """A block of questions -> what BM25 finds for each, over all shards."""
    from raydist.retrieval.bm25 import Formula, Index
    from raydist.retrieval.candidates import hit_table

    @lru_cache(maxsize=2)
    def opened(uri: str) -> Index:
        return Index.open(Storage(uri).local_copy(""), formula=Formula(**formula))

    def make(spec: dict) -> Made:
        questions, index = read_questions(spec), opened(spec["index"])
        hits = index.search(questions["text"].to_pylist(), k, threads=threads)
        return {"part": hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids)}

    return make


def dense_hits_part_maker(
    *, model: dict, encoder: dict[str, Any], k: int, threads: int, search: dict[str, Any]
) -> Callable[[dict], Made]:
    """A block of questions -> what a dense index finds for each, over all shards."""
    from raydist.retrieval.candidates import hit_table
    from raydist.retrieval.dense import DenseIndex, DenseSearch

    tower = _text_encoder(model, encoder, threads, "query")

    @lru_cache(maxsize=2)
    def opened(uri: str) -> DenseIndex:
        return DenseIndex.open(Storage(uri).local_copy(""), search=DenseSearch(**search))

    def make(spec: dict) -> Made:
        questions, index = read_questions(spec), opened(spec["index"])
        hits = index.search(tower.encode(questions["text"].to_pylist()), k)
        return {"part": hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids)}

    return make


# --- mining ----------------------------------------------------------------------------------------------------------


def labelled_part_maker(*, settings: dict[str, Any]) -> Callable[[dict], Made]:
    """A block of questions and what was found for them -> training pairs of the cross-encoder."""
    from raydist.retrieval.negatives import draw_negatives

    def make(spec: dict) -> Made:
        questions = read_questions(spec)
        found = {of: read_part(spec, of) for of in ("bm25", "dense")}
        sentences = open_sentences(spec["sentences"])
        return {"part": draw_negatives(questions, read_gold(spec, questions), **found, sentences=sentences, **settings)}

    return make


def cross_rows_part_maker(*, model: dict, lengths: dict[str, int], context: bool = False) -> Callable[[dict], Made]:
    """Labelled pairs -> tokens, with `context` those of the sentence's paragraph, too. Of a block the questions for training,
    or those held out.
    """
    from transformers import AutoTokenizer

    from raydist.draws import text_hash
    from raydist.retrieval.rows import tokenize_cross_pairs
    from raydist.retrieval.silver import with_texts

    tokenizer = AutoTokenizer.from_pretrained(open_model(model))

    def make(spec: dict) -> Made:
        pairs = read_part(spec, "labelled")
        pairs = pairs.filter(pc.equal(pairs["is_dev"], spec["dev"]))
        sentences = open_sentences(spec["sentences"])
        pairs = with_texts(pairs, read_questions(spec), sentences)
        columns = {name: pairs[name].to_pylist() for name in pairs.column_names}
        table = tokenize_cross_pairs(
            tokenizer,
            columns["question"],
            columns["sentence"],
            contexts=_contexts(sentences, sentences.rows_of(pairs["sentence_id"], "the sentence")) if context else None,
            labels=columns["label"],
            question_keys=[text_hash(id) for id in columns["question_id"]],
            sentence_keys=[text_hash(id) for id in columns["sentence_id"]],
            **lengths,
        )
        return {"part": table}

    return make


def candidates_part_maker(*, settings: dict[str, Any]) -> Callable[[dict], Made]:
    """A block of questions and what was found for them -> candidates, gold left out."""
    from raydist.retrieval.candidates import find_candidates

    def make(spec: dict) -> Made:
        questions = read_questions(spec)
        found = {of: read_part(spec, of) for of in ("bm25", "dense")}
        sentences = open_sentences(spec["sentences"])
        return {"part": find_candidates(questions, read_gold(spec, questions), **found, sentences=sentences, **settings)}

    return make


def scores_part_maker(
    *, model: dict, digest: str, threads: int, settings: dict[str, Any], context: bool = False
) -> Callable[[dict], Made]:
    """Pairs of a block -> the cross-encoder's logits. Pairs go by number; each text is tokenized once. With `context` it reads
    the sentence's paragraph, too.
    """
    from raydist.cores import use_cores
    from raydist.retrieval.cross_encoder import sigmoid
    from raydist.retrieval.scoring import CrossScorer

    use_cores(threads, keep_all=False)
    scorer = CrossScorer(open_model(model), **settings)

    def make(spec: dict) -> Made:
        questions, table = read_questions(spec), open_sentences(spec["sentences"])
        pairs = read_part(spec, "pairs") if "pairs" in spec else read_gold(spec, questions)
        if "is_dev" in pairs.column_names:  # labelled pairs: those for training are not judged
            pairs = pairs.filter(pairs["is_dev"])
        asked = questions["question_id"].combine_chunks()
        question_of = pc.index_in(pairs["question_id"], value_set=asked).to_numpy()
        rows, sentence_of = np.unique(table.rows_of(pairs["sentence_id"], "the candidate"), return_inverse=True)
        texts = table.texts(rows).to_pylist()
        around = _contexts(table, rows) if context else None
        logits = scorer.score(questions["text"].to_pylist(), texts, question_of, sentence_of, around)
        scored = pairs.append_column("logit", pa.array(logits, pa.float32()))
        if spec.get("plain"):  # a ranking wants no more than that
            return {"part": scored}
        scored = scored.append_column("p", pa.array(sigmoid(logits), pa.float32()))
        scored = scored.append_column("cross_encoder", pa.array([digest] * len(logits), pa.string()))
        return {"part": scored.select(SCORED_SCHEMA.names).cast(SCORED_SCHEMA)}

    return make


def cosines_part_maker(*, model: dict, encoder: dict[str, Any], threads: int) -> Callable[[dict], Made]:
    """Held-out pairs of a block -> the product of both vectors; those of sentences are in a dense index of the whole table."""
    from raydist.retrieval.dense import DenseIndex

    tower = _text_encoder(model, encoder, threads, "query")

    @lru_cache(maxsize=1)
    def opened(uri: str) -> DenseIndex:
        return DenseIndex.open(Storage(uri).local_copy(""))

    def make(spec: dict) -> Made:
        pairs, questions = read_part(spec, "pairs"), read_questions(spec)
        pairs = pairs.filter(pairs["is_dev"])
        asked = pc.unique(pairs["question_id"])
        texts = questions["text"].take(pc.index_in(asked, value_set=questions["question_id"].combine_chunks())).to_pylist()
        rows = open_sentences(spec["sentences"]).rows_of(pairs["sentence_id"], "the pair's sentence")
        cosines = np.zeros(0, np.float32)
        if len(rows):
            question_of = pc.index_in(pairs["question_id"], value_set=asked).to_numpy()
            cosines = opened(spec["index"]).products(tower.encode(texts)[question_of], rows)
        return {"part": pairs.select(["label"]).append_column("cosine", pa.array(cosines, pa.float32()))}

    return make


def top_hits_part_maker(*, depth: int) -> Callable[[dict], Made]:
    """The best hits of each question, from deeper lists."""

    def make(spec: dict) -> Made:
        hits = read_part(spec, "hits")
        return {"part": hits.filter(pc.less_equal(hits["rank"], depth))}

    return make


def silver_part_maker(*, settings: dict[str, Any]) -> Callable[[dict], Made]:
    """Scored candidates -> every one with its weight, kept or why not. No model is asked."""
    from raydist.retrieval.silver import select_silver

    def make(spec: dict) -> Made:
        return {"part": select_silver(read_part(spec, "scores"), sentences=open_sentences(spec["sentences"]), **settings)}

    return make


def pair_rows_part_maker(
    *,
    model: dict,
    context: bool,
    lengths: dict[str, int],
    weighting: str,
    negatives: dict[str, Any],
    everything: dict[str, Any],
    prefixes: dict[str, str] | None = None,
) -> Callable[[dict], Made]:
    """Gold and silver pairs of a block of questions -> tokens for the dual encoder.

    `weighting`: "gold" (no silver pair), "none" (silver pairs of weight 1), "silver" (of the weight they have). `everything`
    is where the questions, gold answers and silver pairs of all blocks are (``repeated_positives``).
    """
    from transformers import AutoTokenizer

    from raydist.retrieval.rows import Negative, tokenize_pairs
    from raydist.retrieval.silver import training_pairs, with_texts

    tokenizer = AutoTokenizer.from_pretrained(tower_folder(open_model(model), "query"))
    before = prefixes or {"question": "", "answer": ""}

    @lru_cache(maxsize=1)
    def repeated(sentences: str) -> tuple[np.ndarray, np.ndarray]:
        return repeated_positives(open_sentences(sentences), **everything)

    def make(spec: dict) -> Made:
        table, questions = open_sentences(spec["sentences"]), read_questions(spec)
        silver = read_part(spec, "silver") if "silver" in spec else SILVER_SCHEMA.empty_table()
        scored = read_part(spec, "gold_scores") if "gold_scores" in spec else None
        pairs = training_pairs(read_gold(spec, questions), silver, table, gold_scored=scored, **negatives)
        if weighting == "gold":
            pairs = pairs.filter(pairs["is_gold"])
        told = with_texts(pairs, questions, table)
        rows = table.rows_of(told["sentence_id"], "the sentence")
        bags = table.bag_keys[rows].tolist()
        asked = [duplicate_keys(text)[0] for text in told["question"].to_pylist()]  # the same one may have two ids
        positives: dict[int, set[int]] = {}
        for question, bag in zip(asked, bags):
            positives.setdefault(question, set()).add(bag)
        keys, of_others = repeated(spec["sentences"])
        for question, known in positives.items():
            first, last = (np.searchsorted(keys, question, side) for side in ("left", "right"))
            known.update(of_others[first:last].tolist())
        made = tokenize_pairs(
            tokenizer,
            [before["question"] + text for text in told["question"].to_pylist()],
            [before["answer"] + text for text in told["sentence"].to_pylist()],
            contexts=_contexts(table, rows) if context else None,
            weights=[1.0] * told.num_rows if weighting != "silver" else told["weight"].to_pylist(),
            question_keys=asked,
            bag_keys=bags,
            positives=[sorted(positives[question]) for question in asked],
            negatives=[_negatives(table, ids, logits, context, Negative) for ids, logits in _mined(told)],
            logits=told["logit"].to_pylist(),
            **lengths,
        )
        kept = pairs.num_rows - int(pc.sum(pairs["is_gold"]).as_py() or 0)
        return {"part": made, "info": {"gold": pairs.num_rows - kept, "silver": kept}}

    def _negatives(table: SentenceTable, ids: list[str], logits: list[float], context: bool, kind: Any) -> list:
        rows = table.rows_of(ids, "the negative")
        contexts = _contexts(table, rows) if context else [""] * len(rows)
        texts = table.texts(rows).to_pylist()
        return [
            kind(before["answer"] + text, int(table.bag_keys[row]), around, logit)
            for text, row, around, logit in zip(texts, rows, contexts, logits)
        ]

    return make


def repeated_positives(
    sentences: SentenceTable, questions: dict, gold: dict, silver: list[dict]
) -> tuple[np.ndarray, np.ndarray]:
    """(question key, bag key), in order, of all gold and kept silver pairs of questions whose text more than one id has.

    What a row masks thus does not depend on which block the other ids are in. All three say {folder, name}. Memory: 8 bytes for
    each question, and of the repeated ones their ids and 16 bytes for each pair; the tables are gone through in pieces.
    """
    from raydist.retrieval.candidates import of_questions

    keys = np.concatenate([_question_keys(batch) for batch in _batches(questions, ["text"])] or [np.zeros(0, np.int64)])
    found, times = np.unique(keys, return_counts=True)
    wanted, ids, keys_of_ids = found[times > 1], [], []
    for batch in _batches(questions, ["question_id", "text"]) if len(wanted) else ():
        keys = _question_keys(batch)
        again = np.isin(keys, wanted)
        ids.append(batch["question_id"].filter(pa.array(again)))
        keys_of_ids.append(keys[again])
    if not ids:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    asked, key_of = pa.chunked_array(ids).combine_chunks(), np.concatenate(keys_of_ids)
    pairs = [np.zeros((0, 2), np.int64)]
    for where, columns in ((gold, None), *((part, ["question_id", "sentence_id", "kept"]) for part in silver)):
        for batch in _batches(where, columns):
            known = of_questions(pa.Table.from_batches([batch]), asked)
            known = known.filter(known["kept"]) if columns else known
            place = pc.index_in(known["question_id"].cast(asked.type), value_set=asked).to_numpy()
            bags = sentences.bag_keys[sentences.rows_of(known["sentence_id"], "the sentence")]
            pairs.append(np.stack([key_of[place], bags], axis=1))
    positives = np.unique(np.concatenate(pairs), axis=0)
    return positives[:, 0], positives[:, 1]


def _batches(where: Mapping[str, Any], columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    with Storage(where["folder"]).open_input(where["name"]) as file:
        yield from pq.ParquetFile(file).iter_batches(columns=columns)


def _question_keys(batch: pa.RecordBatch) -> np.ndarray:
    """The same for questions of the same normalised text."""
    return np.array([duplicate_keys(text)[0] for text in batch["text"].to_pylist()], np.int64)


def _contexts(table: SentenceTable, rows: np.ndarray) -> list[str]:
    return [text or "" for text in table.passage_texts(rows).to_pylist()]


def _mined(pairs: pa.Table) -> list[tuple[list[str], list[float]]]:
    return list(zip(pairs["negatives"].to_pylist(), pairs["negative_logits"].to_pylist()))
