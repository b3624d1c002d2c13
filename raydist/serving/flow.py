"""The command `raydist serve`, in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import FastAPI

from raydist.config.serving import ServingConfig
from raydist.serving.answering import Answering, LocalService, Opening
from raydist.serving.app import create_app
from raydist.serving.metrics import Metrics
from raydist.serving.pages import PUBLIC
from raydist.serving.server import Server
from raydist.serving.service import Service
from raydist.serving.views import view_routers, with_judgements
from raydist.terminal import say


def serve_here(opening: Opening, settings: ServingConfig) -> None:
    """Serve an index from this process until it is told to end."""
    metrics, settings = Metrics(), with_judgements(settings, opening.index)
    server = Server(settings, metrics)  # first: a port that is taken is found before models are loaded
    service = LocalService(Answering(opening), settings, metrics)
    for note in service.answering.live.asker.notes:
        say(f"note: {note}")
    serve_app(server, app_of(service, settings, metrics), opening.name)
    service.end()


def app_of(service: Service, settings: ServingConfig, metrics: Metrics) -> FastAPI:
    """The app as every way of serving has it."""
    return create_app(service, settings, metrics=metrics, routers=view_routers(settings), public=PUBLIC)


def serve_app(server: Server, app: FastAPI, name: str, told: Callable[[str], None] = say) -> None:
    log_to_stderr()
    told(f"{name} answers on {server.address} (POST /v1/ask, /v1/search), with a page at /; Ctrl-C ends it")
    server.run(app)


def log_to_stderr() -> None:
    """Our log, one line for each request: times, statuses, no questions."""
    log = logging.getLogger("raydist.serving")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
