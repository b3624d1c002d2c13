"""A run directory on disk: any part may be missing, since a report may be drawn while the run is in progress."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from raydist.errors import InputError
from raydist.records import ASKED_SCHEMA, EVALUATION_SCHEMA, MINED_EXAMPLE_SCHEMA, RANKED_SCHEMA, REJECTED_SCHEMA

OF_READERS = (None, "reader", "documents")  # tasks whose answers are spans
NOT_SCORES = {"loss", "weighted", "rows"}  # first parts of step keys about training
NO_TEST_SETS = frozenset({"train", "retrieval", "asking"})  # first parts of keys in metrics.json that are not test sets
OF_MINING = frozenset({"cross_encoder", "mining"})  # others, of a run that mines


@dataclass
class ReportedRun:
    """The files of a run, loaded. Scores are from 0 to 100."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)  # by step; a step logged twice has its later values
    last_step_at: datetime | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)  # each with its title
    rejected: pa.Table | None = None
    evaluations: dict[str, pa.Table] = field(default_factory=dict)
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)  # trace/*.json by name
    base: ReportedRun | None = None  # the reader that made this run's n-best sets, with its final scores alone
    ranked: dict[str, pa.Table] = field(default_factory=dict)  # ranked/*.parquet by test set
    asked: dict[str, pa.Table] = field(default_factory=dict)  # asking/*.parquet by set
    mined: dict[str, Any] = field(default_factory=dict)  # mining/yield.json
    overlap: list[str] = field(default_factory=list)  # overlap.json in words: train or dev shared with test sets
    mined_examples: pa.Table | None = None
    cross_encoder: dict[str, Any] = field(default_factory=dict)  # its scores
    reliability: dict[str, Any] = field(default_factory=dict)  # of its probabilities
    apart: list[str] = field(default_factory=list)  # sets that differ from those of other runs in the report, in words
    missing: list[str] = field(default_factory=list)  # not there yet
    damaged: list[str] = field(default_factory=list)  # there, but not readable

    @property
    def num_steps(self) -> Any:
        """Steps of the whole training, else so far."""
        return self.metrics.get("train.steps", self.steps[-1]["step"] if self.steps else None)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The steps at which ``key`` was logged, and its values, without steps in which no row contributed to the term."""
        kind, _, term = key.partition(".")
        rows = f"rows.{term}" if kind in ("loss", "weighted") else ""
        known = [row for row in self.steps if isinstance(row.get(key), int | float) and row.get(rows) != 0]
        points = [(row["step"], row[key]) for row in known]
        steps, values = zip(*points) if points else ((), ())
        return np.array(steps, dtype=float), np.array(values, dtype=float)

    def step_keys(self) -> list[str]:
        """Every logged quantity, in the order of first appearance."""
        return list(dict.fromkeys(key for row in self.steps for key, value in row.items() if isinstance(value, int | float)))

    def score_keys(self) -> list[str]:
        """The logged quantities that are scores: ``dev.f1``."""
        ends = (".low", ".high", ".questions")
        return [
            key for key in self.step_keys() if "." in key and key.split(".")[0] not in NOT_SCORES and not key.endswith(ends)
        ]

    def scores(self) -> dict[str, dict[str, Any]]:
        """metrics.json by test set: ``{"dev": {"f1": 87.1, "f1.low": 84.9, ...}}``; training and retrieval go elsewhere."""
        others = NO_TEST_SETS | (frozenset() if self.setting("task") in (None, "reader") else OF_MINING)
        by_set: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in self.metrics.items():
            test_set, dot, measure = key.partition(".")
            if dot and test_set not in others and key != "dev.mrr":
                by_set[test_set][measure] = value
        return dict(by_set)

    def retrieval_sets(self) -> list[str]:
        """The test sets of ranked lists."""
        named = (key.split(".")[1] for key in self.metrics if key.startswith("retrieval."))
        return list(dict.fromkeys([*self.ranked, *named]))

    def rename_set(self, old: str, new: str) -> None:
        """Rename a test set wherever it is shown."""

        def renamed(key: str) -> str:
            start = next((start for start in (f"{old}.", f"retrieval.{old}.") if key.startswith(start)), None)
            return key if start is None else f"{start.removesuffix(f'{old}.')}{new}.{key.removeprefix(start)}"

        self.metrics = {renamed(key): value for key, value in self.metrics.items()}
        self.steps = [{renamed(key): value for key, value in row.items()} for row in self.steps]
        self.evaluations = {new if name == old else name: rows for name, rows in self.evaluations.items()}
        self.ranked = {new if name == old else name: rows for name, rows in self.ranked.items()}

    @property
    def is_foreign(self) -> bool:
        """Whether another tool's answers were scored instead of a model of ours."""
        return bool(self.setting("evaluate", "predictions"))

    def rows_of(self, title: str) -> Any:
        """The number of rows of a stage; None if the run has no such stage."""
        return next((stage.get("rows") for stage in self.stages if stage["title"] == title), None)

    def setting(self, *keys: str) -> Any:
        """A value of the config; None if any part of its path is missing."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def load_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """All runs, with distinct names."""
    if not paths:
        raise InputError("no run was given; name at least one run directory, such as runs/quickstart")
    runs = [load_run(path) for path in paths]
    for place, run in enumerate(runs):
        earlier = sum(other.path.resolve().name == run.name for other in runs[:place])
        run.name += f" ({earlier + 1})" if earlier else ""
    return runs


def load_run(path: Path) -> ReportedRun:
    """Read the existing files; list missing and unreadable ones."""
    if not path.is_dir():
        seen = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {seen}; a report is made of a run directory, such as runs/quickstart")
    run = ReportedRun(path, path.resolve().name)
    reads = {
        "config.yaml": (_read_config, "the settings"),
        "metrics.jsonl": (_read_steps, "logged steps"),
        "metrics.json": (_read_metrics, "final scores"),
        "stages.json": (_read_stages, "stages used"),
        "evaluation": (_read_evaluations, "predictions with their scores"),
    }
    for name, (read, what) in reads.items():
        if not (path / name).exists():
            if _is_expected(name, run.setting("task")):
                run.missing.append(f"{name} ({what})")
            continue
        try:
            read(run, path / name)
        except (OSError, ValueError, yaml.YAMLError) as error:
            _note_damage(run, name, error)
    optional = {
        "trace": _read_traces,
        "base.json": _read_base,
        "overlap.json": _read_overlap,
        "ranked": _read_ranked,
        "asking": _read_asked,
        "mining/yield.json": _read_yield,
        "mining/examples.parquet": _read_mined_examples,
        "cross_encoder/metrics.json": _read_cross_encoder,
        "cross_encoder/reliability.json": _read_reliability,
    }
    for name, read in optional.items():
        try:
            if (path / name).exists():
                read(run, path / name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _note_damage(run, name, error)
    order = ["dev", *run.scores()]
    run.evaluations = dict(
        sorted(run.evaluations.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    )
    tables = [_read_table(run, file, REJECTED_SCHEMA) for file in sorted((path / "rejected").glob("*.parquet"))]
    run.rejected = pa.concat_tables([table for table in tables if table is not None] or [REJECTED_SCHEMA.empty_table()])
    return run


def _is_expected(name: str, task: object) -> bool:
    if name == "evaluation":
        return task in OF_READERS
    return task != "documents" or name not in ("metrics.jsonl", "stages.json")  # nothing is trained


def _read_config(run: ReportedRun, file: Path) -> None:
    run.config_text = file.read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    run.config = _mapping(yaml.load(run.config_text, Loader=loader))


def _read_metrics(run: ReportedRun, file: Path) -> None:
    run.metrics = _json(file)


def _read_stages(run: ReportedRun, file: Path) -> None:
    stages = _json(file)
    run.stages = [{"title": name} | stage for name, stage in stages.items() if isinstance(stage, dict)]


def _read_steps(run: ReportedRun, file: Path) -> None:
    rows: dict[float, dict[str, Any]] = defaultdict(dict)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    unreadable = 0
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows[row["step"]].update(row)
        except (ValueError, KeyError, TypeError):
            unreadable += place < len(lines)  # the last line may still be incomplete
    if unreadable:
        run.damaged.append(f"{file.name}: {unreadable} of {len(lines)} lines are not steps")
    run.steps = [rows[step] for step in sorted(step for step in rows if isinstance(step, int | float))]
    run.last_step_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)


def _read_evaluations(run: ReportedRun, folder: Path) -> None:
    for file in sorted(folder.glob("*.parquet")):
        table = _read_table(run, file, EVALUATION_SCHEMA)
        if table is not None:
            run.evaluations[file.stem] = table
    if not any(folder.iterdir()):
        run.missing.append(f"{folder.name} (predictions with their scores)")


def _read_traces(run: ReportedRun, folder: Path) -> None:
    for file in sorted(folder.glob("*.json")):
        run.traces[file.stem] = _json(file)


def _read_base(run: ReportedRun, file: Path) -> None:
    name = _json(file).get("run")
    beside = run.path.resolve().parent
    found = Path(os.path.normpath(beside / name)) if isinstance(name, str) and name else beside
    root = _storage_of(run)
    if found in (root, beside, run.path.resolve()) or not found.is_relative_to(root):
        raise ValueError(f"the way from {beside} to another run in {root} was wanted, got {name!r}")
    if (found / "metrics.json").exists():
        run.base = ReportedRun(found, found.name)
        _read_metrics(run.base, found / "metrics.json")
    else:
        run.missing.append(f"{name}/metrics.json (scores of the base reader)")


def _storage_of(run: ReportedRun) -> Path:
    """The folder that the run's name is relative to; its parent folder if the run was moved or its name is unknown."""
    path, name = run.path.resolve(), Path(str(run.setting("name") or run.path.name))
    is_there = path.parts[-len(name.parts) :] == name.parts and not name.is_absolute()
    return path.parents[len(name.parts) - 1] if is_there else path.parent


