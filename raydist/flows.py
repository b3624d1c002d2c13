"""Commands common to all tasks: each calls the task's own flow, such as `reader/flow.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from raydist.config import Config, shipped_configs
from raydist.errors import InputError
from raydist.files.given import expanded
from raydist.report.html import write_report
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say


class Flow(Protocol):
    """The commands of a task."""

    def run_all(self, run: Run, *, fresh: bool = False) -> None: ...

    def train(self, run: Run, *, fresh: bool = False) -> None: ...

    def evaluate(self, run: Run) -> dict[str, dict[str, Any]]: ...


def run_all(run: Run, *, fresh: bool = False) -> Path | None:
    """Run the whole pipeline and write its report."""
    flow_of(run.config).run_all(run, fresh=fresh)
    return write_run_report(run)


def train(run: Run, *, fresh: bool = False) -> None:
    """Train, after all earlier steps."""
    flow_of(run.config).train(run, fresh=fresh)


def evaluate(run: Run) -> dict[str, dict[str, Any]]:
    """Scores by test set, for the run's model or another tool's answers."""
    return flow_of(run.config).evaluate(run)


def index(run: Run, *, fresh: bool = False) -> Path:
    """Build the index of the run's documents or corpus. It replaces no index of others, unless `fresh` discards that."""
    if fresh:
        run.folder.delete("index")
    try:
        if run.config.task == "documents":
            return _library_flow().index(run)
        if _library_flow().is_made(run):
            place = run.folder.path("index")
            raise InputError(f"{place} is of documents: give this one another name (name=...), or replace that with --fresh")
        return _retrieval_flow().index(run)
    except InputError:
        run.restore_config()  # the folder still has the index that this one describes
        raise


def add_to_index(run: Run, files: list[Path]) -> int:
    """Add rows to the index of a corpus."""
    if run.config.task == "documents":
        raise InputError("an index of documents picks up new files by itself: run `raydist index` again, without --add")
    return _retrieval_flow().add_to_index(run, files)


def config_of(named: str, overrides: list[str]) -> tuple[str, list[str]]:
    """A config with overrides; if documents are named instead, the shipped config `documents` reads them."""
    if not is_documents(named):
        return named, overrides
    return "documents", [f"documents.files={json.dumps([named])}", *overrides]


def is_documents(named: str) -> bool:
    """Whether a name is one of documents: a folder, a non-YAML file, a glob, a URI. Shipped configs take precedence."""
    if "://" in named or any(sign in named for sign in "*?["):
        return True
    path = expanded(named)
    if path.is_file():
        return path.suffix not in (".yaml", ".yml")
    is_shipped = named[0] not in "./~" and (shipped_configs() / f"{named}.yaml").is_file()
    return path.is_dir() and not is_shipped


def flow_of(config: Config) -> Flow:
    """The flow of a config's task."""
    if config.task == "reader":
        from raydist.reader import flow as reader_flow

        return reader_flow
    if config.task == "documents":
        from raydist.asking import flow as asking_flow

        return asking_flow
    return _retrieval_flow()


def _retrieval_flow() -> Any:
    from raydist.retrieval import flow

    return flow


def _library_flow() -> Any:
    from raydist.library import flow

    return flow


def write_run_report(run: Run) -> Path | None:
    """Write a run's report.html; None on an object store."""
    if not run.folder.is_local:
        say("report: reports are not written to object stores; copy the run's folder and use raydist report")
        return None
    with said_if_long("report: drawing"):
        path = write_report([Path(run.folder.path())])
    say(f"report in {path}")
    return path
