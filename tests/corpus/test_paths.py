"""Paths and globs."""

import pytest
from helpers.question_files import qa, squad, write

from raydist.corpus.paths import expand_paths
from raydist.errors import InputError


def test_paths_and_globs_are_sorted_and_each_file_comes_once(tmp_path):
    for name in ("b.json", "a.json", "c.txt"):
        write(tmp_path / name, squad(qa()))
    (tmp_path / "d.json").mkdir()  # a glob takes files alone
    found = expand_paths([f"{tmp_path}/b.json", f"{tmp_path}/*.json", f"{tmp_path}/./a.json"])
    assert found == [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]


def test_a_name_with_glob_characters_is_taken_as_it_is(tmp_path):
    path = write(tmp_path / "a[1].json", squad(qa()))
    assert expand_paths([path]) == [path]


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.json", "x")
    with pytest.raises(InputError, match=r"no file at .*trian\.json; nearest there: train\.json"):
        expand_paths([f"{tmp_path}/trian.json"])
    with pytest.raises(InputError, match=r"no file matches .*; nearest there: train\.json"):
        expand_paths([f"{tmp_path}/trains*.jsonl"])
    with pytest.raises(InputError, match="there is no folder"):
        expand_paths([f"{tmp_path}/no/where.json"])
    with pytest.raises(InputError, match="remote address"):
        expand_paths(["s3://bucket/train.json"])


def test_a_directory_says_what_it_holds(tmp_path):
    write(tmp_path / "train.json", "x")
    with pytest.raises(InputError, match=r"is a directory \(train.json\); wanted files"):
        expand_paths([str(tmp_path)])
