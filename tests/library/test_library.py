"""A library that was changed answers as one built anew from what is left; readers keep what they opened."""

import random

import numpy as np
import pyarrow as pa
import pytest

from raydist.errors import InputError
from raydist.library import versions
from raydist.library.library import Library
from raydist.library.settings import LibrarySettings
from raydist.library.writer import LibraryWriter
from raydist.retrieval.searcher import Searcher

from .conftest import WORDS, passage_rows, table

QUESTIONS = ["which bridge was built on a wide river", "Bridges", "old tower fell in winter", "nothing of the kind"]


def fresh(folder, documents: dict[str, int], settings: LibrarySettings) -> Library:
    with LibraryWriter(folder, settings) as writer:
        writer.add(table([row for document, version in documents.items() for row in passage_rows(document, version)]))
    return Library.open(folder)


def answers(library: Library, **how) -> list[list[tuple]]:
    return [
        [(hit.passage_id, hit.score, hit.text, hit.headings, dict(hit.metadata), dict(hit.scores)) for hit in hits]
        for hits in library.search(QUESTIONS, 12, **how)
    ]


def assert_equal(changed: Library, anew: Library) -> None:
    assert (changed.passages, changed.documents) == (anew.passages, anew.documents)
    for kind in ("bm25", "dense", "hybrid"):
        for where in (None, "year >= 1950 or draft", "language = 'en' and not headings = 'Mills'"):
            assert answers(changed, kind=kind, where=where) == answers(anew, kind=kind, where=where), (kind, where)


@pytest.mark.parametrize("seed", range(4))
def test_after_any_changes_ids_and_scores_are_those_of_a_library_built_anew(tmp_path, with_vectors, seed):
    draw = random.Random(seed)
    documents: dict[str, int] = {}
    names = [f"doc-{number}" for number in range(12)]
    for step in range(8):
        with LibraryWriter(tmp_path / "changed", with_vectors) as writer:
            for _ in range(draw.randrange(1, 4)):
                change = draw.choice(["add", "add", "replace", "delete", "compact"])
                chosen = draw.sample(names, draw.randrange(1, 5))
                if change == "add":
                    new = [name for name in chosen if name not in documents]
                    writer.add(table([row for name in new for row in passage_rows(name, step)]))
                    documents |= dict.fromkeys(new, step)
                elif change == "replace":
                    writer.replace(table([row for name in chosen for row in passage_rows(name, step)]))
                    documents |= dict.fromkeys(chosen, step)
                elif change == "delete":
                    there = sum(len(passage_rows(name, documents[name])) for name in chosen if name in documents)
                    assert writer.delete(chosen) == there
                    documents = {name: version for name, version in documents.items() if name not in chosen}
                else:
                    writer.compact()
                    assert writer.dead_share == 0
                    assert writer.num_segments <= 1
        changed = Library.open(tmp_path / "changed")
        if not documents:
            assert answers(changed) == [[]] * len(QUESTIONS)
            continue
        if step in (3, 7):
            assert_equal(changed, fresh(tmp_path / f"anew-{step}", documents, with_vectors))


def test_segments_are_cut_at_their_size_and_no_cut_changes_a_bit(tmp_path, with_vectors):
    documents = dict.fromkeys((f"doc-{number}" for number in range(20)), 0)
    whole = fresh(tmp_path / "whole", documents, with_vectors)
    small = LibrarySettings.of(with_vectors.plain() | {"segment_rows": 7})
    cut = fresh(tmp_path / "cut", documents, small)
    assert [len(segment) for segment in cut.segments][:-1] == [7] * (len(cut.segments) - 1)
    assert_equal(cut, whole)
    with LibraryWriter(tmp_path / "cut") as writer:
        writer.delete(["doc-1", "doc-7", "doc-8"])
        writer.compact()
    left = {name: version for name, version in documents.items() if name not in ("doc-1", "doc-7", "doc-8")}
    compacted = Library.open(tmp_path / "cut")
    assert all(not len(segment.dead) for segment in compacted.segments)
    assert_equal(compacted, fresh(tmp_path / "left", left, with_vectors))


