"""What a browser is served: the pages, verdicts on answers, mined pairs; and the command `raydist judge`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fastapi import APIRouter, Response

from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.judgements.journal import Journal
from raydist.serving.app import guarded_app
from raydist.serving.judging import answers_router, pairs_router
from raydist.serving.metrics import Metrics
from raydist.serving.pages import PUBLIC, page_router
from raydist.serving.pairs import MinedPairs
from raydist.serving.responses import as_json
from raydist.serving.server import Server
from raydist.terminal import say

JUDGEMENTS = "judgements.jsonl"


def view_routers(settings: ServingConfig) -> list[APIRouter]:
    """The routers of both views, as far as the settings say where verdicts are written and what is judged."""
    offered = APIRouter()

    @offered.get("/v1/views")
    async def views() -> Response:
        """What may be judged here: answers, mined pairs."""
        return as_json({"answers": bool(settings.judgements), "pairs": bool(settings.mined)})

    routers = [page_router(), offered]
    if settings.judgements:
        routers.append(answers_router(_journal(Path(settings.judgements)), "page"))
    if settings.mined:
        routers.append(pairs_router(_mined_pairs(settings.mined, None)))
    return routers


def with_judgements(settings: ServingConfig, index: str) -> ServingConfig:
    """The settings with a file of judgements: by default beside an index, if that is in a folder that can be written to."""
    folder = Path(index).expanduser()
    folder = folder.absolute().parent if folder.name == "index" else folder
    if settings.judgements or "://" in index or not os.access(folder, os.W_OK):
        return settings
    return settings.model_copy(update={"judgements": str(folder / JUDGEMENTS)})


def judge_here(run: str, settings: ServingConfig, file: Path | None = None) -> None:
    """Serve the mined pairs of a run to a browser on this machine until it is told to end."""
    pairs, metrics = _mined_pairs(run, file), Metrics()
    server = Server(settings, metrics)
    app = guarded_app(settings, metrics, [page_router("/judge"), pairs_router(pairs)], PUBLIC)
    logging.getLogger("raydist.serving").setLevel(logging.WARNING)
    say(f"{pairs.progress()['pairs']:,} pairs at {server.address}; verdicts go to {pairs.journal.path}; Ctrl-C ends it")
    server.run(app)


def _mined_pairs(run: str, file: Path | None) -> MinedPairs:
    folder = Storage(run.rstrip("/"))
    if file is None and not folder.is_local:
        raise InputError(f"{run} is in an object store, and verdicts are written to a disk: name a file (--to FILE)")
    return MinedPairs(folder, lambda: _journal(file or Path(folder.path(JUDGEMENTS))), Path(run).name)


def _journal(path: Path) -> Journal:
    journal = Journal(path)
    for note in journal.notes:
        say(note)
    return journal
