"""Commands common to all tasks, in this process."""

import json

import pytest

from raydist import flows
from raydist.config import Config, override
from raydist.errors import InputError
from raydist.here import Here
from raydist.library.library import Library
from raydist.retrieval.searcher import Searcher
from raydist.runs.run import Run


@pytest.fixture
def index(tmp_path, monkeypatch):
    """`raydist index`, in this process, under the one name `used`."""
    monkeypatch.chdir(tmp_path)

    def index(*, fresh: bool = False, **settings):
        own = {"name": "used", "storage": str(tmp_path / "runs"), "library.encoder": None, "index.kind": "bm25"}
        changes = own | {key.replace("__", "."): value for key, value in settings.items()}
        with Run(override(Config(), changes), Here()) as run:
            return flows.index(run, fresh=fresh)

    return index


def write_documents(folder, *names: str) -> str:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.md").write_text(f"# {name}\n\nThe {name} was built in 1907.\n")
    return str(folder)


def write_corpus(file, *things: str) -> str:
    rows = [{"_id": thing, "text": f"The {thing} fell.", "sentences": [[0, len(thing) + 10]]} for thing in things]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_an_index_of_documents_replaces_no_other_ones(index, tmp_path):
    bridges = write_documents(tmp_path / "bridges", "bridge", "ford", "ferry", "readme")
    towers = write_documents(tmp_path / "towers", "tower", "mill", "readme")
    folder = index(task="documents", documents__files=[bridges])
    before = (tmp_path / "runs" / "used" / "config.yaml").read_text()
    with pytest.raises(InputError, match=r"used/index is of other documents, bridge\.md, ferry\.md.*name=.*--fresh"):
        index(task="documents", documents__files=[towers])
    assert (tmp_path / "runs" / "used" / "config.yaml").read_text() == before
    assert Library.open(folder).documents == 4
    (tmp_path / "bridges" / "ford.md").unlink()
    (tmp_path / "bridges" / "ferry.md").unlink()
    (tmp_path / "bridges" / "bridge.md").unlink()
    index(task="documents", documents__files=[bridges])
    assert Library.open(folder).documents == 1, "a folder may lose its files"
    (tmp_path / "towers" / "readme.md").unlink()
    index(task="documents", documents__files=[bridges, towers])
    assert Library.open(folder).documents == 3, "and another may come to it"
    index(task="documents", documents__files=[towers], fresh=True)
    assert Library.open(folder).documents == 2


def test_an_index_of_a_corpus_replaces_no_other_one(index, tmp_path):
    bridges, towers = write_corpus(tmp_path / "a.jsonl", "bridge", "ford"), write_corpus(tmp_path / "b.jsonl", "tower")
    corpus = {"task": "retriever", "corpus__train__format": "documents"}
    folder = index(**corpus, corpus__train__files=[bridges])
    with pytest.raises(InputError, match=r"used/index is of another corpus, .*a\.jsonl: .*name=.*--fresh"):
        index(**corpus, corpus__train__files=[towers])
    assert len(Searcher.open(folder).search("the", k=3)) == 2
    write_corpus(tmp_path / "a.jsonl", "bridge", "ford", "ferry")
    index(**corpus, corpus__train__files=[bridges])
    assert len(Searcher.open(folder).search("the", k=3)) == 3, "its own files may change"
    index(**corpus, corpus__train__files=[towers], fresh=True)
    assert len(Searcher.open(folder).search("the", k=3)) == 1

    documents = write_documents(tmp_path / "docs", "bridge")
    index(task="documents", documents__files=[documents], name="docs")
    with pytest.raises(InputError, match=r"docs/index is of documents: give this one another name .*--fresh"):
        index(**corpus, corpus__train__files=[towers], name="docs")