def test_conditions_come_before_the_best_are_chosen(tmp_path, with_vectors):
    """A filter of a list of k would leave fewer than there are."""
    rows = [row | {"year": 1900} for name in range(30) for row in passage_rows(f"doc-{name}", 0)]
    rows[5] |= {"year": 2001, "text": "a mill"}
    with LibraryWriter(tmp_path, with_vectors) as writer:
        writer.add(table(rows))
    library = Library.open(tmp_path)
    for kind in ("dense", "hybrid"):
        found = library.search("the wide river bridge built of stone", 1, kind=kind, where="year > 2000")
        assert [hit.passage_id for hit in found] == [rows[5]["passage_id"]]
    assert library.search("mill", where="year > 3000") == []


def test_a_reader_keeps_its_version_while_others_come_and_go(tmp_path, with_vectors, monkeypatch):
    monkeypatch.setattr("raydist.library.writer.GRACE_SECONDS", 0.0)
    documents = dict.fromkeys((f"doc-{number}" for number in range(6)), 0)
    reader = fresh(tmp_path, documents, with_vectors)
    before = answers(reader)
    for step in range(1, 4):
        with LibraryWriter(tmp_path) as writer:
            writer.replace(table(passage_rows("doc-1", step)))
            assert answers(reader) == before, "what is not in force is not seen"
            writer.compact()
        assert answers(reader) == before, "nor what came into force after it was opened"
    assert answers(Library.open(tmp_path)) != before
    folders = {path.name.split("-")[0]: 0 for path in tmp_path.iterdir() if path.is_dir()}
    for path in tmp_path.iterdir():
        if path.is_dir():
            folders[path.name.split("-")[0]] += 1
    assert folders["segment"] <= 2, "what is out of force is swept"
    assert folders["version"] <= 2


def test_what_is_out_of_force_stays_for_those_who_are_just_opening_it(tmp_path, with_vectors):
    fresh(tmp_path, {"a": 0, "b": 0}, with_vectors)
    before = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    with LibraryWriter(tmp_path) as writer:
        writer.replace(table(passage_rows("a", 1)))
        writer.compact()
    assert before < {path.name for path in tmp_path.iterdir() if path.is_dir()}


def test_a_change_that_fails_leaves_everything_as_it_was(tmp_path, with_vectors):
    library = fresh(tmp_path, {"a": 0, "b": 0}, with_vectors)

    def change_and_fail() -> None:
        with LibraryWriter(tmp_path) as writer:
            writer.delete(["a"])
            writer.add(table(passage_rows("c", 0)))
            raise OSError("the cable")

    with pytest.raises(OSError, match="the cable"):
        change_and_fail()
    assert answers(Library.open(tmp_path)) == answers(library)
    assert Library.open(tmp_path).version == library.version
    with LibraryWriter(tmp_path) as writer:
        writer.delete(["nobody"])
    assert Library.open(tmp_path).version == library.version, "nothing changed"


def test_ids_that_are_there_and_columns_of_other_types_are_refused_by_name(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("a", 0)))
        with pytest.raises(InputError, match="'a#0' for one; replace them"):
            writer.add(table(passage_rows("a", 1)))
        other = table(passage_rows("b", 0)).drop_columns("year")
        with pytest.raises(InputError, match="column year holds int64 in some passages and string in others"):
            writer.add(other.append_column("year", pa.array(["old"] * len(other))))
        with pytest.raises(InputError, match="no column passage_id"):
            writer.add(pa.table({"text": ["x"]}))
        writer.add(other)
    library = Library.open(tmp_path)
    assert {hit.document_id for hits in library.search(WORDS, where="year is null and document_id = 'b'") for hit in hits} <= {
        "b"
    }
    assert library.columns["year"] == "int64"


def test_a_column_takes_another_type_with_all_its_documents(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("a", 0)))
    with LibraryWriter(tmp_path) as writer:
        writer.delete(["a"])
        other = table(passage_rows("a", 0)).drop_columns("year")
        writer.add(other.append_column("year", pa.array(["old"] * len(other))))
    assert Library.open(tmp_path).columns["year"] == "string"


