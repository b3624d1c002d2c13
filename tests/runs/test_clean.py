"""Stages that no run uses."""

import pytest

from raydist.cli import job
from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.making import making
from raydist.files.storage import Storage
from raydist.here import Here
from raydist.reader.prepare import prepare
from raydist.runs.clean import unused_stages
from raydist.runs.locate import locate
from raydist.runs.run import Run
from raydist.runs.stages import StageUse
from raydist.sample.write import is_whole


@pytest.fixture
def make_run(tmp_path):
    def make_run(*overrides: str) -> Run:
        run = Run(load_config("debug_reader", [f"storage={tmp_path}", "data.sample.size=200", *overrides]).config, Here())
        run.begin()
        return run

    return make_run


def test_unused_stages_are_listed_and_used_ones_kept(make_run, tmp_path):
    run = make_run("name=tidy", "data.max_length=100", "data.doc_stride=16")
    prepare(run, ["dev"])
    store = Storage(str(tmp_path))
    used = set(run.stages)
    assert not used & set(unused_stages(store))
    windows = next(folder for folder in used if "windows" in folder)
    other = make_run("name=tidy_other", "data.max_length=104", "data.doc_stride=16")
    prepare(other, ["dev"])
    for kept in ("tidy", "ti?y"):
        assert windows not in unused_stages(store, [kept])
        assert set(other.stages) & set(unused_stages(store, [kept]))
    assert not used & set(unused_stages(store, ["tidy*"]))
    with pytest.raises(InputError, match=r"--keep-runs tdy: no such run in .*; there are .*tidy"):
        unused_stages(store, ["tdy"])
    run.folder.delete("stages.json")
    assert windows in unused_stages(store)


def test_what_a_command_uses_is_left_alone_and_named(make_run, tmp_path, capsys):
    clean = ["clean", [str(tmp_path), "--keep-runs", "other", "--yes"]]
    make_run("name=other").use(StageUse("stages/x-0", "x"))
    with make_run("name=working") as run:
        locate(run, "sample:en/dev.json")
        (world,) = run.stages
        assert job(*clean) == 0
        assert f"left alone: {world}, which process " in capsys.readouterr().out
        assert run.storage.exists(f"{world}/en/dev.json")
    assert job(*clean) == 0
    assert f"deleted {world}" in capsys.readouterr().out
    assert not run.storage.exists(world)


def test_what_is_being_written_is_left_alone_and_what_a_kill_left_is_not(tmp_path, capsys):
    store, stage = Storage(str(tmp_path)), "stages/sample-0123"
    scratch = tmp_path / "stages" / ".sample-0123.abc.tmp" / "new" / "en"
    with making(store, stage, "sample world"):
        scratch.mkdir(parents=True)
        for options in ([], ["--yes"]):
            assert job("clean", [str(tmp_path), *options]) == 0
            assert f"left alone: {stage}, which process " in capsys.readouterr().out
        assert scratch.exists()
    assert job("clean", [str(tmp_path), "--yes"]) == 0
    assert f"deleted {stage}\n" in capsys.readouterr().out
    assert store.folders("stages") == []


def test_a_sample_world_without_all_its_files_is_written_again(make_run):
    place = locate(make_run("name=first"), "sample:en/dev.json")
    world, file = Storage(place.storage), "es/train.json"
    whole, about = world.read_bytes(file), world.read_json("world.json")
    assert is_whole(world)
    world.write_bytes(file, whole[:-9])
    assert not is_whole(world), "a file is cut off"
    world.write_json("world.json", {key: about[key] for key in about if key != "files"})
    assert is_whole(world), "an earlier version wrote no sizes"
    world.delete("es")
    assert not is_whole(world)
    locate(make_run("name=second"), "sample:en/dev.json")
    assert world.read_bytes(file) == whole
    assert world.read_json("world.json") == about
