"""The two views for a browser: files of this package, sent with a policy that lets nothing else run or load."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page"
VIEWS = {"/": "ask.html", "/judge": "judge.html"}
PUBLIC = (*VIEWS, "/page/*")  # nothing of an index is in them
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again, and answered by 304
}


def page_router(first: str = "/") -> APIRouter:
    """The views and their files; `first`: the view at `/`."""
    router = APIRouter(include_in_schema=False)
    files = {file.name: file.read_bytes() for file in sorted(FOLDER.iterdir()) if file.suffix in TYPES}
    for path, name in (VIEWS | {"/": VIEWS[first]}).items():
        router.add_api_route(path, _sends(files, name), methods=["GET"])

    @router.get("/page/{name}")
    async def send_file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return _response(request, name, files[name])

    return router


def _sends(files: dict[str, bytes], name: str):
    async def send_view(request: Request) -> Response:
        return _response(request, name, files[name])

    return send_view


def _response(request: Request, name: str, content: bytes) -> Response:
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    headers = HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=f"{TYPES[Path(name).suffix]}; charset=utf-8")
