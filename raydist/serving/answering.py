"""An index and its models in this process: questions in batches, and new versions that go live between two of them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from raydist.asking.asker import Asker
from raydist.asking.places import find_places, weights_digest
from raydist.asking.shown import reply_dict
from raydist.config.serving import ServingConfig
from raydist.library.library import find_library
from raydist.serving.batching import Batcher
from raydist.serving.metrics import Metrics
from raydist.serving.service import Asked

log = logging.getLogger("raydist.serving")
WARM = "What is this?"  # asked of a new version before it goes live


@dataclass(frozen=True)
class Opening:
    """An index, and the arguments of `Asker.open` that differ from its run's config."""

    index: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **models: Any) -> Asker:
        """An asker, warm; `models` that are open already are used as they are."""
        opened = {name: model for name, model in models.items() if model is not None}
        given = {name: value for name, value in {**self.settings, **opened}.items() if value is not None}
        asker = Asker.open(self.index, **given)
        asker.ask(WARM)
        return asker

    @property
    def name(self) -> str:
        path = Path(self.index)
        return path.absolute().parent.name if path.name == "index" else path.name

    def model(self, which: str) -> str | None:
        """The reader or the cross-encoder: a run, a model's folder or a Hugging Face name."""
        return self.settings.get(which) or getattr(find_places(self.index), which)

    def model_name(self, which: str) -> str | None:
        """A model as clients see it: an absolute path by its end."""
        given = self.model(which)
        return Path(given).name if given and given.startswith("/") else given


class Live(NamedTuple):
    """What answers at a moment."""

    asker: Asker
    version: int
    mark: tuple[Any, ...]  # of the files that it was opened from


class Answering:
    """An index and its models, of which a newer version replaces the one in use when it is open and warm."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.live = self._opened(opening.open())
        self._pending: tuple[Any, ...] | None = None
        self._askers: dict[tuple[Any, ...], Asker] = {}

    # --- questions ---------------------------------------------------------------------------------------------------

    def work(self, group: tuple[Any, ...], questions: Sequence[Asked]) -> list[dict[str, Any]]:
        """The replies to some questions, or the results of some searches, with the same settings."""
        action, where, k, kind = group
        live = self.live
        answer = self._ask if action == "ask" else self._search
        replies = answer(live.asker, questions, where, k, kind)
        return [reply | {"library": {"version": live.version}} for reply in replies]

    def _ask(
        self, asker: Asker, questions: Sequence[Asked], where: str | None, k: int | None, kind: str | None
    ) -> list[dict[str, Any]]:
        replies = varied(asker, kind, k).ask([asked.question for asked in questions], where=where)
        return [reply_dict(reply, n_best=asked.n_best) for reply, asked in zip(replies, questions)]

    def _search(
        self, asker: Asker, questions: Sequence[Asked], where: str | None, k: int | None, kind: str | None
    ) -> list[dict[str, Any]]:
        return searched(asker, [asked.question for asked in questions], where, k, kind)

    def describe(self) -> dict[str, Any]:
        live = self.live
        return library_facts(live.asker.library) | asker_facts(self.opening, live.asker)

    # --- versions ----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Open what is newer than what is live, once its files have been the same twice; whether something went live."""
        live, mark = self.live, self._mark(self.live.asker)
        if mark == live.mark or mark != self._pending:
            self._pending = mark
            return False
        same = [now == then for now, then in zip(mark[1:3], live.mark[1:3])]
        models = {
            "reader": live.asker.reader if same[0] else None,
            "cross_encoder": live.asker.cross_encoder if same[1] else None,
        }
        self.live = self._opened(self.opening.open(**models))
        return True

    def _opened(self, asker: Asker) -> Live:
        return Live(asker, getattr(asker.library, "version", 0), self._mark(asker))

    def _mark(self, asker: Asker) -> tuple[Any, ...]:
        """What changes when a version is put in force, a model is trained anew, or a calibration is made."""
        facts = find_library(self.opening.index).read_json("index.json")
        models = [
            weights_digest(model.folder) if model and model.folder else "" for model in (asker.reader, asker.cross_encoder)
        ]
        calibration = self.opening.settings.get("calibration") or find_places(self.opening.index).calibration
        when = Path(calibration).stat().st_mtime_ns if calibration else 0
        return ((facts["version"], facts["statistics"]), *models, when)


