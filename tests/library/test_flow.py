"""What has changed of documents is put into a run's library, and asked on the command line."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from helpers.corpora import made_in

from raydist.config import Config, override
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.flows import config_of
from raydist.here import Here
from raydist.library import building
from raydist.library.asked import search_index
from raydist.library.flow import put_in
from raydist.library.library import Library, PassageHit
from raydist.library.writer import LibraryWriter
from raydist.runs.run import Run
from raydist.terminal import plain

from .conftest import passage_rows, table

QUESTION = "old bridge of stone by a wide river, north of the mill"
SETTINGS = {
    "task": "documents",
    "name": "docs",
    "library.encoder": "builtin:tiny",
    "library.max_passage_length": 32,
    "library.fusion.kind": "z",
    "index.shard_rows": 7,
}


@dataclass
class Change:
    """Documents of some versions; a part for each table."""

    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    removed: Sequence[str] = ()
    made: Made | None = None

    def passages(self) -> Iterator[pa.Table]:
        return (part for part in (self.made.tables() if self.made else ()) if len(part))


@pytest.fixture
def run(tmp_path):
    with Run(override(Config(), SETTINGS | {"storage": str(tmp_path / "runs")}), Here()) as run:
        yield run


def made(folder, name: str, *parts: dict[str, int]) -> Made:
    rows = [[row for document, version in part.items() for row in passage_rows(document, version)] for part in parts]
    return replace(made_in(folder, name, [table(of) for of in rows]), fingerprint=name)


def answers(library: Library) -> list:
    return [(hit.passage_id, hit.score, dict(hit.scores)) for hit in library.search(QUESTION, 20)]


def test_what_changed_is_put_in_and_equals_a_library_of_the_whole(run, tmp_path, with_vectors):
    first = made(tmp_path, "first", {"a": 0, "b": 0}, {}, {"c": 0, "d": 0, "e": 0})
    folder = put_in(run, Change(added=list("abcde"), made=first))
    put_in(run, Change(changed=["b"], removed=["d"], added=["f"], made=made(tmp_path, "second", {"b": 1, "f": 1})))
    library = Library.open(tmp_path / "runs" / "docs")
    assert library.documents == 5
    assert (library.settings.fusion, library.settings.segment_rows) == ("z", 7)
    documents = {"a": 0, "b": 1, "c": 0, "e": 0, "f": 1}
    with LibraryWriter(tmp_path / "anew", library.settings) as writer:
        writer.add(table([row for name, version in documents.items() for row in passage_rows(name, version)]))
    assert answers(library) == answers(Library.open(tmp_path / "anew"))
    assert folder == tmp_path / "runs" / "docs" / "index"


def test_passages_are_encoded_once_by_a_stage_and_a_command_that_was_cut_off_is_repeated(run, tmp_path, monkeypatch):
    encoded = []
    encode = building.PassageEncoder.encode
    monkeypatch.setattr(
        building.PassageEncoder, "encode", lambda self, texts: encoded.append(len(texts)) or encode(self, texts)
    )
    change = Change(added=["a", "b"], made=made(tmp_path, "first", {"a": 0}, {"b": 0}))
    put_in(run, change)
    before = answers(Library.open(tmp_path / "runs/docs"))
    put_in(run, change)  # as if the first had ended before it was noted
    assert len(encoded) == 2, "a call for each part, and none by the writer"
    assert answers(Library.open(tmp_path / "runs/docs")) == before


def test_much_that_is_deleted_is_written_anew(run, tmp_path):
    documents = {f"doc-{number}": 0 for number in range(10)}
    put_in(run, Change(added=list(documents), made=made(tmp_path, "first", documents)))
    put_in(run, Change(removed=["doc-1"]))
    assert any(len(segment.dead) for segment in Library.open(tmp_path / "runs/docs").segments)
    put_in(run, Change(removed=["doc-2", "doc-3", "doc-4", "doc-5"]))
    assert not any(len(segment.dead) for segment in Library.open(tmp_path / "runs/docs").segments)


def test_the_command_line_shows_where_passages_stand_and_gives_json(run, tmp_path, raydist):
    put_in(run, Change(added=["a", "b"], made=made(tmp_path, "first", {"a": 0, "b": 0})))
    condition = "document_id = 'a'"
    code, out, err = raydist("search", "runs/docs", QUESTION, "-k", "2", "--kind", "bm25", "--where", condition)
    assert code == 0, err
    first, *_ = out.splitlines()
    assert first.startswith("  1  ")
    assert "a" in first
    assert ", line " in first
    hits = json.loads(search_index(str(tmp_path / "runs/docs"), "a", 3, True, kind="dense"))
    assert {hit["document_id"] for hit in hits} == {"a", "b"}
    assert set(hits[0]["scores"]) == {"dense"}
    with pytest.raises(InputError, match="hybrid or bm25 or dense"):
        search_index(str(tmp_path / "runs/docs"), "a", 3, True, kind="sparse")


def test_options_of_documents_are_refused_for_sentences(tmp_path):
    with pytest.raises(InputError, match="is not an index of documents"):
        search_index(str(tmp_path), "who?", 3, False, where="year = 3")


def test_text_of_documents_gives_the_terminal_no_orders():
    assert plain("a\x1b[31mb\r\nc\u202ed") == "a[31mb  cd"


def test_documents_are_told_from_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "retrieval").mkdir()
    for file in ("notes.md", "mine.yaml"):
        (tmp_path / file).write_text("")
    for named in ("docs", "docs/", "notes.md", "docs/*.md", "s3://bucket/docs", "./retrieval"):
        assert config_of(named, ["name=x"]) == ("documents", [f'documents.files=["{named}"]', "name=x"])
    for named in ("retrieval", "mine.yaml", "no_such_thing"):
        assert config_of(named, ["name=x"]) == (named, ["name=x"])


def test_a_found_passage_is_plain_data():
    found = PassageHit("a#0", "a", 1.0, "text", "", (), None, None, "en")
    assert (found.metadata, found.scores) == ({}, {})
