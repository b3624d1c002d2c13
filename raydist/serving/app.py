"""The HTTP API over a service: endpoints, their input and output, and what is said of errors."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import raydist
from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.bodies import ERRORS, AskBody, FoundBody, LibraryBody, ReplyBody, SearchBody
from raydist.serving.guard import Guard
from raydist.serving.limits import Limited, Tokens
from raydist.serving.metrics import CONTENT_TYPE, Metrics
from raydist.serving.responses import as_json, error, refusal
from raydist.serving.service import Asked, Refusal, Service, Unavailable


def create_app(
    service: Service,
    settings: ServingConfig,
    *,
    routers: Sequence[APIRouter] = (),
    public: Sequence[str] = (),
    metrics: Metrics | None = None,
) -> FastAPI:
    """The API over a service.

    `routers` are added: their endpoints are guarded as ours are (token, size, rate), and find the service as
    `request.app.state.service`, the settings as `request.app.state.settings`. They raise InputError for wrong input (422) and
    Refusal for others. `public` are paths without a token, such as those of a page; one that ends with `/*` is all below it.
    """
    metrics = metrics or Metrics()
    limited = Limited(service, settings, metrics)
    app = guarded_app(settings, metrics, [_endpoints(limited, settings), _health(limited, metrics), *routers], public)
    app.state.service = limited
    return app


def guarded_app(settings: ServingConfig, metrics: Metrics, routers: Sequence[APIRouter], public: Sequence[str] = ()) -> FastAPI:
    """An app of some routers, guarded, with errors as all of them look."""
    app = FastAPI(title="raydist", version=raydist.__version__, docs_url=None, redoc_url=None)
    app.state.settings = settings
    for router in routers:
        app.include_router(router)
    for kind, handler in ((RequestValidationError, _wrong_body), (InputError, _wrong_input), (Refusal, _refused)):
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(HTTPException, _no_such_thing)
    app.add_middleware(Guard, settings=settings, tokens=Tokens.of(settings), metrics=metrics, public=tuple(public))
    return app


def _endpoints(service: Service, settings: ServingConfig) -> APIRouter:
    router = APIRouter(responses=ERRORS)

    @router.post("/v1/ask", responses={200: {"model": ReplyBody}})
    async def ask(body: AskBody) -> Response:
        """The answer that documents give to a question, its source, and its probability."""
        return as_json(await service.ask(_asked(body, settings)))

    @router.post("/v1/search", responses={200: {"model": FoundBody}})
    async def search(body: SearchBody) -> Response:
        """The best passages for a question."""
        return as_json(await service.search(_asked(body, settings)))

    @router.get("/v1/library", responses={200: {"model": LibraryBody}})
    async def library() -> Response:
        """The index and the models in force."""
        return as_json(await service.describe())

    return router


def _health(service: Service, metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def alive() -> Response:
        """Whether the process lives."""
        return as_json({"status": "alive"})

    @router.get("/readyz")
    async def ready() -> Response:
        """Whether questions are answered: the index and the models are open."""
        try:
            return as_json({"status": "ready", "library": {"version": (await service.describe())["version"]}})
        except Unavailable as refused:
            return refusal(refused)

    @router.get("/metrics")
    async def numbers() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    return router


def _asked(body: SearchBody, settings: ServingConfig) -> Asked:
    for name in ("question", "where"):
        text = getattr(body, name) or ""
        if len(text) > settings.max_question:
            raise InputError(f"{name} has {len(text)} characters; {settings.max_question} are allowed")
    if not any(map(str.isalnum, body.question)):
        raise InputError("question has no word; ask something")
    if body.k is not None and body.k > settings.max_k:
        raise InputError(f"k is {body.k}; at most {settings.max_k} is allowed")
    return Asked(**body.model_dump())


# --- answers and errors ----------------------------------------------------------------------------------------------


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refusal)
    return refusal(refused)


async def _wrong_input(request: Request, wrong: Exception) -> Response:
    return error(422, str(wrong).partition("\n")[0].rstrip(":"))  # further lines point into a condition


async def _wrong_body(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, RequestValidationError)
    first = wrong.errors()[0]
    place = ".".join(str(step) for step in first["loc"] if step != "body")
    return error(422, f"{place or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}")


async def _no_such_thing(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, HTTPException)
    if wrong.status_code == 400:  # a body that is no text
        return error(422, "the body is no JSON in UTF-8")
    return error(wrong.status_code, str(wrong.detail), dict(wrong.headers or {}))
