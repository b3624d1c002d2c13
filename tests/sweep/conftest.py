import pytest

from raydist.config import load_config


@pytest.fixture
def sweep_of(tmp_path):
    """A config with this section `sweep`."""

    def sweep_of(text: str, *overrides: str):
        (tmp_path / "sweep.yaml").write_text(
            "name: tried\ndata: {train: train.json, dev: dev.json}\nobjectives: {pfa: {}}\nsweep:\n" + text
        )
        return load_config(str(tmp_path / "sweep.yaml"), overrides).config

    return sweep_of
