"""Faults, one after another, against a small run: what the user sees, what is lost, how long until it is made good.

    python benchmarks/chaos.py [--only NAME ...] [--out runs/chaos] [--kills 20] [--seed 0]

Every fault comes from outside: a signal, a full disk, a damaged file; raydist knows nothing of it. After each, the same command
is given again, as a user would, until it is done; then all committed files are compared with those of an undisturbed run. The
table is in OUT/chaos.md and OUT/chaos.json, what the commands said in OUT/logs, files that differ in OUT/kept. Interrupted, the
same command goes on with the next fault.

Recovery is the time from the fault until the run is past the point where it was. Exit status: 1 if a file differs, if something
committed was lost, or if a fault could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml
from lab import Family, Lab, Missed, Row, choose, committed, differing, kill, read_json, write_whole

# 60 steps of 16 rows, a checkpoint every 5: seconds, and long enough to be hit. How sums round depends on the threads.
READER = (
    "debug_reader",
    "data.part_rows=50",
    "data.train.questions=400",
    "train.batch_size=16",
    "train.max_steps=60",
    "train.epochs=3",
    "train.checkpoint_every=5",
    "train.keep_finished=true",
    "train.evaluate_every=30",
    "train.dev_questions=20",
    "cluster.threads_per_worker=1",
)
LONG = ("data.part_rows=20", "train.max_steps=1500", "train.epochs=60", "train.evaluate_every=250", "train.log_every=10")
RETRIEVAL = (
    "debug_retrieval",
    "index.shard_rows=50",
    "mining.part_questions=6",
    "train.checkpoint_every=5",
    "train.keep_finished=true",
    "cross_encoder.train.checkpoint_every=5",
    "cross_encoder.train.keep_finished=true",
    "cluster.threads_per_worker=1",
)
PIPELINES: dict[str, tuple[str, ...]] = {
    "reader": READER,
    "reader_two_workers": (*READER, "cluster.workers=2"),
    "reader_long": (*READER, *LONG),
    "retrieval": RETRIEVAL,
}
STRIKE = 12  # the step at which training is struck: there are checkpoints of 5 and 10
PAUSE_S = 30.0  # of a slow worker
REACH_S = 15.0  # the first random kill comes within so many seconds
MIB = 1 << 20


def start_training(lab: Lab, *more: str) -> Family:
    """The pipeline, at the step to strike at."""
    run = lab.start(*more)
    lab.until(lambda: lab.step() >= STRIKE, run, f"step {STRIKE}")
    return run


# --- faults ----------------------------------------------------------------------------------------------------------


def worker_killed(lab: Lab) -> Row:
    """A train worker."""
    run = start_training(lab)
    kill(lab.worker(run))
    return lab.make_good(run)


def stage_worker_killed(lab: Lab) -> Row:
    """A worker that writes a part of a stage."""
    run = lab.start()
    kill(lab.worker(run, "MapBatches(write_parts)"))
    return lab.make_good(run)


def node_killed(lab: Lab) -> Row:
    """The one of two nodes that trains, with all its processes. The head has no CPU for work."""
    lab.ray_head(0)
    nodes = [lab.ray_node(f"--address={lab.address}", "--num-cpus=2") for _ in range(2)]
    run = start_training(lab)
    lab.worker(run, of=nodes)
    next(node for node in nodes if node.titled("RayTrainWorker")).end()
    return lab.make_good(run)


def driver_killed(lab: Lab) -> Row:
    """The command itself; Ray's processes are left to find out."""
    run = start_training(lab)
    kill(psutil.Process(run.root.pid))
    return lab.make_good(run)


def head_restarted(lab: Lab) -> Row:
    """The head, which is the only node, goes and comes back at the same address."""
    head = lab.ray_head(4)
    run = start_training(lab)
    head.end()
    return lab.make_good(run, mend=lambda: lab.ray_head(4))


