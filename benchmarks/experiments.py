"""Comparisons of configs/experiments/GROUP: every config with every seed, as runs of their own, then one report over all.

    python benchmarks/experiments.py real --seeds 0 1 2 data.root=../shared/data
    python benchmarks/experiments.py ablation/xmrc --seeds 0 1 2

A folder of configs is one comparison, with the config `plain` as its measure; a folder of such folders (low_resource) is one
after the other. A run is called by its config's name and its seed: comparisons with the same plain reader share its runs.

Interrupted, the same command goes on: a finished run is left alone, a begun one resumes. Runs made with other settings than the
command has now are refused before anything begins; `--fresh` starts those over. `--only` takes some of the configs. With
`--at-once 2`, two runs share the machine's cores, each with its own log: small models leave less of them idle that way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import yaml

from raydist.config import Config, load_config
from raydist.config.roles import changes_scores
from raydist.report.comparison import flatten

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "experiments"


def comparisons(folder: Path, only: Sequence[str] = ()) -> list[list[Path]]:
    """The configs of every comparison in a folder, each with its plain reader first."""
    found = []
    for place in sorted({path.parent for path in folder.rglob("*.yaml")}):
        configs = sorted(place.glob("*.yaml"), key=lambda path: (path.stem != "plain", path.stem))
        found.append([path for path in configs if not only or path.stem in only])
    return [configs for configs in found if configs]


def is_done(run: Path) -> bool:
    files = run / "report.html", run / "training.json"
    return all(file.is_file() for file in files) and json.loads(files[1].read_text())["done"]


def changed_settings(run: Path, config: Config) -> list[str]:
    """In which settings a run that has begun to train is not what the config says now."""
    if not (run / "training.json").is_file():
        return []
    saved = flatten(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")))
    now = flatten(config.model_dump(mode="json"))
    keys = [key for key in saved | now if saved.get(key) != now.get(key) and changes_scores(key, config.task)]
    return [f"{key}: {saved.get(key, 'not there')} then, {now.get(key, 'not there')} now" for key in keys]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*") if path.is_dir())
    parser.add_argument("group", choices=groups)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    parser.add_argument("--at-once", type=int, default=1, metavar="RUNS")
    parser.add_argument("--fresh", action="store_true")
    overrides = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]  # anywhere, also after --seeds
    args = parser.parse_args([word for word in sys.argv[1:] if word not in overrides])
    groups = comparisons(CONFIGS / args.group, args.only)
    commands: dict[str, list[str]] = {}
    stale: dict[str, list[str]] = {}
    for configs in groups:
        for seed in args.seeds:  # seed by seed, so that what is done at any time can be compared
            for path in configs:
                name = run_name(path, seed)
                commands[name] = [str(path), f"seed={seed}", f"name={name}", f"storage={args.storage}", *overrides]
                changed = changed_settings(args.storage / name, load_config(commands[name][0], commands[name][1:]).config)
                if changed:
                    stale[name] = changed
    if stale and not args.fresh:
        listed = "\n".join(f"{name} was made with other settings:\n  " + "\n  ".join(lines) for name, lines in stale.items())
        sys.exit(f"{listed}\nstart these over with --fresh, or keep them and name another folder with --storage")
    shared = [f"cluster.threads_per_worker={max(1, (os.cpu_count() or 1) // args.at_once)}"] if args.at_once > 1 else []
    failed: list[str] = []

    def run(name: str) -> None:
        if is_done(args.storage / name) and name not in stale:
            print(f"{name}: already done", flush=True)
            return
        if failed:
            return
        log = args.storage / f"{name}.log" if args.at_once > 1 else None
        print(f"{name}: begins {time.strftime('%H:%M')}" + (f", {log}" if log else ""), flush=True)
        fresh = ["--fresh"] if name in stale else []
        command = [sys.executable, "-m", "raydist.cli", "run", *commands[name], *shared, *fresh]
        with open(log, "a") if log else nullcontext() as output:
            if subprocess.run(command, stdout=output, stderr=output).returncode:
                failed.append(name)

    args.storage.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(run, commands))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    for configs in groups:
        by_config = [str(args.storage / run_name(path, seed)) for path in configs for seed in args.seeds]
        title = configs[0].parent.relative_to(CONFIGS).parts
        out = args.storage / f"{'_'.join(['experiments', *title, *args.only])}.html"
        subprocess.run([sys.executable, "-m", "raydist.cli", "report", *by_config, "--out", str(out)], check=True)


def run_name(path: Path, seed: int) -> str:
    return f"{load_config(str(path)).config.name}_{seed}"


if __name__ == "__main__":
    main()
