"""Where raydist runs. This module alone must be readable by any Python 3."""

import sys

OLDEST = (3, 11)


def problem(version=sys.version_info, platform=sys.platform):  # type: ignore[no-untyped-def]
    """What keeps raydist from running here; None if nothing does."""
    if tuple(version[:2]) < OLDEST:
        seen = ".".join(map(str, version[:2]))
        return f"raydist needs Python {OLDEST[0]}.{OLDEST[1]} or later, and this is {seen}: make an environment with one"
    if platform == "win32":
        return "raydist runs on Linux and macOS: on Windows, install it in WSL 2 (wsl --install), which is a Linux"
    return None


def check():  # type: ignore[no-untyped-def]
    """Stop where raydist cannot run: a command with a line, an import with an error."""
    found = problem()
    if found is None:
        return
    if sys.argv and sys.argv[0].rpartition("/")[2].rpartition("\\")[2].partition(".")[0] == "raydist":
        raise SystemExit(found)
    raise ImportError(found)
