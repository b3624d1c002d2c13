"""What travels: which files, how many, in which bytes."""

import os
import zipfile
from pathlib import Path

from helpers.submission import refused

from raydist.submission import parcel as parcels
from raydist.submission.parcel import Parcel, collect_files
from raydist.submission.preflight import prepare


def test_a_large_file_in_the_working_directory_is_named(dashboard, working_dir, capsys):
    with (working_dir / "dump.bin").open("wb") as file:
        file.truncate(2 << 30)  # sparse
    said = refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/runs", "--address", dashboard())
    assert "1 problem\n" in said
    assert "2.0 GiB to send, and 100.0 MiB is the most; the largest files: dump.bin (2.0 GiB), " in said
    url = dashboard()
    assert prepare("evaluate", "bridges.yaml", ["storage=s3://b/runs"], address=url, exclude=["*.bin"]).parcel.size < 10 << 20
    (working_dir / "dump.bin").rename("runs")  # what is excluded anyway does not count
    assert prepare("evaluate", "bridges.yaml", ["storage=s3://b/runs"], address=url).parcel.size < 10 << 20


def test_too_many_files_end_the_count(dashboard, capsys, monkeypatch):
    monkeypatch.setattr(parcels, "MAX_FILES", 2)
    assert "more than 2 files" in refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/x", "--address", dashboard())


def test_equal_content_makes_equal_bytes_and_the_config_reads_back(working_dir, tmp_path):
    from raydist.config import load_config

    config = load_config("bridges.yaml").config
    parcel = Parcel(
        {"data/dev.json": Path("data/dev.json"), "p.json": Path("predictions.json")}, config.model_dump(mode="json")
    )
    parcel.write(tmp_path / "a.zip", "bridges")
    os.utime("data/dev.json", (1, 1))
    parcel.write(tmp_path / "b.zip", "bridges")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    zipfile.ZipFile(tmp_path / "a.zip").extractall(tmp_path / "there")
    assert (tmp_path / "there/data/dev.json").read_bytes() == Path("data/dev.json").read_bytes()
    assert load_config(str(tmp_path / "there/.raydist/bridges.yaml")).config == config


def test_the_files_are_those_that_rays_own_upload_would_take(tmp_path):
    from ray._private.runtime_env.packaging import _get_excludes, get_excludes_from_ignore_files

    ignored = {
        ".gitignore": "*.txt\n!keep.txt\n/top/\n\\#hash\n# a comment\n\ndeep/*/c\n",
        "deep/.rayignore": "b*\n!bridge\n",
        "deep/one/.gitignore": "/c.json\nd?ta\n",
    }
    files = ("a.txt", "keep.txt", "#hash", "top/a", "inner/top/a", "deep/one/c/x", "deep/b1", "deep/bridge", "deep/one/c.json")
    for name in (*files, "deep/one/two/c.json", "deep/one/data/x", "deep/one/keep.txt", "runs/a", "inner/runs/a", "a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name, text in ignored.items():
        (tmp_path / name).write_text(text)
    patterns = ["/runs", "*.pyc"]

    def by_ray(folder: Path, rules: list) -> set[str]:
        rules = rules + get_excludes_from_ignore_files(folder, include_gitignore=True)
        kept = [path for path in folder.iterdir() if not any(rule(path) for rule in rules)]
        below = [by_ray(path, rules) for path in kept if path.is_dir()]
        return {path.relative_to(tmp_path).as_posix() for path in kept if path.is_file()}.union(*below)

    ours = collect_files(tmp_path, patterns).keys()
    assert ours == by_ray(tmp_path, [_get_excludes(tmp_path, patterns)])
    assert {"keep.txt", "inner/top/a", "deep/bridge", "deep/one/two/c.json", "inner/runs/a"} <= ours
    assert not ours & {"a.txt", "#hash", "top/a", "deep/b1", "deep/one/c.json", "deep/one/data/x", "runs/a", "a.pyc"}
