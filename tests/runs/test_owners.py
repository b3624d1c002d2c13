"""One command at a time on a run: a second one is told who works on it, before it has done anything."""

import re
import signal
import subprocess
import sys
import time

import pytest

from raydist.cli import job
from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.runs.owners import run_owner
from raydist.runs.run import Run
from raydist.sweep.driver import LocalTrials, run_sweep

OTHER_COMMAND = """
import sys, time
from raydist.config import load_config
from raydist.here import Here
from raydist.runs.run import Run
with Run(load_config("debug_reader", sys.argv[1:]).config, Here()):
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def make_run(tmp_path):
    def make_run(*overrides: str, config: str = "debug_reader") -> Run:
        return Run(load_config(config, [f"storage={tmp_path}", "name=mine", *overrides]).config, Here())

    return make_run


def test_a_second_command_is_refused_before_ray_is_loaded_and_a_killed_one_makes_way(make_run, tmp_path, raydist, capsys):
    settings = [f"storage={tmp_path}", "name=mine"]
    with subprocess.Popen([sys.executable, "-c", OTHER_COMMAND, *settings], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        began = time.monotonic()
        for command in ("train", "run", "predict", "evaluate"):
            assert job(command, ["debug_reader", *settings]) == 2
            told = capsys.readouterr().err
            assert re.search(rf"error: run 'mine' in .* is in use by process {other.pid} on .*since 20.*name=", told)
        assert time.monotonic() - began < 20, "none of them has started Ray"
        assert job("status", [f"{tmp_path}/mine"]) == 0, "reading is free"
        assert f"at work: process {other.pid} on" in capsys.readouterr().out
        with make_run("name=another"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with make_run() as run:
        assert run_owner(run.folder)
    assert run_owner(run.folder) is None


def test_runs_beside_a_run_belong_to_its_command(make_run):
    with make_run() as run:
        run.beside("mine_base").begin()
        with pytest.raises(InputError, match=r"run 'mine_base' in .* is in use"):
            make_run("name=mine_base").__enter__()
    with make_run("name=mine_base"), make_run() as run, pytest.raises(InputError, match=r"run 'mine_base' in .* is in use"):
        run.beside("mine_base").begin()
    with make_run("name=mine_base"):
        pass


def test_a_run_that_cannot_begin_is_free_again(make_run):
    make_run().folder.write_json("training.json", {})
    with pytest.raises(InputError, match="has answers of its own"), make_run("evaluate.predictions.dev=theirs.json"):
        pass
    with make_run() as run:
        assert run_owner(run.folder)


def test_a_sweep_belongs_to_its_driver(make_run, tmp_path):
    sweep = load_config("debug_sweep", [f"storage={tmp_path}", "name=mine"]).config
    with make_run(), pytest.raises(InputError, match=r"run 'mine' in .* is in use"):
        run_sweep(sweep, LocalTrials())
