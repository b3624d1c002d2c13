"""Making stages, in this process: nothing twice, nothing half, and what is damaged is made again."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from helpers.stages import Squares, contents, make

from raydist import terminal
from raydist.errors import InputError
from raydist.files import making
from raydist.files.local import LocalExecutor
from raydist.files.making import maker_of
from raydist.files.stage import Part, Stage, Worker, part_name, whole_manifest
from raydist.files.storage import Storage, StorageError


@pytest.fixture
def squares(tmp_path):
    def squares(title: str, parts: int = 6, **changes) -> Squares:
        return Squares(title, parts, str(tmp_path / f"{title}.log"), **changes)

    return squares


@pytest.fixture
def here(tmp_path):
    """Makes a stage in this process."""
    return lambda stage: make(LocalExecutor(), str(tmp_path), stage)


def test_what_is_whole_is_not_made_again_and_what_is_missing_is(here, squares, tmp_path, capsys):
    stage = squares("again")
    made = here(stage)
    before = contents(str(tmp_path), stage)
    here(stage)
    assert "again: already done (60 rows)" in capsys.readouterr().out
    assert len(stage.made()) == 6
    # an interrupted stage: no manifest, two parts missing
    made.folder.delete("manifest.json")
    for number in (1, 4):
        made.folder.delete(part_name(number, stage.kind))
    here(stage)
    assert "resuming after 4 finished parts" in capsys.readouterr().out
    assert sorted(stage.made()[6:]) == ["10", "40"]
    assert contents(str(tmp_path), stage) == before


def test_a_part_that_was_damaged_and_kept_its_size_is_made_again(here, squares, tmp_path):
    stage = squares("damaged", parts=3)
    made = here(stage)
    before = contents(str(tmp_path), stage)
    name = part_name(1, stage.kind)
    content = made.folder.read_bytes(name)
    at = len(content) // 2
    made.folder.write_bytes(name, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    here(stage)
    assert sorted(stage.made()) == ["0", "10", "10", "20"]
    assert contents(str(tmp_path), stage) == before


@dataclass(frozen=True)
class Long(Stage):
    """One part, which ends when its progress was said."""

    name: ClassVar[str] = "long"
    said: Callable[[], str]

    @property
    def parts(self) -> int:
        return 1

    @property
    def identity(self) -> dict:
        return {}

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            ends = time.monotonic() + 60
            while "squares: 0/1 parts, for " not in self.said():
                assert time.monotonic() < ends, "not a word"
                time.sleep(0.01)
            return Part(pa.table({"n": [number]}))

        return make


def test_one_long_part_is_heard_of_before_it_ends(here, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.05)
    assert here(Long(lambda: capsys.readouterr().out)).rows == 1


@pytest.mark.parametrize(("fault", "kind"), [("bad", InputError), ("full", StorageError)])
def test_a_fault_leaves_the_finished_parts_and_says_which_they_are(here, squares, tmp_path, fault, kind):
    stage = squares("broken", **{fault: (3,)})
    with pytest.raises(kind):
        here(stage)
    folder = Storage(str(tmp_path)).at(stage.folder)
    assert whole_manifest(folder) is None
    assert "journal-00000.jsonl" in folder.files(), "else all parts are read again"
    assert sorted(making.finished_parts(stage, folder)) == [0, 1, 2]
    assert here(squares("broken")).rows == 60
    assert stage.made() == ["0", "10", "20", "30", "40", "50"], "a finished part was made twice"
    assert folder.files().keys() == {part_name(number, stage.kind) for number in range(6)} | {"manifest.json"}


def test_parts_that_a_journal_names_are_not_read_but_where_they_were_written_after_it(here, squares, tmp_path, monkeypatch):
    stage = squares("journal", bad=(3,))
    with pytest.raises(InputError):
        here(stage)
    folder = Storage(str(tmp_path)).at(stage.folder)
    for file in (tmp_path / stage.folder).glob("part-*"):
        os.utime(file, (1e9, 1e9))  # the clock of files may be too coarse to say that these came first
    read: list[str] = []
    describe = making.describe_part
    monkeypatch.setattr(making, "describe_part", lambda name, content: (read.append(name), describe(name, content))[1])
    lines = making.finished_parts(stage, folder)
    assert read == []
    folder.write_bytes(part_name(1, stage.kind), folder.read_bytes(part_name(2, stage.kind)))
    folder.delete(part_name(0, stage.kind))
    again = making.finished_parts(stage, folder)
    assert read == [part_name(1, stage.kind)]
    assert again.keys() == {1, 2}
    assert (again[2], again[1].info) == (lines[2], lines[2].info)


# --- two commands ----------------------------------------------------------------------------------------------------

SLOW_COMMAND = """
import sys
from helpers.stages import Squares, make
from raydist.files.local import LocalExecutor
make(LocalExecutor(), sys.argv[1], Squares("shared", 8, sys.argv[1] + "/shared.log", slow=600))
"""


def test_a_stage_that_another_command_makes_is_waited_for_until_that_has_made_it(squares, here, capsys):
    stage = squares("shared", slow=0.1)
    both = [threading.Thread(target=here, args=[stage]) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    told = capsys.readouterr().out
    assert f"shared: process {os.getpid()} on" in told
    assert "makes it, and this command waits" in told
    assert "shared: made by another command meanwhile (60 rows)" in told
    assert len(stage.made()) == 6, "no part is made twice"


def test_a_stage_whose_maker_was_killed_is_made_by_the_command_that_waits(squares, here, tmp_path, capsys):
    stage, store = squares("shared", parts=8), Storage(str(tmp_path))
    helpers = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", SLOW_COMMAND, str(tmp_path)], env=os.environ | helpers) as maker:
        wait_for(lambda: maker_of(store, stage.folder) is not None)
        waiting = threading.Thread(target=here, args=[stage])
        waiting.start()
        time.sleep(0.5)
        assert not os.path.exists(stage.log)
        maker.kill()
        maker.wait()
        waiting.join()
    assert f"shared: process {maker.pid} on" in capsys.readouterr().out
    assert len(stage.made()) == 8


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