def test_a_library_without_vectors_is_searched_by_words(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("doc-3", 0)))
    library = Library.open(tmp_path)
    assert library.kinds == ("bm25",)
    assert answers(library) == answers(library, kind="bm25")
    with pytest.raises(InputError, match="searched by bm25, not by 'dense'"):
        library.search("bridge", kind="dense")
    with pytest.raises(InputError, match="no cross-encoder"):
        library.search("doc", rerank=3)


def test_other_settings_than_it_was_made_with_are_refused_and_those_of_searches_are_taken(tmp_path, with_vectors):
    fresh(tmp_path, {"a": 0}, with_vectors)
    with pytest.raises(InputError, match="made with another headings"):
        LibraryWriter(tmp_path, LibrarySettings.of(with_vectors.plain() | {"headings": False})).__enter__()
    with LibraryWriter(tmp_path, LibrarySettings.of(with_vectors.plain() | {"fusion": "z", "k1": 1.5})):
        pass
    settings = Library.open(tmp_path).settings
    assert (settings.fusion, settings.k1) == ("z", 1.5)


def test_a_cross_encoder_ranks_anew(tmp_path, with_vectors):
    class Longest:
        """More words, higher score."""

        def score(self, questions, texts, question_of, text_of):
            return np.array([len(texts[text]) for text in text_of], np.float32)

    fresh(tmp_path, dict.fromkeys((f"doc-{number}" for number in range(9)), 0), with_vectors)
    library = Library.open(tmp_path, cross_encoder=Longest())
    first = library.search("old bridge", 8)
    found = library.search("old bridge", 3, rerank=8)
    longest = sorted(first, key=lambda hit: (-len(library._indexed(hit)), hit.passage_id))[:3]
    assert [hit.passage_id for hit in found] == [hit.passage_id for hit in longest]
    assert [hit.scores["cross_encoder"] for hit in found] == [hit.score for hit in found]


def test_a_library_on_an_object_store_is_copied_once_and_anew_only_where_it_changed(tmp_path, with_vectors, s3, monkeypatch):
    import os

    local = tmp_path / "local"
    expected = answers(fresh(local, dict.fromkeys(("a", "b", "c"), 0), with_vectors))
    store = versions.Storage(s3.uri("library"))
    put(local, store)
    assert answers(Library.open(store.uri)) == expected
    cached = {path.name for path in (tmp_path / "cache").iterdir()}
    with LibraryWriter(local) as writer:
        writer.replace(table(passage_rows("b", 1)))
    put(local, store)
    assert answers(Library.open(store.uri)) == answers(Library.open(local)) != expected
    assert cached < {path.name for path in (tmp_path / "cache").iterdir()}
    assert len([name for name in os.listdir(tmp_path / "cache") if name.startswith("segment-")]) == 2


def put(folder, store) -> None:
    """Copy what is not there yet, index.json last."""
    names = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "writer")))
    for path in sorted(names, key=lambda path: path.name == "index.json"):
        name = path.relative_to(folder).as_posix()
        if name == "index.json" or not store.exists(name):
            store.write_bytes(name, path.read_bytes())


def test_a_searcher_of_sentences_names_what_opens_a_library(tmp_path):
    with LibraryWriter(tmp_path) as writer:
        writer.add(table(passage_rows("a", 0)))
        with pytest.raises(InputError, match="no column passage_id, document_id, text"):
            writer.replace(pa.table({"words": ["x"]}))
    with pytest.raises(InputError, match=r"open it with raydist\.Library"):
        Searcher(tmp_path)


def test_where_there_is_no_library_the_way_to_one_is_said(tmp_path):
    with pytest.raises(InputError, match="raydist index FOLDER"):
        Library.open(tmp_path)


def test_more_results_than_there_are_passages_are_all_passages(tmp_path, with_vectors):
    library = fresh(tmp_path, {"doc-1": 1, "doc-2": 2}, with_vectors)
    for kind in ("bm25", "dense", "hybrid"):
        assert library.search("bridge", 10**18, kind=kind) == library.search("bridge", library.passages, kind=kind)
