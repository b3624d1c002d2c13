"""A folder to search in: the index as it was built, searched as the folder says, also after an addition."""

import json

import pyarrow as pa
import pytest
import torch
from helpers.corpora import tiny_encoder

from raydist.corpus.cutting import cut_passages
from raydist.corpus.formats import open_additions
from raydist.corpus.schemas import PASSAGE_SCHEMA
from raydist.corpus.sentence_table import build_sentence_table
from raydist.corpus.sentences import split_sentences
from raydist.errors import InputError
from raydist.files.local import make_part
from raydist.files.stage import Made, Worker
from raydist.files.storage import Storage, folder_digest
from raydist.models.folders import model_folder
from raydist.retrieval import bm25, faiss_shards
from raydist.retrieval import dense as dense
from raydist.retrieval.encode import ENCODE_ROWS, TextEncoder
from raydist.retrieval.index_stages import Vectors
from raydist.retrieval.searcher import Searcher, add_sentences, publish

TINY = {"name": "builtin:tiny", "revision": None}


def passages(**texts: str) -> pa.Table:
    rows = [{"passage_id": id, "document_id": id, "title": "", "text": text, "language": "en"} for id, text in texts.items()]
    return pa.Table.from_pylist(rows, PASSAGE_SCHEMA)


@pytest.fixture
def sentences() -> pa.Table:
    return cut_passages(
        passages(**{f"d{n:02d}": f"The river {n} is long. The bridge {n} was built in {1800 + n}." for n in range(40)})
    )


def published(folder, sentences, settings=None, search=None, formula=None):
    """An index and its texts in one folder; dense where there are settings."""
    ids, texts = (sentences[name].to_pylist() for name in ("sentence_id", "text"))
    if settings:
        about = {"where": TINY, "model": folder_digest(model_folder("builtin:tiny")), "pooling": "auto", "context": False}
        about["lengths"] = {"question": 32, "answer": 32}
        vectors = TextEncoder("builtin:tiny", max_length=32).encode(texts)
        dense.build_index(folder / "built", ids, vectors, settings=settings, encoder=about)
    else:
        bm25.build_index(folder / "built", ids, texts)
    build_sentence_table(folder / "table", [sentences])
    publish(folder / "index", folder / "built", folder / "table", {"search": search} if settings else {"formula": formula})
    return folder / "index"


def test_nothing_but_the_index_in_force_is_published(sentences, tmp_path):
    """A stage has parts and a manifest, and perhaps what a killed process has begun."""
    for name, settings in (("words", None), ("vectors", dense.DenseSettings())):
        folder = published(tmp_path / name, sentences, settings)
        before = {file.relative_to(folder) for file in folder.rglob("*")}
        built = tmp_path / name / "built"
        for litter in (".shard-00000.12ab.tmp/new", "shard-00009", "statistics-00000"):
            (built / litter).mkdir(parents=True)
            (built / litter / "rows.npy").write_bytes(b"half")
        for litter in ("part-00000.parquet", "manifest.json", "part-00001.parquet.12ab.tmp", ".index.json.12ab.tmp"):
            (built / litter).write_bytes(b"half")
        publish(folder, built, tmp_path / name / "table", {})
        assert {file.relative_to(folder) for file in folder.rglob("*")} == before
        assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".tmp")] == []


def test_what_stands_in_the_folder_is_found_and_what_is_added_too(sentences, tmp_path):
    folder = published(tmp_path, sentences, formula={"k1": 0.5, "b": 0.1, "idf": "atire"})
    more = cut_passages(passages(new="Zyxquor built a lighthouse."))
    assert Searcher(folder).search(["Which bridge was built in 1807?"], 1)[0][0].text == "The bridge 7 was built in 1807."
    before = json.loads((tmp_path / "built" / "index.json").read_text())
    assert add_sentences(folder, more) == 1
    found = Searcher(folder)
    assert found.search(["Who built the lighthouse, Zyxquor?"], 1)[0][0].sentence_id == "new#000"
    assert found._index.formula == bm25.Formula(k1=0.5, b=0.1, idf="atire")
    assert json.loads((tmp_path / "built" / "index.json").read_text()) == before  # linked, and not written through
    with pytest.raises(InputError, match="in the index already, 'new#000' for one"):
        add_sentences(folder, more)
    ids, texts = (sentences[name].to_pylist() for name in ("sentence_id", "text"))
    for shards in (1, 2, 3):  # as many as before, as there are now, and more
        bm25.build_index(tmp_path / "built", ids, texts, shards)
        with pytest.raises(InputError, match="holds documents that were added to it"):
            publish(folder, tmp_path / "built", tmp_path / "table", {})
    assert len(Searcher(folder).search(["lighthouse"], 1)[0]) == 1


