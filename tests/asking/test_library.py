"""Asked with a library on disk: `raydist ask INDEX`."""

import json

import pyarrow as pa
import pytest
from helpers.passages import BRIDGES

from raydist.cli import job

writer = pytest.importorskip("raydist.library.writer")


@pytest.fixture
def library(tmp_path):
    """A library of words alone, in a run that names a reader and a filter's column."""
    from raydist.documents.schema import PASSAGES

    names = [field.name for field in PASSAGES]
    rows = [{name: getattr(found, name) for name in names} | {"year": 1900 + place} for place, found in enumerate(BRIDGES)]
    with writer.LibraryWriter(tmp_path / "docs" / "index") as opened:
        opened.add(pa.Table.from_pylist(rows, PASSAGES.append(pa.field("year", pa.int64()))))
        opened.commit()
    return tmp_path / "docs"


def test_an_index_is_asked_on_the_command_line(library, reader, capsys):
    arguments = ["ask", str(library / "index"), "Who built the bridge?", "--reader", str(reader.folder), "--json", "-k", "2"]
    assert job(arguments[0], arguments[1:]) == 0
    captured = capsys.readouterr()
    reply = json.loads(captured.out)
    assert reply["source"]["text"][reply["start"] : reply["end"]] == reply["text"]
    assert reply["source"]["metadata"]["year"] in (1900, 1901)
    assert "note: probabilities are not calibrated" in captured.err


def test_a_run_says_what_it_is_asked_with(library, reader, capsys):
    (library / "config.yaml").write_text(f"task: documents\nasking:\n  reader: {reader.folder}\n  k: 1\n")
    assert job("ask", [str(library), "Who built the tower?", "--where", "year >= 1903"]) == 0
    assert "ships.txt, line 1" in capsys.readouterr().out


def test_a_condition_that_is_wrong_is_one_message(library, reader, capsys):
    assert job("ask", [str(library), "Who?", "--reader", str(reader.folder), "--where", "yeer > 3"]) == 2
    assert capsys.readouterr().err.count("error:") == 1
