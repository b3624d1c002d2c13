"""Jobs on a real head: sent, followed, left, found again, stopped."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.submission import TOKEN, refused
from ray.job_submission import JobStatus

from raydist.cli import job
from raydist.cluster.submit import Jobs, ShownLog
from raydist.submission.preflight import prepare
from raydist.submission.target import Target, reach


def test_a_head_that_was_restarted_and_forgot_the_job_is_not_taken_for_one_that_is_gone(dashboard):
    with pytest.raises(RuntimeError, match=r"does not know the job: its head was restarted.*submit the same command again"):
        Jobs(reach(dashboard(), insecure=True)).follow("train-bridges-1f6a09c2")


def test_a_log_that_is_read_again_is_shown_once(capsys):
    rays = "2026-11-16 08:30:24,614\tINFO job_manager.py:581 -- Runtime env\nRunning entrypoint for job x: python\n"
    shown = ShownLog()
    for log in (rays, rays + "read: 1\n", rays + "read: 1\nread: 2\n"):  # each time from its start, in two pieces
        shown.add(log[: len(rays)], 0)
        shown.add(log[len(rays) :], len(rays))
    assert capsys.readouterr().out == "read: 1\nread: 2\n"


# --- a real head -----------------------------------------------------------------------------------------------------

HEAD = """
import sys
from ray._private.utils import write_ray_address
from ray.cluster_utils import Cluster

