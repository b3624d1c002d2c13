"""A small corpus of the sample world with its questions, and what two retrievers find for them."""

import json
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.corpora import AROUND, TEXTS

from raydist.corpus.cutting import cut_passages
from raydist.corpus.duplicates import duplicate_keys, normalise_text
from raydist.corpus.formats.pairs import read_answer_pairs
from raydist.corpus.schemas import GOLD_SCHEMA, PASSAGE_SCHEMA, QUESTION_SCHEMA
from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.retrieval.bm25 import Index, build_index
from raydist.retrieval.candidates import hit_table
from raydist.sample.corpus import write_corpus
from raydist.sample.world import ENCYCLOPEDIA, World


@dataclass
class Found:
    """Questions, gold, and ranked lists over one corpus: what the mining functions are given."""

    questions: pa.Table
    gold: pa.Table
    bm25: pa.Table
    dense: pa.Table
    sentences: SentenceTable
    table: pa.Table  # the sentences in memory

    def all_but_sentences(self):
        return {"questions": self.questions, "gold": self.gold, "bm25": self.bm25, "dense": self.dense}

    def given(self):
        return self.all_but_sentences() | {"sentences": self.sentences}


def search_dense(questions: pa.Table, table: SentenceTable, k: int) -> pa.Table:
    """A dense retriever: the signs of hashed words and pieces of words, summed."""

    def vectors(texts):
        out = np.zeros((len(texts), 64), np.float32)
        for row, text in enumerate(texts):
            for word in normalise_text(text).split():
                for piece in {word, word[:4]}:
                    bits = np.frombuffer(blake2b(piece.encode(), digest_size=8).digest(), np.uint8)
                    out[row] += np.unpackbits(bits) * 2.0 - 1.0
        return out / np.linalg.norm(out, axis=1, keepdims=True)

    scores_QS = vectors(questions["text"].to_pylist()) @ vectors(table.texts(np.arange(len(table))).to_pylist()).T
    rows_QK = np.argsort(-scores_QS, axis=1, kind="stable")[:, :k]
    return hit_table(questions["question_id"].to_pylist(), rows_QK, np.take_along_axis(scores_QS, rows_QK, axis=1), table.ids)


def search_bm25(questions: pa.Table, sentences: pa.Table, folder, k: int) -> pa.Table:
    build_index(folder, sentences["sentence_id"].to_pylist(), sentences["text"].to_pylist(), shards=2)
    index = Index.open(folder)
    hits = index.search(questions["text"].to_pylist(), k, backend="numpy")
    return hit_table(questions["question_id"].to_pylist(), hits.rows, hits.scores, index.sentence_ids)


def found_in(folder, questions, gold, sentences, passages=None, k=10) -> Found:
    table = build_sentence_table(folder / "sentences", [sentences], [passages] if passages is not None else [])
    bm25 = search_bm25(questions, sentences, folder / "bm25", k)
    return Found(questions, gold, bm25, search_dense(questions, table, k), table, sentences)


def sentences_of(folder, texts: dict[str, str], document: str = "") -> SentenceTable:
    """Texts by id as a sentence table."""
    rows = [{"sentence_id": id, "text": text, "passage_id": "", "document_id": document} for id, text in texts.items()]
    rows = [row | dict(zip(("text_key", "bag_key"), duplicate_keys(row["text"]))) for row in rows]
    return build_sentence_table(folder / "sentences", [pa.Table.from_pylist(rows)])


@pytest.fixture(scope="session")
def make_sentences():
    return sentences_of


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Found:
    folder = tmp_path_factory.mktemp("world")
    write_corpus(folder, World(ENCYCLOPEDIA, 0), 0, 1000, lambda done: None)
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    passages = [
        {"passage_id": d["_id"], "document_id": d["_id"], "title": d["title"], "text": d["text"], "language": "en"}
        for d in documents
    ]
    passages = pa.Table.from_pylist(passages, PASSAGE_SCHEMA)
    sentences = cut_passages(passages, {d["_id"]: [tuple(span) for span in d["sentences"]] for d in documents})
    asked = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    rows = [{"question_id": q["_id"], "text": q["text"], "language": "en", "file": "", "line": 0} for q in asked]
    judged = []
    for split in ("train", "dev"):  # questions of dev may have several gold sentences
        for line in (folder / f"qrels/{split}.tsv").read_text().splitlines()[1:]:
            question, sentence, relevance = line.split("\t")
            document, _, number = sentence.rpartition("#")
            judged.append(
                {"question_id": question, "sentence_id": f"{document}#{int(number):03d}", "relevance": int(relevance)}
            )
    questions = pa.Table.from_pylist(rows, QUESTION_SCHEMA)
    return found_in(folder, questions, pa.Table.from_pylist(judged, GOLD_SCHEMA), sentences, passages)


@pytest.fixture(scope="session")
def reqa(data_dir, tmp_path_factory) -> Found:
    """The first questions of the real training pairs and, in the same order, sentences: of no known document."""
    read = read_answer_pairs(data_dir / "reqa_squad/train-10k.json.gz")
    gold = read.gold.slice(0, 300)
    questions = read.questions.filter(pc.is_in(read.questions["question_id"], value_set=gold["question_id"].combine_chunks()))
    return found_in(tmp_path_factory.mktemp("reqa"), questions, gold, read.sentences.slice(0, 1500))


@pytest.fixture
def shuffled():
    """The rows of a table in another order."""
    return lambda table, seed: table.take(np.random.default_rng(seed).permutation(len(table)))


@pytest.fixture
def three_paragraphs(tmp_path):
    """Sentences, each in a paragraph of its own, as a table on disk."""
    rows = [
        {"sentence_id": id, "text": TEXTS[id], "passage_id": f"p-{id}", "document_id": "d"}
        | dict(zip(("text_key", "bag_key"), duplicate_keys(TEXTS[id])))
        for id in AROUND
    ]
    passages = [{"passage_id": f"p-{id}", "text": around} for id, around in AROUND.items()]
    build_sentence_table(tmp_path / "table", [pa.Table.from_pylist(rows)], [pa.Table.from_pylist(passages)])
