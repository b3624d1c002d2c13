"""Stages on Ray: the same bytes whatever the layout, nothing twice, nothing half, and a device that need not wait."""

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.own_workers import own_workers
from helpers.stages import Crowd, CrowdByModel, Device, Many, Squares, SquaresByModel, Waiting, contents, make

from raydist import terminal
from raydist.cluster.executor import RayExecutor
from raydist.errors import InputError
from raydist.files.stage import Job, encode_table, part_name, whole_manifest
from raydist.files.storage import Storage, StorageError

DEVICE = {"resources": {"device": 1}}  # the cluster of all tests has one

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def squares(tmp_path):
    def squares(title: str, parts: int = 6, kind: type[Squares] = Squares, **changes) -> Squares:
        return kind(title, parts, str(tmp_path / f"{title}.log"), **changes)

    return squares


@pytest.fixture
def on_ray(tmp_path):
    """Makes a stage on the cluster."""
    return lambda stage, **layout: make(RayExecutor(**layout), str(tmp_path), stage)


def test_one_and_three_actors_write_the_same_bytes(on_ray, squares, tmp_path):
    found = []
    for actors in (1, 3):
        stage = squares(f"layout{actors}")
        made = on_ray(stage, actors=actors)
        found.append((contents(str(tmp_path), stage), made.manifest.parts))
        assert made.rows == 60
        assert [part.info["first"] for part in made.manifest.parts] == [0, 10, 20, 30, 40, 50]
    assert found[0] == found[1]


@pytest.mark.parametrize(("kind", "layout"), [(Crowd, {"actors": 8}), (CrowdByModel, DEVICE)], ids=["tasks", "operators"])
@pytest.mark.parametrize("max_cpus", [1, 3])
def test_a_run_takes_no_more_cpus_than_it_may(on_ray, tmp_path, kind, layout, max_cpus):
    log = tmp_path / "at_work"
    log.mkdir()
    stage = kind(8, str(log))
    assert on_ray(stage, max_cpus=max_cpus, **layout).rows == 8
    assert stage.most_at_once() <= max_cpus


def test_a_part_is_told_when_it_is_done_and_not_with_the_next_one(on_ray, tmp_path, monkeypatch):
    said = tmp_path / "said.txt"
    update = terminal.Progress.update
    monkeypatch.setattr(terminal.Progress, "update", lambda self, made: (said.write_text(str(made)), update(self, made))[1])
    on_ray(Waiting(str(said)))
    assert said.read_text() == "2"


@pytest.mark.parametrize(("of", "layout"), [(Squares, {}), (SquaresByModel, DEVICE)], ids=["tasks", "operators"])
@pytest.mark.parametrize(("fault", "kind"), [("bad", InputError), ("full", StorageError)])
def test_a_workers_message_reaches_the_user_unwrapped_and_finished_parts_stay(
    on_ray, squares, tmp_path, of, layout, fault, kind
):
    stage = squares("broken", kind=of, **{fault: (3,)})
    with pytest.raises(kind) as error:
        on_ray(stage, **layout)
    assert type(error.value) is kind
    assert str(error.value) in ("part 30 is bad; mend it", "cannot write x: no space is left on the device")
    assert whole_manifest(Storage(str(tmp_path)).at(stage.folder)) is None
    mended = on_ray(squares("broken", kind=of), **layout)
    made = stage.made()
    assert sorted(set(made)) == sorted(made), "a finished part was made twice"
    assert whole_manifest(mended.folder).rows == 60


def test_a_killed_worker_is_replaced_and_the_bytes_are_the_same(on_ray, squares, tmp_path):
    stage = squares("kill", parts=12, slow=0.6)
    killed = threading.Event()

    def kill_one() -> None:
        while not killed.is_set():
            if Path(stage.log).exists() and len(stage.made()) >= 2:
                for process in own_workers("MapBatches(write_parts)")[:1]:
                    process.kill()
                    killed.set()
            time.sleep(0.05)

    threading.Thread(target=kill_one, daemon=True).start()
    made = on_ray(stage)
    assert killed.is_set()
    assert made.rows == 120
    calm = squares("calm", parts=12)
    on_ray(calm)
    assert contents(str(tmp_path), stage) == contents(str(tmp_path), calm)


def test_a_device_waits_for_no_reading_and_no_writing(on_ray, tmp_path):
    """They are operators of their own: tasks that read, an actor with the model, tasks that write."""
    stage = Device(16, str(tmp_path / "log"), (0.6, 0.6, 0.2))  # long beside what a task costs
    made = on_ray(stage, **DEVICE)
    rows = pa.concat_tables(made.tables()).to_pydict()
    assert rows["n"] == list(range(16))
    assert len(set(rows["model"])) == 1
    assert not set(rows["model"]) & {*rows["reader"], *rows["writer"]}
    at_work = stage.at_work()
    busy = sum(end - begun for begun, end in at_work)
    assert busy / (at_work[-1][1] - at_work[0][0]) >= 0.85


def test_without_a_device_a_part_is_read_made_and_written_by_one_task(on_ray, tmp_path):
    made = on_ray(Device(3, str(tmp_path / "log"), (0, 0, 0)))
    for row in pa.concat_tables(made.tables()).to_pylist():
        assert row["reader"] == row["model"] == row["writer"]


SOON = 20.0  # seconds; what needed a task, an object or a file for each of its parts would take minutes


def test_a_stage_of_20_000_parts_has_its_first_line_within_seconds(tmp_path):
    stage = Many(20_000)
    folder = Storage(str(tmp_path)).at(stage.folder)
    started = time.monotonic()
    lines = RayExecutor(actors=2).lines([Job(stage, folder, range(stage.parts))])
    place, number, line = next(lines)
    assert time.monotonic() - started < SOON
    lines.close()
    assert (place, line.name, line.rows) == (0, part_name(number, stage.kind), 1)
    assert 0 < len(folder.files()) < stage.parts / 2, "they were made before the first of them was said"


def test_a_stage_of_20_000_parts_goes_on_within_seconds_and_makes_what_is_missing_alone(on_ray, tmp_path, capsys):
    stage = Many(20_000)
    folder = tmp_path / stage.folder
    folder.mkdir(parents=True)
    content = encode_table(pa.table({"n": [0]}), "parquet", {})
    missing = {*range(0, 20_000, 2_000)}
    for number in set(range(20_000)) - missing:
        (folder / part_name(number, stage.kind)).write_bytes(content)
    there = {file.name: file.stat().st_ino for file in folder.iterdir()}
    started = time.monotonic()
    made = on_ray(stage, actors=2)
    assert time.monotonic() - started < SOON
    assert made.rows == 20_000
    assert "resuming after 19990 finished parts" in capsys.readouterr().out
    parts = {file.name: file.stat().st_ino for file in folder.glob("part-*")}
    assert parts.items() >= there.items(), "what was there was written again"
    assert parts.keys() - there.keys() == {part_name(number, stage.kind) for number in missing}
