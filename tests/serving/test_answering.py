"""New versions of an index or a model go live under load, and a broken one does not."""

import json
import threading
import time
from pathlib import Path

import pytest
import requests
from helpers.serving import add, row, served, until, write_index
from helpers.tiny_reader import write_reader

from raydist.asking.asker import Asker
from raydist.config.serving import ServingConfig
from raydist.serving.answering import Answering, LocalService, Opening, varied
from raydist.serving.app import create_app
from raydist.serving.metrics import Metrics

QUESTION = "When was the lamp of Haln lit?"
LAMP = row("lamps.md#0", "The lamp of Haln was lit by Ada Brandt in 1931.", 1931)


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    """A service whose index and reader change, asked all the time: (address, opening, statuses)."""
    folder = tmp_path_factory.mktemp("changing")
    opening = Opening(write_index(folder / "index"), {"reader": str(write_reader(folder / "reader")), "k": 2})
    settings, metrics = ServingConfig(refresh=0.1, rate=None), Metrics()
    service = LocalService(Answering(opening), settings, metrics)
    with served(create_app(service, settings, metrics=metrics), settings) as address:
        statuses, over = [], threading.Event()

        def go_on():
            while not over.is_set():
                statuses.append(requests.post(f"{address}/v1/ask", json={"question": QUESTION}, timeout=30).status_code)

        threads = [threading.Thread(target=go_on) for _ in range(3)]
        for thread in threads:
            thread.start()
        yield address, opening, statuses
        over.set()
        for thread in threads:
            thread.join()
    service.end()


def ask(address, **body):
    return requests.post(f"{address}/v1/ask", json={"question": QUESTION, **body}, timeout=30).json()


def test_passages_that_are_added_are_found_without_a_dropped_request(changing):
    address, opening, statuses = changing
    assert ask(address)["library"] == {"version": 1}
    add(opening.index, [LAMP])
    until(lambda: ask(address)["library"] == {"version": 2})
    found = requests.post(f"{address}/v1/search", json={"question": QUESTION, "k": 1}, timeout=30).json()
    assert found["passages"][0]["document_id"] == "lamps.md"
    assert requests.get(f"{address}/v1/library", timeout=30).json()["passages"] == 6
    assert set(statuses) == {200}


def test_a_reader_that_is_trained_anew_answers_without_a_dropped_request(changing):
    address, opening, statuses = changing
    reader = opening.settings["reader"]
    for seed in (1, 2):
        write_reader(reader, seed)
        reply = Asker.open(opening.index, **opening.settings).ask(QUESTION)
        expected = pytest.approx(reply.candidates[0].score, abs=1e-3)
        until(lambda expected=expected: ask(address)["candidates"][0]["score"] == expected)
    assert set(statuses) == {200}


def test_a_version_that_cannot_be_opened_is_reported_and_the_one_before_stays(changing, caplog):
    address, opening, statuses = changing
    facts = (path := Path(opening.index, "index.json")).read_text()
    before = ask(address)
    path.write_text(json.dumps(json.loads(facts) | {"version": 3, "segments": {"no-such-folder": False}}))
    until(lambda: "a new version cannot be opened, and the one before stays" in caplog.text)
    assert ask(address)["text"] == before["text"]
    text = requests.get(f"{address}/metrics", timeout=30).text
    assert 'raydist_refreshes_total{outcome="failed"} 1.0' in text
    path.write_text(facts)
    time.sleep(0.3)
    assert set(statuses) == {200}


def test_a_request_with_settings_of_its_own_has_no_calibration_of_others(answering):
    asker = answering.live.asker
    assert varied(asker, None, None) is asker
    assert varied(asker, "hybrid", 3) is asker
    own = varied(asker, "bm25", None)
    assert (own.kind, own.k, own.reader, own.calibration) == ("bm25", 3, asker.reader, None)
    assert varied(asker, None, 7).k == 7
