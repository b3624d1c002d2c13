import os

import pytest
from helpers.elsewhere import Elsewhere, Untrained
from helpers.submission import dashboard, working_dir  # noqa: F401

from raydist.cluster.connect import Cluster
from raydist.cluster.machine import RayMachine
from raydist.config import ClusterConfig, load_config
from raydist.runs.run import Run


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


@pytest.fixture(scope="session")
def machine(cluster) -> RayMachine:
    """That cluster, as runs take it."""
    return RayMachine(cluster)


@pytest.fixture
def make_run(machine, storage):
    """A run of a config that ships, with some keys changed."""

    def make_run(*overrides: str, config: str = "debug_reader") -> Run:
        run = Run(load_config(config, [f"storage={storage}", *overrides]).config, machine)
        run.begin()
        return run

    return make_run


@pytest.fixture
def here(tmp_path) -> Elsewhere:
    """A machine that makes parts in this process, as on another node: with a cache of its own."""
    return Elsewhere(tmp_path / "node")


@pytest.fixture
def untrained(tmp_path) -> Untrained:
    """The same, where training leaves the model that it begins with."""
    return Untrained(tmp_path / "node")


def pytest_collection_modifyitems(items):
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)


os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
