"""The commands that every task has: each calls the task's own flow, such as `reader/flow.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from raydist.config import Config
from raydist.report.html import write_report
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say


class Flow(Protocol):
    """What each task can do."""

    def run_all(self, run: Run, *, fresh: bool = False) -> None: ...

    def train(self, run: Run, *, fresh: bool = False) -> None: ...

    def evaluate(self, run: Run) -> Any: ...


def run_all(run: Run, *, fresh: bool = False) -> Path | None:
    """The whole pipeline, then its report."""
    flow_of(run.config).run_all(run, fresh=fresh)
    return write_run_report(run)


def train(run: Run, *, fresh: bool = False) -> None:
    """Train, after whatever comes before."""
    flow_of(run.config).train(run, fresh=fresh)


def evaluate(run: Run) -> Any:
    """Scores of what the run has trained, or of another tool's answers."""
    return flow_of(run.config).evaluate(run)


def flow_of(config: Config) -> Flow:
    """The flow of a config's task."""
    if config.task == "reader":
        from raydist.reader import flow as reader_flow

        return reader_flow
    if config.task == "documents":
        from raydist.asking import flow as asking_flow

        return asking_flow
    from raydist.retrieval import flow as retrieval_flow

    return retrieval_flow


def write_run_report(run: Run) -> Path | None:
    """report.html of a run; None on an object store."""
    if not run.folder.is_local:
        say("report: runs on an object store are not drawn; copy the run's folder and use raydist report")
        return None
    with said_if_long("report: drawing"):
        path = write_report([Path(run.folder.path())])
    say(f"report in {path}")
    return path
