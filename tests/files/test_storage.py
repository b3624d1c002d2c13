import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from raydist.errors import InputError
from raydist.files.stage import Stage, describe_part, encode_table, part_name, whole_manifest, write_manifest
from raydist.files.storage import (
    Place,
    Storage,
    StorageError,
    fingerprint,
    folder_digest,
    has_model,
    read_between,
    read_rows,
)


@pytest.fixture(params=["disk", "uri", "s3"])
def storage(request, tmp_path) -> Storage:
    if request.param == "s3":
        return Storage(request.getfixturevalue("s3").uri("runs"))
    return Storage(str(tmp_path) if request.param == "disk" else tmp_path.as_uri())


def test_what_is_written_is_read(storage):
    storage.write_json("a/b.json", {"x": [1, "é"]})
    assert storage.read_json("a/b.json") == {"x": [1, "é"]}
    assert storage.exists("a/b.json")
    assert not storage.exists("a/c.json")
    assert storage.sizes("a").keys() == {"b.json"}
    assert storage.sizes("nowhere") == {}
    assert storage.folders() == ["a"]
    assert storage.at("a").sizes() == storage.sizes("a")
    storage.delete("a")
    storage.delete("a")
    assert not storage.exists("a/b.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write_bytes("part", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space is left on the device") as error:
        storage.write_bytes("part", b"new")
    assert "run the same command again" in str(error.value)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("part", b"old")]


@pytest.fixture(params=["disk", "store"])
def disk_or_store(request, tmp_path) -> Storage:
    """A folder, and the same by another filesystem than the local one: written to as an object store is."""
    storage = Storage(str(tmp_path))
    if request.param == "store":
        vars(storage)["_opened"] = (pafs.SubTreeFileSystem(str(tmp_path.parent), pafs.LocalFileSystem()), tmp_path.name)
        assert not storage.is_local
    return storage


def test_a_large_file_appears_when_it_is_whole(disk_or_store, tmp_path):
    with disk_or_store.writing("a/large") as file:
        file.write(b"first, ")
        assert not (tmp_path / "a/large").exists()
        file.write(b"second")
    assert disk_or_store.read_bytes("a/large") == b"first, second"
    with pytest.raises(TypeError, match="bytes"), disk_or_store.writing("a/large") as file:
        file.writelines([b"half", "and no bytes"])
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "a").iterdir()] == [("large", b"first, second")]


def test_some_rows_are_read_as_from_the_whole(disk_or_store):
    table = pa.table({"id": [f"{number:03d}" for number in range(100)], "x": range(100)})
    disk_or_store.write_bytes("t.parquet", encode_table(table, "parquet", {}, 7))
    for first, last in ((0, 100), (0, 1), (6, 8), (13, 50), (99, 100), (40, 40)):
        assert read_rows(disk_or_store, "t.parquet", first, last)["x"].to_pylist() == list(range(first, last))
    assert read_between(disk_or_store, "t.parquet", "id", "013", "029")["x"].to_pylist() == list(range(13, 30))
    assert read_between(disk_or_store, "t.parquet", "id", "1", "2").num_rows == 0


