"""Ray's workers that a test may kill: others on this machine may be somebody's run."""

import psutil
from lab import title


def own_workers(name: str) -> list[psutil.Process]:
    """Those with a name in their title, of the cluster that this process started: its raylet is a child, and they are its."""
    return [process for process in psutil.Process().children(recursive=True) if name in title(process)]
