import pickle
import random

import numpy as np
import pyarrow as pa
import pytest

from raydist.corpus.cutting import cut_passages
from raydist.corpus.duplicates import normalise_text
from raydist.corpus.formats.reqa import read_reqa
from raydist.corpus.schemas import PASSAGE_SCHEMA, SENTENCE_SCHEMA
from raydist.corpus.sentence_table import SentenceTable, build_sentence_table
from raydist.errors import InputError

TEXTS = {  # document -> passages
    "Oder": ["The Oder flows north. It is long.", "Ships sail on it. It is long!"],
    "Tarn": ["Long is it. Ölpreis: zwölf Taler. 東京は首都。"],
    "": ["Nobody knows where this is from. It is long."],
}


@pytest.fixture
def corpus() -> tuple[pa.Table, pa.Table]:
    """Passages and their sentences, among them exact and near duplicates, and some of no known document."""
    rows = [
        {"passage_id": f"{document or 'é'}#{n}", "document_id": document, "title": "", "text": text, "language": "en"}
        for document, passages in TEXTS.items()
        for n, text in enumerate(passages)
    ]
    passages = pa.Table.from_pylist(rows, PASSAGE_SCHEMA)
    return passages, cut_passages(passages)


def shuffled_blocks(table: pa.Table, seed: int, size: int) -> list[pa.Table]:
    order = random.Random(seed).sample(range(len(table)), len(table))
    return [table.take(order[at : at + size]) for at in range(0, len(order), size)]


def contents(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_every_look_up_agrees_with_the_rows(corpus, tmp_path):
    passages, sentences = corpus
    table = build_sentence_table(tmp_path / "t", [sentences], [passages])
    rows = sorted(sentences.to_pylist(), key=lambda row: row["sentence_id"])  # by code points
    text_of_passage = dict(zip(passages["passage_id"].to_pylist(), passages["text"].to_pylist()))
    every = np.arange(len(rows))
    assert len(table) == len(rows) == 9
    assert table.ids(every).to_pylist() == [row["sentence_id"] for row in rows]
    assert table.texts(every[::-1]).to_pylist() == [row["text"] for row in rows][::-1]
    assert table.passage_texts(every).to_pylist() == [text_of_passage[row["passage_id"]] for row in rows]
    assert table.find([row["sentence_id"] for row in rows]).tolist() == every.tolist()
    assert table.find(["", "Oder", "Oder#0#0000", "zzz", "\U0001f600"]).tolist() == [-1] * 5
    for at, row in enumerate(rows):
        same_document = [n for n, other in enumerate(rows) if row["document_id"] and other["document_id"] == row["document_id"]]
        same_text = [n for n, other in enumerate(rows) if normalise_text(other["text"]) == normalise_text(row["text"])]
        words = [sorted(normalise_text(other["text"]).split()) for other in rows]
        assert table.document_rows(at).tolist() == same_document
        assert sorted(table.duplicates(at).tolist()) == same_text
        assert sorted(table.duplicates(at, near=True).tolist()) == [n for n in every if words[n] == words[at]]
        assert (table.text_keys[at], table.bag_keys[at]) == (row["text_key"], row["bag_key"])
    (long,) = table.find(["Oder#0#001"])
    assert (len(table.duplicates(long)), len(table.duplicates(long, near=True))) == (3, 4)  # Long is it: near


@pytest.mark.parametrize(("seed", "size"), [(1, 1), (2, 4), (3, 100)])
def test_files_do_not_depend_on_blocks_or_order(corpus, tmp_path, seed, size, monkeypatch):
    passages, sentences = corpus
    build_sentence_table(tmp_path / "a", [sentences], [passages])
    monkeypatch.setattr("raydist.corpus.sentence_table.BLOCK_ROWS", 2)
    build_sentence_table(tmp_path / "b", shuffled_blocks(sentences, seed, size), shuffled_blocks(passages, seed, size))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_without_passages_there_is_no_context(corpus, tmp_path):
    table = build_sentence_table(tmp_path / "t", [corpus[1]])
    assert table.passage_texts(np.arange(3)).to_pylist() == [None] * 3


def test_a_worker_opens_the_files_again(corpus, tmp_path):
    table = build_sentence_table(tmp_path / "t", [corpus[1]], [corpus[0]])
    sent = pickle.dumps(table)
    assert len(sent) < 500
    assert pickle.loads(sent).texts(np.array([4])) == table.texts(np.array([4]))


def test_bad_corpora_are_named_and_what_was_there_stays(corpus, tmp_path):
    passages, sentences = corpus
    folder = tmp_path / "t"
    build_sentence_table(folder, [sentences], [passages])
    before = contents(folder)
    for bad, wrong in [
        ([], "the corpus is empty"),
        ([SENTENCE_SCHEMA.empty_table()], "the corpus is empty"),
        ([sentences, sentences.slice(2, 1)], "'Oder#1#000' is given to more than one row"),
        ([sentences.drop_columns("bag_key")], "no column 'bag_key'"),
        ([sentences.set_column(1, "text", pa.array([None] * 9, pa.string()))], "has no text"),
    ]:
        with pytest.raises(InputError, match=wrong):
            build_sentence_table(folder, bad, [passages])
    with pytest.raises(InputError, match="the passage of sentence 'Tarn#0#000' is not among the passages"):
        build_sentence_table(folder, [sentences], [passages.filter(pa.compute.not_equal(passages["passage_id"], "Tarn#0"))])
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    with pytest.raises(InputError, match=r"the hit 'nowhere' is not in the corpus .*9 sentences.*nor are 1 others"):
        SentenceTable(folder).rows_of(["Oder#1#000", "nowhere", "nor this"], "the hit")


def test_what_is_no_table_is_refused(corpus, tmp_path):
    with pytest.raises(InputError, match="no sentence table at"):
        SentenceTable(tmp_path)
    build_sentence_table(tmp_path / "t", [corpus[1]])
    (tmp_path / "t" / "sentences.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="format 99"):
        SentenceTable(tmp_path / "t")


@pytest.mark.realdata
def test_real_sentences_without_documents(data_dir, tmp_path):
    read = read_reqa(data_dir / "reqa_squad/test-A.json.gz")
    table = build_sentence_table(tmp_path / "t", shuffled_blocks(read.sentences, 0, 1000))
    rows = table.rows_of(read.sentences["sentence_id"], "the sentence")
    assert table.texts(rows).to_pylist() == read.sentences["text"].to_pylist()
    assert not any(len(table.document_rows(row)) for row in range(0, len(table), 100))
