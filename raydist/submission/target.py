"""The target cluster of a job, as described by its dashboard over HTTP, without Ray."""

from __future__ import annotations

import os
import platform
import re
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from typing import Any
from urllib.parse import urlsplit

import requests

from raydist.doctor import find_token
from raydist.errors import InputError

TIMEOUT_S = 10.0
NO_PORT = -1  # of an agent whose port was taken
DASHBOARD = "http://127.0.0.1:8265"
MODE_PATH = "/api/authentication_mode"


@dataclass(frozen=True)
class Target:
    """A reachable cluster, and how to address it."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    nodes: int
    is_here: bool  # every node runs on this machine and sees its files
    is_authenticated: bool


def dashboard_url(address: str | None) -> str:
    """The URL of a cluster's dashboard: from the address, else the environment, else on this machine."""
    place = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not place or place in ("auto", "local"):
        return DASHBOARD
    url = place if "://" in place else f"http://{place}"
    if not url.startswith(("http://", "https://")) or url.endswith(":6379"):
        raise InputError(
            f"address {place} is not a dashboard's: jobs are submitted over HTTP, to port 8265 as a rule; "
            f"give --address http://HOST:8265"
        )
    return url.rstrip("/")


def reach(address: str | None, *, insecure: bool = False, same_versions: bool = False) -> Target:
    """Check over HTTP whether a cluster can be used; an InputError lists all obstacles."""
    dashboard = Dashboard(dashboard_url(address))
    problems = list(dashboard.version_problems() if same_versions else ())
    nodes = [] if problems else dashboard.nodes()
    if same_versions and any(node.get("isHeadNode") and node.get("dashboardAgentListenPort") == NO_PORT for node in nodes):
        problems.append(
            f"the cluster at {dashboard.url} takes no jobs: the agent of its head has no port. Most likely another Ray on that "
            f"machine holds it; start the head with a port of its own, as in ray start --head "
            f"--dashboard-agent-listen-port=52366"
        )
    is_here = all(map(_runs_here, nodes)) if nodes else is_loopback(dashboard.url)
    if not dashboard.is_authenticated and not is_here and not insecure:
        problems.append(
            f"the cluster at {dashboard.url} asks for no token: whoever reaches it can run code there and read what you send; "
            f"start it with RAY_AUTH_MODE=token, or add --insecure if only you can reach it"
        )
    if problems:
        raise InputError("\n".join(problems))
    return Target(dashboard.url, dashboard.headers, len(nodes), is_here, dashboard.is_authenticated)


class Dashboard:
    """The HTTP side of a cluster. It receives our token only if it requires one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.headers: dict[str, str] = {}
        self.token_source = ""
        self.is_authenticated = self.ask(MODE_PATH).get("authentication_mode", "disabled") != "disabled"
        if self.is_authenticated:
            token, self.token_source = find_token()
            if not token:
                raise InputError(
                    f"the cluster at {url} requires a token, and none is set here; set RAY_AUTH_TOKEN, name a file in "
                    f"RAY_AUTH_TOKEN_PATH, or put it in ~/.ray/auth_token (on the head node, `ray get-auth-token` shows it)"
                )
            self.headers = {"Authorization": f"Bearer {token}"}
        self.ray_version = self.ask("/api/version").get("ray_version", "unknown")

    def ask(self, path: str) -> dict[str, Any]:
        """The response to a GET request; an InputError explains a failure."""
        try:
            answer = requests.get(self.url + path, headers=self.headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise InputError(
                f"no Ray dashboard answers at {self.url} ({_reason(error)}); check --address and RAY_ADDRESS, and that the "
                f"cluster is up and its port 8265 is forwarded to here (`ray dashboard cluster.yaml`, or kubectl port-forward)"
            ) from None
        if answer.status_code in (401, 403):
            raise InputError(
                f"the cluster at {self.url} refuses the token from {self.token_source or 'here'} (HTTP {answer.status_code}); "
                f"take the one that the cluster was started with (on the head node, `ray get-auth-token` shows it)"
            )
        if path == MODE_PATH and answer.status_code == 404:
            return {}  # this Ray predates tokens
        try:
            answer.raise_for_status()
            value = answer.json()
            return value if isinstance(value, dict) else {}
        except (requests.RequestException, ValueError):
            raise InputError(
                f"what answers at {self.url} is not a Ray dashboard (HTTP {answer.status_code} for {path}); check --address"
            ) from None

    def version_problems(self) -> Iterator[str]:
        """Differences from the local Ray and Python. A different Ray may answer differently, so nothing more is asked of it."""
        ours = installed_version("ray")
        if _minor(self.ray_version) != _minor(ours):
            yield (
                f"the cluster at {self.url} runs Ray {self.ray_version}, and this raydist works with Ray {ours}; "
                f"start the cluster with ray=={ours}"
            )
            return
        data = self.ask("/api/v0/cluster_metadata").get("data", {})
        python = data.get("pythonVersion") or data.get("python_version", "unknown")
        if _minor(python) != _minor(platform.python_version()):
            yield (
                f"the cluster at {self.url} runs Python {python}, here it is {platform.python_version()}; "
                f"use Python {_minor(python)} here, or start the cluster with {_minor(platform.python_version())}"
            )

    def nodes(self) -> list[dict[str, Any]]:
        """The live nodes; a cluster that has just started gets a moment to find them."""
        for attempt in range(6):
            time.sleep(min(attempt, 1) * 2.0)
            summary = self.ask("/nodes?view=summary").get("data", {}).get("summary", [])
            raylets = [node.get("raylet", {}) for node in summary]
            if alive := [raylet for raylet in raylets if raylet.get("state") == "ALIVE"]:
                return alive
        raise InputError(f"the cluster at {self.url} has no live node; wait until it is up, or see its logs")


def _reason(error: requests.RequestException) -> str:
    number = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(error))
    return number[1] if number else "no answer in time" if isinstance(error, requests.Timeout) else type(error).__name__


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _runs_here(node: Mapping[str, Any]) -> bool:
    """Whether a node is on this machine. Its address proves nothing (a tunnel's is local, too); its socket file does."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(node["rayletSocketName"]).st_mode)
    except (KeyError, OSError, TypeError, ValueError):
        return False
    return is_socket and node.get("nodeManagerHostname") == socket.gethostname()
