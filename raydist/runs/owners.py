"""One command at a time works on a run: it holds the run's lease (RUN/run.lock), and a second one is refused by name."""

from __future__ import annotations

import _thread

from raydist.files.lease import SETTLE_SECONDS, Lease, Owner, owner_of
from raydist.files.storage import Storage
from raydist.terminal import say

LEASE = "run"


def run_lease(folder: Storage, name: str, *, wait: float = 0.0) -> Lease:
    """The lease of a run's folder. A command that loses it, because it was silent for too long, is interrupted."""

    def refusal(other: Owner) -> str:
        return (
            f"run {name!r} in {folder.path()} is in use by {other}: wait until that has ended, or give this one another name "
            f"(name=...)"
        )

    def lost() -> None:
        say(f"run {name!r}: another command took it over, because this one had shown no sign of life for a minute")
        _thread.interrupt_main()

    return Lease(folder, LEASE, refusal, wait=wait, settle=SETTLE_SECONDS, lost=lost)


def run_owner(folder: Storage) -> Owner | None:
    """The command that works on a run."""
    return owner_of(folder, LEASE)
