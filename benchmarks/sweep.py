"""A sweep of twelve trials whose command is killed half-way and given again: how long it takes, and what is done twice.

    python benchmarks/sweep.py [--config sweeps/pfa_grid] [--storage FOLDER] [key=value ...]

Exit status: 1 if a trial ran twice or is missing, if what trials share was made twice, or if all took more than 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
from lab import GRACE_S, RAYDIST, Family, kill

from raydist.config import load_config
from raydist.sweep.plan import plan_sweep

MINUTES = 20


def finished(sweep: Path) -> dict[str, int]:
    """The trials that came to an end, and when."""
    return {file.stem: file.stat().st_mtime_ns for file in (sweep / "finished").glob("*.json")}


def shared(storage: Path) -> dict[str, int]:
    """The stages that all trials use, and when each was made."""
    names = ("sample-*/world.json", "examples-*/manifest.json", "windows-*/manifest.json")
    return {str(file): file.stat().st_mtime_ns for name in names for file in storage.glob(f"stages/{name}")}


def half_way(command: list[str], storage: Path, sweep: Path, trials: int) -> dict[str, int]:
    """Start the sweep and kill its command when half of the trials are finished; which they were."""
    run = Family(command, Path.cwd(), storage / "first.log", dict(os.environ))
    try:
        while len(finished(sweep)) < trials // 2:
            if run.status is not None:
                raise SystemExit(f"the sweep ended before half of its trials ({run.tell()}); its output:\n{run.output}")
            time.sleep(0.2)
        kill(psutil.Process(run.root.pid))
        ends = time.monotonic() + GRACE_S  # Ray's processes are left to find out
        while run.members() and time.monotonic() < ends:
            time.sleep(0.2)
    finally:
        run.end()
    return finished(sweep)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="sweeps/pfa_grid")
    parser.add_argument("--storage", type=Path, help="an empty folder to keep; none: a temporary one")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes end
    with tempfile.TemporaryDirectory() as temporary:
        storage = args.storage or Path(temporary)
        storage.mkdir(parents=True, exist_ok=True)
        given = [f"storage={storage}", *args.settings]
        config = load_config(args.config, given).config
        sweep, trials = storage / config.name, len(plan_sweep(config).trials)
        command = [*RAYDIST, "sweep", args.config, *given]
        began = time.monotonic()
        before = half_way(command, storage, sweep, trials)
        made, killed = shared(storage), time.monotonic() - began
        run = Family(command, Path.cwd(), storage / "second.log", dict(os.environ))
        try:
            status = run.root.wait()
        finally:
            run.end()
        seconds, after = time.monotonic() - began, finished(sweep)
        stages = [json.loads(file.read_text()) for file in sweep.glob("trials/*/stages.json")]
        own = [key for each in stages for key, stage in each.items() if key.startswith("windows") and not stage["reused"]]
        wrong = {
            f"the second command failed: {run.tell()}": status != 0,
            f"{len(after)} of {trials} trials are finished": len(after) != trials,
            "a trial that was finished ran again": not before.items() <= after.items(),
            "what trials share was made again": not made or shared(storage) != made or bool(own),
            f"it took more than {MINUTES} minutes": seconds > 60 * MINUTES,
        }
        print(run.output)
    print(f"{trials} trials in {seconds:.0f} s; killed at {killed:.0f} s, after {len(before)}; {len(made)} stages are shared")
    problems = [problem for problem, is_so in wrong.items() if is_so]
    print("\n".join(problems) or "no trial ran twice, and what they share was made once")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
