"""Ray Serve: the answers of an asker in this process, through replicas that die and versions that change; deploy files."""

import contextlib
import os
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
import requests
import yaml
from helpers.serving import add, row, until, write_index
from helpers.tiny_reader import write_cross_encoder, write_reader
from ray.serve.schema import ServeDeploySchema

from raydist.asking.asker import Asker
from raydist.cli import job
from raydist.cluster.serve import ServeArgs, app_builder
from raydist.config.serving import ServingConfig
from raydist.errors import InputError

QUESTIONS = ["Who built the Orla bridge?", "When did the bridge fall?", "Who built the tower?", "What passes at noon?"]
NEW = row("lamps.md#0", "The lamp of Haln was lit by Ada Brandt in 1931.", 1931)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("served")
    models = {"reader": str(write_reader(folder / "reader")), "cross_encoder": str(write_cross_encoder(folder / "ranker"))}
    return {"index": write_index(folder / "bridges" / "index"), **models}


@pytest.fixture(scope="module")
def serving(cluster):
    """Ray Serve with a port of this machine: (settings...) -> address of the app."""
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    def serving(index: str, asking: dict, **settings) -> str:
        given = {"rate": None, "refresh": 0.2, "cpus": 0.5, "timeout": 60} | settings
        serve.run(app_builder(ServeArgs(index=index, asking=asking, serving=given)), name="raydist", route_prefix="/")
        return f"http://127.0.0.1:{port}"

    yield serving
    serve.shutdown()


@pytest.fixture(scope="module")
def address(serving, places):
    """Two replicas with all of it."""
    return serving(places["index"], {"reader": places["reader"], "k": 3}, replicas=2)


def ask(address: str, question: str, **body) -> requests.Response:
    return requests.post(f"{address}/v1/ask", json={"question": question, **body}, timeout=120)


class Load:
    """Clients that ask all the time; what they were told."""

    def __init__(self, address: str, clients: int = 4) -> None:
        self.address, self.over = address, threading.Event()
        self.answers: list[tuple[str, requests.Response | None]] = []
        self.threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.more(8)
        return self

    def more(self, number: int) -> None:
        wanted = len(self.answers) + number
        until(lambda: len(self.answers) >= wanted, 120)

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, number: int) -> None:
        while not self.over.is_set():
            question = QUESTIONS[number % len(QUESTIONS)]
            try:
                self.answers.append((question, ask(self.address, question)))
            except requests.RequestException:
                self.answers.append((question, None))
            number += 1

    @property
    def statuses(self) -> Counter:
        return Counter(answer.status_code if answer is not None else "lost" for _, answer in self.answers)


def expected(places, **settings):
    """What an asker in this process replies, now."""
    asker = Asker.open(places["index"], reader=places["reader"], k=3, **settings)
    return {question: asker.ask(question) for question in QUESTIONS}


def is_right(answer: requests.Response, reply) -> bool:
    found = answer.json()
    same = (found["text"], found["source"]["passage_id"]) == (reply.text, reply.source.passage_id)
    return same and found["probability"] == pytest.approx(reply.probability, abs=1e-3)


def test_replies_are_those_of_an_asker_in_this_process(address, places):
    for question, reply in expected(places).items():
        assert is_right(ask(address, question), reply)
    assert ask(address, "Who?", where="yeer > 3").status_code == 422
    assert "yeer" in ask(address, "Who?", where="yeer > 3").json()["error"]
    found = requests.post(f"{address}/v1/search", json={"question": "tower", "k": 1, "kind": "bm25"}, timeout=60).json()
    assert found["passages"][0]["document_id"] in ("towers.pdf", "ships.txt")
    assert requests.get(f"{address}/readyz", timeout=60).json() == {"status": "ready", "library": {"version": 1}}
    described = requests.get(f"{address}/v1/library", timeout=60).json()
    assert (described["name"], described["passages"], described["reader"]) == ("bridges", 5, "reader")


