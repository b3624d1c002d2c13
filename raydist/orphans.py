"""Ends what a killed command leaves of its local Ray: workers that were starting would look for it for half a minute.

A process of its own, which the command starts before Ray: python -P orphans.py COMMAND'S_PROCESS
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator

import psutil

LOOK_SECONDS = 1.0
LOOKS = 8  # after the command's death: what is left may be starting something


def main(command: int) -> None:
    while os.getppid() == command:
        time.sleep(LOOK_SECONDS)
    for _ in range(LOOKS):
        for process in of_session(command):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(LOOK_SECONDS)


def of_session(command: int) -> Iterator[psutil.Process]:
    """The processes that an option on their command line puts into a Ray of this command, whose process the session names."""
    session = re.compile(rf"--.*\bsession_[\d-]+_[\d-]+_\d+_{command}(/|$)")
    for process in psutil.process_iter(["cmdline"]):
        if any(map(session.match, process.info["cmdline"] or ())):
            yield process


if __name__ == "__main__":
    main(int(sys.argv[1]))
