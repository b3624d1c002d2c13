import json
import os

import pytest

from raydist.cluster.connect import Cluster
from raydist.cluster.pipeline import Run
from raydist.config import ClusterConfig, load_config


@pytest.fixture(scope="session")
def storage(tmp_path_factory) -> str:
    """One storage for all tests: examples and windows are made once."""
    return str(tmp_path_factory.mktemp("storage"))


@pytest.fixture(scope="session")
def cluster():
    """One Ray cluster for all tests, with more logical CPUs than this machine has cores."""
    with Cluster(ClusterConfig(local_cpus=8)) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def make_run(cluster, storage):
    """A run of a config that ships, with some keys changed."""

    def make_run(*overrides: str, config: str = "debug_reader") -> Run:
        run = Run(load_config(config, [f"storage={storage}", *overrides]).config, cluster)
        run.begin()
        return run

    return make_run


@pytest.fixture
def no_ray(monkeypatch, tmp_path) -> Cluster:
    """Parts are made in this process, by the function that Ray Data calls, and as on another node: with a cache of its own."""
    from raydist.cluster import stages
    from raydist.errors import InputError
    from raydist.files.storage import StorageError

    def stream(tasks, maker, kwargs, actors, gpus):
        for task in tasks:
            batch = {"task": [json.dumps(task)]}
            with monkeypatch.context() as node:
                node.setenv("RAYDIST_CACHE", str(tmp_path / "node"))
                made = stages.write_parts(batch, maker, json.dumps(dict(kwargs), sort_keys=True), once=task["folder"])
            line = json.loads(made["line"][0])
            if "error" in line:
                raise (InputError if line["input"] else StorageError)(line["error"])
            yield line

    monkeypatch.setattr(stages, "_stream", stream)
    monkeypatch.setattr(Cluster, "start", lambda self: None)
    return Cluster(ClusterConfig())


@pytest.fixture
def trained(no_ray, monkeypatch, tmp_path) -> dict[str, dict]:
    """Runs of retrieval that were trained, by name, with what they are known by; the model of each is the one it began with."""
    from raydist.cluster import pipeline, retrieval
    from raydist.training.trainable import open_kind

    trained: dict[str, dict] = {}

    def train_on(run, sets, *, fresh=False):
        trained[run.config.name] = pipeline._training_identity(run, sets)
        kind = open_kind(run.config, sets, 0, 1)
        kind.save(kind.build_task(1), tmp_path / "trained" / run.config.name)
        run.folder.upload(tmp_path / "trained" / run.config.name, "model")

    monkeypatch.setattr(retrieval, "train_on", train_on)
    return trained


@pytest.fixture
def raydist(tmp_path):
    """The command line in a process of its own: (exit status, output, errors)."""
    import subprocess
    import sys

    def raydist(*arguments: str, timeout: float = 300, **options):
        command = [sys.executable, "-m", "raydist.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, **options)
        return done.returncode, done.stdout, done.stderr

    return raydist


def pytest_collection_modifyitems(items):
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)


os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
