"""Fixtures for objectives; the functions behind them are in tiny.py, which a spawned rank can import as well."""

import pytest
import torch
from helpers import tiny


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tensors here are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_batch():
    return tiny.make_batch


@pytest.fixture
def batch():
    return tiny.make_batch()


@pytest.fixture
def reader():
    return tiny.seeded(tiny.TinyReader)