def varied(asker: Asker, kind: str | None, k: int | None) -> Asker:
    """The asker for a request's own kind of search and number of passages: a calibration for others does not hold for it."""
    own = asker.kind or getattr(asker.library, "kinds", (None,))[0]
    if (kind or own) == own and (k or asker.k) == asker.k:
        return asker
    return Asker(
        asker.library,
        asker.reader,
        cross_encoder=asker.cross_encoder,
        kind=kind or asker.kind,
        k=k or asker.k,
        depth=asker.depth,
        threshold=None if asker.calibration else asker.threshold,
    )


def searched(
    asker: Asker, questions: Sequence[str], where: str | None, k: int | None, kind: str | None
) -> list[dict[str, Any]]:
    """The results of some searches, as clients get them."""
    begun = time.perf_counter()
    found = asker.library.search(questions, k or asker.k, kind=kind or asker.kind, where=where)
    took = {"retrieve": time.perf_counter() - begun}
    return [{"passages": [passage_dict(passage) for passage in passages], "seconds": took} for passages in found]


def library_facts(library: Any) -> dict[str, Any]:
    """What clients are told of an index."""
    facts = {name: getattr(library, name, None) for name in ("version", "passages", "documents")}
    return facts | {"columns": dict(getattr(library, "columns", {})), "kinds": list(getattr(library, "kinds", ()))}


def asker_facts(opening: Opening, asker: Asker) -> dict[str, Any]:
    """What clients are told of the rest."""
    return {
        "name": opening.name,
        "calibrated": asker.calibration is not None,
        "threshold": asker.threshold,
        "reader": opening.model_name("reader"),
        "cross_encoder": opening.model_name("cross_encoder"),
        "notes": list(asker.notes),
    }


def passage_dict(passage: Any) -> dict[str, Any]:
    return asdict(passage) if is_dataclass(passage) and not isinstance(passage, type) else dict(vars(passage))


class LocalService:
    """An index and its models in this process, behind a queue."""

    def __init__(self, answering: Answering, settings: ServingConfig, metrics: Metrics | None = None) -> None:
        self.answering, self.settings = answering, settings
        self._metrics = metrics or Metrics()
        self._batcher = Batcher(answering.work, settings.batch, settings.batch_wait, self._metrics.batch_questions.observe)
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="raydist-versions", daemon=True).start()

    async def ask(self, asked: Asked) -> dict[str, Any]:
        return await asyncio.wrap_future(self._submit("ask", asked))

    async def search(self, asked: Asked) -> dict[str, Any]:
        return await asyncio.wrap_future(self._submit("search", asked))

    async def describe(self) -> dict[str, Any]:
        return self.answering.describe()

    def end(self) -> None:
        self._over.set()
        self._batcher.end()

    def _submit(self, action: str, asked: Asked) -> Future[Any]:
        return self._batcher.submit((action, asked.where, asked.k, asked.kind), asked)

    def _watch(self) -> None:
        watch(self.answering.refresh, self.settings.refresh, self._over, self._metrics)


def watch(refresh: Callable[[], bool], seconds: float, over: threading.Event, metrics: Metrics) -> None:
    """Look for new versions until the end. One that cannot be opened is reported once, and what is live stays."""
    reported = ""
    while not over.wait(seconds):
        try:
            if refresh():
                metrics.refreshes.labels("live").inc()
                log.info("a new version went live")
            reported = ""
        except Exception as fault:
            if str(fault) != reported:
                metrics.refreshes.labels("failed").inc()
                log.warning("a new version cannot be opened, and the one before stays: %s: %s", type(fault).__name__, fault)
            reported = str(fault)
