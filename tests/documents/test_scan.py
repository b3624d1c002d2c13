import os
import socket
import time
from pathlib import Path

import pytest

from raydist.corpus.rejected import BAD_NAME, LINK_OUTSIDE, NOT_A_FILE, TOO_LARGE, UNKNOWN_FORMAT
from raydist.documents.scan import changes, scan
from raydist.errors import InputError

OLD = 10**9  # seconds since 1970: no file written just now


@pytest.fixture
def folder(tmp_path) -> Path:
    """docs/{a.md, b.txt, sub/c.html, sub/deep/d.md, picture.png, .hidden/x.md, .y.md}"""
    for name in ("a.md", "b.txt", "sub/c.html", "sub/deep/d.md", "picture.png", ".hidden/x.md", ".y.md"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (OLD, OLD))
    return tmp_path / "docs"


def ids(*files, **settings) -> list[str]:
    return [source.document_id for source in scan([str(file) for file in files], **settings).sources]


def reasons(*files, **settings) -> dict[str, str]:
    return {row.file: row.reason for row in scan([str(file) for file in files], **settings).rejected}


def test_a_folder_is_all_that_can_be_read_in_it_and_below(folder):
    found = scan([str(folder)])
    assert [source.document_id for source in found.sources] == ["a.md", "b.txt", "sub/c.html", "sub/deep/d.md"]
    assert found.sources[0].uri == f"{folder}/a.md"
    assert found.passed_over == {".png": 1}
    assert found.rejected == []


def test_globs_and_files_are_called_by_their_path_below_the_folder_before_the_first_wildcard(folder):
    assert ids(folder / "*.md") == ["a.md"]
    assert ids(folder / "**/*.md") == ["a.md", "sub/deep/d.md"]
    assert ids(folder / "sub/*") == ["c.html"]
    assert ids(folder / "s?b/[cx].html") == ["sub/c.html"]
    assert ids(folder / "a.md", folder / "b.txt") == ["a.md", "b.txt"]
    assert ids("docs/*.md", base=str(folder.parent)) == ["a.md"]
    assert ids(folder / ".hidden/*.md") == ["x.md"]


