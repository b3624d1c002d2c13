"""`raydist jobs`: jobs on a Ray cluster."""

from __future__ import annotations

import typer

from raydist.cli_options import Address, Insecure, JobId
from raydist.terminal import say

jobs_app = typer.Typer(help="Jobs on a Ray cluster: list them, follow their logs, stop them.", no_args_is_help=True)


@jobs_app.command("list")
def jobs_list(address: Address = None, insecure: Insecure = False) -> None:
    """The jobs of a cluster, the newest first: id, status, time taken, command.

    Example: raydist jobs list --address http://127.0.0.1:8265
    """
    from raydist.cluster.submit import Jobs, describe
    from raydist.submission.target import reach

    jobs = Jobs(reach(address, insecure=insecure)).newest_first()
    say("\n".join(map(describe, jobs)) or "no job was submitted yet")


@jobs_app.command("logs")
def jobs_logs(job: JobId = None, address: Address = None, insecure: Insecure = False) -> None:
    """Follow a job's log to its end, the newest job's if none is named; the job's exit status is this command's.

    Example: raydist jobs logs train-quickstart-1f6a09c2
    """
    from raydist.cluster.submit import Jobs
    from raydist.submission.target import reach

    jobs = Jobs(reach(address, insecure=insecure))
    raise SystemExit(jobs.follow(jobs.pick(job)))


@jobs_app.command("stop")
def jobs_stop(job: JobId = None, address: Address = None, insecure: Insecure = False) -> None:
    """Stop a job, the one that runs if none is named. What it has done stays: submitted again, it goes on.

    Example: raydist jobs stop train-quickstart-1f6a09c2
    """
    from raydist.cluster.submit import Jobs
    from raydist.submission.target import reach

    jobs = Jobs(reach(address, insecure=insecure))
    name = jobs.pick(job, running=True)
    say(f"{name}: {'stopping' if jobs.stop(name) else 'had ended already'}")
