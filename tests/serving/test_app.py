"""The endpoints: what they answer, and what they say of wrong input."""

import json

import pytest
import requests
from helpers.serving import MARKUP, connected

from raydist.asking.asker import Asker
from raydist.asking.shown import reply_dict
from raydist.serving.bodies import ErrorBody, FoundBody, LibraryBody, ReplyBody

QUESTIONS = ["Who built the Orla bridge?", "When did the bridge fall?", "Who built the tower?"]


@pytest.fixture(scope="module")
def ask(address):
    def ask(path="ask", **body):
        return requests.post(f"{address}/v1/{path}", json=body, timeout=30)

    return ask


def test_a_reply_is_that_of_an_asker_in_this_process(ask, answering, opening):
    asker = Asker.open(opening.index, **opening.settings)
    for question in QUESTIONS:
        reply = ask(question=question, n_best=3, where="year >= 1900").json()
        expected = json.loads(json.dumps(reply_dict(asker.ask(question, where="year >= 1900"), n_best=3), default=str))
        assert reply.pop("library") == {"version": answering.live.version}
        assert reply.pop("seconds").keys() == expected.pop("seconds").keys()
        assert rounded(reply) == rounded(expected)


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 3) if isinstance(value, float) else value


def test_settings_of_a_request_are_taken(ask, answering):
    searched = ask("search", question="bridge", k=2, kind="bm25").json()
    assert [passage["document_id"] for passage in searched["passages"]] == ["bridges.md"] * 2
    assert set(searched["passages"][0]["scores"]) == {"bm25"}
    assert ask("search", question="bridge", where="year = 1902").json()["passages"][0]["document_id"] == "towers.pdf"
    reply = ask(question="Who built the tower?", k=1, kind="dense", n_best=2).json()
    assert {candidate["source"]["passage_id"] for candidate in reply["candidates"]} == {reply["source"]["passage_id"]}
    assert set(reply["source"]["scores"]) == {"dense"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "question: field required"),
        ({"question": " "}, "question: string should have at least 1 character"),
        ({"question": "?!"}, "question has no word"),
        ({"question": 3}, "question: input should be a valid string"),
        ({"question": "Who?" * 1000}, "question has 4000 characters; 2000 are allowed"),
        ({"question": "\ud800 who"}, "question: input should be a valid string"),
        ({"question": "Who?", "wher": "year > 3"}, "wher: extra inputs are not permitted"),
        ({"question": "Who?", "where": "yeer > 3"}, "yeer"),
        ({"question": "Who?", "where": "document_id = '../../etc/passwd' or year >"}, "year"),
        ({"question": "Who?", "k": 0}, "k: input should be greater than or equal to 1"),
        ({"question": "Who?", "k": 101}, "k is 101; at most 100 is allowed"),
        ({"question": "Who?", "k": "3"}, "k: input should be a valid integer"),
        ({"question": "Who?", "kind": "../../etc/passwd"}, "kind: input should be 'hybrid', 'bm25' or 'dense'"),
        ({"question": "Who?", "n_best": 21}, "n_best: input should be less than or equal to 20"),
        ([], "the body: "),
    ],
)
def test_wrong_input_is_422_and_one_sentence(address, body, said):
    answer = requests.post(f"{address}/v1/ask", data=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=30)
    assert answer.status_code == 422
    assert answer.json().keys() == {"error"}
    assert said in answer.json()["error"]


def test_a_body_that_is_no_json_is_refused(address):
    answer = requests.post(f"{address}/v1/ask", data=b"\xff{", headers={"Content-Type": "application/json"}, timeout=30)
    assert answer.status_code == 422
    assert "error" in answer.json()


def test_the_library_is_described(address, answering):
    described = requests.get(f"{address}/v1/library", timeout=30).json()
    assert described["name"] == "bridges"
    assert (described["version"], described["passages"], described["documents"]) == (answering.live.version, 5, 4)
    assert described["columns"]["year"] == "int64"
    assert described["kinds"] == ["hybrid", "bm25", "dense"]
    assert (described["calibrated"], described["reader"], described["cross_encoder"]) == (False, "reader", None)
    assert "not calibrated" in described["notes"][0]


def test_health_metrics_and_the_description_of_the_api(address):
    assert requests.get(f"{address}/healthz", timeout=30).json() == {"status": "alive"}
    assert requests.get(f"{address}/readyz", timeout=30).json()["status"] == "ready"
    api = requests.get(f"{address}/openapi.json", timeout=30).json()
    assert {"/v1/ask", "/v1/search", "/v1/library", "/healthz", "/readyz", "/metrics"} <= api["paths"].keys()
    assert api["components"]["schemas"]["AskBody"]["properties"]["question"]["description"]
    assert {"200", "401", "413", "422", "429", "503", "504"} <= api["paths"]["/v1/ask"]["post"]["responses"].keys()


def test_responses_are_as_the_description_says(address, ask):
    ReplyBody.model_validate_json(ask(question="Who built the tower?", n_best=3).content)
    FoundBody.model_validate_json(ask("search", question="tower").content)
    LibraryBody.model_validate_json(requests.get(f"{address}/v1/library", timeout=30).content)
    ErrorBody.model_validate_json(ask(question="").content)


def test_markup_of_questions_documents_and_file_names_is_data_of_json(ask):
    answer = ask("search", question=MARKUP, k=1, kind="bm25")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    (passage,) = answer.json()["passages"]
    assert passage["text"] == MARKUP
    assert passage["document_id"] == "<img src=x onerror=alert(1)>.html"
    reply = ask(question=MARKUP, where="year = 1802")
    assert reply.json()["question"] == MARKUP
    assert reply.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "path", ["/v1/library/../../etc/passwd", "/v1/%2e%2e/%2e%2e/etc/passwd", "/v1/library/%2fetc%2fpasswd", "//etc/passwd"]
)
def test_a_path_in_an_id_leads_nowhere(address, path):
    with connected(address) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"root:" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "Not Found"}
