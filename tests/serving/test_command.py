"""`raydist serve`: what it starts, what it refuses, how it ends."""

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from helpers.serving import until

from raydist.cli import job
from raydist.serving.settings import serving_settings


@contextmanager
def running(opening, log: Path, *arguments: str):
    """The command in a process of its own, when it answers: (process, address)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "raydist", "serve", opening.index, "--reader", opening.settings["reader"], "--port", port]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *arguments], stdout=output, stderr=output, cwd=Path(__file__).parents[2])
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: requests.get(f"{address}/readyz", timeout=5).status_code == 200, 180)
        yield process, address
    finally:
        process.kill()


def ask(address: str) -> int:
    return requests.post(f"{address}/v1/ask", json={"question": "Who built the tower?", "k": 4}, timeout=60).status_code


def test_the_command_serves_until_it_is_told_to_end_and_answers_what_it_has_accepted(opening, tmp_path):
    with running(opening, tmp_path / "log") as (process, address), ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(ask, address) for _ in range(8)]
        until(lambda: any(each.done() for each in asked))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert {each.result() for each in asked if not each.exception()} == {200}
    written = (tmp_path / "log").read_text()
    assert f"bridges answers on {address} (POST /v1/ask, /v1/search)" in written
    assert "note: probabilities are not calibrated" in written
    assert "POST /v1/ask 200" in written
    assert "tower" not in written
    assert "Traceback" not in written


@pytest.mark.slow
@pytest.mark.ray
def test_on_ray_the_command_serves_the_same_way(opening, tmp_path):
    with running(opening, tmp_path / "log", "--ray", "serving.cpus=0.5") as (process, address):
        assert [ask(address) for _ in range(3)] == [200] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    written = (tmp_path / "log").read_text()
    assert f"bridges answers on {address}" in written
    assert "tower" not in written
    assert "Traceback" not in written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "serving.host is 0.0.0.0, which others reach, and there is no token"),
        (["serving.rat=3"], "serving.rat: unknown key"),
        (["serving.queue=0"], "serving.queue: should be greater than or equal to 1, got 0"),
        (["optim.lr=3"], "'optim.lr=3' is no setting of the service; wanted serving.KEY=VALUE"),
        (["--token-file", "no-such-file"], "the token file no-such-file cannot be read: No such file or directory"),
        (["--reader", "no-such-reader"], "no-such-reader"),
        (["--write", "no-such-folder/deploy.yaml"], "no-such-folder/deploy.yaml cannot be written"),
    ],
)
def test_what_cannot_be_served_is_one_message(index, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert job("serve", [index, "--port", "0", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_settings_are_those_of_the_run_then_of_the_command(tmp_path):
    (tmp_path / "config.yaml").write_text("task: documents\nserving: {rate: 5, queue: 9}\n")
    (tmp_path / "index").mkdir()
    for place in (tmp_path, tmp_path / "index"):
        settings = serving_settings(str(place), ["serving.rate=7", "serving.burst=3"], {"port": 9, "host": None})
        assert (settings.rate, settings.burst, settings.queue, settings.port, settings.host) == (7, 3, 9, 9, "127.0.0.1")
