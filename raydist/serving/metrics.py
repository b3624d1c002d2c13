"""What a service counts, for Prometheus. docs/serving.md has the same table; a test compares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
QUESTIONS = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The numbers of one service."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for each, which nobody asks for
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("raydist_requests_total", "Requests by path and status", ["path", "status"], registry=registry)
        self.request_seconds = Histogram(
            "raydist_request_seconds",
            "Time from a request's head to its response",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self.in_progress = Gauge("raydist_requests_in_progress", "Questions that are worked on or wait", registry=registry)
        self.answers = Counter("raydist_answers_total", "Replies, given or withheld", ["answered"], registry=registry)
        self.step_seconds = Histogram(
            "raydist_step_seconds",
            "Time of a step, for all questions of its batch",
            ["step"],
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_questions = Histogram(
            "raydist_batch_questions", "Questions that shared a call of the models", buckets=QUESTIONS, registry=registry
        )
        self.library_version = Gauge("raydist_library_version", "Version of the index in the last reply", registry=registry)
        self.library_passages = Gauge("raydist_library_passages", "Passages of the index", registry=registry)
        self.refreshes = Counter(
            "raydist_refreshes_total", "New versions that went live, or could not be opened", ["outcome"], registry=registry
        )
        self.connections_cut = Counter(
            "raydist_connections_cut_total", "Connections cut off: too slow, or too many", ["reason"], registry=registry
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def of_reply(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Count a reply, and pass it on."""
        self.answers.labels(str(bool(reply["answered"])).lower()).inc()
        return self.of_search(reply)

    def of_search(self, found: dict[str, Any]) -> dict[str, Any]:
        seconds: Mapping[str, float] = found["seconds"]
        for step, value in seconds.items():
            self.step_seconds.labels(step).observe(value)
        self.library_version.set(found["library"]["version"])
        return found

    def of_library(self, described: dict[str, Any]) -> dict[str, Any]:
        self.library_version.set(described["version"])
        self.library_passages.set(described["passages"])
        return described
