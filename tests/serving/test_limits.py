"""Who may ask, how often and how much: each limit by a real request to a real server."""

import asyncio
import json
import logging
import re
import threading
import time
from pathlib import Path

import pytest
import requests
from fastapi import APIRouter, Request
from helpers.serving import connected, served, until

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.app import create_app
from raydist.serving.limits import Rates, Tokens, check_exposure
from raydist.serving.metrics import Metrics
from raydist.serving.service import TooMany

TOKEN = "a-token-of-these-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Slow:
    """A service that answers when it is let."""

    def __init__(self):
        self.asked = 0
        self.may = threading.Event()

    async def ask(self, asked):
        self.asked += 1
        while not self.may.is_set():
            await asyncio.sleep(0.01)
        return {"question": asked.question, "answered": True, "seconds": {}, "library": {"version": 1}}

    search = ask

    async def describe(self):
        return {"version": 1, "passages": 0}


def ask(address, question="Who?", headers=HEADERS, timeout=30):
    return requests.post(f"{address}/v1/ask", json={"question": question}, headers=headers, timeout=timeout)


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_answered(guarded):
    address = guarded()
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer # ours"},
        {"Authorization": "Bearer é".encode("latin-1")},
    ):
        answer = ask(address, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.json() == {"error": "a bearer token is wanted: Authorization: Bearer TOKEN"}
    for path in ("/v1/library", "/metrics", "/v1/nothing", "/docs"):
        assert requests.get(address + path, timeout=30).status_code == 401
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert requests.get(address + path, timeout=30).status_code == 200
    assert ask(address, "Who built the tower?").status_code == 200
    assert ask(address, "Who built the tower?", {"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_tokens_come_from_a_file_and_the_environment_and_must_be_long(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDIST_TOKEN", "one-of-the-environment\n")
    (tmp_path / "tokens").write_text("# a remark\n\none-of-the-file-itself\n")
    tokens = Tokens.of(ServingConfig(token_file=str(tmp_path / "tokens")))
    assert tokens.check(b"Bearer one-of-the-environment") != tokens.check(b"Bearer one-of-the-file-itself")
    assert "one-of" not in repr(vars(tokens))
    for content, message in (("short\n", "token 2 is not 16 or more printable"), ("# none\n", "has no token")):
        (tmp_path / "tokens").write_text(content)
        with pytest.raises(InputError, match=message) as caught:
            Tokens.of(ServingConfig(token_file=str(tmp_path / "tokens")))
        assert "short" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        Tokens.of(ServingConfig(token_file=str(tmp_path / "absent")))


def test_a_network_is_not_served_without_a_token(monkeypatch):
    for host in ("0.0.0.0", "::", "192.168.0.4", ""):
        with pytest.raises(InputError, match=r"there is no token: give --token-file FILE"):
            check_exposure(ServingConfig(host=host), Tokens([]))
        check_exposure(ServingConfig(host=host), Tokens([TOKEN]))
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(ServingConfig(host=host), Tokens([]))


def test_a_page_whose_name_was_bound_to_this_machine_is_refused(address):
    for name, status in (("evil.example", 421), ("localhost:8100", 200), ("127.0.0.1", 200), ("[::1]:8100", 200), ("", 421)):
        assert requests.get(f"{address}/v1/library", headers={"Host": name}, timeout=30).status_code == status, name


def test_endpoints_of_others_are_guarded_as_ours_are(tmp_path):
    router = APIRouter()

    @router.post("/v1/judgements")
    async def judge(request: Request) -> dict:
        if not (body := await request.body()):
            raise InputError("there is no judgement")
        return {"bytes": len(body), "queue": request.app.state.settings.queue}

    for path in ("/", "/assets/{name}"):
        router.get(path)(lambda: "a page")
    (tmp_path / "tokens").write_text(TOKEN)
    settings = ServingConfig(token_file=str(tmp_path / "tokens"), queue=7)
    app = create_app(Slow(), settings, routers=[router], public=["/", "/assets/*"])
    with served(app, settings) as address:
        for path, status in (("/", 200), ("/assets/app.js", 200), ("/assets", 401), ("/other", 401)):
            assert requests.get(address + path, timeout=30).status_code == status
        judgements = f"{address}/v1/judgements"
        assert requests.post(judgements, data=b"right", timeout=30).status_code == 401
        assert requests.post(judgements, data=b"right", headers=HEADERS, timeout=30).json() == {"bytes": 5, "queue": 7}
        wrong = requests.post(judgements, headers=HEADERS, timeout=30)
        assert (wrong.status_code, wrong.json()) == (422, {"error": "there is no judgement"})
        assert requests.post(judgements, data=b"x" * 70_000, headers=HEADERS, timeout=30).status_code == 413


# --- size, rate, queue, time -----------------------------------------------------------------------------------------


def test_a_question_of_ten_megabytes_is_413_and_the_next_is_answered(guarded):
    address = guarded()
    large = json.dumps({"question": "a" * 10_000_000}).encode()
    headers = HEADERS | {"Content-Type": "application/json"}
    with requests.Session() as session:
        for body in (large, (large[i : i + 100_000] for i in range(0, len(large), 100_000))):  # announced, and in chunks
            answer = session.post(f"{address}/v1/ask", data=body, headers=headers, timeout=30)
            assert answer.status_code == 413
            assert "65536" in answer.json()["error"]
    assert ask(address, "Who built the tower?").status_code == 200
    assert ask(address, headers={}).status_code == 401
    lying = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 99999999999\r\n\r\n"
    with connected(address) as client:  # refused before a byte of it is sent
        client.sendall(lying % TOKEN.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_client_that_asks_too_often_is_429_until_later(guarded):
    slow = Slow()
    slow.may.set()
    address = guarded(slow, rate=0.5, burst=3)
    answers = [ask(address) for _ in range(5)]
    assert [answer.status_code for answer in answers][:4] == [200, 200, 200, 429]
    assert answers[3].headers["Retry-After"] == "2"
    assert ask(address, headers=HEADERS | {"X-Forwarded-For": "10.0.0.9"}).status_code == 429, "an address cannot be made up"
    assert requests.get(f"{address}/healthz", timeout=30).status_code == 200
    until(lambda: ask(address).status_code == 200)


def test_rates_are_those_of_each_client_and_fill_with_time():
    now = [0.0]
    rates = Rates(2.0, 2, lambda: now[0])
    for client in ("a", "b"):
        rates.spend(client)
        rates.spend(client)
        with pytest.raises(TooMany) as refused:
            rates.spend(client)
        assert refused.value.retry_after == pytest.approx(0.5)
    now[0] = 0.5
    rates.spend("a")
    with pytest.raises(TooMany):
        rates.spend("a")
    for number in range(20_000):
        rates.spend(f"client {number}")
    assert len(rates._buckets) == 10_000


def test_a_full_queue_is_503_with_retry_after_and_those_inside_are_answered(guarded):
    slow = Slow()
    address = guarded(slow, queue=4, rate=None)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(address).status_code)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: slow.asked == 4)
    refused = ask(address)
    assert (refused.status_code, refused.headers["Retry-After"].isdigit()) == (503, True)
    assert requests.get(f"{address}/readyz", timeout=30).status_code == 200
    slow.may.set()
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    assert ask(address).status_code == 200


def test_what_takes_too_long_is_504(guarded):
    address = guarded(Slow(), timeout=0.2)
    begun = time.monotonic()
    answer = ask(address)
    assert answer.status_code == 504
    assert "no answer within 0.2 s" in answer.json()["error"]
    assert 0.2 <= time.monotonic() - begun < 10


def test_a_fault_is_500_and_says_nothing_of_the_inside(guarded, caplog):
    class Broken(Slow):
        async def ask(self, asked):
            raise RuntimeError("secret place")

    answer = ask(guarded(Broken()))
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret place" in caplog.text


# --- the log ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [False, True])
def test_questions_and_tokens_stay_out_of_the_log_unless_asked(guarded, caplog, wanted):
    caplog.set_level(logging.DEBUG, logger="raydist")
    address = guarded(log_questions=wanted)
    assert ask(address, "Who built the tower of Veld?").status_code == 200
    requests.get(f"{address}/v1/a%0Aforged line", headers=HEADERS, timeout=30)
    assert ("tower of Veld" in caplog.text) == wanted
    assert TOKEN not in caplog.text
    lines = [record.getMessage() for record in caplog.records if record.name == "raydist.serving.access"]
    assert any("POST /v1/ask 200" in line for line in lines)
    assert any(r"/v1/a\nforged line" in line for line in lines)


def test_metrics_count_what_happened(guarded):
    address = guarded(rate=None)
    for _ in range(3):
        ask(address, "Who built the tower?")
    ask(address, headers={})
    ask(address, "?")
    requests.get(f"{address}/v1/{'x' * 50}", headers=HEADERS, timeout=30)
    text = requests.get(f"{address}/metrics", headers=HEADERS, timeout=30).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['raydist_requests_total{path="/v1/ask",status="200"}'] == "3.0"
    assert values['raydist_requests_total{path="/v1/ask",status="422"}'] == "1.0"
    assert values['raydist_requests_total{path="other",status="401"}'] == "1.0"
    assert values['raydist_requests_total{path="other",status="404"}'] == "1.0"
    assert values['raydist_answers_total{answered="true"}'] == "3.0"
    assert values['raydist_step_seconds_count{step="read"}'] == "3.0"
    assert float(values["raydist_batch_questions_sum"]) == 3
    assert float(values["raydist_requests_in_progress"]) == 0


def test_the_page_has_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    named = set(re.findall(r"`(raydist_[a-z_]+)`", page))
    metrics = Metrics()
    metrics.of_reply({"answered": True, "seconds": {"read": 1.0}, "library": {"version": 1}})
    assert named == set(re.findall(r"^# TYPE (\w+) ", metrics.exposition().decode(), re.MULTILINE))
