"""A service on a port of 127.0.0.1, an index of a few passages, and clients that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import requests
from fastapi import FastAPI
from helpers.passages import BRIDGES

from raydist.config.serving import ServingConfig
from raydist.documents.schema import PASSAGES
from raydist.library.building import known_encoder
from raydist.library.settings import LibrarySettings
from raydist.library.writer import LibraryWriter
from raydist.serving.metrics import Metrics
from raydist.serving.server import Server

SCHEMA = PASSAGES.append(pa.field("year", pa.int64()))
MARKUP = "<script>alert('The mill of Oder burned in 1802')</script>"


def row(id: str, text: str, year: int, **others) -> dict:
    known = {"passage_id": id, "document_id": id.rpartition("#")[0], "title": "", "headings": [], "page": None, "line": 1}
    return known | {"text": text, "language": "en", "year": year} | others


def write_index(folder: Path) -> str:
    """An index of words and vectors, of a few passages about bridges and one of markup."""
    names = [field.name for field in PASSAGES]
    rows = [{name: getattr(found, name) for name in names} | {"year": 1900 + place} for place, found in enumerate(BRIDGES)]
    rows.append(row("<img src=x onerror=alert(1)>.html#0", MARKUP, 1802))
    add(folder, rows, LibrarySettings(encoder=known_encoder("builtin:tiny")))
    return str(folder)


def add(folder: Path | str, rows: list[dict], settings: LibrarySettings | None = None) -> None:
    """Put a new version in force, with these passages too."""
    with LibraryWriter(folder, settings) as writer:
        writer.add(pa.Table.from_pylist(rows, SCHEMA))
        writer.commit()


@contextmanager
def served(app: FastAPI, settings: ServingConfig, metrics: Metrics | None = None) -> Iterator[str]:
    """The address of an app, in a thread of this process."""
    server = Server(settings.model_copy(update={"port": 0}), metrics or Metrics())
    thread = threading.Thread(target=server.run, args=(app,), daemon=True)
    thread.start()
    until(lambda: requests.get(f"{server.address}/healthz", timeout=5).status_code == 200)
    yield server.address
    server.end()
    thread.join(10)


def until(what, seconds: float = 20.0) -> None:
    """Wait for something to hold; what is not there yet may raise."""
    ends = time.monotonic() + seconds
    while True:
        try:
            if what():
                return
        except (OSError, requests.RequestException):
            pass
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.02)


def connected(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_cut_off(client: socket.socket) -> bool:
    """Whether the other side closes a connection, within ten seconds."""
    try:
        while client.recv(4096):
            continue
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
