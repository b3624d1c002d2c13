"""MLflow and Weights & Biases, the real packages: what RunLog and the evaluation say arrives there, once, in one run."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raydist.config import ConfigError, TrackConfig, load_config
from raydist.errors import InputError
from raydist.files.storage import Storage, fingerprint
from raydist.here import Here
from raydist.runs import trackers as track
from raydist.runs.run import Run
from raydist.runs.training import training_identity
from raydist.sweep.driver import Sweep
from raydist.training.checkpoints import TrainState
from raydist.training.log import RunLog, Watch
from raydist.training.loop import StepReport

IDENTITY = {"seed": 3, "optim.lr": 0.001}


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory):
    """A store of MLflow's own, in a file; its tables are made once, which takes seconds."""
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'raydist[mlflow]'")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Machines that run tests may be busy."""
    monkeypatch.setattr(track, "PATIENCE_S", 600.0)


@pytest.fixture
def wandb_offline(monkeypatch):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'raydist[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    import wandb

    wandb.teardown()  # the environment is read once in a session


def config_of(folder: Path, *overrides: str):
    return load_config("debug_reader", [f"storage={folder}", "name=tried", "seed=3", *overrides]).config


def begun_run(folder: Path) -> Storage:
    """The folder of a run whose training has begun."""
    run = Storage(str(folder / "tried"))
    run.write_json("training.json", {"identity": IDENTITY, "done": False})
    return run


def train(config, run: Storage, first: int, last: int, die: bool = False, meanwhile=lambda step: None) -> RunLog:
    """What a training's rank 0 does with its log, from one step to another; with dev scores in every third."""
    log = RunLog(run, TrainState(step=first), 9, 3, config.train.batch_size, track.open_trackers(config, run))
    log.started(0.1)
    for step in range(first + 1, last + 1):
        meanwhile(step)
        log.seen_step(StepReport(1 / step, {"span": 0.5 / step}, {"span": 10}, 2.0), {"span": 1.0})
        log.step(step, 1e-3)
        if step % 3 == 0:
            log.scores(step, {"f1": 10.0 * step, "em": 5.0 * step}, 0.0)
    log.flush()
    if not die:
        log.close()
    for tracker in log.trackers if die else ():  # what it has been told arrives, nothing says that it has ended well
        tracker.close("RUNNING")
        assert not tracker.problem
    return log


def lines_of(run: Storage) -> dict[str, dict[int, float]]:
    """metrics.jsonl by name and step, but for the speed, which no two runs share."""
    found: dict[str, dict[int, float]] = {}
    for line in run.read_bytes("metrics.jsonl").decode().splitlines():
        values = json.loads(line)
        step = values.pop("step")
        for name, value in values.items():
            found.setdefault(name.replace(".", "/"), {})[step] = value
    del found["examples_per_s"]
    return found


# --- MLflow ----------------------------------------------------------------------------------------------------------


def mlflow_runs(uri: str, experiment: str) -> tuple:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_mlflow_has_the_log_the_settings_and_the_final_scores_in_one_run_that_a_resume_continues(tmp_path, mlflow_uri):
    config = config_of(tmp_path, f"track={{mlflow: '{mlflow_uri}', experiment: whole}}")
    run = begun_run(tmp_path)
    log = train(config, run, 0, 7, die=True)  # its last checkpoint is of step 5
    client, (there,) = mlflow_runs(mlflow_uri, "whole")
    assert there.info.status == "RUNNING"
    log = train(config, run, 5, 9)
    assert [tracker.problem for tracker in log.trackers] == [""]

    run.write_json("metrics.json", {"dev.f1": 61.5, "retrieval.x.P@1": 0.5, "train.model": "best", "train.steps": 9})
    track.tell_end(config, run)

    client, (there,) = mlflow_runs(mlflow_uri, "whole")
    assert (there.info.run_name, there.info.status) == ("tried", "FINISHED")
    ours = lines_of(run)
    assert {"loss", "loss/span", "weighted/span", "lr", "dev/f1", "epoch"} <= ours.keys()
    for name, values in ours.items():
        history = client.get_metric_history(there.info.run_id, name)
        assert [metric.step for metric in history] == list(values), f"{name}: a step is missing or there twice"
        assert [metric.value for metric in history] == list(values.values())
    final = {name: value for name, value in there.data.metrics.items() if name.startswith("final/")}
    assert final == {"final/dev/f1": 61.5, "final/retrieval/x/P_1": 0.5, "final/train/steps": 9}
    assert there.data.params["optim.lr"] == "0.001"
    assert there.data.params["data.train.files"] == "['sample:en/train.json']"
    assert not [key for key in there.data.params if key.startswith(track.PRIVATE)]
    tags = {"task": "reader", "seed": "3", "path": run.path(), "fingerprint": fingerprint(IDENTITY)}
    assert tags.items() <= there.data.tags.items()


