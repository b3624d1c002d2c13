"""Every tutorial is run from its own text, as it stands there; what its runs leave behind is in the reference."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.walk import Walk, only_preflight

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "tutorials").glob("*.md"))
NAMES = {"SET": r"[\w-]+", "METHOD": r"\w+", "LANGUAGE": r"\w+", "WANTED": r"\w+", "SOURCE": r"\w+", "P@1": r"[\w@]+"}
NAMES |= {"MRR@100": r"[\w@]+", "@5": r"@\d+", "minus_gold": r"minus_\w+", "round2": r"round\d+"}


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with only_preflight(monkeypatch) as submit:
        Walk(monkeypatch, {"submit": submit}).page((DOCS / page).read_text(encoding="utf-8"))
    assert sorted(unknown_files(tmp_path)) == []
    assert sorted(unknown_metrics(tmp_path)) == []


def unknown_files(folder: Path) -> set[str]:
    """What is in folders of runs, and not on the page about them."""
    named = re.findall(r"`([\w.]+)", (DOCS / "reference" / "run_files.md").read_text(encoding="utf-8"))
    return {path.name for run in runs(folder) for path in run.iterdir()} - set(named)


def unknown_metrics(folder: Path) -> set[str]:
    """Names in metrics.json that are not on the page about them."""
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    first = [name for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)]
    known = re.compile("|".join(map(pattern_of, [*first, "SET.rule", "SET.em.low", "SET.em.LANGUAGE", "SET.em.languages"])))
    files = [run / "metrics.json" for run in runs(folder) if (run / "metrics.json").is_file()]
    return {name for file in files for name in json.loads(file.read_text()) if not known.fullmatch(name)}


def pattern_of(name: str) -> str:
    parts = re.split("(" + "|".join(map(re.escape, NAMES)) + ")", name)
    return "".join(NAMES.get(part, re.escape(part)) for part in parts) + r"(\.(low|high|p))?"


def runs(folder: Path) -> Iterator[Path]:
    return (path.parent for path in folder.glob("runs/**/config.yaml") if "stages" not in path.parts)


def test_what_the_reference_does_not_name_is_seen(tmp_path):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "metrics.json").write_text('{"dev.f1": 1, "a_test.f1.low": 1, "dev.f2": 1, "retrieval.a.gold.P@1.minus_bm25.p": 0}')
    (run / "notes.txt").touch()
    assert unknown_files(tmp_path) == {"notes.txt"}
    assert unknown_metrics(tmp_path) == {"dev.f2"}
