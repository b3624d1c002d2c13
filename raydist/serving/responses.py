"""Responses: JSON, and errors as one sentence."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import Response

from raydist.serving.service import Refusal


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
    """What a client is told of a refusal, and when it may come again."""
    headers = {} if refused.retry_after is None else {"Retry-After": str(max(1, math.ceil(refused.retry_after)))}
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return error(refused.status, str(refused), headers)
