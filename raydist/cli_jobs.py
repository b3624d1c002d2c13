"""`raydist jobs`: jobs on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from raydist.cli_options import Address, Insecure, JobId
from raydist.terminal import say

if TYPE_CHECKING:
    from raydist.cluster.submit import Jobs

jobs_app = typer.Typer(help="Jobs on a Ray cluster: list them, follow their logs, stop them.", no_args_is_help=True)


@jobs_app.command("list")
def jobs_list(address: Address = None, insecure: Insecure = False) -> None:
    """List the jobs of a cluster, newest first: id, status, time taken, command.

    Example: raydist jobs list --address http://127.0.0.1:8265
    """
    from raydist.cluster.submit import describe

    say("\n".join(map(describe, _jobs(address, insecure).newest_first())) or "no job was submitted yet")


@jobs_app.command("logs")
def jobs_logs(job: JobId = None, address: Address = None, insecure: Insecure = False) -> None:
    """Follow a job's log to its end, by default the newest job's; its exit status becomes this command's.

    Example: raydist jobs logs train-quickstart-1f6a09c2
    """
    jobs = _jobs(address, insecure)
    raise SystemExit(jobs.follow(jobs.pick(job)))


@jobs_app.command("stop")
def jobs_stop(job: JobId = None, address: Address = None, insecure: Insecure = False) -> None:
    """Stop a job, by default the running one. Finished work is kept: submitted again, the job resumes.

    Example: raydist jobs stop train-quickstart-1f6a09c2
    """
    jobs = _jobs(address, insecure)
    name = jobs.pick(job, running=True)
    say(f"{name}: {'stopping' if jobs.stop(name) else 'had already ended'}")


def _jobs(address: str | None, insecure: bool) -> Jobs:
    """The jobs of the cluster at an address."""
    from raydist.cluster.submit import Jobs
    from raydist.submission.target import reach

    return Jobs(reach(address, insecure=insecure))
