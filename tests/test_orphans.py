"""What a killed command leaves is ended, and nothing of others."""

import subprocess
import sys
import time

SLEEP = "import time; time.sleep(600)"
COMMAND = """
import os, subprocess, sys, time
from raydist import orphans
subprocess.Popen([sys.executable, "-P", orphans.__file__, str(os.getpid())])
print("ready", flush=True)
time.sleep(600)
"""


def test_what_names_the_session_of_a_killed_command_is_ended():
    with subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        session = f"/tmp/ray/session_2026-11-19_20-37-00_052462_{command.pid}"
        options = f"--session-dir={session}/logs", f"--session-dir={session}0", session
        ours, *others = (subprocess.Popen([sys.executable, "-c", SLEEP, option]) for option in options)
        try:
            time.sleep(1.5)
            assert ours.poll() is None, "the command lives"
            command.kill()
            assert ours.wait(20) != 0
            assert [other.poll() for other in others] == [None, None]
        finally:
            for process in (ours, *others):
                process.kill()
                process.wait()
