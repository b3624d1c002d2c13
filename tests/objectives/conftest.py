"""Fixtures for objectives; the functions behind them are in tiny.py, which a spawned rank can import as well."""

import pytest
import tiny


@pytest.fixture
def make_batch():
    return tiny.make_batch


@pytest.fixture
def batch():
    return tiny.make_batch()


@pytest.fixture
def reader():
    return tiny.seeded(tiny.TinyReader)
