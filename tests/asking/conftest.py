import pytest
from helpers.tiny_reader import write_cross_encoder, write_reader

from raydist.reader.answers import Reader


@pytest.fixture(scope="session")
def reader(tmp_path_factory) -> Reader:
    return Reader.load(write_reader(tmp_path_factory.mktemp("asking") / "reader"))


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory) -> str:
    return str(write_cross_encoder(tmp_path_factory.mktemp("asking") / "cross_encoder"))