def test_a_folder_appears_whole_and_replaces_the_old_one(storage, tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    (source / "one").write_text("1")
    storage.write_bytes("target/old", b"")
    storage.upload(source, "target")
    assert storage.sizes("target").keys() == {"one"}


def test_a_folder_is_a_local_path_on_every_node(storage):
    for name in ("one", "below/two", "below/empty"):
        storage.write_bytes(f"folder/{name}", name.encode() if name != "below/empty" else b"")
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for folder in (storage.local_copy("folder"), storage.at("folder").local_copy(""))
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert found == {"one": b"one", "below/two": b"below/two", "below/empty": b""}
    assert Place("below/two", storage.at("folder").uri).fetch().read_bytes() == b"below/two"
    assert Place("/a/path").fetch() == Path("/a/path")


def test_a_folder_of_an_object_store_is_fetched_once_and_again_when_it_has_changed(s3):
    s3.page = 2  # keys in one answer
    storage = Storage(s3.uri("runs"))
    for number in range(5):
        storage.write_bytes(f"folder/{number}", str(number).encode())
    first = storage.local_copy("folder")
    assert sorted(path.name for path in first.iterdir()) == list("01234")
    s3.requests.clear()
    assert storage.local_copy("folder") == first
    assert not [request for request in s3.requests if request.startswith("GET runs/")], "only looked at"
    storage.write_bytes("folder/4", b"another size")
    second = storage.local_copy("folder")
    assert ((first / "4").read_bytes(), (second / "4").read_bytes()) == (b"4", b"another size")
    assert not list(first.parent.glob("*.tmp"))


def test_what_is_small_is_one_put_on_an_object_store(s3):
    Storage(s3.uri("runs")).write_json("a/b.json", {"x": 1})
    assert s3.requests == ["PUT runs/a/b.json"]


def test_an_object_store_that_refuses_leaves_the_old_file(s3):
    storage = Storage(s3.uri("runs"))
    storage.write_bytes("part", b"old")
    s3.refuse_writes_of = "part"
    for content in (b"new", b"new" * (5 << 20)):
        with pytest.raises(StorageError, match=r"cannot write bucket/runs/part: .*ACCESS_DENIED.*run the same command again"):
            storage.write_bytes("part", content)
    assert storage.read_bytes("part") == b"old"


def test_an_upload_that_is_killed_half_way_leaves_nothing_to_be_seen(s3):
    code = (
        "import os, sys\n"
        "from raydist.files.storage import Storage\n"
        "storage = Storage(sys.argv[1])\n"
        "stream = storage._opened[0].open_output_stream(storage.path('part'))\n"
        "stream.write(bytes(30 << 20))\n"
        "print('written', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, s3.uri("runs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "written\n"
        writer.kill()
    assert s3.uploads, "it had begun"
    storage = Storage(s3.uri("runs"))
    assert not storage.exists("part")
    assert storage.sizes() == {}
    storage.write_bytes("part", b"x" * (30 << 20))
    assert storage.sizes() == {"part": 30 << 20}


def test_a_folder_on_an_object_store_is_whole_when_its_last_file_is_there(s3, tmp_path):
    for name in ("config.json", "a/weights", "z/weights"):
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / name).write_text("new")
    storage = Storage(s3.uri("runs"))
    storage.upload(tmp_path / "new", "model")
    assert has_model(storage)
    (tmp_path / "new" / "z" / "weights").rename(tmp_path / "new" / "other")
    s3.refuse_writes_of = "other"
    with pytest.raises(StorageError):
        storage.upload(tmp_path / "new", "model")
    assert not has_model(storage), "neither the old one nor the new one is whole"
    s3.refuse_writes_of = None
    s3.requests.clear()
    storage.upload(tmp_path / "new", "model")
    assert storage.sizes("model").keys() == {"config.json", "other"}
    assert storage.sizes("model/a").keys() == {"weights"}
    assert not storage.exists("model/z")
    assert [request for request in s3.requests if request.startswith("PUT runs/model/")][-1] == "PUT runs/model/config.json"


def test_an_unknown_scheme_is_the_users_mistake():
    with pytest.raises(InputError, match="cannot be opened"):
        Storage("nowhere://bucket/x").exists("a")


def test_fingerprints_depend_on_values_not_on_their_order():
    assert fingerprint({"a": 1, "b": [2, "é"]}) == fingerprint({"b": [2, "é"], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_folders_digest_sees_names_and_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    before = folder_digest(tmp_path)
    assert folder_digest(tmp_path) == before
    (tmp_path / "a").write_bytes(b"2")
    changed = folder_digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({before, changed, folder_digest(tmp_path)}) == 3


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_part_describes_itself(kind):
    content = encode_table(pa.table({"x": [1, 2, 3]}), kind, {"bad": 2})
    line = describe_part(f"part-00000.{kind}", content)
    assert (line.rows, line.bytes, line.info) == (3, len(content), {"bad": 2})
    assert describe_part(f"part-00000.{kind}", content) == line


@dataclass(frozen=True)
class Numbers(Stage):
    """A stage of one part."""

    name: ClassVar[str] = "numbers"

    length: int


def test_a_stage_is_whole_only_with_its_manifest_and_all_its_bytes(storage):
    stage = Numbers(384)
    folder, part = storage.at(stage.folder), part_name(0, stage.kind)
    content = encode_table(pa.table({"x": [1]}), "parquet", {})
    folder.write_bytes(part, content)
    assert whole_manifest(folder) is None
    write_manifest(folder, stage, [describe_part(part, content)], 1.0)
    assert whole_manifest(folder).rows == 1
    folder.write_bytes(part, content[:-1])
    assert whole_manifest(folder) is None
    folder.write_bytes(part, content)
    assert whole_manifest(folder).rows == 1, "written again, and the same"
    folder.write_bytes(part, bytes(len(content)))
    assert whole_manifest(folder) is None, "another content of the same size"
    assert whole_manifest(storage.at(Numbers(256).folder)) is None