dashboard, agent, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
own = {"include_dashboard": True, "dashboard_port": dashboard, "dashboard_agent_listen_port": agent, "temp_dir": folder}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "object_store_memory": 150_000_000, **own})
write_ray_address(cluster.address, folder)  # as `ray start` does
print("ready", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def addresses():
    """A small Ray head in processes of its own, with token authentication: the URL of its dashboard, and where drivers join."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # jobs run `python`
    environment = kept | {"PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    folder = tempfile.mkdtemp(prefix="rd", dir="/tmp")  # sockets live in it: their paths must be short
    for _ in range(3):  # a busy machine may miss Ray's own deadline of 30 s
        ports = free_ports(2)
        command = [sys.executable, "-c", HEAD, *map(str, ports), folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, **pipes)
        said = process.stdout.readline().split()
        if said:
            break
        process.wait()
    else:
        pytest.fail("a Ray head did not start three times")
    yield f"http://127.0.0.1:{ports[0]}", said[1]
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def head(addresses) -> str:
    return addresses[0]


def number_of_jobs(url: str) -> int:
    return len(Jobs(reach(url)).newest_first())


@pytest.fixture
def with_token(monkeypatch, working_dir):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


@pytest.mark.ray
def test_a_real_cluster_refuses_a_wrong_token_and_none(head, working_dir, capsys, monkeypatch):
    assert "requires a token, and none is set here" in refused(capsys, "evaluate", "bridges.yaml", "--address", head)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "refuses the token from RAY_AUTH_TOKEN" in refused(capsys, "evaluate", "bridges.yaml", "--address", head)
    assert job("jobs", ["list", "--address", head]) == 2
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert number_of_jobs(head) == 0


@pytest.mark.ray
def test_a_cluster_on_this_machine_is_known_as_such_and_keeps_runs_beside_the_config(head, working_dir, with_token):
    prepared = prepare("evaluate", "bridges.yaml", address=head)
    assert prepared.target == Target(head, prepared.target.headers, nodes=1, is_here=True, is_authenticated=True)
    assert TOKEN not in repr(prepared.target)
    assert prepared.parcel.config["storage"] == str(working_dir / "runs")
    shutil.copy("data/dev.json", working_dir.parent)
    config = prepare("evaluate", "bridges.yaml", ["data.dev=../dev.json"], address=head).parcel.config
    assert config["data"]["dev"]["files"] == [str(working_dir.parent / "dev.json")]


def test_ctrl_c_is_not_lost_to_a_connection_that_breaks_with_it(capsys):
    class Breaking:
        """A cluster whose connection breaks when it is left; by its own word the job then ends well."""

        async def tail_job_logs(self, name):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(30)
            except BaseException:
                raise RuntimeError("closed") from None
            yield ""

        def get_job_logs(self, name):
            return ""

        def get_job_info(self, name):
            return SimpleNamespace(status=JobStatus.SUCCEEDED)

    elsewhere = Target("http://head:8265", {}, nodes=1, is_here=False, is_authenticated=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a script begin without one
    try:
        assert Jobs(elsewhere, Breaking()).follow("train-x") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "raydist jobs logs train-x --address http://head:8265" in capsys.readouterr().out


@pytest.mark.ray
def test_a_job_is_left_by_ctrl_c_found_again_and_followed_to_its_end(head, working_dir, with_token, capsys):
    command = [sys.executable, "-m", "raydist.cli", "submit", "evaluate", "bridges.yaml", "--address", head]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which tests in the background of a script have not
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=listen)
    assert "token accepted" in process.stdout.readline()
    name = process.stdout.readline().removeprefix("submitted ").strip()
    time.sleep(2)  # it follows the log by now; before, an interrupt is as good
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"raydist jobs logs {name} --address {head}" in said
    assert job("jobs", ["list", "--address", head]) == 0
    listed = capsys.readouterr().out.splitlines()[0]
    assert listed.startswith(name)
    assert listed.endswith("evaluate bridges")
    assert job("jobs", ["logs", "--address", head]) == 0  # the newest
    said = capsys.readouterr().out
    assert "dev       50.0  66.7" in said
    assert "job_manager.py" not in said
    assert json.loads((working_dir / "runs/bridges/metrics.json").read_text())["dev.em"] == 50.0
    assert job("jobs", ["logs", name, "--address", head]) == 0
    assert capsys.readouterr().out == said
    assert job("jobs", ["logs", "nonsense", "--address", head]) == 2
    assert name in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.parametrize("token", [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 8}, {"RAY_AUTH_MODE": "token"}])
def test_who_joins_without_the_right_token_is_told(addresses, working_dir, token):
    command = [sys.executable, "-m", "raydist.cli", "train", "debug_reader", f"cluster.address={addresses[1]}"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, env=kept | token, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"the cluster at {addresses[1]} requires a token, and accepts none from here" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, "one message, none of Ray's own"


@pytest.mark.ray
def test_the_exit_status_of_a_job_is_ours(head, working_dir, with_token, capsys):
    assert job("submit", ["predict", "bridges.yaml", "--address", head]) == 2
    said = capsys.readouterr().out
    assert "run 'bridges' has no model yet: train it first" in said
    assert "failed with exit status 2" in said


@pytest.mark.ray
def test_a_job_is_stopped(head, working_dir, with_token, capsys):
    assert job("submit", ["evaluate", "bridges.yaml", "name=stopped", "--no-wait", "--address", head]) == 0
    assert job("jobs", ["stop", "--address", head]) == 0  # the one that runs
    assert job("jobs", ["logs", "--address", head]) == 1
    assert "was stopped; submitted again" in capsys.readouterr().out


@pytest.mark.ray
@pytest.mark.slow
def test_a_submitted_run_and_a_sweep_of_one_trial_give_the_metrics_of_a_local_run(head, working_dir, with_token):
    small = ("data.train.questions=40", "data.dev.questions=10", "data.test={}", "train.batch_size=8", "optim.lr=1e-3")
    assert job("submit", ["run", "debug_reader", *small, "storage=there", "--address", head]) == 0
    sweep = ("sweep.space={optim.lr: [1e-3]}", "sweep.metric=dev.f1")
    for command in (["run", "debug_reader", *small], ["sweep", "debug_reader", *small, *sweep, "name=swept"]):
        subprocess.run([sys.executable, "-m", "raydist.cli", *command, "storage=here"], check=True, timeout=1200)
    outcomes = []
    (trial,) = Path("here/swept/trials").iterdir()
    for folder in (Path("here/debug_reader"), Path("there/debug_reader"), trial):
        metrics = json.loads((folder / "metrics.json").read_text())
        kept = {key: value for key, value in metrics.items() if not key.endswith(("_s", "seconds"))}  # all but times
        outcomes.append((kept, (folder / "model/model.safetensors").read_bytes()))
    assert "dev.f1" in outcomes[0][0]
    assert outcomes[0] == outcomes[1] == outcomes[2]