def disk_full_reading(lab: Lab) -> Row:
    """Room for the sample world and 256 KiB, which is too little for the examples."""
    assert lab.calm
    world = [file for file in lab.calm.glob("stages/sample-*/**/*") if file.is_file()]
    lab.mount(sum(-(-file.stat().st_size // 4096) * 4096 for file in world) + 256 * 1024)
    return _fill(lab, lab.start())


def disk_full_training(lab: Lab) -> Row:
    """No room for another checkpoint."""
    lab.mount(400 * MIB)
    run = start_training(lab)
    lab.shrink(MIB)
    return _fill(lab, run)


def _fill(lab: Lab, run: Family) -> Row:
    """The disk is small from now on; what the command does until it ends is no recovery."""
    since = time.monotonic()
    lab.follow(run)
    return lab.make_good(run, moment=replace(lab.moment(), at=since), mend=lambda: lab.resize(400 * MIB))


HOG = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)
held = [ray.put(bytes(10**7)) for _ in range(15)]
print("holding", len(held), flush=True)
time.sleep(float(sys.argv[2]))
"""


def object_store_full(lab: Lab) -> Row:
    """A store of 80 MB that another driver has filled with 150: from the first object on, Ray must spill to make room."""
    spilled = lab.temp / "spilled"
    spilled.mkdir()
    lab.ray_head(4, "--object-store-memory=80000000", f"--object-spilling-directory={spilled}")
    hog = lab.spawn("hog", [sys.executable, "-c", HOG, str(lab.address), str(10 * lab.patience)])
    lab.until(lambda: "holding 15" in hog.output, hog, "the store was full")
    row = lab.make_good(lab.start(), undone=False)
    size = sum(file.stat().st_size for file in spilled.rglob("*") if file.is_file())
    lab.notes.append(f"{size / 1e6:.0f} MB were spilled")
    return row | {"recovery_s": None, "ok": row["ok"] and size > 0}


def slow_worker(lab: Lab) -> Row:
    """One of two train workers stands still for half a minute; the other waits for it."""
    run = start_training(lab)
    worker = lab.worker(run)
    worker.suspend()
    moment = lab.moment()
    try:
        time.sleep(PAUSE_S)
    finally:
        with contextlib.suppress(psutil.Error):
            worker.resume()
    lab.notes.append(f"{PAUSE_S:.0f} s of the recovery are the pause itself")
    return lab.make_good(run, moment=moment, undone=False)


def nan_at_step(lab: Lab) -> Row:
    """A model whose embedding of one word is NaN, a word that no batch has before the step. Then the sound model: refused,
    since the run was begun with another one; taken with --fresh."""
    from raydist.models.folders import model_folder

    assert lab.calm
    poisoned = lab.work / "poisoned"
    poison(model_folder("builtin:tiny"), poisoned, new_token(tokens_of_steps(lab.calm, STRIKE + 1), STRIKE))
    run = lab.start(f"model.name={poisoned}")
    told = lab.follow(run)
    has_model = (lab.run / "model").exists()
    row = lab.make_good(run, (), ("--fresh",), moment=replace(lab.moment(), checkpoint=0))  # none is of the sound model
    is_named = f"is nan at step {STRIKE}, before the update" in told
    if not is_named or has_model:
        lab.notes.append(f"the step was named: {is_named}; a model was left: {has_model}")
    return row | {"ok": row["ok"] and is_named and not has_model}


def tokens_of_steps(storage: Path, last: int) -> list[set[int]]:
    """The tokens in the batch of each step of a reader's run before `last`."""
    from raydist.reader.rows import WindowRows
    from raydist.training.loop import training_steps

    run = storage / READER[0]
    config = yaml.safe_load((run / "config.yaml").read_text())
    stages = read_json(run / "stages.json").items()
    windows = next(storage / stage["folder"] for key, stage in stages if stage.get("title", key) == "windows of train")
    rows = WindowRows(sorted(windows.glob("part-*.arrow")))
    plan = {"seed": config["seed"], "batch_size": config["train"]["batch_size"], "accumulate": config["train"]["accumulate"]}
    steps: Any = training_steps(rows, **plan, first=0, last=last, rank=0, ranks=1, pad_id=0)
    return [{int(token) for batch in batches for token in batch.input_ids_BT.unique()} for _, batches in steps]


def new_token(tokens: Sequence[set[int]], step: int) -> int:
    """One that is in this step's batch and in none before."""
    new = tokens[step].difference(*tokens[:step])
    if not new:
        raise Missed(f"the batch of step {step} has no token of its own")
    return min(new)


def poison(model: Path, target: Path, token: int) -> None:
    """A copy of a model with NaN for a token's embedding."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, target)
    weights = load_file(target / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("word_embeddings.weight")]
    weights[name][token] = float("nan")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def checkpoint_truncated(lab: Lab) -> Row:
    """The newest checkpoint loses the second half of its weights between two commands; the one before is whole."""
    run = start_training(lab)
    run.end()
    *older, (_, newest) = lab.checkpoints()[lab.run.name]
    os.truncate(newest / "task.safetensors", (newest / "task.safetensors").stat().st_size // 2)
    moment = replace(lab.moment(), checkpoint=max((step for step, _ in older), default=0))
    return lab.make_good(run, (), ("--fresh",), moment=moment)


# --- many kills ------------------------------------------------------------------------------------------------------


def next_reach(reach: float, got_on: bool) -> float:
    """How late the next kill may be: sooner while the run gets on, so that many fit; later while it does not, so that it
    can."""
    return max(REACH_S / 3, reach * 0.8) if got_on else min(REACH_S * 16, reach * 1.5)


def is_due(done: float, struck: int, kills: int) -> bool:
    """Whether a kill may not wait: the run (so much of it is `done`) would be over before the last one."""
    return done > (struck + 1) / (kills + 1)


def random_kills(lab: Lab, kills: int, seed: int) -> Row:
    """Kill a random process at a random time, so many times over one run; give the command again whenever it failed, until it
    is done.
    """
    assert lab.calm
    calm = read_json(lab.calm.with_suffix(".json"))
    draw = random.Random(seed)
    victims: Counter[str] = Counter()
    told: Counter[str] = Counter()
    began = time.monotonic()
    lost = kill_until_done(lab, draw, victims, told, kills, calm["amount"])
    files = differing(committed(lab.storage), calm["files"])
    if victims.total() < kills and not files and not lost:
        raise Missed(f"the run was done after {victims.total()} of {kills} kills")
    lab.recovered = max(0.0, time.monotonic() - began - calm["seconds"]) / max(1, victims.total())
    by_kind = ", ".join(f"{number} {kind}" for kind, number in victims.most_common())
    struck = f"{victims.total()} kills over one run: {by_kind}"
    lab.notes[:0] = [struck, "recovery is the extra time per kill"]
    endings = "; ".join(f"{number} x {ending}" for ending, number in told.most_common())
    return lab.row([endings], "COMMITTED WORK: " + "; ".join(lost) if lost else "nothing committed", bool(lost), done=True)


def kill_until_done(lab: Lab, draw: random.Random, victims: Counter, told: Counter, kills: int, whole: int) -> list[str]:
    """One run from nothing to its end, which is `whole` by `lab.amount`; what was committed when a command ended, and was not
    there when another did.
    """
    reach, most, starts, idle = REACH_S, 0, 0, 0
    written: dict[str, int] = {}
    saved: dict[str, int] = {}
    lost: set[str] = set()
    while True:
        starts, before = starts + 1, lab.amount()
        run = lab.start()
        while run.status is None and victims.total() < kills:
            ends = time.monotonic() + draw.uniform(0.05, 1.0) * reach
            while run.status is None and time.monotonic() < ends and not is_due(lab.amount() / whole, victims.total(), kills):
                time.sleep(0.05)
            chosen = choose(run.members(), run.root.pid, draw) if run.status is None else None
            if chosen:
                kill(chosen[1])
                victims[chosen[0]] += 1
                now = lab.amount()
                reach, most = next_reach(reach, now > most), max(most, now)
                print(f"  {lab.name}: kill {victims.total()} of {kills}: {chosen[0]}; {now} committed", flush=True)
        told[_alike(lab.follow(run))] += 1
        for name, when in lab.parts().items():
            if written.setdefault(name, when) != when:
                lost.add(f"{name} was made again")
        for name, pairs in lab.checkpoints().items():
            if pairs[-1][0] < saved.get(name, 0):
                lost.add(f"{name}: the newest checkpoint is of step {pairs[-1][0]}, was of {saved[name]}")
            saved[name] = max(saved.get(name, 0), pairs[-1][0])
        if run.status == 0:
            return sorted(lost)
        idle = 0 if lab.amount() > before else idle + 1
        if (victims.total() >= kills and idle > 3) or starts > 5 * kills + 20:
            raise Missed(f"no end after {victims.total()} kills and {starts} commands; the last one: {run.tell()}")


def _alike(told: str) -> str:
    """Endings that differ in numbers alone are one."""
    status, colon, line = told.partition(": ")
    return (status + colon + re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "#", line))[:160]


# --- all of them -----------------------------------------------------------------------------------------------------

Fault = Callable[[Lab], Row]


def faults(kills: int, seed: int) -> dict[str, tuple[str, Fault]]:
    """Every fault by name, with the pipeline that it strikes."""

    def many(lab: Lab) -> Row:
        return random_kills(lab, kills, seed)

    single = [worker_killed, stage_worker_killed, node_killed, driver_killed, head_restarted, disk_full_reading]
    single += [disk_full_training, object_store_full, nan_at_step, checkpoint_truncated]
    return {fault.__name__: ("reader", fault) for fault in single} | {
        "slow_worker": ("reader_two_workers", slow_worker),
        "random_kills_reader": ("reader_long", many),
        "random_kills_retrieval": ("retrieval", many),
    }


def make_calm(out: Path, pipeline: str, patience: float) -> Path:
    """An undisturbed run, unless there is one: its files in OUT/calm/PIPELINE, their digests beside them."""
    kept, command = out / "calm" / pipeline, PIPELINES[pipeline]
    known = read_json(kept.with_suffix(".json"))
    if known.get("command") == list(command) and "amount" in known:
        return kept
    print(f"undisturbed {pipeline}: begins {time.strftime('%H:%M')}", flush=True)
    with Lab(out, f"calm_{pipeline}", command, patience) as lab:
        began = time.monotonic()
        run = lab.start()
        told = lab.follow(run)
        if run.status != 0:
            raise Missed(f"the undisturbed run of {pipeline} failed ({told}); see {lab.logs}")
        seconds, amount = round(time.monotonic() - began, 1), lab.amount()
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        lab.storage.rename(kept)
    found = {"command": command, "seconds": seconds, "amount": amount, "files": committed(kept)}
    write_whole(kept.with_suffix(".json"), json.dumps(found, indent=1))
    print(f"undisturbed {pipeline}: {seconds:.0f} s", flush=True)
    return kept


def try_fault(out: Path, name: str, pipeline: str, fault: Fault, patience: float) -> Row:
    """A row, whatever happens. `ok` is None where nothing is known: the next call tries it again."""
    began = time.monotonic()
    try:
        calm = make_calm(out, pipeline, patience)
        with Lab(out, name, PIPELINES[pipeline], patience, calm) as lab:
            row = fault(lab)
            shutil.rmtree(out / "kept" / name, ignore_errors=True)
            if not row["ok"]:  # to be looked at
                shutil.copytree(lab.storage, out / "kept" / name)
    except Exception as error:
        told = str(error) if isinstance(error, Missed) else f"{type(error).__name__}: {error}"
        row = {"sees": f"not tried: {told}", "lost": "?", "recovery_s": None, "equal": None, "ok": None}
        row |= {"differing": [], "notes": []}
    return row | {"seconds": round(time.monotonic() - began, 1)}


def table(rows: dict[str, Row]) -> str:
    """Markdown."""

    def cell(text: str, longest: int = 400) -> str:
        text = " ".join(text.split()).replace("|", "\\|")
        return text if len(text) <= longest else text[: longest - 3] + "..."

    lines = ["| fault | what the user sees | lost | recovery | same files |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        sees = cell(row["sees"]) + (f" ({cell('; '.join(row['notes']))})" if row["notes"] else "")
        recovery = "" if row["recovery_s"] is None else f"{row['recovery_s']:.1f} s"
        unlike = f"NO: {len(row['differing'])} differ" if row["differing"] else "NO"
        equal = {True: "yes", False: unlike, None: "?"}[row["equal"]]
        lines.append(f"| {name.replace('_', ' ')} | {sees} | {cell(row['lost'])} | {recovery} | {equal} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=faults(0, 0), metavar="NAME", help=f"of {', '.join(faults(0, 0))}")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--patience", type=float, default=300, help="seconds that a command may write nothing")
    parser.add_argument("--again", action="store_true", help="also faults that are done")
    args = parser.parse_args()
    if args.kills < 1:
        parser.error(f"--kills should be 1 or more, got {args.kills}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes end and mounts go
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    every, rows = faults(args.kills, args.seed), read_json(out / "chaos.json")
    for name in args.only or every:
        pipeline, fault = every[name]
        settings: dict[str, Any] = {"pipeline": list(PIPELINES[pipeline])}
        if name.startswith("random_kills"):
            settings |= {"kills": args.kills, "seed": args.seed}
        known = rows.get(name, {})
        if known.get("ok") is not None and known["settings"] == settings and not args.again:
            print(f"{name}: already done", flush=True)
            continue
        print(f"{name}: begins {time.strftime('%H:%M')}", flush=True)
        row = try_fault(out, name, pipeline, fault, args.patience)
        rows[name] = row | {"settings": settings}
        rows = {key: rows[key] for key in every if key in rows}
        write_whole(out / "chaos.json", json.dumps(rows, indent=1, ensure_ascii=False))
        write_whole(out / "chaos.md", table(rows))
        verdict = {True: "fine", False: "NOT FINE", None: "not known"}[row["ok"]]
        print(f"{name}: {verdict} after {row['seconds']:.0f} s; {row['sees']}", flush=True)
    shutil.rmtree(out / "work", ignore_errors=True)
    print(f"\n{table(rows)}\nin {out / 'chaos.md'}", flush=True)
    return 0 if all(row["ok"] for row in rows.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the next fault", file=sys.stderr)
        sys.exit(130)