def _read_overlap(run: ReportedRun, file: Path) -> None:
    run.overlap = [str(line["text"]) for line in json.loads(file.read_text(encoding="utf-8"))]


def _read_ranked(run: ReportedRun, folder: Path) -> None:
    for file in sorted(folder.glob("*.parquet")):
        table = _read_table(run, file, RANKED_SCHEMA)
        if table is not None:
            run.ranked[file.stem] = table


def _read_asked(run: ReportedRun, folder: Path) -> None:
    for file in sorted(folder.glob("*.parquet")):
        table = _read_table(run, file, ASKED_SCHEMA)
        if table is not None:
            run.asked[file.stem] = table


def _read_yield(run: ReportedRun, file: Path) -> None:
    run.mined = _json(file)


def _read_mined_examples(run: ReportedRun, file: Path) -> None:
    run.mined_examples = _read_table(run, file, MINED_EXAMPLE_SCHEMA)


def _read_cross_encoder(run: ReportedRun, file: Path) -> None:
    run.cross_encoder = _json(file)


def _read_reliability(run: ReportedRun, file: Path) -> None:
    run.reliability = _json(file)


def _note_damage(run: ReportedRun, name: str, error: Exception) -> None:
    run.damaged.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _read_table(run: ReportedRun, file: Path, schema: pa.Schema) -> pa.Table | None:
    try:
        table = pq.ParquetFile(file).read()
        if schema == REJECTED_SCHEMA and "unit" not in table.column_names:  # of a corpus read before the column existed
            table = table.append_column("unit", pa.array(["line"] * table.num_rows, pa.string()))
        for name in ("recall@10", "nDCG@10") if schema == RANKED_SCHEMA else ():  # lists scored before had two metrics
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, pa.float32()))
        if schema == MINED_EXAMPLE_SCHEMA and "right" not in table.column_names:
            table = table.append_column("right", pa.nulls(table.num_rows, pa.bool_()))
        return table.select(schema.names).cast(schema)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        run.damaged.append(f"{file.parent.name}/{file.name}: {str(error).splitlines()[0]}")
        return None


def _json(file: Path) -> dict[str, Any]:
    return _mapping(json.loads(file.read_text(encoding="utf-8")))


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a mapping was wanted, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}
