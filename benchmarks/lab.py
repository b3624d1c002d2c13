"""A place for faults (chaos.py): commands with all their processes, Ray nodes and disks to break, and what is left of a run.

Nothing here knows raydist from inside: it starts commands, sends signals and looks at files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
RAYDIST = (sys.executable, "-m", "raydist.cli")
RAY = (sys.executable, "-m", "ray.scripts.scripts")
GRACE_S = 20.0  # in which a command's other processes should end after it
T = TypeVar("T")
Row = dict[str, Any]


class Missed(RuntimeError):
    """A fault could not be tried; nothing is known of its outcome."""


# --- processes -------------------------------------------------------------------------------------------------------


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def title(process: psutil.Process) -> str:
    """What a process calls itself, without the details: raylet, RayTrainWorker, log_monitor."""
    try:
        words = [word for word in process.cmdline() if word] or [process.name()]
    except psutil.Error:
        return "?"
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::").split(".")[0]
    scripts = [word for word in words[1:] if word.endswith(".py")] if "python" in Path(words[0]).name else []
    return Path(scripts[0]).stem if scripts else Path(words[0]).name


def kill(process: psutil.Process) -> None:
    """SIGKILL, and wait until it has struck."""
    with contextlib.suppress(psutil.Error):
        process.kill()
    ends = time.monotonic() + 10
    while alive(process) and time.monotonic() < ends:
        time.sleep(0.01)


def choose(processes: Iterable[psutil.Process], root: int, draw: random.Random) -> tuple[str, psutil.Process] | None:
    """A random one and its kind. First a kind, then one of it: idle workers are many, drivers and raylets one each."""
    kinds: dict[str, list[psutil.Process]] = {}
    for process in processes:
        kinds.setdefault("driver" if process.pid == root else title(process), []).append(process)
    if not kinds:
        return None
    kind = draw.choice(sorted(kinds))
    return kind, draw.choice(kinds[kind])


class Family:
    """A command and every process that comes of it, those whose parent is dead included, and no other.

    They are known by the session that the command begins, and by descent: a mark in the environment would not do, since Ray's
    workers write their titles over the place where it could be read. None is waited for through psutil, which would take the
    command's exit status away.
    """

    def __init__(self, command: Sequence[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
        self.log, self.over = log, False
        self.seen: set[psutil.Process] = set()
        with log.open("wb") as file:
            output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            self.root = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **output)

    @property
    def status(self) -> int | None:
        """The command's exit status; None while it runs."""
        return self.root.poll()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def members(self) -> list[psutil.Process]:
        """Those that are alive, by process id."""
        if self.over:  # the number of its session may be another's by now
            return []
        pids = {process.pid for process in self.seen if alive(process)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process not in self.seen and (os.getsid(process.pid) == self.root.pid or process.ppid() in pids):
                    self.seen.add(process)
                    pids.add(process.pid)
        self.seen = {process for process in self.seen if alive(process)}
        self.over = not self.seen and self.status is not None
        return sorted(self.seen, key=lambda process: process.pid)

    def titled(self, name: str) -> psutil.Process | None:
        return next((process for process in self.members() if name in title(process)), None)

    def end(self, seconds: float = 60.0) -> None:
        """Kill all of them."""
        ends = time.monotonic() + seconds
        while members := self.members():
            for process in members:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > ends:
                left = ", ".join(f"{title(process)} ({process.pid})" for process in members)
                raise RuntimeError(f"{left}: still there {seconds:.0f} s after SIGKILL")
            time.sleep(0.05)

    def tell(self) -> str:
        """How it ended, as the user sees it: the exit status and the line that matters."""
        if self.status is None:
            return "still runs"
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        marks = ("failed: ", "error: ") if self.status else ("resuming after",)
        telling = [line for line in lines if any(mark in line for mark in marks)] or lines or ["(no output)"]
        return f"exit {self.status}: {telling[-1]}"


# --- files -----------------------------------------------------------------------------------------------------------

# Ray's own, drawings, and what tells of times and attempts
SKIPPED = {"checkpoints", "tensorboard", "report.html", "progress.json", "workers.json"}
TIMED = {"manifest.json", "stages.json", "training.json", "fitted.json", "metrics.json", "metrics.jsonl"}
TIMES = {"seconds", "startup_s", "examples_per_s", "reused"}


def committed(storage: Path) -> dict[str, str]:
    """Every committed file under a storage folder, with a digest of its content, times left out."""
    files = {}
    for file in sorted(storage.rglob("*")):
        name = file.relative_to(storage)
        if file.is_file() and not SKIPPED & set(name.parts) and not any(part.endswith(".tmp") for part in name.parts):
            files[name.as_posix()] = hashlib.blake2b(_content(file), digest_size=16).hexdigest()
    return files


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    try:
        if file.name in TIMED:
            texts = content.splitlines() if file.suffix == ".jsonl" else [content]
            return json.dumps([_timeless(json.loads(text)) for text in texts], sort_keys=True).encode()
        if file.name == "config.yaml":  # where a run works changes no result
            settings = {key: value for key, value in yaml.safe_load(content).items() if key != "cluster"}
            return json.dumps(settings, sort_keys=True, default=str).encode()
    except (ValueError, AttributeError, yaml.YAMLError):  # torn; its bytes equal no whole file's
        pass
    return content


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key.split(".")[-1] not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Names of files that are not the same, and how."""
    how = {name: "missing" if name not in ours else "new" if name not in theirs else "other" for name in ours | theirs}
    return [f"{how[name]}: {name}" for name in sorted(how) if ours.get(name) != theirs.get(name)]


def read_json(file: Path) -> dict[str, Any]:
    """Empty where the file is absent or being written."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def write_whole(file: Path, text: str) -> None:
    beside = file.with_name(file.name + ".tmp")
    beside.write_text(text)
    beside.replace(file)


# --- where a fault happens -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """What there was when a fault struck."""

    at: float
    step: int
    checkpoint: int  # the step of the newest whole one
    parts: dict[str, int]  # of stages; when each was written


class Lab:
    """One fault's folder, commands and Ray nodes. On the way out every process ends and every mount goes.

    All runs have their files at the same path, OUT/work/runs, one after another: rows name the files that they came from.
    """

    def __init__(self, out: Path, name: str, pipeline: Sequence[str], patience: float, calm: Path | None = None) -> None:
        """`pipeline` is a config and overrides; `calm` the folder of its undisturbed run, whose digests are beside it."""
        self.name, self.pipeline, self.patience, self.calm = name, pipeline, patience, calm
        self.work, self.logs = out / "work", out / "logs" / name
        self.storage = self.work / "runs"
        self.run = self.storage / pipeline[0]
        self.families: list[Family] = []
        self.notes: list[str] = []
        self.recovered: float | None = None
        self.address: str | None = None

    def __enter__(self) -> Self:
        for folder in (self.work, self.logs, self.storage):
            self.clear(folder)
        self.temp = Path(tempfile.mkdtemp(prefix="rd", dir="/tmp"))  # sockets live in it: their paths must be short
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        paths = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.temp), "RAY_TMPDIR": str(self.temp)}
        self.environment = kept | own
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:  # each is tried, whatever becomes of the others; the last one first
            stack.callback(shutil.rmtree, self.temp, ignore_errors=True)
            stack.callback(self.unmount)
            for family in self.families:
                stack.callback(family.end)

    def clear(self, folder: Path) -> None:
        self.unmount()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    # commands

    def spawn(self, what: str, command: Sequence[str]) -> Family:
        log = self.logs / f"{len(self.families) + 1:02d}_{what}.log"
        self.families.append(Family(command, self.work, log, self.environment))
        return self.families[-1]

    def start(self, *more: str) -> Family:
        """`raydist run` of this fault's pipeline."""
        where = [f"storage={self.storage}"] + [f"cluster.address={self.address}"] * (self.address is not None)
        return self.spawn("run", [*RAYDIST, "run", *self.pipeline, *where, *more])

    def until(self, what: Callable[[], T | None], run: Family, told: str) -> T:
        """Wait for it while a command runs."""
        ends = time.monotonic() + 2 * self.patience
        while not (found := what()):
            if run.status is not None:
                raise Missed(f"the command ended before {told}: {run.tell()}")
            if time.monotonic() > ends:
                raise Missed(f"{2 * self.patience:.0f} s were not enough until {told}")
            time.sleep(0.02)
        return found

    def worker(self, run: Family, name: str = "RayTrainWorker", of: Sequence[Family] | None = None) -> psutil.Process:
        """A worker of the command, or of the cluster it works on."""
        families = self.families if of is None else of
        return self.until(lambda: next(filter(None, (one.titled(name) for one in families)), None), run, f"there was a {name}")

    def follow(self, run: Family, moment: Moment | None = None) -> str:
        """Wait for a command's end, and say how it ended. One that writes nothing for too long is ended."""
        sign, since = self.pulse(), time.monotonic()
        while run.status is None:
            if moment and self.recovered is None and self.is_past(moment):
                self.recovered = time.monotonic() - moment.at
            if (now := self.pulse()) != sign:
                sign, since = now, time.monotonic()
            elif time.monotonic() - since > self.patience:
                run.end()
                return f"HUNG: nothing written for {self.patience:.0f} s, ended by hand"
            time.sleep(0.2)
        ends = time.monotonic() + GRACE_S
        while (left := run.members()) and time.monotonic() < ends:
            time.sleep(0.1)
        if left:
            note = f"still there {GRACE_S:.0f} s after a command: {', '.join(sorted(set(map(title, left))))}"
            self.notes += [note] * (note not in self.notes)
            run.end()
        return run.tell()

    # Ray nodes, each in processes of its own

    def ray_node(self, *options: str) -> Family:
        """As `ray start` makes it, with ports and a store that leave room for others on this machine."""
        ports = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
        for _ in range(3):  # a busy machine may miss Ray's own deadline of 30 s
            node = self.spawn("ray", [*RAY, "start", "--block", *ports, "--object-store-memory=150000000", *options])
            with contextlib.suppress(Missed):
                self.until(lambda node=node: "Ray runtime started" in node.output, node, "Ray had started")
                return node
            node.end()
        raise Missed(f"a Ray node did not start three times; the last time: {node.tell()}; see {node.log}")

    def ray_head(self, cpus: int, *options: str) -> Family:
        """From now on commands go to its cluster. A second head takes the address of the first."""
        if self.address is None:
            with socket.socket() as one, socket.socket() as other:
                for free in (one, other):
                    free.bind(("127.0.0.1", 0))
                self.ports = (f"--port={one.getsockname()[1]}", f"--ray-client-server-port={other.getsockname()[1]}")
            self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        own = ("--head", f"--num-cpus={cpus}", "--include-dashboard=false", "--disable-usage-stats")
        head = self.ray_node(*own, *self.ports, *options)
        written = self.temp / "ray" / "ray_current_cluster"
        self.address = self.until(lambda: written.read_text() if written.is_file() else None, head, "its address was known")
        return head

    # a small disk

    def mount(self, size: int) -> None:
        """The runs' folder on a file system of this size."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.storage)]
        if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            raise Missed("mounting a file system is not permitted here")

    def resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.storage)], check=True, capture_output=True)

    def shrink(self, free: int) -> None:
        """Leave so much room. Where more than that was written in between, the kernel refuses: then again."""
        for _ in range(100):
            disk = os.statvfs(self.storage)
            with contextlib.suppress(subprocess.CalledProcessError):
                return self.resize((disk.f_blocks - disk.f_bfree) * disk.f_frsize + free)
        raise Missed(f"the disk could not be made small: more than {free:,} bytes were written whenever it was tried")

    def unmount(self) -> None:
        if self.storage.is_mount():
            subprocess.run(["umount", "--lazy", str(self.storage)], check=True, capture_output=True)

    # what there is

    def step(self) -> int:
        return read_json(self.run / "progress.json").get("step", 0)

    def parts(self) -> dict[str, int]:
        found = {}
        for file in self.storage.glob("stages/*/part-*"):
            with contextlib.suppress(OSError):
                if file.suffix != ".tmp":
                    found[str(file.relative_to(self.storage))] = file.stat().st_mtime_ns
        return found

    def checkpoints(self) -> dict[str, list[tuple[int, Path]]]:
        """Step and folder of every run's whole checkpoints, by Ray's own account, the newest last."""
        found = {}
        for folder in self.storage.glob("*/checkpoints"):
            known = read_json(folder / "checkpoint_manager_snapshot.json").get("checkpoint_results", [])
            pairs = [(one["metrics"].get("step", 0), folder / one["checkpoint_dir_name"]) for one in known]
            found[folder.parent.name] = sorted(pairs)
        return {name: pairs for name, pairs in found.items() if pairs}

    def moment(self) -> Moment:
        newest = self.checkpoints().get(self.run.name, [(0, self.run)])[-1]
        return Moment(time.monotonic(), self.step(), newest[0], self.parts())

    def is_past(self, moment: Moment) -> bool:
        return self.step() > moment.step or len(self.parts()) > len(moment.parts)

    def amount(self) -> int:
        """A number that grows with what is committed: parts of stages, steps in checkpoints, models."""
        models = len(list(self.storage.glob("*/model/config.json")))
        return len(self.parts()) + sum(pairs[-1][0] for pairs in self.checkpoints().values()) + models

    def pulse(self) -> int:
        """Changes when a file is written. (What a command says is no sign: it repeats how far it is.)"""
        newest = 0
        for file in self.storage.rglob("*"):
            with contextlib.suppress(OSError):
                newest = max(newest, file.stat().st_mtime_ns)
        return newest

    # the outcome

    def make_good(
        self,
        run: Family,
        *again: Sequence[str],
        moment: Moment | None = None,
        mend: Callable[[], object] | None = None,
        undone: bool = True,
    ) -> Row:
        """After a fault: follow the command. If it fails, mend what is the user's to mend and give it again, with each of
        `again` as further arguments, until it is done. `undone` says that the fault undoes steps of training."""
        moment = moment or self.moment()
        told = [self.follow(run, moment)]
        if run.status:
            if mend:
                mend()
            for more in again or ((),):
                run = self.start(*more)
                told.append(" ".join([*more, self.follow(run, moment)]))
                if run.status == 0:
                    break
        if run.status == 0 and self.recovered is None:
            self.recovered = time.monotonic() - moment.at
        return self.row(told, *self.lost(moment, undone), done=run.status == 0)

    def lost(self, moment: Moment, undone: bool) -> tuple[str, bool]:
        """In words, and whether something committed is among it."""
        now = self.parts()
        again = sum(now.get(name) != when for name, when in moment.parts.items())
        first = read_json(self.run / "progress.json").get("first", 0)
        steps = moment.step - first if undone and moment.step else 0
        bad = [f"{again} parts were made again"] * (again > 0)
        if steps and first < moment.checkpoint:
            bad.append(f"training began again at step {first}, though there was a checkpoint of step {moment.checkpoint}")
        if bad:
            return "COMMITTED WORK: " + "; ".join(bad), True
        since = f" since the checkpoint of step {first}" if first else ""
        return (f"{steps} steps{since}" if steps > 0 else "nothing"), False

    def row(self, told: Sequence[str], lost: str, is_committed: bool, *, done: bool) -> Row:
        assert self.calm
        files = differing(committed(self.storage), read_json(self.calm.with_suffix(".json"))["files"])
        if left := len(list(self.storage.rglob("*.tmp"))):
            self.notes.append(f"{left} unfinished *.tmp left over")
        return {
            "sees": " → ".join(told),
            "lost": lost,
            "recovery_s": None if self.recovered is None else round(self.recovered, 1),
            "equal": done and not files,
            "ok": done and not files and not is_committed and not any("HUNG" in text for text in told),
            "differing": files,
            "notes": self.notes,
        }
