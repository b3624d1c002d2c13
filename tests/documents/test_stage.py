"""Passages as a stage: the same rows whatever the parts, known by names and bytes, and not by places."""

from dataclasses import replace

import pyarrow as pa
import pytest
from helpers.documents import Folder
from helpers.stages import make

from raydist.corpus.rejected import CHANGED
from raydist.documents.scan import Root, scan
from raydist.documents.stages import DocumentPassages, Reading, made_rejected
from raydist.errors import InputError
from raydist.files.local import LocalExecutor
from raydist.files.storage import Storage

READING = Reading()


@pytest.fixture
def files(tmp_path):
    folder = Folder(tmp_path / "docs", tmp_path / "runs").path
    for number in range(6):
        (folder / f"{number}.md").write_text(f"---\nn: {number if number % 2 else f'x{number}'}\n---\n# H\n\nText {number}.")
    return folder


def stage_of(folder, part_bytes=1 << 20, reading=READING) -> DocumentPassages:
    found = scan([str(folder)])
    return DocumentPassages(reading, part_bytes, tuple(found.sources), found.roots)


def rows(made) -> list[dict]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for table in made.tables()
        for row in table.to_pylist()
    ]


def test_one_and_several_parts_hold_the_same_rows(files, tmp_path):
    stages = [stage_of(files, part_bytes) for part_bytes in (1 << 20, 60, 1)]
    assert [stage.parts for stage in stages] == [1, 3, 6]
    made = [make(LocalExecutor(), str(tmp_path), stage) for stage in stages]
    assert rows(made[0]) == rows(made[1]) == rows(made[2])
    assert len(rows(made[0])) == 6


def test_a_stage_is_known_by_names_bytes_and_settings_and_not_by_place_or_time(files, tmp_path):
    stage = stage_of(files)
    moved = files.rename(tmp_path / "elsewhere")
    (moved / "1.md").touch()
    assert stage_of(moved).fingerprint == stage.fingerprint
    others = [replace(READING, passage_words=50), replace(READING, metadata={"n": "int"}), replace(READING, language="de")]
    assert len({stage_of(moved, reading=reading).fingerprint for reading in (READING, *others)}) == 4
    (moved / "1.md").write_text("x")
    assert stage_of(moved).fingerprint != stage.fingerprint
    assert str(tmp_path) not in str(stage.identity)


def test_a_file_that_changes_before_it_is_read_is_rejected_and_one_that_is_gone_is_too(files, tmp_path):
    stage = stage_of(files)
    (files / "1.md").write_text("---\nn: 7\n---\n# H\n\nText 1.")
    (files / "2.md").unlink()
    made = make(LocalExecutor(), str(tmp_path), stage)
    assert {row["file"]: row["reason"] for row in made_rejected(made).to_pylist()} == {"1.md": CHANGED, "2.md": CHANGED}
    assert len(rows(made)) == 4


def test_a_node_without_the_folder_stops_the_run(files, tmp_path):
    stage = replace(stage_of(files), roots=(Root(str(tmp_path / "nowhere")),))
    with pytest.raises(InputError, match=r"nowhere/0.md: No such file or directory; every node must be able to read"):
        make(LocalExecutor(), str(tmp_path), stage)


def test_files_of_a_store_are_fetched_by_who_reads_them(s3, tmp_path):
    store = Storage(s3.uri("docs"))
    store.write_bytes("a.md", b"# A\n\nOne.")
    store.write_bytes("sub/rows.jsonl", b'{"id": "x", "text": "Two."}')
    made = make(LocalExecutor(), str(tmp_path), stage_of(s3.uri("docs")))
    assert [(row["passage_id"], row["text"]) for row in rows(made)] == [("a.md#0", "One."), ("x#0", "Two.")]
    assert "secret" not in str(made.identity)


def test_a_word_repeated_in_every_part_makes_no_column_twice(files, tmp_path):
    made = make(LocalExecutor(), str(tmp_path), stage_of(files, 60))
    assert [set(part.info["metadata"]["n"]) for part in made.manifest.parts] == [{"int", "string"}] * 3
    assert all(pa.types.is_int64(table.schema.field("n:int").type) for table in made.tables())
