"""A command as a Ray job: preflight, one parcel with all that the job reads, its log, its exit status.

    job = prepare("train", "mine.yaml", ["optim.lr=2e-5"], address="http://127.0.0.1:8265")  # raises with all problems at once
    name = send(job)
    status = follow(job.target, name)

The parcel is a ZIP file that Ray unpacks on every node as the job's working directory: the user's working directory without
what is excluded, the files that the config names, raydist itself, and the config, resolved. So the job needs neither
raydist nor a config on the cluster, and runs the code that checked it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import ray
import requests
import yaml
from ray._private.runtime_env.packaging import _get_excludes, get_excludes_from_ignore_files
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

import raydist
from raydist.config import Config, ConfigError, load_config
from raydist.corpus.paths import expand_paths
from raydist.doctor import find_token
from raydist.errors import InputError
from raydist.sweep.plan import plan_sweep
from raydist.terminal import duration, say

EXCLUDES = (  # beside what .gitignore and .rayignore say, which Ray's own uploads heed, too
    *(".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", "*.egg-info"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
)
MAX_BYTES = 100 << 20  # what Ray's dashboard takes in one request
MAX_FILES = 20_000
TIMEOUT_S = 10.0
DASHBOARD = "http://127.0.0.1:8265"
SENT_CONFIGS = ".raydist"  # folder in the parcel
_RAYS_LINE = re.compile(r"Running entrypoint for job |\S+ \S+\s+INFO job_manager\.py:|\[.* logging\.cc:\d+: ")
_BROKEN = (RuntimeError, OSError, requests.RequestException, aiohttp.ClientError)  # of a connection
_QUIET = logging.getLogger(__name__ + ".ray")
_QUIET.disabled = True


# --- the cluster -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A cluster that answered, and how to speak to it."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    nodes: int
    is_here: bool  # every node runs on this machine and sees its files
    is_authenticated: bool

    def client(self) -> JobSubmissionClient:
        kept = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if name in os.environ}
        try:  # Ray lets both override the address it is given
            return JobSubmissionClient(self.url, headers=dict(self.headers))
        finally:
            os.environ |= kept


def dashboard_url(address: str | None) -> str:
    """The URL of a cluster's dashboard: as given, else from the environment, else this machine's."""
    given = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not given or given in ("auto", "local"):
        return DASHBOARD
    url = given if "://" in given else f"http://{given}"
    if not url.startswith(("http://", "https://")) or url.endswith(":6379"):
        raise InputError(
            f"address {given} is not a dashboard's: jobs are submitted over HTTP, to port 8265 as a rule; "
            f"give --address http://HOST:8265"
        )
    return url.rstrip("/")


def reach(address: str | None, *, insecure: bool = False, same_versions: bool = False) -> Target:
    """Knock at a cluster; an InputError says all that keeps us from using it."""
    url = dashboard_url(address)
    mode = _ask(url, "/api/authentication_mode", {}).get("authentication_mode", "disabled")
    headers: dict[str, str] = {}
    token_from = ""
    if mode != "disabled":  # a cluster that wants no token is not shown ours
        token, token_from = find_token()
        if not token:
            raise InputError(
                f"the cluster at {url} wants a token, and none is here; set RAY_AUTH_TOKEN, name a file in "
                f"RAY_AUTH_TOKEN_PATH, or put it in ~/.ray/auth_token (on the head node, `ray get-auth-token` shows it)"
            )
        headers = {"Authorization": f"Bearer {token}"}
    version = _ask(url, "/api/version", headers, token_from).get("ray_version", "unknown")
    problems = []
    if same_versions and _minor(version) != _minor(ray.__version__):  # of another version, other answers may differ, too
        problems.append(
            f"the cluster at {url} runs Ray {version}, and this raydist works with Ray {ray.__version__}; "
            f"start the cluster with ray=={ray.__version__}"
        )
    else:
        data = _ask(url, "/api/v0/cluster_metadata", headers).get("data", {})
        python = data.get("pythonVersion") or data.get("python_version", "unknown")
        if same_versions and _minor(python) != _minor(platform.python_version()):
            problems.append(
                f"the cluster at {url} runs Python {python}, here it is {platform.python_version()}; "
                f"use Python {_minor(python)} here, or start the cluster with {_minor(platform.python_version())}"
            )
    nodes = [] if problems else _nodes(url, headers)
    is_here = all(map(_runs_here, nodes)) if nodes else _is_loopback(url)
    if mode == "disabled" and not is_here and not insecure:
        problems.append(
            f"the cluster at {url} asks for no token: whoever reaches it can run code there and read what you send; "
            f"start it with RAY_AUTH_MODE=token, or add --insecure if only you can reach it"
        )
    if problems:
        raise InputError("\n".join(problems))
    return Target(url, headers, len(nodes), is_here, mode != "disabled")


def _ask(url: str, path: str, headers: Mapping[str, str], token_from: str = "") -> dict[str, Any]:
    try:
        answer = requests.get(url + path, headers=dict(headers), timeout=TIMEOUT_S)
    except requests.RequestException as error:
        found = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(error))
        why = found[1] if found else "no answer in time" if isinstance(error, requests.Timeout) else type(error).__name__
        raise InputError(
            f"no Ray dashboard answers at {url} ({why}); check --address and RAY_ADDRESS, and that the cluster is up and its "
            f"port 8265 is forwarded to here (`ray dashboard cluster.yaml`, or kubectl port-forward)"
        ) from None
    if answer.status_code in (401, 403):
        raise InputError(
            f"the cluster at {url} refuses the token from {token_from or 'here'} (HTTP {answer.status_code}); take the one "
            f"that the cluster was started with (on the head node, `ray get-auth-token` shows it)"
        )
    if path == "/api/authentication_mode" and answer.status_code == 404:
        return {}  # a Ray from before tokens
    try:
        answer.raise_for_status()
        value = answer.json()
        return value if isinstance(value, dict) else {}
    except (requests.RequestException, ValueError):
        raise InputError(
            f"what answers at {url} is not a Ray dashboard (HTTP {answer.status_code} for {path}); check --address"
        ) from None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _nodes(url: str, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """The live nodes; a cluster that has just started is given a moment to know of them."""
    for attempt in range(6):
        time.sleep(min(attempt, 1) * 2.0)
        summary = _ask(url, "/nodes?view=summary", headers).get("data", {}).get("summary", [])
        raylets = [node.get("raylet", {}) for node in summary]
        if alive := [raylet for raylet in raylets if raylet.get("state") == "ALIVE"]:
            return alive
    raise InputError(f"the cluster at {url} has no live node; wait until it is up, or see its logs")


def _runs_here(node: Mapping[str, Any]) -> bool:
    """Whether a node is on this machine: not its address tells (a tunnel's is local, too), but its socket, which is a file."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(node["rayletSocketName"]).st_mode)
    except (KeyError, OSError, TypeError, ValueError):
        return False
    return is_socket and node.get("nodeManagerHostname") == socket.gethostname()


# --- preflight -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What preflight has passed: ready to be sent."""

    target: Target
    command: str
    arguments: list[str]  # after the config
    config: Config
    parcel: Parcel


@dataclass
class Parcel:
    """What travels: files under their names in the job's working directory, and the resolved config."""

    files: dict[str, Path]
    config: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def write(self, target: Path, name: str) -> None:
        """As a ZIP file whose bytes depend on the content alone: what the cluster has already is not sent again."""
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, path in sorted(self.files.items()):
                entry = zipfile.ZipInfo(inside, (1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                with path.open("rb") as source, archive.open(entry, "w") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
            text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            archive.writestr(zipfile.ZipInfo(f"{SENT_CONFIGS}/{name}.yaml", (1980, 1, 1, 0, 0, 0)), text)


def prepare(
    command: str,
    config: str,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    working_dir: Path = Path("."),
    exclude: Iterable[str] = (),
    shared: Iterable[str] = (),
    insecure: bool = False,
    options: Sequence[str] = (),
    commands: Mapping[str, Iterable[str]] | None = None,
) -> Job:
    """Check all that can be checked before anything is sent; an InputError lists every problem.

    `commands` are those that can run as a job, each with the options it takes; `options` are the ones asked for. Folders of
    `shared` are mounted by every node, so that paths in them are left alone.
    """
    problems: list[str] = []
    known = dict(commands) if commands is not None else {command: options}
    if command not in known:
        problems.append(f"{command}: cannot run as a job; these can: {', '.join(sorted(known))}")
    else:
        problems += [f"{command} has no option {option}" for option in options if option not in known[command]]
    loaded: Config | None = None
    try:
        loaded = load_config(config, overrides).config
        if command == "sweep":
            plan_sweep(loaded)
    except ConfigError as error:
        problems.append(str(error))
    target: Target | None = None
    try:
        target = reach(address, insecure=insecure, same_versions=True)
    except InputError as error:
        problems += str(error).split("\n")
    base = Path(os.path.abspath(working_dir.expanduser()))
    parcel = Parcel({}, {})
    if not base.is_dir():
        problems.append(f"working directory {working_dir}: no such folder; give one with --working-dir")
    else:
        patterns = [*EXCLUDES, "/runs", *exclude]
        if loaded and "://" not in loaded.storage and _is_inside(storage := base / Path(loaded.storage).expanduser(), base):
            patterns.append("/" + os.path.relpath(storage, base))
        with _collected(problems):
            parcel.files |= _travelling(base, patterns)
        if loaded:
            places = _Places(base, loaded, _is_here(target, address), list(shared))
            parcel.config = places.sent()
            parcel.files |= places.files
            problems += places.problems
        with _collected(problems):
            _check_size(base, parcel)
    if problems or loaded is None or target is None:
        count = f"{len(problems)} problem" + "s" * (len(problems) > 1)
        raise InputError(f"nothing was submitted: {count}\n  " + "\n  ".join(text.replace("\n", "\n  ") for text in problems))
    if "raydist/__init__.py" not in parcel.files:
        own = _travelling(Path(raydist.__file__).parent, EXCLUDES)
        parcel.files |= {f"raydist/{name}": path for name, path in own.items()}
    return Job(target, command, list(options), loaded, parcel)


def _is_here(target: Target | None, address: str | None) -> bool | None:
    """Whether the cluster is on this machine; None where that cannot be told, because it did not let us in."""
    if target:
        return target.is_here
    with contextlib.suppress(InputError):
        return None if _is_loopback(dashboard_url(address)) else False
    return None


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems.append(str(error))


def _is_inside(path: Path, folder: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(folder)


def _travelling(base: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """The files of the working directory that are not excluded. Folders that are links are not entered."""
    files: dict[str, Path] = {}

    def enter(folder: Path, rules: list[Callable[[Path], bool]]) -> None:
        rules = rules + get_excludes_from_ignore_files(folder, include_gitignore=True, logger=_QUIET)
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if any(rule(path) for rule in rules):
                continue
            if entry.is_dir(follow_symlinks=False):
                enter(path, rules)
            elif entry.is_file():
                files[path.relative_to(base).as_posix()] = path
                if len(files) > MAX_FILES:
                    raise InputError(
                        f"working directory {base} has more than {MAX_FILES:,} files; give a smaller one with --working-dir, "
                        f"or leave some out with --exclude or a .rayignore"
                    )

    try:
        enter(base, [_get_excludes(base, list(patterns))])
    except OSError as error:
        raise InputError(f"working directory {base} cannot be read ({error}); --exclude what is not yours") from None
    return files


def _check_size(base: Path, parcel: Parcel) -> None:
    sizes = sorted(((path.stat().st_size, name) for name, path in parcel.files.items()), reverse=True)
    total = sum(size for size, _ in sizes)
    if total > MAX_BYTES:
        largest = ", ".join(f"{name} ({_mib(size)})" for size, name in sizes[:5])
        raise InputError(
            f"working directory {base} has {_mib(total)} to send, and {_mib(MAX_BYTES)} is the most; the largest files: "
            f"{largest}; leave some out with --exclude PATTERN or a .rayignore, or put data where all nodes see it (--shared)"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size < 1 << 30 else f"{size / 2**30:,.1f} GiB"


class _Places:
    """Goes through the strings of a config: which are paths, which of them travel, which the cluster cannot see.

    Relative paths start at the working directory. A path inside it travels; elsewhere it is good for a cluster on this
    machine alone, or where it is said to be shared. What is no path for certain (a hub's name) counts as one if it is there.
    """

    def __init__(self, base: Path, config: Config, is_here: bool | None, shared: list[str]) -> None:
        self.base, self.is_here = base, is_here  # None: not known, because the cluster did not answer
        self.shared = [Path(os.path.normpath(folder)) for folder in shared]
        self.config = config
        self.root = base / Path(config.data.root).expanduser()
        self.files: dict[str, Path] = {}
        self.problems: list[str] = []

    def sent(self) -> dict[str, Any]:
        """The config as the job will read it, with paths that hold there."""
        plain = self._visit(self.config.model_dump(mode="json"), ())
        plain["storage"] = self._storage(self.config.storage)
        plain["data"]["root"] = self._moved_root(self.config.data.root)
        plain["cluster"]["address"] = None  # the job is told its cluster by RAY_ADDRESS
        plain["track"]["mlflow"] = self._tracking(self.config.track.mlflow)
        return plain

    def _visit(self, value: Any, key: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {name: self._visit(inner, (*key, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._visit(inner, key) for inner in value]
        if not isinstance(value, str) or key in (("name",), ("storage",), ("data", "root"), ("cluster", "address")):
            return value
        if key[0] == "track":  # names and addresses
            return value
        if key[-1] == "files":
            return value if value.startswith("sample:") else self._file(value, key)
        return self._maybe_path(value, key)

    def _file(self, pattern: str, key: tuple[str, ...]) -> str:
        """A data file or glob: the reader's own expansion says what is there. A corpus may be a folder."""
        if "://" in pattern:
            place = pattern
        else:
            place = os.path.normpath(self.root / Path(pattern).expanduser())
            if self._is_shared(place):
                return place
        try:
            is_corpus = key[0] != "data" and os.path.isdir(place)
            found = expand_paths([f"{place}/**"] if is_corpus else [place])
        except InputError as error:
            self.problems.append(f"{'.'.join(key)}: {error}")
            return pattern
        if _is_inside(Path(place), self.base):
            self._take(map(Path, found))
            return os.path.relpath(place, self.root)
        return self._outside(place, key)

    def _maybe_path(self, text: str, key: tuple[str, ...]) -> str:
        is_explicit = text.startswith(("/", "~", "./", "../"))
        is_model = key == ("model", "name") or key[-1] in ("model", "encoder")
        if not text or "\n" in text or "://" in text or not (is_explicit or is_model or "/" in text or Path(text).suffix):
            return text
        place = os.path.normpath(self.base / Path(text).expanduser())
        if is_explicit and self._is_shared(place):
            return place
        for start in (self.base, self.root):
            path = Path(os.path.normpath(start / Path(text).expanduser()))
            if not path.exists():
                continue
            if not _is_inside(path, self.base):
                return self._outside(str(path), key)
            self._take([path] if path.is_file() else (inner for inner in path.rglob("*") if inner.is_file()))
            return os.path.relpath(path, start)
        if is_explicit:
            self.problems.append(f"{'.'.join(key)}: nothing at {text}; check the path")
        return text

    def _take(self, paths: Iterable[Path]) -> None:
        for path in paths:
            inside = Path(os.path.normpath(path))
            self.files[inside.relative_to(self.base).as_posix()] = inside

    def _outside(self, place: str, key: tuple[str, ...]) -> str:
        if self.is_here is False:
            self.problems.append(
                f"{'.'.join(key)}: {place} is on this machine only, the cluster is elsewhere; move it into the working "
                f"directory {self.base} (which travels), or say --shared FOLDER if every node mounts that folder"
            )
        return place

    def _is_shared(self, place: str) -> bool:
        return any(Path(place).is_relative_to(folder) for folder in self.shared)

    def _storage(self, storage: str) -> str:
        if "://" in storage and not storage.startswith("file://"):
            return storage
        if place := self._lasting(storage.removeprefix("file://")):
            return place
        self.problems.append(
            f"storage: {storage} is a folder of one machine, and all nodes of the cluster must see the run's files; give a URI "
            f"(storage=s3://BUCKET/runs), or a folder that every node mounts (storage=/mnt/x/runs --shared /mnt/x)"
        )
        return storage

    def _tracking(self, uri: str | None) -> str | None:
        start = "sqlite:///"
        if not uri or not uri.startswith(start):
            return uri
        if place := self._lasting(uri.removeprefix(start)):
            return start + place
        self.problems.append(
            f"track.mlflow: {uri} is a file of one machine, and training may run on any node; give a server "
            f"(http://HOST:5000), or a file in a folder that every node mounts (with --shared FOLDER)"
        )
        return uri

    def _lasting(self, text: str) -> str | None:
        """A place that is written to, in full, since the job's own folder goes when the job ends; None if nodes see it not."""
        place = os.path.normpath(self.base / Path(text).expanduser())
        return place if self._is_shared(place) or self.is_here is not False else None

    def _moved_root(self, root: str) -> str:
        if not root or not _is_inside(self.root, self.base):
            return root and str(self.root)
        return os.path.relpath(self.root, self.base)


# --- sending and following -------------------------------------------------------------------------------------------


def send(job: Job) -> str:
    """Submit; the job's id."""
    files, target = len(job.parcel.files), job.target
    where = "this machine" if target.is_here else f"{target.nodes} node" + "s" * (target.nodes > 1)
    token = "token accepted" if target.is_authenticated else "no token asked for"
    say(f"preflight passed: {files:,} files, {_mib(job.parcel.size)} to send to {target.url} ({where}, {token})")
    name = job.config.name.replace("/", "-")
    with tempfile.TemporaryDirectory() as folder, _hushed_ray():
        archive = Path(folder) / "parcel.zip"
        job.parcel.write(archive, name)
        if archive.stat().st_size >= MAX_BYTES:
            raise InputError(
                f"the parcel takes {_mib(archive.stat().st_size)}, and {_mib(MAX_BYTES)} is the most: --exclude some"
            )
        words = ["python", "-m", "raydist.cli", job.command, f"{SENT_CONFIGS}/{name}.yaml", *job.arguments]
        request = {
            "entrypoint": shlex.join(words),
            "submission_id": f"{job.command}-{name}-{secrets.token_hex(4)}",
            "runtime_env": {"working_dir": str(archive)},
            "metadata": {"raydist": f"{job.command} {job.config.name}"},
        }
        for attempt in range(10):
            try:
                return target.client().submit_job(**request)
            except (RuntimeError, requests.RequestException) as error:
                if attempt < 9 and "No available agent" in str(error):  # a head that has just started
                    time.sleep(3)
                    continue
                why = str(error).strip().splitlines()[0][:300]
                raise InputError(f"the cluster at {target.url} did not take the job ({why}); see its dashboard's log") from None
    raise AssertionError("the last attempt returns or raises")


def follow(target: Target, name: str) -> int:
    """Show a job's log as it grows, to its end; the exit status that the job ended with. Ctrl-C leaves the job alone."""
    client = target.client()
    shown = _Shown()
    try:
        while True:
            with contextlib.suppress(*_BROKEN), _hushed_ray():
                asyncio.run(_tail(client, name, shown))  # after a broken connection it starts over: what was shown is skipped
            with contextlib.suppress(*_BROKEN):  # the last lines, or all, where a proxy lets no web socket through
                shown.add(client.get_job_logs(name), 0)
            details = _until_told(lambda: client.get_job_info(name))
            if details.status.is_terminal():
                break
            time.sleep(1)
    except KeyboardInterrupt:
        at = f" --address {target.url}" if target.url != DASHBOARD else ""
        say(f"\ndetached; the job goes on. To come back: raydist jobs logs {name}{at}; to end it: raydist jobs stop {name}{at}")
        return 130
    return _ending(details, shown)


@dataclass
class _Shown:
    """How much of a job's log was shown. Ray's own lines about the job are left out."""

    characters: int = 0
    has_begun: bool = False

    def add(self, text: str, start: int) -> None:
        """Print what is new of a text that starts so far into the log."""
        for line in text[max(0, self.characters - start) :].splitlines(keepends=True):
            if not _RAYS_LINE.match(line):
                print(line, end="", flush=True)
                self.has_begun = True
        self.characters = max(self.characters, start + len(text))


async def _tail(client: JobSubmissionClient, name: str, shown: _Shown) -> None:
    start = 0
    try:
        async for text in client.tail_job_logs(name):
            shown.add(text, start)
            start += len(text)
    finally:
        task = asyncio.current_task()
        if task and task.cancelling():  # by Ctrl-C, which a broken connection must not hide
            raise KeyboardInterrupt


def _until_told(ask: Callable[[], JobDetails], patience_s: float = 60.0) -> JobDetails:
    """Ask again while the network fails, for a minute: the head may be restarting. Then it has forgotten its jobs."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except _BROKEN as error:
            if "does not exist" in str(error):
                raise RuntimeError(
                    "the cluster answers, and does not know the job: its head was restarted, and the job went with it; submit "
                    "the same command again: what is done stays done"
                ) from None
            if time.monotonic() > end:
                why = str(error).splitlines()[0][:200]
                raise RuntimeError(
                    f"the cluster stopped answering ({why}); if its head was lost, submit the same command again when it is "
                    f"back: what is done stays done"
                ) from None
            time.sleep(2)


def _ending(details: JobDetails, shown: _Shown) -> int:
    if details.status == JobStatus.SUCCEEDED:
        return 0
    if details.status == JobStatus.STOPPED:
        say(f"{details.submission_id} was stopped; submitted again, the same command goes on where it stopped")
        return 1
    if not shown.has_begun or details.driver_exit_code is None:
        say(f"{details.submission_id} failed: {details.message or 'Ray gives no reason'}")
    else:
        say(f"{details.submission_id} failed with exit status {details.driver_exit_code}")
    return details.driver_exit_code if details.driver_exit_code in (2, 130) else 1


@contextlib.contextmanager
def _hushed_ray() -> Iterator[None]:
    """Ray's client tells of every upload and connection; ours tells what matters."""
    loggers = [
        logging.getLogger(name) for name in ("ray", "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


# --- jobs that are there ---------------------------------------------------------------------------------------------


def list_jobs(target: Target) -> list[JobDetails]:
    """The jobs that were submitted to a cluster, the newest first."""
    jobs = [job for job in target.client().list_jobs() if job.submission_id]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def describe(job: JobDetails) -> str:
    """One line: id, status, age, what it does."""
    took = ((job.end_time or time.time() * 1000) - (job.start_time or 0)) / 1000
    what = (job.metadata or {}).get("raydist") or job.entrypoint
    return f"{job.submission_id:36}  {job.status.value:9}  {duration(took):>11}  {what}"


def pick(target: Target, name: str | None, *, running: bool = False) -> str:
    """The job with this id; without one the newest, or the only one that runs."""
    jobs = [job for job in list_jobs(target) if not running or name or not job.status.is_terminal()]
    found = [job for job in jobs if job.submission_id == name] if name else jobs
    if found and (name or not running or len(found) == 1):
        return str(found[0].submission_id)
    if not jobs:
        raise InputError(f"no job {'runs' if running and not name else 'was submitted'} at {target.url}")
    what = f"no job {name}" if name else f"{len(jobs)} jobs run: say which"
    raise InputError(f"{what}; there are\n  " + "\n  ".join(map(describe, jobs[:10])))


def stop(target: Target, name: str) -> bool:
    """End a job, gently first; False: it had ended already."""
    return target.client().stop_job(name)
