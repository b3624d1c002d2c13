import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser):
    parser.addoption("--data-dir", default=str(CHECKOUT.parent / "shared" / "data"), help="real data; absent: such tests skip")


def pytest_configure(config):
    """With `-n 2`: Ctrl-C is what it is without. xdist's processes ignore it, and so would all that a test starts."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n 2`: a file stays in one process, and so do those of cluster/, but for the ones that do not share its Ray."""
    from xdist.scheduler import LoadScopeScheduling

    own = ("addresses", "connect", "corpora", "nodes", "object_store", "submit")

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            shares = file.startswith("tests/cluster/") and not file.removeprefix("tests/cluster/test_").startswith(own)
            return "cluster" if shares else file

    return ByFile(config, log)


def pytest_collection_modifyitems(config, items):
    """With `-n 2`: what takes longest begins first."""
    if hasattr(config, "workerinput"):
        longest = ["tests/cluster/", "tests/test_quickstart.py", "tests/jobs/"]
        items.sort(key=lambda item: [not item.nodeid.startswith(start) for start in longest])


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """An object store of one bucket; what is fetched from it goes to a cache of this test's own."""
    from helpers.s3_server import serve

    monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path / "cache"))
    with serve() as store:
        yield store


@pytest.fixture(scope="session")
def data_dir(request) -> Path:
    """The folder of real public data beside the checkout."""
    folder = Path(request.config.getoption("--data-dir"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; give another folder with --data-dir")
    return folder


@pytest.fixture
def raydist(tmp_path):
    """The command line in a process of its own: (exit status, output, errors)."""

    def raydist(*arguments: str, timeout: float = 300, **options):
        command = [sys.executable, "-m", "raydist.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, **options)
        return done.returncode, done.stdout, done.stderr

    return raydist
