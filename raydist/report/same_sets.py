"""Checks that test sets of the same name are the same set: different files or choices of questions are not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raydist.report.runs import ReportedRun

CHOICE = ("questions", "leave_out", "only", "adversarial")  # keys of a data set that choose questions from its files


def part_sets(runs: Sequence[ReportedRun]) -> None:
    """Rename sets that differ from the first run's set of that name: squad, squad (2)."""
    for name in dict.fromkeys(name for run in runs for name in _set_names(run)):
        kinds: list[Any] = []
        for run in runs:
            if name not in _set_names(run):
                continue
            kind = _kind(run, name)
            if kind is not None and kind not in kinds:
                kinds.append(kind)
            number = kinds.index(kind) + 1 if kind is not None else 1
            if number > 1:
                run.rename_set(name, f"{name} ({number})")
                run.apart.append(f"{name} is of other files, or other questions of them, than {name} of the runs before it")


def _set_names(run: ReportedRun) -> Iterator[str]:
    yield from dict.fromkeys([*run.scores(), *run.evaluations, *run.retrieval_sets()])


def _kind(run: ReportedRun, name: str) -> Any:
    """A value that is equal for equal sets; None if unknown. Stages are identified by the content of their files."""
    data, corpus = (run.setting(section, name) or run.setting(section, "test", name) for section in ("data", "corpus"))
    source = corpus if name in run.retrieval_sets() else data
    title = f"corpus {name}" if name in run.retrieval_sets() else f"examples of {name}"
    folder = next((stage.get("folder") for stage in run.stages if stage["title"] == title), None)
    if isinstance(source, str | list):
        source = {"files": source}
    if not isinstance(source, dict):
        return folder and (folder, ())
    read = folder or str(source.get("files") or source.get("hub"))
    return read, tuple(str(source.get(key)) for key in CHOICE if source.get(key))
