"""Benchmarks are long and seldom run: that they find what they import is seen here."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*(CHECKOUT / "benchmarks").glob("*.py"), *(CHECKOUT / "jobs").glob("*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_imports_of_raydist_is_there(script):
    missing = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "raydist":
            module = import_module(node.module) if find_spec(node.module) else None
            names = [alias.name for alias in node.names]
            missing += [f"{node.module}.{name}" for name in names if not hasattr(module, name) and not is_module(node, name)]
    assert missing == []


def is_module(node: ast.ImportFrom, name: str) -> bool:
    try:
        return find_spec(f"{node.module}.{name}") is not None
    except ModuleNotFoundError:  # nor is there what it would be in
        return False
