"""A cluster as its dashboard describes it: a stand-in can be of any version and anywhere."""

import socket
from importlib.metadata import version
from pathlib import Path

from helpers.submission import TOKEN, refused

from raydist.submission.target import dashboard_url, reach


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


def test_another_ray_version_is_named(dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", "--address", dashboard(version="2.52.1"))
    assert "1 problem\n" in said
    assert "runs Ray 2.52.1" in said
    assert f"ray=={version('ray')}" in said


def test_another_python_is_named(dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", "storage=s3://b/runs", "--address", dashboard(python="3.9.18"))
    assert "1 problem\n" in said
    assert "runs Python 3.9.18" in said


def test_a_head_whose_agent_has_no_port_is_named_with_the_option(dashboard, capsys):
    arguments = ["evaluate", "bridges.yaml", "storage=s3://b/runs", "--address"]
    said = refused(capsys, *arguments, dashboard(agent=-1))
    assert "1 problem\n" in said
    assert "takes no jobs: the agent of its head has no port" in said
    assert "--dashboard-agent-listen-port=" in said
    assert reach(dashboard()).nodes == 1


def test_a_wrong_token_and_none_are_told_apart(dashboard, capsys, monkeypatch):
    url = dashboard()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "refuses the token from RAY_AUTH_TOKEN" in refused(capsys, "evaluate", "bridges.yaml", "--address", url)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert "requires a token, and none is set here" in refused(capsys, "evaluate", "bridges.yaml", "--address", url)
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
