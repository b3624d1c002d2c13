from pathlib import Path

import pytest
from helpers.made_run import ROWS, example, write_run


@pytest.fixture
def run(tmp_path) -> Path:
    """A small finished run with nothing logged: three right answers, one wrong."""
    return write_run(tmp_path / "plain", {"dev": answered()})


@pytest.fixture
def logged_run(tmp_path) -> Path:
    """The same with twenty logged steps and two evaluations: it has plots."""
    return write_run(tmp_path / "logged", {"dev": answered()}, steps=20)


def answered() -> list[dict]:
    rows = [example(id, question, answers) for id, question, answers in ROWS[:3]]
    return [*rows, example(*ROWS[3], prediction="people", f1=50.0)]
