"""Verdicts over HTTP: what is written, what is refused, and what becomes of it when files are damaged or gone."""

import json
import shutil

import pytest
import requests
from helpers.mined_run import write_mined_run
from helpers.serving import served

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.judgements.journal import Journal
from raydist.serving.answering import Opening
from raydist.serving.flow import app_of
from raydist.serving.manifests import application
from raydist.serving.metrics import Metrics
from raydist.serving.pairs import MinedPairs
from raydist.serving.views import judge_here, with_judgements

TEXT = "Built in 1894. 𝒳 and <b>Mina</b>."


@pytest.fixture
def run(tmp_path):
    return write_mined_run(tmp_path, "sweeps/mined")


@pytest.fixture
def api(run):
    """(method, path, body) -> status and content, of a service with both kinds of verdicts."""
    settings, metrics = ServingConfig(rate=None, judgements=str(run / "answers.jsonl"), mined=str(run)), Metrics()
    with served(app_of(None, settings, metrics), settings, metrics) as address:

        def call(method, path, body=None):
            sent = requests.request(method, address + path, json=body, timeout=10)
            return sent.status_code, sent.json()

        call.address = address
        yield call


def test_verdicts_on_answers(api, run):
    start = TEXT.index("Mina")
    answer = {"text": "Mina", "start": start, "end": start + 4}
    status, said = api("POST", "/v1/judgements", {"question": "Who?", "right": True, "text": TEXT, "answer": answer})
    assert status == 201
    (line,) = map(json.loads, (run / "answers.jsonl").read_bytes().splitlines())
    assert (line["id"], line["text"], line["answer"], line["source"]) == (said["id"], TEXT, answer, "page")
    assert api("GET", "/v1/views") == (200, {"answers": True, "pairs": True})
    assert api("DELETE", f"/v1/judgements/{said['id']}")[0] == 200
    assert api("DELETE", f"/v1/judgements/{said['id']}")[0] == 422
    assert len(Journal(run / "answers.jsonl").standing()) == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"question": "  ", "right": True}, "no question"),
        ({"question": "Who?"}, "right"),
        ({"question": "Who?", "right": "true"}, "right"),
        ({"question": "Who?", "right": True, "text": TEXT, "answer": {"text": "no", "start": 0, "end": 2}}, "not at"),
        ({"question": "Who?", "right": True, "path": "/etc/passwd"}, "path"),
    ],
)
def test_wrong_verdicts_are_refused_and_nothing_is_written(api, run, body, reason):
    status, said = api("POST", "/v1/judgements", body)
    assert status == 422
    assert reason in said["error"]
    assert not (run / "answers.jsonl").read_bytes()


def test_a_page_elsewhere_cannot_write(api, run):
    """Without a preflight, which no other page passes, a browser sends nothing but forms and plain text."""
    body = json.dumps({"question": "Who?", "right": True})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        sent = requests.post(f"{api.address}/v1/judgements", data=body, headers={"Content-Type": kind}, timeout=10)
        assert sent.status_code == 422
    asked = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
    preflight = requests.options(f"{api.address}/v1/judgements", headers=asked, timeout=10)
    assert preflight.status_code == 405
    assert "Access-Control-Allow-Origin" not in preflight.headers
    assert not (run / "answers.jsonl").read_bytes()


def test_verdicts_on_pairs(api, run):
    _, first = api("GET", "/v1/pairs?limit=2")
    assert [pair["sentence_id"] for pair in first["pairs"]] == ["orla#2", "oder#0"]  # nearest the threshold
    assert first["run"] == "mined"
    assert first["pairs"][0]["before"] == ["The Orla bridge was drawn by Mina Orlov.", "It was built in 1894, of iron."]
    assert first["pairs"][0]["gold"] == ["It was built in 1894, of iron."]
    pair = {"question_id": "q1", "sentence_id": "orla#2"}
    status, said = api("POST", "/v1/pairs/verdicts", pair | {"right": True})
    assert (status, said["progress"]) == (201, {"pairs": 7, "accepted": 1, "rejected": 0, "skipped": 0})
    _, rest = api("GET", f"/v1/pairs?limit=100&after={first['pairs'][0]['place']}")
    assert len(rest["pairs"]) == 6
    assert api("POST", "/v1/pairs/verdicts", pair | {"sentence_id": "veld#1", "right": True})[0] == 422
    _, back = api("DELETE", f"/v1/pairs/verdicts/{said['id']}")
    assert (back["pair"]["sentence_id"], back["pair"]["verdict"]) == ("orla#2", "undecided")
    assert api("GET", "/v1/pairs?show=best")[0] == api("GET", "/v1/pairs?limit=1000")[0] == 422


def test_without_stages_pairs_have_no_context_but_are_judged(run):
    shutil.rmtree(run.parent.parent / "stages")
    pairs = MinedPairs(Storage(str(run)), lambda: Journal(run / "j.jsonl"), "mined")
    (pair,) = pairs.page("near", "undecided", -1, 1)
    assert (pair["passage"], pair["before"], pair["gold"]) == (None, [], [])
    pairs.judge(pair["question_id"], pair["sentence_id"], None)
    assert pairs.progress()["skipped"] == 1


def test_a_run_that_has_not_mined_is_named(tmp_path):
    with pytest.raises(InputError, match=r"mining/silver\.parquet"):
        judge_here(str(tmp_path), ServingConfig(port=0))
    assert not list(tmp_path.iterdir())  # nothing is left behind
    with pytest.raises(InputError, match="--to FILE"):
        judge_here("s3://bucket/run?endpoint_override=127.0.0.1:1", ServingConfig(port=0))


def test_verdicts_on_answers_go_beside_the_index(tmp_path):
    (tmp_path / "docs/index").mkdir(parents=True)
    for index in (tmp_path / "docs/index", tmp_path / "docs"):
        assert with_judgements(ServingConfig(), str(index)).judgements == str(tmp_path / "docs/judgements.jsonl")
    assert with_judgements(ServingConfig(judgements="mine.jsonl"), str(tmp_path)).judgements == "mine.jsonl"
    assert with_judgements(ServingConfig(), "s3://bucket/docs").judgements is None
    assert with_judgements(ServingConfig(), str(tmp_path / "none")).judgements is None


def test_a_deploy_file_names_where_verdicts_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ServingConfig(judgements="said.jsonl", mined="s3://bucket/run")  # the first is not there yet
    serving = application(Opening("docs"), settings)["args"]["serving"]
    assert serving == {"judgements": str(tmp_path / "said.jsonl"), "mined": "s3://bucket/run"}