def test_a_tracker_that_breaks_in_the_middle_costs_one_warning_and_no_step(tmp_path, mlflow_uri, capsys):
    file = tmp_path / "mlflow.db"
    source = sqlite3.connect(mlflow_uri.removeprefix("sqlite:///"))
    with sqlite3.connect(file) as copy:
        source.backup(copy)
    config = config_of(tmp_path, f"track.mlflow=sqlite:///{file}")
    run = begun_run(tmp_path)

    def break_it(step: int) -> None:
        if step != 5:
            return
        with sqlite3.connect(file) as database:
            while not database.execute("SELECT * FROM metrics WHERE step = 4").fetchall():  # until all before it has arrived
                time.sleep(0.1)
            database.execute("DROP TABLE metrics")

    log = train(config, run, 0, 9, meanwhile=break_it)
    watch = Watch(run)
    for _ in range(2):  # as it does every second
        watch.see()
    (tracker,) = log.trackers
    assert "no such table: metrics" in tracker.problem
    assert "nothing more is sent there, the run goes on" in tracker.problem
    assert list(lines_of(run)["loss"]) == list(range(1, 10))
    assert capsys.readouterr().out.count(tracker.problem) == 1
    run.write_json("metrics.json", {"dev.f1": 61.5})
    track.tell_end(config, run)
    assert "no such table: metrics" in capsys.readouterr().out


