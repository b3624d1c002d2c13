"""Comparisons of configs/experiments/GROUP: every config with every seed, as runs of their own, then one report over all.

    python benchmarks/experiments.py real --seeds 0 1 2 data.root=../shared/data
    python benchmarks/experiments.py sample --seeds 0 1 2

Interrupted, the same command goes on: a finished run is left alone, a begun one resumes. `--only` takes some of the configs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "experiments"


def is_done(run: Path) -> bool:
    return (run / "report.html").is_file() and json.loads((run / "training.json").read_text())["done"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=sorted(path.name for path in CONFIGS.iterdir() if path.is_dir()))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    args, overrides = parser.parse_known_args()
    configs = sorted(CONFIGS.joinpath(args.group).glob("*.yaml"), key=lambda path: (path.stem != "plain", path.stem))
    configs = [path for path in configs if not args.only or path.stem in args.only]
    names = {(path, seed): f"{args.group}_{path.stem}_{seed}" for seed in args.seeds for path in configs}
    for (path, seed), name in names.items():  # seed by seed, so that what is done at any time can be compared
        if is_done(args.storage / name):
            print(f"{name}: already done", flush=True)
            continue
        print(f"{name}: begins {time.strftime('%H:%M')}", flush=True)
        command = [sys.executable, "-m", "raydist.cli", "run", str(path), f"seed={seed}", f"name={name}"]
        subprocess.run([*command, f"storage={args.storage}", *overrides], check=True)
    by_config = [str(args.storage / names[path, seed]) for path in configs for seed in args.seeds]
    out = args.storage / f"{'_'.join(['experiments', args.group, *args.only])}.html"
    subprocess.run([sys.executable, "-m", "raydist.cli", "report", *by_config, "--out", str(out)], check=True)


if __name__ == "__main__":
    main()
