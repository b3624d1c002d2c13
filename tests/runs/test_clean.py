"""Stages that no run uses."""

import pytest

from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.here import Here
from raydist.reader.prepare import prepare
from raydist.runs.clean import unused_stages
from raydist.runs.run import Run


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
