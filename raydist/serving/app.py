"""The HTTP API over a service: endpoints, their input and output, and what is said of errors."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

import raydist
from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.service import Asked, Refusal, Service

log = logging.getLogger(__name__)


class Body(BaseModel):
    """A body of a request: closed, so that a misspelt name is no silence."""

    model_config = ConfigDict(extra="forbid", strict=True)


Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class SearchBody(Body):
    question: Text = Field(description="What to look for", examples=["When was the bridge built?"])
    where: Text | None = Field(None, description="Which passages, by their metadata", examples=["year >= 2020"])
    k: int | None = Field(None, ge=1, description="How many passages")
    kind: Literal["hybrid", "bm25", "dense"] | None = Field(None, description="How passages are found")


class AskBody(SearchBody):
    k: int | None = Field(None, ge=1, description="How many passages are read")
    n_best: int = Field(1, ge=1, le=20, description="How many answers")


def create_app(
    service: Service,
    settings: ServingConfig,
    *,
    routers: Sequence[APIRouter] = (),
    public: Sequence[str] = (),
) -> FastAPI:
    """The API over a service.

    `routers` are added: their endpoints are guarded as ours are (token, size, rate), and find the service as
    `request.app.state.service`, the settings as `request.app.state.settings`. They raise InputError for wrong input (422) and
    Refusal for others. `public` are paths without a token, such as those of a page; one that ends with `/*` is all below it.
    """
    app = FastAPI(title="raydist", version=raydist.__version__, docs_url=None, redoc_url=None)
    app.state.service, app.state.settings = service, settings
    app.include_router(_endpoints(service, settings))
    for router in routers:
        app.include_router(router)
    for kind, handler in ((RequestValidationError, _wrong_body), (InputError, _wrong_input), (Refusal, _refused)):
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(HTTPException, _no_such_thing)
    app.add_exception_handler(Exception, _failed)
    return app


def _endpoints(service: Service, settings: ServingConfig) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/ask")
    async def ask(body: AskBody) -> Response:
        """The answer that documents give to a question, its source, and its probability."""
        return as_json(await service.ask(_asked(body, settings)))

    @router.post("/v1/search")
    async def search(body: SearchBody) -> Response:
        """The best passages for a question."""
        return as_json(await service.search(_asked(body, settings)))

    @router.get("/v1/library")
    async def library() -> Response:
        """The index and the models in force."""
        return as_json(await service.describe())

    @router.get("/healthz")
    async def alive() -> Response:
        """Whether the process lives."""
        return as_json({"status": "alive"})

    return router


def _asked(body: SearchBody, settings: ServingConfig) -> Asked:
    for name in ("question", "where"):
        text = getattr(body, name) or ""
        if len(text) > settings.max_question:
            raise InputError(f"{name} has {len(text)} characters; {settings.max_question} are allowed")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name} holds half of a surrogate pair; decode it anew") from None
    if not any(map(str.isalnum, body.question)):
        raise InputError("question has no word; ask something")
    if body.k is not None and body.k > settings.max_k:
        raise InputError(f"k is {body.k}; at most {settings.max_k} is allowed")
    return Asked(**body.model_dump())


# --- answers and errors ----------------------------------------------------------------------------------------------


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response in ASCII; numbers that JSON does not have are null, dates are texts."""
    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), default=str)
    return Response(text, status, headers, "application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error as all of them look: one sentence."""
    return as_json({"error": message}, status, headers)


def refusal(refused: Refusal) -> Response:
    headers = {} if refused.retry_after is None else {"Retry-After": str(max(1, math.ceil(refused.retry_after)))}
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error(refused.status, str(refused), headers)


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refusal)
    return refusal(refused)


async def _wrong_input(request: Request, wrong: Exception) -> Response:
    return error(422, " ".join(str(wrong).split()))


async def _wrong_body(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, RequestValidationError)
    first = wrong.errors()[0]
    place = ".".join(str(step) for step in first["loc"] if step != "body")
    return error(422, f"{place or 'the body'}: {first['msg'][:1].lower()}{first['msg'][1:]}")


async def _no_such_thing(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, HTTPException)
    return error(wrong.status_code, str(wrong.detail), dict(wrong.headers or {}))


async def _failed(request: Request, fault: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=fault)
    return error(500, "this failed, and the log of the service says why")
