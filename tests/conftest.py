from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser):
    parser.addoption("--data-dir", default=str(CHECKOUT.parent / "shared" / "data"), help="real data; absent: such tests skip")


@pytest.fixture(scope="session")
def data_dir(request) -> Path:
    """The folder of real public data beside the checkout."""
    folder = Path(request.config.getoption("--data-dir"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; give another folder with --data-dir")
    return folder