def test_a_dense_folder_is_searched_as_it_says_also_after_an_addition(sentences, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_shards, "SMALL_SHARD", 60)
    folder = published(tmp_path, sentences, dense.DenseSettings("hnsw", hnsw_m=6), {"ef_search": 55})
    text = sentences["text"][5].as_py()
    for added in (0, 1):
        found = Searcher(folder)
        graph = found._index._faiss[0]
        assert (graph.hnsw.nb_neighbors(1), graph.hnsw.efSearch) == (6, 55)
        assert found.search([text], 1)[0][0].text == text
        if not added:
            assert add_sentences(folder, cut_passages(passages(new="Zyxquor built a lighthouse."))) == 1
    assert found.search(["Zyxquor built a lighthouse."], 1)[0][0].sentence_id == "new#000"
    assert list(found._index._faiss) == [0]  # the addition is small, and searched exactly


def test_what_is_added_gets_the_vectors_that_a_shard_of_it_would_have(sentences, tmp_path, monkeypatch):
    folder = published(tmp_path, sentences, dense.DenseSettings(), {})
    more = cut_passages(passages(**{f"e{n:03d}": f"The lighthouse {n} is {'very ' * (n % 9)}old." for n in range(300)}))
    together, encode = [], TextEncoder.encode

    def watched(self, texts, around=None, **settings):
        together.append(settings)
        return encode(self, texts, around, **settings)

    monkeypatch.setattr(TextEncoder, "encode", watched)
    assert add_sentences(folder, more) == 300
    assert together == [{"together": ENCODE_ROWS}]
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "table").symlink_to(folder / "texts-00001")
    added = Made(Storage(str(tmp_path / "added")), "sentences", "added")
    stage = Vectors(added, shard_rows=384, rows=300, encoder=tiny_encoder(), settings={"kind": "flat"})
    make_part(stage, Storage(str(tmp_path / "stage")), 0, Worker(torch.get_num_threads()))
    assert (folder / "shard-00001" / "vectors.npy").read_bytes() == (tmp_path / "stage/shard-00000/vectors.npy").read_bytes()


def test_another_model_in_the_place_of_the_one_that_made_the_vectors_is_named(sentences, tmp_path):
    folder = published(tmp_path, sentences, dense.DenseSettings(), {})
    facts = json.loads((folder / "index.json").read_text())
    facts["encoder"]["model"] = "another"
    (folder / "index.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="is not the one that made this index"):
        Searcher(folder)


def test_a_folder_without_an_index_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no index; make one with `raydist index CONFIG`"):
        Searcher(tmp_path)


def texts(n: int) -> str:
    return f"The river {n} is long. The bridge {n} was built in {1800 + n}."


@pytest.mark.parametrize("format", ["beir", "tables", "documents"])
def test_an_index_that_grew_is_the_one_that_all_rows_would_have_made(tmp_path, format):
    rows = [{"id": f"d{n}", "_id": f"d{n}", "title": f"T{n}", "text": texts(n)} for n in range(12)]
    for row in rows[::2] if format == "beir" else []:
        row["sentences"] = split_sentences(row["text"])
    columns = {"tables": {"sentence_id": "id"}, "documents": {"document_id": "id"}}.get(format)
    sets = {"all": rows, "first": rows[:7], "more": rows[7:]}
    read = {}
    for name, some in sets.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        read[name] = open_additions([tmp_path / f"{name}.jsonl"], format, columns).whole()
    whole = published(tmp_path / "all", read["all"].sentences, formula={})
    grown = published(tmp_path / "grown", read["first"].sentences, formula={})
    assert add_sentences(grown, read["more"].sentences, [read["more"].passages]) > 0
    for question in ("Which bridge was built in 1809?", "T8", "The river 3", "long"):
        assert Searcher(grown).search([question], 30) == Searcher(whole).search([question], 30)
    ids = read["all"].sentences["sentence_id"].to_pylist()
    assert ids[:2] == {"beir": ["d0#0", "d0#1"], "tables": ["d0", "d1"], "documents": ["d0#0000#000", "d0#0000#001"]}[format]


def test_what_is_added_to_a_corpus_without_rows_of_its_own_are_documents(tmp_path):
    (tmp_path / "more.csv").write_text("_id,text\nnew,It fell. It rose.\n")
    for format in ("reqa", "pairs", "squad"):
        found = open_additions([tmp_path / "more.csv"], format, {}).whole()
        assert found.sentences["sentence_id"].to_pylist() == ["new#0000#000", "new#0000#001"]


def test_one_question_gives_a_list_and_several_give_lists(sentences, tmp_path):
    searcher = Searcher.open(published(tmp_path, sentences, formula={}))
    assert [searcher.search("Which bridge?", 3)] == searcher.search(["Which bridge?"], 3)
    assert searcher.search((), 3) == []


@pytest.mark.parametrize("settings", [None, dense.DenseSettings()])
def test_more_results_than_there_are_sentences_are_all_sentences(sentences, tmp_path, settings):
    searcher = Searcher(published(tmp_path, sentences, settings, search={}, formula={}))
    everything = searcher.search("river bridge long built", len(sentences))
    assert searcher.search("river bridge long built", 10**18) == everything
    assert len(everything) == len(sentences)
