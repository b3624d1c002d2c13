"""Submission: preflight against a stand-in dashboard, which can be of any version and anywhere; jobs on a real head."""

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.job_submission import JobStatus

from raydist.cli import job
from raydist.cluster import submit
from raydist.cluster.submit import Parcel, Target, _Shown, dashboard_url, follow, prepare, reach

PYTHON = platform.python_version()
TOKEN = "a-token-of-this-test-0123456789abcdef"
PASSAGE = "Mina Orlov built the bridge in 1894. It fell in 1911."


@pytest.fixture
def working_dir(tmp_path, monkeypatch) -> Path:
    """A user's folder: a config, its data, another tool's predictions; no raydist, no token."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    answers = [{"text": "1894", "answer_start": PASSAGE.index("1894")}]
    qas = [{"id": f"q{i}", "question": "When was the bridge built?", "answers": answers} for i in range(4)]
    data = {"version": "1.1", "data": [{"title": "bridges", "paragraphs": [{"context": PASSAGE, "qas": qas}]}]}
    Path("data").mkdir()
    Path("data/dev.json").write_text(json.dumps(data))
    Path("predictions.json").write_text(json.dumps({"q0": "1894", "q1": "1894", "q2": "1911", "q3": "in 1894"}))
    Path("bridges.yaml").write_text(
        "name: bridges\nmodel: {name: 'builtin:tiny'}\ndata: {dev: data/dev.json}\n"
        "evaluate: {predictions: {dev: predictions.json}, bootstrap: 10}\n"
    )
    return folder


class Dashboard:
    """Answers what preflight asks, in the shape that Ray 2.60 gives; remembers whatever else is sent."""

    def __init__(self, *, version=ray.__version__, python=PYTHON, mode="token", host="elsewhere") -> None:
        node = {"state": "ALIVE", "nodeManagerHostname": host, "rayletSocketName": "/nowhere/raylet"}
        answers = {
            "/api/authentication_mode": {"authentication_mode": mode},
            "/api/version": {"version": "4", "ray_version": version},
            "/api/v0/cluster_metadata": {"result": True, "data": {"rayVersion": version, "pythonVersion": python}},
            "/nodes?view=summary": {"result": True, "data": {"summary": [{"raylet": node}]}},
        }
        self.changes = changes = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                needs_token = mode == "token" and self.path != "/api/authentication_mode"
                refused = needs_token and self.headers.get("Authorization") != f"Bearer {TOKEN}"
                content = json.dumps(answers.get(self.path, f"Job {self.path.rpartition('/')[2]} does not exist")).encode()
                self.send_response(403 if refused else 200 if self.path in answers else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self):
                changes.append(self.path)
                self.send_error(500)

            do_PUT = do_POST

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def dashboard(working_dir, monkeypatch):
    """Starts stand-ins; nothing may be submitted to any of them."""
    started = []
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)

    def dashboard(**options) -> str:
        started.append(Dashboard(**options))
        return started[-1].url

    yield dashboard
    for one in started:
        one.close()
        assert one.changes == []


def refused(capsys, *arguments: str) -> str:
    """What `raydist submit` says; it must be one message and status 2."""
    assert job("submit", list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: nothing was submitted: ")
    assert "Traceback" not in said.err
    return said.err


# --- preflight -------------------------------------------------------------------------------------------------------


def test_an_unreachable_address_is_named(working_dir, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    said = refused(capsys, "evaluate", "bridges.yaml", "--address", url)
    assert "1 problem\n" in said
    assert f"no Ray dashboard answers at {url} (Connection refused)" in said


def test_an_address_that_is_no_dashboards_is_named(working_dir, capsys):
    assert "give --address http://HOST:8265" in refused(capsys, "evaluate", "bridges.yaml", "--address", "ray://head:10001")


def test_the_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "head:8265/")
    assert dashboard_url(None) == "http://head:8265"
    assert dashboard_url("https://other") == "https://other"
    monkeypatch.delenv("RAY_ADDRESS")
    assert dashboard_url(None) == "http://127.0.0.1:8265"


def test_a_head_that_was_restarted_and_forgot_the_job_is_not_taken_for_one_that_is_gone(dashboard):
    with pytest.raises(RuntimeError, match=r"does not know the job: its head was restarted.*submit the same command again"):
        submit.follow(reach(dashboard(), insecure=True), "train-bridges-1f6a09c2")


def test_another_ray_version_is_named(dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", "--address", dashboard(version="2.52.1"))
    assert "1 problem\n" in said
    assert "runs Ray 2.52.1" in said
    assert f"ray=={ray.__version__}" in said


def test_another_python_is_named(dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/runs", "--address", dashboard(python="3.9.18"))
    assert "1 problem\n" in said
    assert "runs Python 3.9.18" in said


def test_a_wrong_token_and_none_are_told_apart(dashboard, capsys, monkeypatch):
    url = dashboard()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "refuses the token from RAY_AUTH_TOKEN" in refused(capsys, "evaluate", "bridges.yaml", "--address", url)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert "wants a token, and none is here" in refused(capsys, "evaluate", "bridges.yaml", "--address", url)
    (Path.home() / ".ray").mkdir()
    (Path.home() / ".ray/auth_token").write_text(TOKEN + "\n")
    assert reach(url).is_authenticated
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    assert "RAY_AUTH_TOKEN_PATH is /nowhere/token" in refused(capsys, "evaluate", "bridges.yaml", "--address", url)


def test_a_cluster_elsewhere_without_a_token_is_refused_unless_told(dashboard, capsys):
    url = dashboard(mode="disabled")
    said = refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/runs", "--address", url)
    assert "asks for no token" in said
    assert not reach(url, insecure=True).is_authenticated
    assert not reach(url, insecure=True).is_here
    assert reach(url, insecure=True).headers == {}  # our token is not shown to who does not ask for it


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
    monkeypatch.setattr(submit, "MAX_FILES", 2)
    assert "more than 2 files" in refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/x", "--address", dashboard())


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("data.dev={here}/dev.json", "data.dev.files: {here}/dev.json"),
        ("data.dev=../dev.json", "data.dev.files: {here}/dev.json"),
        ("data={{root: {here}, dev: dev.json}}", "data.dev.files: {here}/dev.json"),
        ("evaluate.predictions.dev={here}/dev.json", "evaluate.predictions.dev: {here}/dev.json"),
        ("model.name=../model", "model.name: {here}/model"),
        ("data.dev={{hub: ../model}}", "data.dev.hub: {here}/model"),
    ],
)
def test_a_path_that_only_this_machine_has_is_named(change, place, dashboard, working_dir, capsys):
    here = working_dir.parent
    shutil.copy("data/dev.json", here)
    (here / "model").mkdir()
    url = dashboard()
    change, place = change.format(here=here), place.format(here=here)
    said = refused(capsys, "evaluate", "bridges.yaml", change, "storage=s3://b/runs", "--address", url)
    assert "1 problem\n" in said
    assert f"{place} is on this machine only, the cluster is elsewhere" in said
    assert prepare("evaluate", "bridges.yaml", [change, "storage=s3://b/runs"], address=url, shared=[str(here)])


@pytest.mark.parametrize("storage", ["runs", "/data/runs", "file:///data/runs"])
def test_storage_that_the_nodes_do_not_share_is_named(storage, dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", f"storage={storage}", "--address", dashboard())
    assert "1 problem\n" in said
    assert f"storage: {storage} is a folder of one machine" in said


def test_a_trackers_database_must_be_where_the_nodes_see_it(dashboard, working_dir, capsys):
    given = ["storage=s3://b/x", "track.mlflow=sqlite:///m.db", "track.wandb=team/data"]
    url = dashboard()
    said = refused(capsys, "train", "bridges.yaml", *given, "--address", url)
    assert "1 problem\n" in said
    assert "track.mlflow: sqlite:///m.db is a file of one machine" in said
    (working_dir / "team").symlink_to("data")  # a project is no path, even if it looks like one
    sent = prepare("train", "bridges.yaml", given, address=url, shared=[str(working_dir)]).parcel.config
    assert sent["track"]["mlflow"] == f"sqlite:///{working_dir}/m.db"
    assert sent["track"]["wandb"] == "team/data"
    served = [given[0], "track.mlflow=http://host:5000"]
    sent = prepare("train", "bridges.yaml", served, address=url).parcel.config
    assert sent["track"]["mlflow"] == "http://host:5000"


def test_all_problems_come_in_one_message(dashboard, capsys):
    said = refused(capsys, "report", "bridges.yaml", "optm.lr=1", "--address", dashboard(version="2.9.0"))
    assert "3 problems\n" in said
    assert "report: cannot run as a job; these can: evaluate, " in said
    assert "optm: unknown key; did you mean optim?" in said
    assert "runs Ray 2.9.0" in said
    said = refused(capsys, "evaluate", "bridges.yaml", "data.dev=no.json", "--fresh", "--address", dashboard())
    assert "3 problems\n" in said
    assert "evaluate has no option --fresh" in said
    assert "no file at" in said
    assert "storage: runs" in said


def test_a_sweep_that_cannot_be_run_is_refused_here(dashboard, capsys):
    said = refused(capsys, "sweep", "debug_sweep", "sweep.metric=nothing.f1", "storage=s3://b/x", "--address", dashboard())
    assert "sweep.metric: nothing.f1 is of no data set that is scored" in said


def test_a_data_file_with_a_remote_address_is_refused_as_the_reader_would(dashboard, capsys):
    change = "data.dev=s3://b/dev.json"
    assert "is a remote address" in refused(capsys, "run", "bridges.yaml", change, "storage=s3://b/x", "--address", dashboard())


# --- the parcel ------------------------------------------------------------------------------------------------------


def test_what_the_config_names_travels_even_if_ignored_and_the_rest_obeys(dashboard, working_dir):
    (working_dir / ".gitignore").write_text("data/\nsecret.txt\n")
    (working_dir / ".rayignore").write_text("notes.md\n")
    for name in (
        "secret.txt",
        "notes.md",
        "kept.txt",
        ".git/config",
        "deep/__pycache__/a.pyc",
        "deep/b.py",
        "results/old.json",
    ):
        (working_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (working_dir / name).write_text("x")
    (working_dir / "model").mkdir()
    (working_dir / "model/config.json").write_text("{}")
    changes = [
        "model.name=./model",
        f"data.root={working_dir}/data",
        f"data.dev={working_dir}/data/dev.json",
        "storage=results",
    ]
    parcel = prepare("train", "bridges.yaml", changes, address=dashboard(), shared=[str(working_dir / "results")]).parcel
    own = {name for name in parcel.files if not name.startswith("raydist/")}
    assert own == {
        *("bridges.yaml", "predictions.json", "kept.txt", "deep/b.py", ".gitignore", ".rayignore"),
        *("data/dev.json", "model/config.json"),
    }
    assert {"raydist/__init__.py", "raydist/cli.py", "raydist/models/tiny_vocabulary.txt"} <= parcel.files.keys()
    assert parcel.config["data"]["root"] == "data"
    assert parcel.config["data"]["dev"]["files"] == ["dev.json"]  # found under data.root, wherever the parcel is unpacked
    assert parcel.config["model"]["name"] == "model"
    assert parcel.config["evaluate"]["predictions"] == {"dev": "predictions.json"}


def test_a_corpus_that_is_a_folder_travels_whole(dashboard, working_dir):
    for name in ("data/c/corpus.jsonl", "data/c/queries.jsonl", "data/c/qrels/train.tsv", "encoder/config.json"):
        (working_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (working_dir / name).write_text("x")
    (working_dir / ".gitignore").write_text("data\nencoder\n")
    changes = ["data.root=data", "data.dev=dev.json", "corpus.train=c", "mining.encoder=encoder", "storage=s3://b/x"]
    parcel = prepare("train", "bridges.yaml", changes, address=dashboard()).parcel
    travels = {"data/c/corpus.jsonl", "data/c/queries.jsonl", "data/c/qrels/train.tsv", "encoder/config.json", "data/dev.json"}
    assert travels <= parcel.files.keys()
    assert parcel.config["corpus"]["train"]["files"] == ["c"]


def test_the_raydist_of_the_working_directory_is_the_one_that_runs(dashboard, working_dir):
    (working_dir / "raydist").mkdir()
    (working_dir / "raydist/__init__.py").write_text("")
    parcel = prepare("train", "bridges.yaml", ["storage=s3://b/x"], address=dashboard()).parcel
    assert [name for name in parcel.files if name.startswith("raydist/")] == ["raydist/__init__.py"]


def test_words_that_happen_to_be_folders_are_not_paths(dashboard, working_dir):
    for name in ("squad", "reader", "auto"):  # rule, task and format of the config
        (working_dir / name).mkdir()
        (working_dir / name / "file.txt").write_text("x")
    (working_dir / ".rayignore").write_text("squad\nreader\nauto\n")
    parcel = prepare("train", "bridges.yaml", ["storage=s3://b/x", "data.dev.rule=squad"], address=dashboard()).parcel
    assert not [name for name in parcel.files if name.endswith("file.txt")]


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


def test_a_log_that_is_read_again_is_shown_once(capsys):
    rays = "2026-11-16 08:30:24,614\tINFO job_manager.py:581 -- Runtime env\nRunning entrypoint for job x: python\n"
    shown = _Shown()
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
    return len(submit.list_jobs(reach(url)))


@pytest.fixture
def with_token(monkeypatch, working_dir):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


@pytest.mark.ray
def test_a_real_cluster_refuses_a_wrong_token_and_none(head, working_dir, capsys, monkeypatch):
    assert "wants a token, and none is here" in refused(capsys, "evaluate", "bridges.yaml", "--address", head)
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

        url = "http://head:8265"

        def client(self):
            return self

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

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a script begin without one
    try:
        assert follow(Breaking(), "train-x") == 130
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
    assert f"the cluster at {addresses[1]} wants a token, and accepts none from here" in done.stderr
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
