"""A folder of an index appears whole or not at all, whoever else writes it."""

from pathlib import Path

import pytest

from raydist.files.shards import new_folder


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_folder_appears_whole_in_the_place_of_an_old_one_and_leaves_nothing_beside(tmp_path):
    folder = tmp_path / "index" / "shard-00000"
    for content in ("first", "second"):
        with new_folder(folder) as building:
            (building / content).write_text(content)
            assert names(folder) == ([] if content == "first" else ["first"])
        assert names(tmp_path) == ["index", "index/shard-00000", f"index/shard-00000/{content}"]


def test_a_block_that_fails_leaves_the_old_folder_and_nothing_beside(tmp_path):
    with new_folder(tmp_path / "a") as building:
        (building / "old").write_text("old")
    with pytest.raises(OSError, match="full"), new_folder(tmp_path / "a"):
        raise OSError("full")
    assert names(tmp_path) == ["a", "a/old"]


def test_of_two_who_write_the_same_folder_at_once_one_stays(tmp_path, monkeypatch):
    """The other one puts its folder there between the two renames of the first."""
    rename = Path.rename

    def slow_rename(path, target):
        if path.name == "new" and not (tmp_path / "a").exists():
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "theirs").write_text("")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", slow_rename)
    with new_folder(tmp_path / "a") as building:
        (building / "mine").write_text("")
    assert names(tmp_path) == ["a", "a/theirs"]


def test_two_who_write_the_same_folder_do_not_meet_before_they_are_done(tmp_path):
    with new_folder(tmp_path / "a") as one, new_folder(tmp_path / "a") as other:
        (one / "one").write_text("")
        (other / "other").write_text("")
    assert names(tmp_path) == ["a", "a/one"]
