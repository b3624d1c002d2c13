"""A user's working directory, and stand-ins for the dashboard of a cluster."""

import json
import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest

from raydist.cli import job

PYTHON = platform.python_version()
RAY = installed_version("ray")
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

    def __init__(self, *, version=RAY, python=PYTHON, mode="token", host="elsewhere", agent=52365) -> None:
        node = {"state": "ALIVE", "nodeManagerHostname": host, "rayletSocketName": "/nowhere/raylet"}
        node |= {"isHeadNode": True, "dashboardAgentListenPort": agent}
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
