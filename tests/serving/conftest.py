import pytest
from helpers.serving import served, write_index
from helpers.tiny_reader import write_reader

from raydist.config.serving import ServingConfig
from raydist.serving.answering import Answering, LocalService, Opening
from raydist.serving.app import create_app
from raydist.serving.metrics import Metrics

TOKEN = "a-token-of-these-tests"


@pytest.fixture(scope="session")
def reader_folder(tmp_path_factory) -> str:
    return str(write_reader(tmp_path_factory.mktemp("serving") / "reader"))


@pytest.fixture(scope="session")
def index(tmp_path_factory) -> str:
    return write_index(tmp_path_factory.mktemp("serving") / "bridges" / "index")


@pytest.fixture(scope="session")
def opening(index, reader_folder) -> Opening:
    return Opening(index, {"reader": reader_folder, "k": 3})


@pytest.fixture(scope="session")
def answering(opening) -> Answering:
    return Answering(opening)


@pytest.fixture(scope="session")
def address(answering):
    """A service without tokens."""
    settings, metrics = ServingConfig(rate=None), Metrics()
    service = LocalService(answering, settings, metrics)
    with served(create_app(service, settings, metrics=metrics), settings, metrics) as address:
        yield address
    service.end()


@pytest.fixture
def guarded(answering, tmp_path):
    """A service with settings of a test's own, and a token: (settings...) -> address."""
    (tmp_path / "tokens").write_text(f"# ours\n{TOKEN}\n")
    from contextlib import ExitStack

    with ExitStack() as stack:

        def guarded(service=None, **settings):
            config = ServingConfig(token_file=str(tmp_path / "tokens"), **settings)
            metrics = Metrics()
            if service is None:
                service = LocalService(answering, config, metrics)
                stack.callback(service.end)
            return stack.enter_context(served(create_app(service, config, metrics=metrics), config, metrics))

        yield guarded