def test_a_version_goes_live_under_load_without_a_dropped_request(address, places):
    before = expected(places)
    with Load(address) as load:
        add(places["index"], [NEW])
        until(lambda: load.answers[-1][1].json()["library"]["version"] == 2, 60)
        load.more(8)
    after = expected(places)
    assert set(load.statuses) == {200}
    versions = Counter(answer.json()["library"]["version"] for _, answer in load.answers)
    assert set(versions) == {1, 2}
    for question, answer in load.answers:
        assert is_right(answer, {1: before, 2: after}[answer.json()["library"]["version"]][question])


def test_a_replica_killed_under_load_costs_no_wrong_answer_and_no_lost_request(address, places):
    replies = expected(places)
    with Load(address) as load:
        os.kill(replicas()[0].pid, signal.SIGKILL)
        load.more(24)
    assert set(load.statuses) <= {200, 503}, load.statuses
    assert load.statuses[200] >= 8
    for question, answer in load.answers:
        if answer.status_code == 200:
            assert is_right(answer, replies[question])
        else:
            assert answer.headers["Retry-After"].isdigit()


def replicas() -> list[psutil.Process]:
    """The living processes of replicas with all of it."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ServeReplica:raydist:Whole" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_the_three_parts_as_deployments_reply_the_same(address, serving, places):
    asking = {"reader": places["reader"], "cross_encoder": places["cross_encoder"], "k": 3}
    separate = serving(places["index"], asking, separate=True)
    for question, reply in expected(places, cross_encoder=places["cross_encoder"]).items():
        answer = ask(separate, question)
        assert is_right(answer, reply), answer.text
        assert "cross_encoder" in answer.json()["source"]["scores"]
    assert ask(separate, "Who?", where="yeer > 3").status_code == 422
    assert (
        requests.get(f"{separate}/v1/library", timeout=60).json()["version"]
        == ask(separate, "Who?").json()["library"]["version"]
    )


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_deploy_file_is_one_that_ray_takes(places, tmp_path):
    path = tmp_path / "deploy.yaml"
    options = ["--reader", places["reader"], "-k", "3", "--port", "9000", "--write", str(path)]
    assert job("serve", [places["index"], "serving.replicas=2", *options]) == 0
    schema = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    (application,) = schema.applications
    assert application.import_path == "raydist.cluster.serve:app_builder"
    assert (schema.http_options.host, schema.http_options.port) == ("127.0.0.1", 9000)
    args = ServeArgs.model_validate(application.args)
    assert (args.index, args.asking) == (places["index"], {"reader": places["reader"], "k": 3})
    assert ServingConfig(**args.serving) == ServingConfig(port=9000, replicas=2)
    app_builder(args)


def test_a_ray_service_is_one_of_kuberay_and_holds_that_file(places, tmp_path):
    path = tmp_path / "rayservice.yaml"
    assert job("serve", [places["index"], "--reader", places["reader"], "--write", str(path)]) == 0
    manifest = yaml.safe_load(path.read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    spec = manifest["spec"]
    assert spec.keys() <= {"serveConfigV2", "rayClusterConfig", "serveService", "excludeHeadPodFromServeSvc", "suspend"}
    schema = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    assert schema.http_options.host == "0.0.0.0", "pods are reached from outside"
    groups = [spec["rayClusterConfig"]["headGroupSpec"], *spec["rayClusterConfig"]["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        (variable,) = container["env"]
        assert variable["name"] == ServingConfig().token_env
        assert variable["valueFrom"]["secretKeyRef"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {"raydist"}
    assert Path(places["index"]).is_relative_to(groups[0]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"])


def test_what_cannot_be_deployed_is_one_message(places):
    with pytest.raises(InputError, match="there is no reader: give one"):
        app_builder(ServeArgs(index=places["index"]))
    with pytest.raises(InputError, match=r"serving\.replicas: should be greater than or equal to 1"):
        app_builder(ServeArgs(index=places["index"], serving={"replicas": 0}))
