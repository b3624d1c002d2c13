"""A folder that changes: what is read, and what an index would be told of it."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.documents import Folder, docx_with, passages_of, write_docx, write_pdf, write_scanned_pdf

from raydist.corpus.rejected import (
    BROKEN_FRONT_MATTER,
    DAMAGED,
    DUPLICATE_ID,
    EMPTY_DOCUMENT,
    ENCRYPTED,
    INVALID_UTF8,
    SCANNED,
    TOO_DEEP,
    TOO_LARGE,
    WRONG_CONTENT,
)
from raydist.documents.flow import keep, read_documents
from raydist.documents.known import read_known
from raydist.documents.schema import PASSAGES
from raydist.errors import InputError
from raydist.files.storage import read_parquet

CHECKOUT = Path(__file__).parents[2]


UNCHANGED: tuple[list, list, list] = ([], [], [])


@pytest.fixture
def folder(tmp_path) -> Folder:
    folder = Folder(tmp_path / "docs", tmp_path / "runs")
    folder.write(a_md="# A\n\nOne.", b_txt="Two.", c_html="<h1>C</h1><p>Three.")
    return folder


def changes_of(update) -> tuple[list[str], list[str], list[str]]:
    return list(update.added), list(update.changed), list(update.removed)


def test_the_first_update_is_all_and_the_next_one_nothing(folder):
    first = folder.update()
    assert changes_of(first) == (["a.md", "b.txt", "c.html"], [], [])
    assert [(row["passage_id"], row["headings"], row["line"], row["text"]) for row in passages_of(first)] == [
        ("a.md#0", ["A"], 3, "One."),
        ("b.txt#0", [], 1, "Two."),
        ("c.html#0", ["C"], 1, "Three."),
    ]
    second = folder.update()
    assert changes_of(second) == UNCHANGED
    assert second.made is None
    assert passages_of(second) == []
    assert second.documents == 3


def test_only_what_was_touched_changed_renamed_or_deleted_is_read(folder):
    folder.update()
    os.utime(folder.path / "b.txt", (1, 1))
    touched = folder.update()
    assert changes_of(touched) == UNCHANGED
    assert touched.made is None

    folder.write(a_md="# A\n\nOther.", d_md="New.")
    (folder.path / "c.html").rename(folder.path / "e.html")
    changed = folder.update()
    assert changes_of(changed) == (["d.md", "e.html"], ["a.md"], ["c.html"])
    assert [row["passage_id"] for row in passages_of(changed)] == ["a.md#0", "d.md#0", "e.html#0"]
    assert changed.made.manifest.parts[0].info["files"] == 3

    (folder.path / "d.md").unlink()
    deleted = folder.update()
    assert changes_of(deleted) == ([], [], ["d.md"])
    assert deleted.made is None


def test_a_file_whose_passages_stay_as_they_were_changes_no_document(folder):
    folder.update()
    folder.write(b_txt="Two.   \n\n")
    update = folder.update()
    assert update.made is not None
    assert changes_of(update) == UNCHANGED


def test_an_update_that_was_not_kept_comes_again_and_is_not_made_again(folder, capsys):
    first = read_documents(folder.run())
    second = read_documents(folder.run())
    assert changes_of(first) == changes_of(second)
    assert "passages of documents: already done (3 rows)" in capsys.readouterr().out
    keep(folder.run(), second)
    assert changes_of(read_documents(folder.run())) == UNCHANGED


def test_another_way_of_reading_reads_all_and_names_what_differs(folder):
    folder.write(d_txt=" ".join(["word"] * 50))
    folder.update()
    assert changes_of(folder.update("documents.passage_words=20")) == ([], ["d.txt"], [])


def test_of_a_table_the_rows_that_changed_are_named(folder):
    folder.write(rows_jsonl='{"id": "x", "text": "One", "n": 1}\n{"id": "y", "text": "Two"}\n{"id": "z", "text": "Three"}')
    folder.update()
    folder.write(rows_jsonl='{"id": "x", "text": "One", "n": 2}\n{"id": "y", "text": "Two"}\n{"id": "w", "text": "Four"}')
    update = folder.update()
    assert changes_of(update) == (["w"], ["x"], ["z"])
    assert [(row["passage_id"], row["n"]) for row in passages_of(update)] == [("x#0", 2), ("w#0", None)]


def test_a_row_that_two_files_have_is_that_of_the_first_until_it_is_gone(folder):
    folder.write(m_jsonl='{"id": "x", "text": "of m"}\n{"id": "y", "text": "y"}')
    folder.update()
    folder.write(l_jsonl='{"id": "x", "text": "of l"}')
    update = folder.update()
    assert changes_of(update) == ([], ["x"], [])
    assert [row["text"] for row in passages_of(update)] == ["of l"]
    assert folder.rejected() == {"m.jsonl": DUPLICATE_ID}
    (folder.path / "l.jsonl").unlink()
    update = folder.update()
    assert changes_of(update) == ([], ["x"], [])
    assert [row["text"] for row in passages_of(update)] == ["of m"]
    assert folder.rejected() == {}


def test_metadata_columns_are_typed_over_all_files_and_updates(folder):
    folder.write(a_md="---\nyear: 2020\nday: 2020-01-01\n---\nOne.", b_md="---\nyear: 2020.5\n---\nTwo.")
    first = folder.update()
    assert first.metadata == {"day": pa.date32(), "year": pa.float64()}
    table = pa.concat_tables(first.passages())
    assert table.schema.names == [*PASSAGES.names, "day", "year"]
    assert [table.schema.field(name).type for name in PASSAGES.names] == PASSAGES.types
    folder.write(c_md="---\nyear: 2021\nnew: x\n---\nThree.")
    second = folder.update()
    assert second.metadata == {"day": pa.date32(), "new": pa.string(), "year": pa.float64()}
    assert [(row["year"], row["new"]) for row in passages_of(second)] == [(2021.0, "x")]


def test_a_column_that_becomes_another_type_is_read_again_whole(folder, capsys):
    folder.write(a_md="---\nyear: 2020\n---\nOne.")
    folder.update()
    folder.write(d_md="---\nyear: about 2020\n---\nFour.")
    update = folder.update()
    assert "all are read again, since column year was int and is string" in capsys.readouterr().out
    assert changes_of(update) == (["d.md"], ["a.md", "b.txt", "c.html"], [])
    assert [row["year"] for row in passages_of(update)] == ["2020", None, None, "about 2020"]
    assert changes_of(folder.update()) == UNCHANGED


def test_metadata_that_the_config_types_is_kept_alone_and_must_fit(folder, capsys):
    folder.write(a_md="---\nyear: 2020\nlang: de\nmore: x\n---\nOne.", b_md="---\nyear: about\n---\nTwo.")
    update = folder.update("documents.metadata={year: int, lang: auto}")
    assert update.metadata == {"lang": pa.string(), "year": pa.int64()}
    assert [(row["year"], row["text"]) for row in passages_of(update)][:2] == [(2020, "One."), (None, "Two.")]
    assert "rejected b.md, row 0: wrong type (year: wanted int, saw string 'about')" in capsys.readouterr().out


def test_language_is_declared_or_set_or_seen(folder):
    english = "The mill by the river was built in 1746, and for a long time it was owned by the Lambs."
    folder.write(a_md="---\nlanguage: fr\n---\nx", b_txt=english, c_html="<html lang=de><p>x")
    assert [row["language"] for row in passages_of(folder.update())] == ["fr", "en", "de"]
    assert [row["language"] for row in passages_of(folder.update("documents.language=it"))] == ["it"]


def test_what_cannot_be_read_is_rejected_by_name_and_the_rest_goes_on(folder):
    path = folder.path
    write_pdf(path / "locked.pdf", [["x"]], password="x")
    write_scanned_pdf(path / "scan.pdf")
    docx_with(path / "bomb.docx", "word/media/x.png", bytes(30 << 20))
    (path / "bomb.jsonl.gz").write_bytes(gzip.compress(bytes(30 << 20)))
    (path / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0")
    (path / "latin.txt").write_bytes(b"M\xfchle")
    (path / "deep.html").write_text("<div>" * 100_000)
    (path / "quoted.md").write_text("> " * 100_000 + "x")
    (path / "empty.md").write_text("\n")
    (path / "pdf.md").write_bytes(b"%PDF-1.4")
    (path / "matter.md").write_text("---\na: [\n---\nx")
    (path / "cut.parquet").write_bytes(b"PAR1")
    (path / "cut.pdf").write_bytes(b"%PDF-1.4")
    found = folder.rejected("documents.max_file_bytes=20971520")
    assert {name: found[name] for name in sorted(found)} == {
        "bomb.docx": TOO_LARGE,
        "bomb.jsonl.gz": TOO_LARGE,
        "cut.parquet": "cannot be opened",
        "cut.pdf": DAMAGED,
        "deep.html": TOO_DEEP,
        "empty.md": EMPTY_DOCUMENT,
        "latin.txt": INVALID_UTF8,
        "locked.pdf": ENCRYPTED,
        "matter.md": BROKEN_FRONT_MATTER,
        "old.docx": ENCRYPTED,
        "pdf.md": WRONG_CONTENT,
        "quoted.md": TOO_DEEP,
        "scan.pdf": SCANNED,
    }
    assert changes_of(folder.update("data.max_rejected=1"))[0] == ["a.md", "b.txt", "c.html"]


def test_rejected_files_stay_named_until_they_are_mended_and_too_many_stop_the_run(folder, capsys):
    (folder.path / "empty.md").write_text("")
    folder.update()
    assert "documents: rejected empty.md: empty document (there is no text in it)" in capsys.readouterr().out
    assert changes_of(folder.update()) == UNCHANGED
    assert "documents: rejected 1 (1 empty document); see" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"documents: 25.0% of the documents are bad, more than data.max_rejected allows"):
        read_documents(folder.run("data.max_rejected=0.1"))
    folder.write(empty_md="no more")
    assert changes_of(folder.update()) == (["empty.md"], [], [])
    assert not folder.run().folder.exists("rejected/documents.parquet")


def test_what_runs_write_into_the_folder_is_not_read(tmp_path):
    folder = Folder(tmp_path / "docs", tmp_path / "docs" / "runs")
    folder.write(a_md="One.")
    assert changes_of(folder.update()) == (["a.md"], [], [])
    assert list((folder.path / "runs").rglob("*.parquet"))
    assert changes_of(folder.update()) == UNCHANGED


def test_nothing_to_read_is_said(tmp_path):
    folder = Folder(tmp_path / "docs", tmp_path / "runs")
    with pytest.raises(InputError, match="documents: there is nothing to read in"):
        folder.update()
    with pytest.raises(InputError, match=r"there are no documents: set documents.files"):
        folder.update("documents.files=[]")


def test_files_of_no_known_format_are_counted(folder, capsys):
    (folder.path / "x.png").write_bytes(b"")
    (folder.path / "y.css").write_bytes(b"")
    folder.update()
    assert "documents: 2 files of no known format are passed over (1 .png, 1 .css)" in capsys.readouterr().out


def test_markup_in_documents_and_names_stays_text(folder):
    name = "<img src=x onerror=alert(1)>.md"
    (folder.path / name).write_text("# <b>H</b>\n\n&lt;script&gt;alert(1)&lt;/script&gt;")
    (row,) = [row for row in passages_of(folder.update()) if row["document_id"] == name]
    assert (row["headings"], row["text"]) == (["H"], "<script>alert(1)</script>")


def test_this_projects_own_docs_are_read(tmp_path):
    folder = Folder(tmp_path / "docs", tmp_path / "runs")
    files = [str(CHECKOUT / name) for name in ("docs", "README.md", "CHANGELOG.md")]
    rows = passages_of(folder.update(f"documents.files={files}"))
    assert folder.rejected(f"documents.files={files}") == {}
    assert {"docs/methods.md", "README.md", "CHANGELOG.md"} <= {row["document_id"] for row in rows}
    assert {row["language"] for row in rows} == {"en"}
    for row in rows:
        if row["document_id"] == "CHANGELOG.md":  # what stands in the file at the line that is named
            line = (CHECKOUT / "CHANGELOG.md").read_text().splitlines()[row["line"] - 1]
            assert row["text"].split()[0].strip("-`") in line


def test_pdf_and_word_documents_have_pages_and_no_lines(folder):
    write_pdf(folder.path / "x.pdf", [["One."], ["Two."]], marks=[(0, 0, "A"), (1, 0, "B")])
    write_docx(folder.path / "y.docx")
    rows = {row["passage_id"]: row for row in passages_of(folder.update())}
    assert [(rows[id]["page"], rows[id]["line"]) for id in ("x.pdf#0", "x.pdf#1", "y.docx#0")] == [
        (1, None),
        (2, None),
        (None, None),
    ]


def test_what_is_known_is_read_as_it_was_written(folder):
    (folder.path / "empty.md").write_text("")
    update = folder.update()
    assert read_known(folder.run().folder) == update.known


def test_rejected_rows_have_file_line_id_and_what_was_seen(folder):
    folder.write(rows_csv="id,text\n1,One\n2,\n")
    run = folder.run()
    read_documents(run)
    (row,) = read_parquet(run.folder, "rejected/documents.parquet").to_pylist()
    assert (row["file"], row["line"], row["id"], row["reason"], row["unit"]) == ("rows.csv", 3, "2", EMPTY_DOCUMENT, "row")
