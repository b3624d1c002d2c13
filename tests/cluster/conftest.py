import os

import pytest
from helpers.elsewhere import Elsewhere, Untrained
from helpers.submission import dashboard, working_dir  # noqa: F401

from raydist.cluster.connect import Cluster, export, restore
from raydist.cluster.machine import RayMachine
from raydist.config import ClusterConfig, load_config
from raydist.runs.run import Run


@pytest.fixture(scope="session")
def storage(tmp_path_factory) -> str:
    """One storage for all tests: examples and windows are made once."""
    return str(tmp_path_factory.mktemp("storage"))


@pytest.fixture(scope="session")
def cluster():
    """One Ray cluster for all tests, with more logical CPUs than this machine has cores, and a device."""
    before = export({"RAY_OVERRIDE_RESOURCES": '{"device": 1}'})
    with Cluster(ClusterConfig(local_cpus=8)) as cluster:
        cluster.start()
        restore(before)
        import ray
        from helpers import stages

        ray.cloudpickle.register_pickle_by_value(stages)  # workers cannot import tests
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


@pytest.fixture
def command_on(monkeypatch):
    """The command line on another machine than a cluster: (command, *arguments) -> exit status."""
    from raydist.cli import job

    def command_on(machine):
        monkeypatch.setattr("raydist.cluster.machine.RayMachine", lambda cluster: machine)
        return lambda name, *arguments: job(name, list(arguments))

    return command_on


@pytest.fixture
def command(command_on, here):
    """The same in this process."""
    return command_on(here)


def pytest_collection_modifyitems(items):
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)


os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