def test_several_folders_stand_before_the_names_of_their_files_and_one_within_another_is_part_of_that(folder, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.md").write_text("x")
    assert ids(folder / "*.md", tmp_path / "more") == ["docs/a.md", "more/a.md"]
    assert ids(folder / "sub", folder / "*.md") == ["a.md", "sub/c.html", "sub/deep/d.md"]
    (tmp_path / "other" / "docs").mkdir(parents=True)
    with pytest.raises(InputError, match="two folders are called 'docs/'; give one that holds both"):
        ids(folder, tmp_path / "other" / "docs")


def test_what_is_not_there_is_said(folder):
    with pytest.raises(InputError, match=r"no file at .*/docs/aa.md; nearest there: a.md"):
        ids(folder / "aa.md")
    with pytest.raises(InputError, match=r"no file at .*docs/\*\*/\*.pdf"):
        ids(folder / "**/*.pdf")


def test_a_file_that_is_named_must_be_of_a_known_format(folder):
    assert reasons(folder / "picture.png") == {"picture.png": UNKNOWN_FORMAT}


def test_links_are_followed_to_files_of_the_folder_alone(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.md").write_text("x")
    (folder / "inside.md").symlink_to(folder / "a.md")
    (folder / "out.md").symlink_to(tmp_path / "outside" / "secret.md")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere.md").symlink_to(folder / "not_there.md")
    found = scan([str(folder)])
    assert [source.document_id for source in found.sources] == ["a.md", "b.txt", "inside.md", "sub/c.html", "sub/deep/d.md"]
    assert {row.file: row.reason for row in found.rejected} == {"out.md": LINK_OUTSIDE, "nowhere.md": "cannot be opened"}


def test_pipes_sockets_and_devices_are_not_opened(folder, monkeypatch):
    os.mkfifo(folder / "pipe.md")
    monkeypatch.chdir(folder)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.txt")
        assert reasons(folder) == {"pipe.md": NOT_A_FILE, "socket.txt": NOT_A_FILE}
    assert reasons(folder / "pipe.md") == {"pipe.md": NOT_A_FILE}
    assert reasons("/dev/zero") == {"zero": NOT_A_FILE}


def test_names_may_be_odd_but_not_without_letters_for_them(folder):
    odd = ["a b.md", "#1?.md", "süß 漢.md", "[x].md", "-rf.md", "'\".md", "a\u00a0b.md"]
    for name in odd:
        (folder / name).write_text("x")
    (folder / "line\nbreak.md").write_text("x")
    Path(os.fsdecode(os.fsencode(folder) + b"/latin\xfc.md")).write_text("x")
    found = scan([str(folder)])
    assert {source.document_id for source in found.sources} >= set(odd)
    assert {row.file: row.reason for row in found.rejected} == {"line\\nbreak.md": BAD_NAME, "latin\\udcfc.md": BAD_NAME}
    assert ids(folder / "[x].md") == ["[x].md"]


def test_a_file_that_is_too_large_is_not_looked_into(folder):
    with open(folder / "huge.txt", "wb") as file:
        file.truncate(1 << 40)
    assert reasons(folder) == {"huge.txt": TOO_LARGE}
    assert reasons(folder, max_bytes=1) == dict.fromkeys(
        ("a.md", "b.txt", "huge.txt", "sub/c.html", "sub/deep/d.md"), TOO_LARGE
    )


def test_an_unchanged_file_is_known_by_size_and_time_and_a_touched_one_by_its_bytes(folder, monkeypatch):
    before = scan([str(folder)]).sources
    looked_into: list[str] = []
    digest = scan.__globals__["file_digest"]
    monkeypatch.setitem(scan.__globals__, "file_digest", lambda path: (looked_into.append(Path(path).name), digest(path))[1])
    assert scan([str(folder)], before=before).sources == before
    assert looked_into == []
    os.utime(folder / "a.md", (OLD + 1, OLD + 1))
    touched = scan([str(folder)], before=before).sources
    assert looked_into == ["a.md"]
    assert changes(before, touched).changed == []


def test_a_file_written_just_now_is_looked_into_again(folder):
    (folder / "a.md").write_text("new!")
    (young, *_) = before = scan([str(folder)]).sources
    assert young.mtime_ns == 0
    (folder / "a.md").write_text("last")  # of the same size, and maybe within one tick of the clock
    os.utime(folder / "a.md", ns=(time.time_ns(),) * 2)
    found = changes(before, scan([str(folder)], before=before).sources)
    assert [source.document_id for source in found.changed] == ["a.md"]


def test_changes_are_added_changed_removed_and_a_new_name_is_both(folder):
    before = scan([str(folder)]).sources
    (folder / "a.md").write_text("changed")
    (folder / "b.txt").rename(folder / "c.txt")
    (folder / "sub" / "c.html").unlink()
    (folder / "new.md").write_text("x")
    found = changes(before, scan([str(folder)], before=before).sources)
    names = [[source.document_id for source in sources] for sources in (found.added, found.changed, found.removed)]
    assert names == [["c.txt", "new.md"], ["a.md"], ["b.txt", "sub/c.html"]]


def test_files_of_a_store_are_found_by_uri_without_being_fetched(s3):
    from raydist.files.storage import Storage

    store = Storage(s3.uri("docs"))
    for name in ("a.md", "sub/b.txt", "sub/.hidden/c.md", "d.png"):
        store.write_bytes(name, b"x")
    s3.requests.clear()
    found = scan([s3.uri("docs")])
    assert [source.document_id for source in found.sources] == ["a.md", "sub/b.txt"]
    assert found.sources[0].uri == "s3://bucket/docs/a.md", "without the key"
    assert ids(s3.uri("docs/sub/*.txt")) == ["b.txt"]
    assert ids(s3.uri("docs/a.md")) == ["a.md"]
    assert not [request for request in s3.requests if request.startswith("GET docs/")]
    with pytest.raises(InputError, match="no file at s3://bucket/nothing"):
        ids(s3.uri("nothing"))
