"""Mining over a large corpus: sentences of the sample world -> indexes -> candidates -> scores; time and memory of each stage.

    python benchmarks/million.py --out one.json                      a million sentences, 10,000 questions
    python benchmarks/million.py --sentences 2000000 --out two.json  then:  --compare one.json two.json

--compare ends with exit status 1 where own and shared memory of any stage grow beyond what two equal runs may differ by
(NOISE): the index is in mapped files. Two stages that read the corpus may keep something of each sentence, and say so (KEPT).

Take a million sentences or more for both: the sample world then has 200,000 questions, below that one for five sentences, and
all are read before --questions are drawn, so that a smaller corpus would be one of fewer questions, too.

Models are `builtin:tiny` unless --model says otherwise: what is looked at is whether memory grows with the corpus, and that
does not depend on how long a model thinks. A vector is the mean over a sentence's words: of their first tokens, random weights
make nearly the same vector (cosines of 0.99999), and most of the time would go into putting ties in order.

Memory is that of the command and all its processes, Ray's included: what they have taken for themselves (anonymous), Ray's
object store (shared), and pages of files that are mapped, which the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

NOISE = 0.05  # a share of the smaller corpus's peak
# Bytes a sentence that the docstrings in retrieval/corpus_stages.py state: of a set, and of a sentence table, which is made
# next, by workers that may still hold what they have given back.
KEPT = {"retrieval_set": 50, "sentences": 50 + 100}
KINDS = {"Pss_Anon": "own", "Pss_Shmem": "shared", "Pss_File": "mapped"}


def memory(root: psutil.Process) -> dict[str, float]:
    """GiB of a process and its descendants, each page counted once."""
    found = dict.fromkeys(KINDS.values(), 0.0)
    for process in [root, *root.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name in KINDS:
                found[KINDS[name]] += int(value.split()[0]) / 2**20
    return found


def stage_of(storage: Path) -> str:
    """The stage that was begun last."""
    begun = [folder for folder in storage.glob("stages/*-*") if folder.is_dir()]
    return max(begun, key=lambda folder: folder.stat().st_ctime).name.rpartition("-")[0] if begun else "start"


def watch(command: list[str], storage: Path) -> dict[str, dict[str, float]]:
    """Seconds and peaks of memory by stage."""
    found: dict[str, dict[str, float]] = {}
    driver = subprocess.Popen(command)
    root, done = psutil.Process(driver.pid), threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not done.wait(0.5):
            try:
                now, seen, stage = time.monotonic(), memory(root), stage_of(storage)
            except psutil.Error:
                return
            except OSError:  # a folder went while it was looked at
                continue
            row = found.setdefault(stage, {"seconds": 0.0} | dict.fromkeys(seen, 0.0))
            row["seconds"] += now - before
            before = now
            for kind, value in seen.items():
                row[kind] = max(row[kind], value)

    thread = threading.Thread(target=look)
    thread.start()
    code = driver.wait()
    done.set()
    thread.join()
    if code:
        sys.exit(f"the command ended with {code}")
    return found


def tell(found: dict[str, dict[str, float]]) -> None:
    print(f"{'stage':20} {'seconds':>8}" + "".join(f"{kind + ' GiB':>12}" for kind in KINDS.values()))
    for stage, row in found.items():
        print(f"{stage:20} {row['seconds']:8.0f}" + "".join(f"{row[kind]:12.2f}" for kind in KINDS.values()))
    peaks = {kind: max(row[kind] for row in found.values()) for kind in KINDS.values()}
    total = sum(row["seconds"] for row in found.values())
    print(f"{'all':20} {total:8.0f}" + "".join(f"{peaks[kind]:12.2f}" for kind in KINDS.values()))


def growth(small: dict, large: dict) -> dict[str, tuple[float, float]]:
    """GiB by which the peak of memory that is not mapped grew and might have grown, for each stage that was seen in both."""
    before, after = ({stage: row["own"] + row["shared"] for stage, row in found["stages"].items()} for found in (small, large))
    more, noise = large["sentences"] - small["sentences"], NOISE * max(before.values())
    return {
        stage: (after[stage] - before[stage], KEPT.get(stage, 0) * more / 2**30 + noise) for stage in before if stage in after
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, help="two files of --out: the smaller corpus first")
    args = parser.parse_args()
    if args.compare:
        small, large = (json.loads(path.read_text()) for path in args.compare)
        if not small["sentences"] < large["sentences"]:
            sys.exit(f"{args.compare[0]} is of {small['sentences']:,} sentences and not of fewer than {large['sentences']:,}")
        for found in (small, large):
            print(f"{found['sentences']:,} sentences")
            tell(found["stages"])
        found = growth(small, large)
        worst = max(found, key=lambda stage: found[stage][0] - found[stage][1])
        grown, allowed = found[worst]
        met = grown <= allowed
        print(
            f"own and shared memory grew by {grown:.2f} GiB in the stage that is nearest to what is allowed ({worst}), "
            f"{allowed:.2f} allowed: {'met' if met else 'MISSED'}"
        )
        if alone := sorted(small["stages"].keys() ^ large["stages"].keys()):
            print(f"too short to be seen in one of the two, and not compared: {', '.join(alone)}")
        return 0 if met else 1
    storage = args.storage / f"million_{args.sentences}"
    if storage.exists():
        sys.exit(f"{storage} is there already, and what is done is not measured again: delete it first")
    settings = {
        "name": "mined",
        "storage": storage,
        "data.sample.size": args.sentences,
        "corpus.train.questions": args.questions,
        "corpus.test": "{}",
        "model.name": args.model,
        "mining.encoder": args.model,
        "mining.pooling": "mean",
        "mining.candidates": 10,
        "mining.part_questions": 500,
        "cross_encoder.model.name": args.model,
        "cross_encoder.train.max_steps": 200,
    }
    command = [sys.executable, "-m", "raydist.cli", "mine", "debug_retrieval"]
    found = watch([*command, *(f"{key}={value}" for key, value in settings.items())], storage)
    tell(found)
    if args.out:
        args.out.write_text(json.dumps({"sentences": args.sentences, "stages": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
