"""The files of the views as a browser gets them: with a strict policy, and without anything that it would forbid."""

import re

import pytest
import requests
from helpers.serving import served

from raydist.config.serving import ServingConfig
from raydist.serving.app import guarded_app
from raydist.serving.metrics import Metrics
from raydist.serving.pages import FOLDER, PUBLIC, page_router


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("a-token-of-these-tests\n")
    settings, metrics = ServingConfig(rate=None, token_file=str(tokens)), Metrics()
    from fastapi import APIRouter

    health = APIRouter()
    health.add_api_route("/healthz", lambda: "alive")
    health.add_api_route("/v1/secret", lambda: "a passage")
    with served(guarded_app(settings, metrics, [health, page_router()], PUBLIC), settings, metrics) as address:
        yield address


@pytest.mark.parametrize("path", ["/", "/judge", "/page/page.css", "/page/ask.js", "/page/icon.svg"])
def test_files_come_without_a_token_and_with_a_strict_policy(views, path):
    sent = requests.get(views + path, timeout=10)
    assert sent.status_code == 200
    policy = dict(part.split(" ", 1) for part in sent.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert not re.search(r"unsafe|https?:|\*|data:", sent.headers["Content-Security-Policy"])
    assert sent.headers["X-Content-Type-Options"] == "nosniff"
    assert sent.headers["Referrer-Policy"] == "no-referrer"
    again = requests.get(views + path, headers={"If-None-Match": sent.headers["ETag"]}, timeout=10)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["Content-Security-Policy"] == sent.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/page/..%2f__init__.py", "/page/%2e%2e/pages.py", "/page/", "/page/none.js", "/other"])
def test_nothing_else_is_sent(views, path):
    assert requests.get(views + path, timeout=10).status_code in (401, 404)


def test_what_is_no_page_wants_the_token(views):
    assert requests.get(f"{views}/v1/secret", timeout=10).status_code == 401


def test_no_file_asks_for_anything_elsewhere_or_takes_markup():
    for file in sorted(FOLDER.iterdir()):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage", text)
        if file.suffix == ".html":
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), file.name
