"""report.html of a run."""

from __future__ import annotations

from pathlib import Path

from raydist.report.html import write_report
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say


def write_run_report(run: Run) -> Path | None:
    """Draw the run's report; None on an object store."""
    if not run.folder.is_local:
        say("report: runs on an object store are not drawn; copy the run's folder and use raydist report")
        return None
    with said_if_long("report: drawing"):
        path = write_report([Path(run.folder.path())])
    say(f"report in {path}")
    return path
