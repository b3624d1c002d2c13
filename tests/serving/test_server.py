"""Clients that are slow, or hold connections: they are cut off, and others are answered meanwhile."""

import resource
import time

import pytest
import requests
from helpers.serving import connected, is_cut_off

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.metrics import Metrics
from raydist.serving.server import Server

TOKEN = "a-token-of-these-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HEAD = f"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


def is_answered(address) -> bool:
    return requests.get(f"{address}/v1/library", headers=HEADERS, timeout=30).status_code == 200


def trickle(client, text: bytes, seconds: float = 5.0) -> bool:
    """Send a byte at a time; whether the other side ends it."""
    ends = time.monotonic() + seconds
    for place in range(len(text)):
        try:
            client.sendall(text[place : place + 1])
        except OSError:
            return True
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return False


def goes_on(client, part: bytes, most: int) -> int:
    """How many parts the other side takes."""
    for number in range(most):
        try:
            client.sendall(part)
        except OSError:
            return number
    return most


def test_a_head_that_trickles_is_cut_off(guarded):
    address = guarded(slow=0.5)
    with connected(address) as client:
        assert trickle(client, (HEAD + "X-Long: " + "a" * 1000).encode())
        assert is_answered(address)
    metrics = requests.get(f"{address}/metrics", headers=HEADERS, timeout=30).text
    assert 'raydist_connections_cut_total{reason="slow"} 1.0' in metrics


def test_a_second_head_that_trickles_is_cut_off_too(guarded):
    address = guarded(slow=0.5)
    with connected(address) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert trickle(client, (HEAD + "X-Long: " + "a" * 1000).encode())


def test_a_body_that_trickles_is_408(guarded):
    address = guarded(slow=0.5)
    with connected(address) as client:
        client.sendall(f"{HEAD}Content-Length: 500\r\n\r\n".encode())
        trickle(client, b'{"question": "Who bu', 0.3)
        assert is_answered(address)
        client.settimeout(10)
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_head_without_end_is_cut_off(guarded):
    address = guarded()
    with connected(address) as client:
        client.sendall(HEAD.encode())
        assert goes_on(client, b"X-Long: " + b"a" * 10_000 + b"\r\n", 1000) < 1000
        assert is_answered(address)


def test_a_thousand_idle_connections_keep_nobody_out(guarded):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this needs 4,096 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    address = guarded(connections=200)
    idle = []
    try:
        for _ in range(1000):
            idle.append(connected(address))
        assert all(is_answered(address) for _ in range(5))
        assert is_cut_off(idle[0])
        idle[-1].settimeout(0.2)
        assert not is_cut_off(idle[-1]), "the newest are kept"
        metrics = requests.get(f"{address}/metrics", headers=HEADERS, timeout=30).text
        (cut,) = [line for line in metrics.splitlines() if line.startswith('raydist_connections_cut_total{reason="many"}')]
        assert 800 <= float(cut.split()[1]) <= 830
    finally:
        for client in idle:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_that_is_taken_is_one_message(address):
    port = int(address.rpartition(":")[2])
    with pytest.raises(InputError, match=rf"cannot listen on 127.0.0.1, port {port} \(Address already in use\)"):
        Server(ServingConfig(port=port), Metrics())


def test_a_service_of_a_network_needs_a_token():
    with pytest.raises(InputError, match=r"serving.host is 0.0.0.0, which others reach, and there is no token"):
        Server(ServingConfig(host="0.0.0.0", port=0), Metrics())
