"""Digests of what small runs of every kind produce, so that a change of structure can show that it changed no number.

    python benchmarks/digests.py record before.json        # on the commit before
    python benchmarks/digests.py compare before.json       # on the commit after

Runs a reader with all objectives, two stages with cross-fitted sets, retrieval with two rounds, and a sweep, one thread each;
records stage parts, weights, predictions, silver pairs, ranked lists and metrics. Names of stage folders may differ: parts are
compared by their rows. Status 1 where anything differs. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SMALL = ("data.train.questions=80", "data.dev.questions=20", "data.test.adversarial.questions=10", "train.choose=last")
COMMANDS = {
    "reader": ["run", "debug_reader", *SMALL, "objectives.infomax={}", "objectives.pfa={}", "objectives.answer_contrast={}"],
    "two_stage": [
        "run",
        "debug_reader",
        *SMALL,
        "objectives.hard_learning={size: 5, nbest_folds: 2}",
        "objectives.answer_contrast={schedule: sequential, sequential_epochs: 0.5}",
    ],
    "retrieval": ["run", "debug_retrieval", "mining.rounds=2", "mining.hard_negatives=2", "mining.calibrate=platt"],
    "distilled": [
        "run",
        "debug_retrieval",
        "retriever.loss=margin_mse",
        "mining.hard_negatives=1",
        "mining.same_doc=2",
        "retriever.variants=[]",
        "index.dense=hnsw",
        "retriever.towers=separate",
    ],
    "sweep": ["sweep", "debug_sweep"],
}
CLOCK = ("seconds", "examples_per_s", "startup_s", "train.seconds", "train.examples_per_s", "train.startup_s")
PLACES = ("file", "cross_encoder")  # columns that name a place or a model's files


def run_all(folder: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for name, command in COMMANDS.items():
        settings = [f"name={name}", "storage=runs", "cluster.threads_per_worker=1"]
        print(f"{name}: raydist {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "raydist.cli", *command, *settings], cwd=folder, env=environment, check=True)


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def digest_table(table: pa.Table) -> str:
    kept = table.select([name for name in table.column_names if name not in PLACES]).replace_schema_metadata(None)
    rows = json.dumps(kept.to_pylist(), sort_keys=True, default=str, ensure_ascii=False)
    return digest(f"{kept.schema}\n{rows}".encode())


def digest_file(path: Path) -> str:
    if path.suffix == ".parquet":
        return digest_table(pq.read_table(path))
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as source:
            return digest_table(pa.ipc.open_file(source).read_all())
    if path.name in ("metrics.json", "fitted.json"):
        values = json.loads(path.read_text())
        return digest(json.dumps({key: value for key, value in values.items() if key not in CLOCK}, sort_keys=True).encode())
    if path.name == "metrics.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
        return digest(json.dumps(kept, sort_keys=True).encode())
    return digest(path.read_bytes())


def outcomes(runs: Path) -> Iterator[tuple[str, str]]:
    """(name, digest) of all that a run is asked for, and of the stages' parts."""
    wanted = ("*.safetensors", "predictions/*", "evaluation/*", "ranked/*", "mining/*", "rejected/*", "metrics.json*")
    for pattern in wanted:
        for path in sorted(runs.rglob(pattern)):
            inside = path.relative_to(runs)
            if path.is_file() and inside.parts[0] != "stages" and not {"checkpoints", "best"} & set(inside.parts):
                yield inside.as_posix(), digest_file(path)
    stages: dict[str, list[str]] = {}
    for folder in sorted(filter(Path.is_dir, (runs / "stages").iterdir())):
        files = sorted(path for path in folder.rglob("*") if path.suffix in (".parquet", ".arrow", ".npy"))
        parts = [f"{path.relative_to(folder)} {digest_file(path)}" for path in files]
        stages.setdefault(folder.name.rpartition("-")[0], []).append(digest("\n".join(parts).encode()))
    for name, digests in stages.items():
        for number, found in enumerate(sorted(digests)):
            yield f"stages/{name}/{number}", found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--keep", type=Path, help="leave the runs in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        run_all(folder)
        found = dict(outcomes(folder / "runs"))
    if given.what == "record":
        given.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} digests in {given.file}")
        return 0
    before = json.loads(given.file.read_text())
    differing = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    for name in differing:
        print(f"{name}: {before.get(name, 'absent')} before, {found.get(name, 'absent')} now")
    print(f"{len(before)} digests, {len(differing)} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
