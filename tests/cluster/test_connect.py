"""Joining a cluster, or starting one on this machine."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from lab import title

from raydist.cluster.connect import Cluster
from raydist.cluster.local import NotStarted
from raydist.config import ClusterConfig
from raydist.orphans import of_session

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_the_environment_of_a_local_cluster_ends_with_it(monkeypatch):
    """Ray stands aside: what matters is what it would inherit, and what the next thing that this process starts does not."""
    import ray

    seen = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: seen.update(os.environ))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", raising=False)
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "3")
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "1")
    with Cluster(ClusterConfig()) as cluster:
        cluster.start()
    assert (seen["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"], seen["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"]) == ("0", "3")
    assert seen["RAY_CHDIR_TO_TRIAL_DIR"] == "0", "a relative path must mean the same in a worker, whatever the user has set"
    assert "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER" not in os.environ
    assert os.environ["RAY_CHDIR_TO_TRIAL_DIR"] == "1"


def test_training_starts_no_process_that_it_has_no_use_for():
    """By Ray's own names: this fails when they change, and the two would be back unseen."""
    from ray.train.torch import TorchTrainer

    from raydist.cluster.trainer import CLEANER, DATASETS, Trainer

    def names(trainer: TorchTrainer) -> set[str]:
        return {type(callback).__name__ for callback in trainer._create_default_callbacks()}

    whole = names(TorchTrainer(print))
    assert {CLEANER, DATASETS} < whole
    assert names(Trainer(print, local=True)) == whole - {CLEANER, DATASETS}
    assert names(Trainer(print, local=False)) == whole - {DATASETS}
    assert callable(TorchTrainer._register_sigint_handler)


WAITS = """
import sys, time, typer
from raydist import cli
from raydist.cluster.connect import Cluster
from raydist.config import ClusterConfig

@cli.app.command()
def wait() -> None:
    with Cluster(ClusterConfig()) as cluster:
        cluster.start()
        print("ready", flush=True)
        time.sleep(600)

sys.exit(cli.job("wait", []))
"""


def test_sigterm_ends_a_command_as_ctrl_c_does(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert command.stdout is not None
    assert any(line == "ready\n" for line in command.stdout)
    command.terminate()
    _, errors = command.communicate(timeout=60)
    assert (errors, command.returncode) == ("interrupted; the same command goes on where this one stopped\n", 143)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_start_that_took_too_long_is_tried_again_and_leaves_no_process(monkeypatch, capsys, failures):
    import ray

    begun = []

    def init(**_) -> None:
        if len(begun) < failures:
            begun.append(subprocess.Popen(["sleep", "600"]))
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with Cluster(ClusterConfig()) as cluster:
        if failures == 1:
            cluster.start()
        else:
            with pytest.raises(NotStarted, match="in 3 attempts of half a minute"):
                cluster.start()
    assert [process.wait(timeout=10) for process in begun] == [-9] * failures
    assert capsys.readouterr().out.count("trying again") == min(failures, 2)


def test_training_may_end_while_newcomers_are_looked_for(monkeypatch):
    import ray

    from raydist.cluster import local

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    cluster = local.LocalRay(hush=False)
    try:
        cluster.stood_back = set()

        def children() -> set:
            cluster.stood_back = None  # as the main thread says it
            return {local.psutil.Process()}

        monkeypatch.setattr(local, "_children", children)
        monkeypatch.setattr(local, "_schedule", lambda process, policy: None)
        cluster._help_newcomers()
        assert cluster.stood_back is None
    finally:
        cluster.end()


def test_a_home_that_cannot_be_written_is_named_before_ray_starts(tmp_path):
    """Ray keeps its token there."""
    (home := tmp_path / "home").write_text("a file")
    code = "from raydist.cluster.local import LocalRay; LocalRay(hush=True, num_cpus=1)"
    program = f"from raydist.exits import guarded; import sys\ndef start():\n    {code}\nsys.exit(guarded(start))"
    environment = {**os.environ, "HOME": str(home), "RAY_AUTH_MODE": "token"} | {
        "RAY_AUTH_TOKEN": "",
        "RAY_AUTH_TOKEN_PATH": "",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert f"error: Ray cannot start here: {home}/.ray: " in done.stderr
    assert "it needs a home folder (HOME)" in done.stderr


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux alone lists what listens in a file")
def test_a_local_ray_listens_on_the_loopback_address_alone(cluster):
    import ray.data

    ray.data.range(2, override_num_blocks=2).map(lambda row: row).take_all()  # so that there are workers
    ours = psutil.Process()
    processes = [ours, *ours.children(recursive=True)]
    found = {title(process) for process in processes}
    assert {"gcs_server", "raylet"} <= found
    assert len(found) > 4, found
    assert "raylet" in map(title, of_session(os.getpid())), "what would be ended after a kill"
    listening = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections("tcp")  # it reads /proc/net/tcp and tcp6
            listening[title(process)] = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert listening["gcs_server"], "it does listen"
    open_to_all = {name: addresses - LOOPBACK for name, addresses in listening.items()}
    assert not {name: addresses for name, addresses in open_to_all.items() if addresses}
