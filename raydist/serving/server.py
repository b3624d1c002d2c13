"""The HTTP server of this process: clients that are slow or only hold connections do not keep it from others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.limits import Tokens, check_exposure
from raydist.serving.metrics import Metrics

HEAD_BYTES = 64 << 10  # of a request line and headers
DISCARDED_BYTES = 64 << 20  # of a body that was refused: its sender should see why
KEEP_ALIVE = 30  # seconds without a request


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is cut off when the head of a request takes too long or grows too large; or, with too many
    connections, when it has waited longest for a request.
    """

    settings: ServingConfig
    metrics: Metrics
    waiting: dict[GuardedProtocol, None]  # connections without a request, those that wait longest first

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        self._wait(self.settings.slow)
        if len(self.connections) > self.settings.connections:
            next(iter(self.waiting))._cut_off("many")

    def data_received(self, data: bytes) -> None:
        if self in self.waiting:
            if not self._received:  # the head of a request begins, and has so much time
                self._wait(self.settings.slow)
            self._received += len(data)
        super().data_received(data)
        if not self._is_idle:
            self._stop_waiting()
        elif self._received > (DISCARDED_BYTES if self._is_discarding else HEAD_BYTES):
            self._cut_off("large")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle and not self.transport.is_closing():
            self._wait(KEEP_ALIVE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_discarding(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self.waiting[self] = None
        self._received = 0
        self._timer = self.loop.call_later(seconds, self._cut_off, "slow")

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._timer:
            self._timer.cancel()

    def _cut_off(self, reason: str) -> None:
        self._stop_waiting()
        if self._received or reason != "slow":  # an idle connection that ends is nothing to count
            self.metrics.connections_cut.labels(reason).inc()
        self.transport.abort()


class Server:
    """A port of this machine, for an app."""

    def __init__(self, settings: ServingConfig, metrics: Metrics) -> None:
        check_exposure(settings, Tokens.of(settings))
        self.socket = _bound(settings.host, settings.port)
        self.address = _shown(settings.host, self.socket.getsockname()[1])
        self._protocol = type("Guarded", (GuardedProtocol,), {"settings": settings, "metrics": metrics, "waiting": {}})
        self._drain = int(settings.drain)
        self._running: uvicorn.Server | None = None

    def run(self, app: FastAPI) -> None:
        """Serve until SIGINT or SIGTERM; accepted requests are answered first."""
        config = uvicorn.Config(
            app,
            http=self._protocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client could name any address
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=self._drain,
        )
        self._running = uvicorn.Server(config)
        with contextlib.suppress(KeyboardInterrupt):
            self._running.run(sockets=[self.socket])

    def end(self) -> None:
        """End `run`, from another thread."""
        assert self._running is not None
        self._running.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): take another (--port, --host)"
        ) from None
    return bound


def _shown(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