def test_a_server_that_never_answers_holds_up_no_step(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'raydist[mlflow]'")
    monkeypatch.setattr(track, "PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = config_of(tmp_path, f"track.mlflow=http://127.0.0.1:{silent.getsockname()[1]}")
        run = begun_run(tmp_path)
        log = train(config, run, 0, 9)
    assert list(lines_of(run)["loss"]) == list(range(1, 10))
    assert "more than 1 s" in log.trackers[0].problem


def test_a_run_that_another_store_knows_is_a_new_one_here(tmp_path, mlflow_uri):
    config = config_of(tmp_path, f"track={{mlflow: '{mlflow_uri}', experiment: moved}}")
    run = begun_run(tmp_path)
    run.write_json("mlflow.json", {"id": "0" * 32, "at": "http://elsewhere:5000"})
    assert not train(config, run, 0, 2).trackers[0].problem
    _, (there,) = mlflow_runs(mlflow_uri, "moved")
    assert run.read_json("mlflow.json") == {"id": there.info.run_id, "at": mlflow_uri}


def test_trials_are_runs_with_the_name_of_their_sweep_and_stopped_ones_are_told_as_such(tmp_path, mlflow_uri, capsys):
    tracked = f"track={{mlflow: '{mlflow_uri}', experiment: searched}}"
    config = load_config("debug_sweep", [f"storage={tmp_path}", "name=searched", "data.sample.size=200", tracked]).config
    sweep = Sweep(config, Here())
    for trial in sweep.trials.values():
        own = sweep.config_of(trial)
        run = Storage(own.storage).at(own.name)
        train(own, run, 0, 3)
    _, found = mlflow_runs(mlflow_uri, "searched")
    assert {there.info.run_name for there in found} == {f"searched/trials/{id}" for id in sweep.trials}
    assert {there.data.tags["group"] for there in found} == {"searched"}
    assert sorted(there.data.params["optim.lr"] for there in found) == ["0.001", "0.001", "0.003", "0.003"]

    for trial in list(sweep.trials.values())[:2]:
        sweep.folder.write_json(f"trials/{trial.id}/progress.json", {"warnings": ["mlflow: away"]})
        sweep.finished(trial, {"step": 3, "dev.f1": 1.0})
    _, found = mlflow_runs(mlflow_uri, "searched")
    assert sorted(there.info.status for there in found) == ["FINISHED", "FINISHED", "KILLED", "KILLED"]
    assert capsys.readouterr().out.count("mlflow: away") == 1


# --- Weights & Biases ------------------------------------------------------------------------------------------------


def wandb_records(file: Path) -> list:
    """What wandb wrote for `wandb sync`, in order."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    records = []
    while (data := store.scan_data()) is not None:
        records.append(Record())
        records[-1].ParseFromString(data)
    return records


def values_of(items) -> dict:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def test_wandb_has_the_log_the_settings_and_the_final_scores_under_one_id(tmp_path, wandb_offline):
    config = config_of(tmp_path, "track={wandb: team/tries, group: many}")
    run = begun_run(tmp_path)
    train(config, run, 0, 7, die=True)
    log = train(config, run, 5, 9)
    assert [tracker.problem for tracker in log.trackers] == [""]
    run.write_json("metrics.json", {"dev.f1": 61.5, "train.model": "best"})
    track.tell_end(config, run)

    id = run.read_json("wandb.json")["id"]
    files = sorted(tmp_path.glob("tried/wandb/offline-run-*/*.wandb"))
    assert len(files) == 3  # each process writes its own
    history: dict[str, dict[int, float]] = {}
    summaries = []
    for file in files:
        records = wandb_records(file)
        (about,) = [record.run for record in records if record.HasField("run")]
        assert (about.run_id, about.entity, about.project) == (id, "team", "tries")
        assert (about.display_name, about.run_group) == ("tried", "many")
        assert set(about.tags) == {"task:reader", "seed:3", f"fingerprint:{fingerprint(IDENTITY)}"}
        settings = values_of(about.config.update)
        assert (settings["optim"]["lr"], settings["seed"], settings["path"]) == (1e-3, 3, run.path())
        assert not settings.keys() & set(track.PRIVATE)
        for row in [values_of(record.history.item) for record in records if record.HasField("history")]:
            for name, value in row.items():
                history.setdefault(name, {})[row["_step"]] = value
        summaries += [values_of(record.summary.update) for record in records if record.HasField("summary")]
    for name, values in lines_of(run).items():
        assert history[name] == values, name
    assert [found["final/dev/f1"] for found in summaries if "final/dev/f1" in found] == [61.5]


def test_wandb_without_a_key_asks_nobody_and_stops_no_training(tmp_path):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install 'raydist[wandb]'")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_trackers as t\n"
        "folder = Path(sys.argv[2])\n"
        "print(t.train(t.config_of(folder, 'track.wandb=x'), t.begun_run(folder), 0, 3).trackers[0].problem)"
    )
    home = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "NETRC"))}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, env=home | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("wandb: No API key configured"), done.stderr
    assert list(lines_of(Storage(str(tmp_path / "tried")))["loss"]) == [1, 2, 3]


def test_trackers_are_loaded_when_they_are_asked_for_and_torch_and_ray_never():
    code = "import sys, raydist.runs.trackers; print({'torch', 'ray', 'mlflow', 'wandb'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_else(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    uri = {"mlflow": "sqlite:///x.db", "wandb": "project"}[name]
    with pytest.raises(
        InputError, match=rf"track\.{name} is set, and {name} is not installed: pip install 'raydist\[{name}\]'"
    ):
        Run(config_of(tmp_path, f"track.{name}={uri}"), Here()).begin()
    config = load_config("debug_sweep", [f"storage={tmp_path}", f"track.{name}={uri}"]).config
    with pytest.raises(InputError, match=f"{name} is not installed"):
        Sweep(config, Here()).begin(fresh=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_called_wandb_is_not_the_package(tmp_path, monkeypatch):
    """As wandb itself leaves one where it was used: to Python, a namespace package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(InputError, match="wandb is not installed"):
        track.check_installed(TrackConfig(wandb="x"))


def test_tracking_is_no_part_of_what_a_run_or_a_sweep_is(tmp_path, monkeypatch):
    monkeypatch.setattr(track, "check_installed", lambda _: None)  # nothing is opened here
    tracked = ["track={mlflow: 'sqlite:///x.db', wandb: p, group: g}"]
    identities = [training_identity(Run(config_of(tmp_path, *given), Here()), {}) for given in ([], tracked)]
    assert identities[0] == identities[1]
    for given in ([], tracked):  # else it would be refused
        Sweep(load_config("debug_sweep", [f"storage={tmp_path}", *given]).config, Here()).begin(fresh=False)


def test_a_databases_file_is_found_from_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Run(config_of(tmp_path, "track.mlflow=sqlite:///m.db"), Here()).config.track.mlflow == (f"sqlite:///{tmp_path}/m.db")
    assert track.full_uri("sqlite:////data/m.db") == "sqlite:////data/m.db"
    assert track.full_uri("http://host:5000") == "http://host:5000"


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as error:
        load_config("debug_reader", ["track.mlflow=https://me:secret@host/mlflow"])
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("uri", ["mlruns", "file:///data/mlruns", "/data/mlruns"])
def test_a_folder_for_mlflow_is_refused_with_the_way_out(uri):
    with pytest.raises(ConfigError, match=r"track\.mlflow: MLflow no longer keeps runs in folders: give a server or sqlite:"):
        load_config("debug_reader", [f"track.mlflow={uri}"])
