"""What the README shows is run as it stands there: its files, commands and Python, in order, with less to learn from."""

import re
from pathlib import Path

import yaml
from helpers.pages import blocks
from helpers.readme_table import with_table
from helpers.walk import Walk, first_missing, in_order, only_preflight

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
TINY = {"model": {"name": "builtin:tiny"}, "train": {"max_steps": 2}}
SMALLER = {  # settings of a config that a test changes: small models, few questions, few steps
    "mine.yaml": TINY | {"data": {"train": {"questions": 40}, "dev": {"questions": 20}}},
    "find.yaml": TINY
    | {
        "corpus": {"train": {"questions": 40}, "test": {"judged": {"questions": 20}}},
        "mining": {"encoder": "builtin:tiny", "candidates": 3, "dev_share": 0.3},
        "cross_encoder": {"train": {"max_steps": 2}, "weak": "warn"},
        "retriever": {"rerank": 2},
    },
    "try.yaml": {"sweep": {"seeds": [0]}},
}


def smaller(values: dict, changes: dict) -> dict:
    """The values with the changes; a file's name becomes the data set that it is."""
    changed = dict(values)
    for name, change in changes.items():
        before = changed.get(name, {})
        before = {"files": before} if isinstance(before, str) and isinstance(change, dict) else before
        changed[name] = smaller(before, change) if isinstance(change, dict) and isinstance(before, dict) else change
    return changed


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_its_table_is_that_of_the_results():
    assert with_table(README) == README, "python tests/helpers/readme_table.py"


def test_its_two_commands_are_of_the_makefile():
    (shown,) = [block.text for block in blocks(README) if block.text.startswith("make ")]
    targets = re.findall(r"^(\w[\w-]*):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make (\S+)", shown, re.MULTILINE)) <= set(targets)


def test_everything_in_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with only_preflight(monkeypatch) as submit:
        walk = Walk(monkeypatch, {"submit": submit})
        for block, may_fail in in_order(README):
            if block.text.startswith("test set "):  # what the quickstart prints: tests/test_quickstart.py
                continue
            walk.block(block, may_fail)
            if block.file in SMALLER:
                path = Path(block.file)
                path.write_text(yaml.safe_dump(smaller(yaml.safe_load(path.read_text()), SMALLER[block.file])))
    names = walk.names
    assert names["outcome"].metrics["train.steps"] == 2
    assert names["answer"].nbest
    assert names["hits"][0].document_id == "bridge.md"
    assert names["reply"].source.document_id == "bridge.md"
    assert names["silver"].is_file()
    assert "retrieval.judged.gold_silver_weighted.MRR@100" in names["found"].metrics
    assert len(names["results"]["settings"]) == 2


def test_a_line_that_is_not_printed_is_seen():
    assert first_missing("a 1\n...\nb 2.5", "a 17\nc\nb 3") is None
    assert first_missing("b 2\na 1", "a 17\nb 3") == "a 1"
    assert first_missing("a: 1", "a 1") == "a: 1"
