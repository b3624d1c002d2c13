"""What stands before every endpoint: token, host, rate, size and speed of a request; its line in the log, its numbers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raydist.config.serving import ServingConfig
from raydist.serving.limits import LOOPBACK, Rates, Tokens
from raydist.serving.metrics import Metrics
from raydist.serving.responses import error, refusal
from raydist.serving.service import Misdirected, Refusal, SlowClient, TooLarge

log = logging.getLogger("raydist.serving")
access = logging.getLogger("raydist.serving.access")
HEALTH = ("/healthz", "/readyz")
PUBLIC = (*HEALTH, "/openapi.json")
SHOWN = 200  # characters of a path or a question in the log


class Guard:
    """A middleware. A refused request never reaches an endpoint."""

    def __init__(
        self, app: ASGIApp, *, settings: ServingConfig, tokens: Tokens, metrics: Metrics, public: Sequence[str] = ()
    ) -> None:
        self.app, self.settings, self.tokens, self.metrics = app, settings, tokens, metrics
        self.public = (*PUBLIC, *public)
        self.rates = Rates(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Request(self, scope, send).answer(receive)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse a client by what its request's head says."""
        path, address = scope["path"], (scope.get("client") or ("",))[0]
        if path in HEALTH:
            return
        if not self.tokens and not self._is_ours(headers.get(b"host", b"")):
            raise Misdirected("this service answers to its own name only, since it asks for no token")
        if self._is_public(path):
            self.rates.spend(address)
            return
        try:
            client = self.tokens.check(headers.get(b"authorization", b""))
        except Refusal:
            self.rates.spend(address)
            raise
        self.rates.spend(f"{client} {address}")

    def _is_ours(self, host: bytes) -> bool:
        """Whether a Host header names this machine: a page elsewhere whose name was bound to 127.0.0.1 has its own."""
        name = host.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return name in LOOPBACK or name == self.settings.host

    def _is_public(self, path: str) -> bool:
        return any(path == one or (one.endswith("/*") and path.startswith(one[:-1])) for one in self.public)


class _Request:
    """One request on its way through."""

    def __init__(self, guard: Guard, scope: Scope, send: Send) -> None:
        self.guard, self.scope, self._send = guard, scope, send
        self.status, self.begun, self.body = 0, time.perf_counter(), b""

    async def answer(self, receive: Receive) -> None:
        scope, headers = self.scope, dict(self.scope["headers"])
        try:
            self.guard.admit(scope, headers)
            self.body = await self._read(receive, headers)
            await self.guard.app(scope, self._replayed(receive), self.send)
        except Refusal as refused:
            await refusal(refused)(scope, receive, self.send)
        except Exception as fault:
            log.error("%s %s failed", scope["method"], self._path, exc_info=fault)
            if not self.status:
                await error(500, "this failed, and the log of the service says why")(scope, receive, self.send)
        finally:
            self._count()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
        await self._send(message)

    async def _read(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        """The whole body, if it is small enough and comes soon enough."""
        most = self.guard.settings.max_bytes
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > most:
            raise TooLarge(f"the request has {announced.decode('latin-1')[:20]} bytes; {most} are allowed")
        if announced == b"0" and b"transfer-encoding" not in headers:
            return b""
        try:
            return await asyncio.wait_for(self._chunks(receive, most), self.guard.settings.slow)
        except TimeoutError:
            raise SlowClient(f"the body took longer than {self.guard.settings.slow:g} s") from None

    async def _chunks(self, receive: Receive, most: int) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise SlowClient("the client went away")
            body += message.get("body", b"")
            if len(body) > most:
                raise TooLarge(f"the request has more than {most} bytes")
            if not message.get("more_body"):
                return bytes(body)

    def _replayed(self, receive: Receive) -> Receive:
        """What the app receives: the body that was read, then what comes after it."""
        waiting: list[Message] = [{"type": "http.request", "body": self.body, "more_body": False}]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        return replayed

    # --- what is kept of it ------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        """The path as it stands in the log: on one line, without its query."""
        return self.scope["path"][:SHOWN].encode("unicode_escape").decode("ascii")

    def _count(self) -> None:
        took, metrics = time.perf_counter() - self.begun, self.guard.metrics
        route: Any = self.scope.get("route")
        path = getattr(route, "path", "other")  # a known one: clients cannot make up labels
        metrics.requests.labels(path, str(self.status)).inc()
        metrics.request_seconds.labels(path).observe(took)
        asked = f" {self.body[:SHOWN]!r}" if self.guard.settings.log_questions and self.body else ""
        address = (self.scope.get("client") or ("-",))[0]
        access.info("%s %s %s %d %.0f ms%s", address, self.scope["method"], self._path, self.status, took * 1000, asked)
