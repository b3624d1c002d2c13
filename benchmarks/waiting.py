"""How threads wait for their next piece of work, on both sides of a comparison alike; it is set before torch starts them.

--wait-policy passive    they sleep: threads that spin cost much on a busy machine, and workers of a cluster do so, too
--wait-policy default    as the libraries come, which is what a peer's user has: fair on an idle machine
"""

from __future__ import annotations

import argparse
import os

POLICIES = ("passive", "default")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wait-policy", choices=POLICIES, default="passive", help="of threads (benchmarks/waiting.py)")


def wait_policy() -> dict[str, str]:
    """What the command line says, for the environment; what that says already stays."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_option(parser)
    is_passive = parser.parse_known_args()[0].wait_policy == "passive"
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")} if is_passive else {}
