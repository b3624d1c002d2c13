"""Documents."""

import json
from pathlib import Path

import pytest

from raydist.corpus import columns
from raydist.corpus.formats.documents import open_documents
from raydist.errors import InputError


def test_plain_documents_are_cut_and_nobody_asks_about_them(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK_ROWS", 2)
    rows = [
        {"_id": "Oder", "title": "O", "text": "It flows. It is long.\n\nIt ends."},
        {"_id": 7, "text": "Am 3. Mai kam er.", "language": "de"},
        {"_id": "blank", "text": " \n\n "},
        {"_id": "Oder", "text": "Again."},
        {"_id": "", "text": "Nameless."},
        {"text": "Nameless."},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.csv").write_text("document_id,text\nTarn,It is deep.\n7,Taken.\n")
    found = open_documents([tmp_path / "a.jsonl", tmp_path / "b.csv"]).whole()
    assert dict(zip(found.sentences["sentence_id"].to_pylist(), found.sentences["text"].to_pylist())) == {
        "Oder#0000#000": "It flows.",
        "Oder#0000#001": "It is long.",
        "Oder#0001#000": "It ends.",
        "7#0000#000": "Am 3. Mai kam er.",
        "Tarn#0000#000": "It is deep.",
    }
    assert found.passages["title"].to_pylist() == ["O", "O", "", ""]
    assert (len(found.questions), len(found.gold)) == (0, 0)
    assert sorted((Path(row.file).name, row.line, row.what, row.reason, row.id) for row in found.rejected) == [
        ("a.jsonl", 3, "document", "empty document", "blank"),
        ("a.jsonl", 4, "document", "duplicate id", "Oder"),
        ("a.jsonl", 5, "document", "missing key", ""),
        ("a.jsonl", 6, "document", "missing key", ""),
        ("b.csv", 3, "document", "duplicate id", "7"),
    ]
    (tmp_path / "c.csv").write_text("name,body\nTarn,It is deep.\n")
    found = open_documents([tmp_path / "c.csv"], {"document_id": "name", "text": "body"}).whole()
    assert found.sentences["sentence_id"].to_pylist() == ["Tarn#0000#000"]
    with pytest.raises(InputError, match="has no column 'document_id', only name, body"):
        open_documents([tmp_path / "c.csv"]).whole()
    (tmp_path / "long.csv").write_text("_id,text\nlong," + "It is long. " * 20_000 + "\n")
    assert len(open_documents([tmp_path / "long.csv"]).whole().sentences) == 20_000
    (tmp_path / "d.csv").write_text("_id,text\na, \n")
    with pytest.raises(InputError, match=r"corpus is empty; .* Rejected: 1 empty document, .*d.csv, line 2, id 'a' \(' '\)$"):
        open_documents([tmp_path / "d.csv"]).whole()
