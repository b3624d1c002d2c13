"""Jobs on a Ray cluster: submit one after preflight, follow its log to its exit status, list and stop jobs.

job = prepare("train", "mine.yaml", address="http://127.0.0.1:8265")  # raydist.submission.preflight
jobs = Jobs(job.target)
status = jobs.follow(jobs.send(job))
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import requests
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from raydist.errors import InputError
from raydist.exits import DONE, FAILED, INTERRUPTED, WRONG_INPUT
from raydist.submission.parcel import MAX_BYTES, config_path, mebibytes
from raydist.submission.preflight import Job
from raydist.submission.target import DASHBOARD, Target
from raydist.terminal import duration, say

ATTEMPTS, PAUSE_S = 10, 3.0  # to submit to a head that has just started
PATIENCE_S = 60.0  # while a cluster does not answer
_RAYS_LINE = re.compile(r"Running entrypoint for job |\S+ \S+\s+INFO job_manager\.py:|\[.* logging\.cc:\d+: ")
_BROKEN = (RuntimeError, OSError, requests.RequestException, aiohttp.ClientError)  # connection errors


class Jobs:
    """The jobs of a cluster."""

    def __init__(self, target: Target, client: JobSubmissionClient | None = None) -> None:
        self.target = target
        self.client = client or open_client(target)

    # --- sending and following ---------------------------------------------------------------------------------------

    def send(self, job: Job) -> str:
        """Submit a job and return its id."""
        self._report_preflight(job)
        name = job.config.name.replace("/", "-")
        with tempfile.TemporaryDirectory() as folder, _hushed_ray():
            archive = Path(folder) / "parcel.zip"
            job.parcel.write(archive, name)
            if archive.stat().st_size >= MAX_BYTES:
                size, most = mebibytes(archive.stat().st_size), mebibytes(MAX_BYTES)
                raise InputError(f"the parcel takes {size}, and the limit is {most}: --exclude some files")
            words = ["python", "-m", "raydist.cli", job.command, config_path(name), *job.arguments]
            request = {
                "entrypoint": shlex.join(words),
                "submission_id": f"{job.command}-{name}-{secrets.token_hex(4)}",
                "runtime_env": {"working_dir": str(archive)},
                "metadata": {"raydist": f"{job.command} {job.config.name}"},
            }
            return self._submit(request)

    def _report_preflight(self, job: Job) -> None:
        target, files = self.target, len(job.parcel.files)
        place = "this machine" if target.is_here else f"{target.nodes} node" + "s" * (target.nodes > 1)
        token = "token accepted" if target.is_authenticated else "no token asked for"
        size = mebibytes(job.parcel.size)
        say(f"preflight passed: {files:,} files, {size} to send to {target.url} ({place}, {token})")

    def _submit(self, request: dict) -> str:
        for attempt in range(ATTEMPTS):
            try:
                return self.client.submit_job(**request)
            except (RuntimeError, requests.RequestException) as error:
                if attempt < ATTEMPTS - 1 and "No available agent" in str(error):  # a head that has just started
                    time.sleep(PAUSE_S)
                    continue
                why = str(error).strip().splitlines()[0][:300]
                raise InputError(
                    f"the cluster at {self.target.url} did not take the job ({why}); see its dashboard's log"
                ) from None
        raise AssertionError("the last attempt returns or raises")

    def follow(self, name: str) -> int:
        """Show a job's log as it grows, and return the job's exit status. Ctrl-C leaves the job running."""
        log = ShownLog()
        try:
            details = self._follow_to_end(name, log)
        except KeyboardInterrupt:
            at = f" --address {self.target.url}" if self.target.url != DASHBOARD else ""
            say(
                f"\ndetached; the job goes on. To come back: raydist jobs logs {name}{at}; "
                f"to end it: raydist jobs stop {name}{at}"
            )
            return INTERRUPTED
        return _ending(details, log)

    def _follow_to_end(self, name: str, log: ShownLog) -> JobDetails:
        while True:
            with contextlib.suppress(*_BROKEN), _hushed_ray():
                asyncio.run(_tail(self.client, name, log))  # again from the start: lines already shown are skipped
            with contextlib.suppress(*_BROKEN):  # the last lines, or all if a proxy blocks web sockets
                log.add(self.client.get_job_logs(name), 0)
            details = _ask_patiently(lambda: self.client.get_job_info(name))
            if details.status.is_terminal():
                return details
            time.sleep(1)

    # --- existing jobs -----------------------------------------------------------------------------------------------

    def newest_first(self) -> list[JobDetails]:
        """The jobs submitted to the cluster, newest first."""
        jobs = [job for job in self.client.list_jobs() if job.submission_id]
        return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)

    def pick(self, name: str | None, *, running: bool = False) -> str:
        """The job with this id; without an id the newest, or the only running one."""
        jobs = [job for job in self.newest_first() if not running or name or not job.status.is_terminal()]
        matches = [job for job in jobs if job.submission_id == name] if name else jobs
        if matches and (name or not running or len(matches) == 1):
            return str(matches[0].submission_id)
        if not jobs:
            raise InputError(f"no job {'runs' if running and not name else 'was submitted'} at {self.target.url}")
        what = f"no job {name}" if name else f"{len(jobs)} jobs run: say which"
        raise InputError(f"{what}; there are\n  " + "\n  ".join(map(describe, jobs[:10])))

    def stop(self, name: str) -> bool:
        """End a job, gently first; False if it had ended already."""
        return self.client.stop_job(name)


def open_client(target: Target) -> JobSubmissionClient:
    """Ray's client of a cluster's dashboard."""
    kept = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if name in os.environ}
    try:  # Ray lets both override the address in the call
        return JobSubmissionClient(target.url, headers=dict(target.headers))
    finally:
        os.environ |= kept


def describe(job: JobDetails) -> str:
    """One line: id, status, duration, command."""
    took = ((job.end_time or time.time() * 1000) - (job.start_time or 0)) / 1000
    what = (job.metadata or {}).get("raydist") or job.entrypoint
    return f"{job.submission_id:36}  {job.status.value:9}  {duration(took):>11}  {what}"


# --- a job's log and its end -----------------------------------------------------------------------------------------


@dataclass
class ShownLog:
    """The part of a job's log shown so far. Ray's own lines about the job are left out."""

    characters: int = 0
    has_begun: bool = False

    def add(self, text: str, start: int) -> None:
        """Print the new part of a text that begins at offset `start` of the log."""
        for line in text[max(0, self.characters - start) :].splitlines(keepends=True):
            if not _RAYS_LINE.match(line):
                print(line, end="", flush=True)
                self.has_begun = True
        self.characters = max(self.characters, start + len(text))


async def _tail(client: JobSubmissionClient, name: str, log: ShownLog) -> None:
    start = 0
    try:
        async for text in client.tail_job_logs(name):
            log.add(text, start)
            start += len(text)
    finally:
        task = asyncio.current_task()
        if task and task.cancelling():  # Ctrl-C, which a broken connection must not hide
            raise KeyboardInterrupt


def _ask_patiently(ask: Callable[[], JobDetails]) -> JobDetails:
    """Retry while the network fails: the head may be restarting. A restarted head has lost its jobs."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except _BROKEN as error:
            if "does not exist" in str(error):
                raise RuntimeError(
                    "the cluster answers, and does not know the job: its head was restarted, and the job went with it; submit "
                    "the same command again: finished work is kept"
                ) from None
            if time.monotonic() > end:
                why = str(error).splitlines()[0][:200]
                raise RuntimeError(
                    f"the cluster stopped answering ({why}); if its head was lost, submit the same command again when it is "
                    f"back: finished work is kept"
                ) from None
            time.sleep(2)


def _ending(details: JobDetails, log: ShownLog) -> int:
    """Report how a job ended and return its exit status."""
    if details.status == JobStatus.SUCCEEDED:
        return DONE
    if details.status == JobStatus.STOPPED:
        say(f"{details.submission_id} was stopped; submitted again, the same command goes on where it stopped")
        return FAILED
    if not log.has_begun or details.driver_exit_code is None:
        say(f"{details.submission_id} failed: {details.message or 'Ray gives no reason'}")
    else:
        say(f"{details.submission_id} failed with exit status {details.driver_exit_code}")
    return details.driver_exit_code if details.driver_exit_code in (WRONG_INPUT, INTERRUPTED) else FAILED


@contextlib.contextmanager
def _hushed_ray() -> Iterator[None]:
    """Silence Ray's client, which logs every upload and connection."""
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
