"""Limits on who may ask, how often, how much at once and for how long."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.metrics import Metrics
from raydist.serving.service import Asked, OutOfTime, Service, TooMany, Unauthorized, Unavailable

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
CLIENTS = 10_000  # whose rates are remembered
SHORTEST_TOKEN = 16


class Tokens:
    """Bearer tokens, kept as digests: they are compared in constant time, and no message or log can hold one."""

    def __init__(self, tokens: list[str]) -> None:
        for number, token in enumerate(tokens, 1):
            if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
                raise InputError(
                    f"token {number} is not {SHORTEST_TOKEN} or more printable ASCII characters without blanks; make one with "
                    f'`python -c "import secrets; print(secrets.token_urlsafe(32))"`'
                )
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    @classmethod
    def of(cls, settings: ServingConfig) -> Tokens:
        """Those of the token file and of the environment variable."""
        found = [os.environ[settings.token_env].strip()] if os.environ.get(settings.token_env) else []
        if settings.token_file:
            try:
                lines = Path(settings.token_file).expanduser().read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "not UTF-8"
                raise InputError(f"the token file {settings.token_file} cannot be read: {why}") from None
            there = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
            if not there:
                raise InputError(f"the token file {settings.token_file} has no token; write one on a line")
            found += there
        return cls(found)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, header: bytes) -> str:
        """The client behind an `Authorization` header; without tokens, anybody."""
        if not self._digests:
            return ""
        scheme, _, token = header.partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        known = [hmac.compare_digest(digest, other) for other in self._digests]  # all of them: the time tells nothing
        if scheme.lower() != b"bearer" or not any(known):
            raise Unauthorized("a bearer token is wanted: Authorization: Bearer TOKEN")
        return digest.hex()[:16]


def check_exposure(settings: ServingConfig, tokens: Tokens) -> None:
    """Refuse to listen to a network without tokens."""
    if settings.host not in LOOPBACK and not tokens:
        raise InputError(
            f"serving.host is {settings.host}, which others reach, and there is no token: give --token-file FILE "
            f"(serving.token_file) or the environment variable {settings.token_env}, or listen on 127.0.0.1"
        )


class Rates:
    """How often each client asks: a bucket for each, which its requests empty and time fills."""

    def __init__(self, rate: float | None, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.now = rate, burst, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when

    def spend(self, client: str) -> None:
        """Count a request of a client; one too many is refused."""
        if self.rate is None:
            return
        now = self.now()
        left, since = self._buckets.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - since) * self.rate)
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            raise TooMany(f"more than {self.rate:g} requests per second; slow down", (1 - left) / self.rate)


class Limited:
    """A service that takes only so many requests at once, and gives each only so much time."""

    def __init__(self, service: Service, settings: ServingConfig, metrics: Metrics) -> None:
        self._service, self._metrics = service, metrics
        self._most, self._timeout = settings.queue, settings.timeout
        self._busy, self._seconds = 0, 0.0  # requests now, and how long one takes of late

    async def ask(self, asked: Asked) -> dict[str, Any]:
        return self._metrics.of_reply(await self._within(self._service.ask(asked)))

    async def search(self, asked: Asked) -> dict[str, Any]:
        return self._metrics.of_search(await self._within(self._service.search(asked)))

    async def describe(self) -> dict[str, Any]:
        try:
            return self._metrics.of_library(await asyncio.wait_for(self._service.describe(), self._timeout))
        except TimeoutError:
            raise Unavailable("the index is not open yet", self._timeout) from None

    async def _within(self, call: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        if self._busy >= self._most:
            call.close()  # type: ignore[attr-defined]  # a coroutine that never ran
            raise Unavailable(f"{self._busy} requests are being worked on; ask again later", self._seconds)
        begun = time.monotonic()
        self._set_busy(self._busy + 1)
        try:
            return await asyncio.wait_for(call, self._timeout)
        except TimeoutError:
            raise OutOfTime(f"no answer within {self._timeout:g} s; ask again later, or with a smaller k") from None
        finally:
            self._set_busy(self._busy - 1)
            self._seconds += 0.1 * (time.monotonic() - begun - self._seconds)

    def _set_busy(self, number: int) -> None:
        self._busy = number
        self._metrics.in_progress.set(number)
