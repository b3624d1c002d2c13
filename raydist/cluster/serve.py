"""Ray Serve: the models as deployments, with replicas that share the questions; the same HTTP API in front of them.

By default a replica holds all: on few cores, three processes only wait for each other and copy texts between them. With
`serving.separate` the retriever, the cross-encoder and the reader are deployments of their own, so that each grows by itself
and the reader alone has GPUs; the front composes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from raydist.asking.asker import Asker, precision_of
from raydist.asking.places import find_places, weights_digest
from raydist.asking.shown import reply_dict
from raydist.cluster.connect import Cluster
from raydist.cluster.local import hushed
from raydist.config import ClusterConfig
from raydist.config.explain import checked_section
from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.library.library import Library, find_library
from raydist.reader.answers import Answer, Reader
from raydist.retrieval.scoring import CrossScorer
from raydist.serving.answering import (
    WARM,
    Answering,
    LocalService,
    Opening,
    asker_facts,
    library_facts,
    searched,
    varied,
    watch,
)
from raydist.serving.flow import app_of, log_to_stderr, serve_app
from raydist.serving.metrics import Metrics
from raydist.serving.server import Server
from raydist.serving.service import Asked, Service, Unavailable
from raydist.serving.views import with_judgements
from raydist.terminal import say

LOST = (RayActorError, ActorUnavailableError, BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError)
PATIENCE = 5.0  # seconds to wait for another replica, where one was lost
RECENTLY = 60.0  # seconds after a loss in which that holds
WRONG = "wrong"  # in a reply: input that its sender can mend


# --- calls -----------------------------------------------------------------------------------------------------------


class Remote:
    """Calls of a deployment. A question changes nothing, so it is put again to another replica where one is lost."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle
        self._lost = float("-inf")

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method; a replica that is lost twice, or not replaced in time, is Unavailable."""
        for _ in range(2):
            try:
                recently = time.monotonic() - self._lost < RECENTLY
                return checked(await asyncio.wait_for(self._sent(method, arguments), PATIENCE if recently else None))
            except LOST:
                self._lost = time.monotonic()
            except TimeoutError:
                break
        raise Unavailable("a replica was lost, and another is not there yet; ask again", PATIENCE)

    async def _sent(self, method: str, arguments: Sequence[Any]) -> Any:
        return await getattr(self.handle, method).remote(*arguments)


def checked(result: Any) -> Any:
    if isinstance(result, dict) and WRONG in result:
        raise InputError(result[WRONG])
    return result


class RemoteService:
    """Replicas with all of it, behind a handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._remote = Remote(handle)

    async def ask(self, asked: Asked) -> dict[str, Any]:
        return await self._remote.call("ask", asked)

    async def search(self, asked: Asked) -> dict[str, Any]:
        return await self._remote.call("search", asked)

    async def describe(self) -> dict[str, Any]:
        return await self._remote.call("describe")


class Whole:
    """A replica with the index and all models."""

    def __init__(self, opening: Opening, settings: ServingConfig) -> None:
        self._service = LocalService(Answering(opening), settings)

    async def ask(self, asked: Asked) -> dict[str, Any]:
        return await self._told(self._service.ask(asked))

    async def search(self, asked: Asked) -> dict[str, Any]:
        return await self._told(self._service.search(asked))

    async def describe(self) -> dict[str, Any]:
        return await self._service.describe()

    async def _told(self, reply: Any) -> dict[str, Any]:
        try:
            return await reply
        except InputError as error:  # as a value: an error that crosses processes arrives with its traceback as its text
            return {WRONG: str(error)}


# --- the parts by themselves -----------------------------------------------------------------------------------------


class Part:
    """A replica with one of the three; a newer version replaces it when it is open."""

    def __init__(self, opening: Opening, settings: ServingConfig) -> None:
        self.opening = opening
        self.live = self.open()
        self.mark = self.find_mark()
        self._pending: Any = None
        for name in ("set_max_batch_size", "set_batch_wait_timeout_s"):
            value = settings.batch if name == "set_max_batch_size" else settings.batch_wait
            getattr(self.batched, name)(value)
        watching = (self.refresh, settings.refresh, threading.Event(), Metrics())
        threading.Thread(target=watch, args=watching, name="raydist-versions", daemon=True).start()

    batched: Any  # the method that takes a batch

    def open(self) -> Any:
        raise NotImplementedError

    def find_mark(self) -> Any:
        """What changes with a newer version."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Open what is newer than what is live, once its files have been the same twice."""
        mark = self.find_mark()
        if mark == self.mark or mark != self._pending:
            self._pending = mark
            return False
        self.mark, self.live = mark, self.open()
        return True


class Finder(Part):
    """The index: passages for questions."""

    def open(self) -> Library:
        library = Library.open(self.opening.index)
        library.search(WARM)
        return library

    def find_mark(self) -> tuple[Any, ...]:
        facts = find_library(self.opening.index).read_json("index.json")
        return facts["version"], facts["statistics"]

    def facts(self) -> dict[str, Any]:
        return library_facts(self.live)

    async def find(self, question: str, k: int, kind: str | None, where: str | None) -> dict[str, Any]:
        return await self.batched((question, k, kind, where))

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def batched(self, wanted: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._search, wanted)

    def _search(self, wanted: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Searches with the same settings together."""
        library = self.live
        results: dict[tuple[Any, ...], dict[str, Any]] = {}
        for settings in dict.fromkeys(row[1:] for row in wanted):
            questions = [row[0] for row in wanted if row[1:] == settings]
            k, kind, where = settings
            try:
                found = library.search(questions, k, kind=kind, where=where)
                results |= {
                    (question, *settings): {"passages": hits, "version": library.version}
                    for question, hits in zip(questions, found)
                }
            except InputError as error:
                results |= {(question, *settings): {WRONG: str(error)} for question in questions}
        return [results[row] for row in wanted]


class Ranker(Part):
    """The cross-encoder: scores of (question, passage)."""

    def open(self) -> CrossScorer:
        return CrossScorer(str(self.opening.model("cross_encoder")), precision=_precision(self.opening))

    def find_mark(self) -> str:
        return weights_digest(self.live.folder)

    def folder(self) -> str:
        return str(self.live.folder)

    async def score(self, pairs: list[tuple[str, str]]) -> list[float]:
        return await self.batched(pairs)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def batched(self, lists: list[list[tuple[str, str]]]) -> list[list[float]]:
        return await asyncio.to_thread(self._score, lists)

    def _score(self, lists: Sequence[Sequence[tuple[str, str]]]) -> list[list[float]]:
        pairs = [pair for each in lists for pair in each]
        numbers = range(len(pairs))
        logits = self.live.score([q for q, _ in pairs], [text for _, text in pairs], numbers, numbers)
        return _split(logits.tolist(), lists)


class Reading(Part):
    """The reader: spans of passages."""

    def open(self) -> Reader:
        return Reader.load(str(self.opening.model("reader")), precision=_precision(self.opening))

    find_mark = Ranker.find_mark

    def folder(self) -> str:
        return str(self.live.folder)

    async def read(self, pairs: list[tuple[str, str]], n_best: int) -> list[Answer]:
        return await self.batched((pairs, n_best))

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def batched(self, lists: list[tuple[list[tuple[str, str]], int]]) -> list[list[Answer]]:
        return await asyncio.to_thread(self._read, lists)

    def _read(self, lists: Sequence[tuple[list[tuple[str, str]], int]]) -> list[list[Answer]]:
        most = max(n_best for _, n_best in lists)
        answers = self.live.ask_all([pair for pairs, _ in lists for pair in pairs], n_best=most)
        shortened = _split(answers, [pairs for pairs, _ in lists])
        return [
            [replace(answer, nbest=answer.nbest[:n_best]) for answer in each] for each, (_, n_best) in zip(shortened, lists)
        ]


def _split(values: list[Any], lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Values one after another, as lists of the same lengths as others."""
    ends = np.cumsum([len(each) for each in lists]).tolist()
    return [values[end - len(each) : end] for end, each in zip(ends, lists)]


def _precision(opening: Opening) -> str:
    return precision_of(opening.settings.get("products") or find_places(opening.index).products)


class Composed:
    """The three deployments as one service: an asker for each question, whose library and models are elsewhere."""

    def __init__(self, opening: Opening, settings: ServingConfig, handles: dict[str, DeploymentHandle]) -> None:
        self.opening = opening
        self._remotes = {name: Remote(handle) for name, handle in handles.items()}
        self._threads = ThreadPoolExecutor(settings.queue, "raydist-asking")
        self._timeout = settings.timeout
        self._asker: Asker | None = None

    async def ask(self, asked: Asked) -> dict[str, Any]:
        return await self._with_library(self._ask, asked)

    async def search(self, asked: Asked) -> dict[str, Any]:
        return await self._with_library(self._search, asked)

    async def describe(self) -> dict[str, Any]:
        asker = await self._opened()
        return await self._remotes["finder"].call("facts") | asker_facts(self.opening, asker)

    async def _with_library(self, answer: Any, asked: Asked) -> dict[str, Any]:
        asker, loop = await self._opened(), asyncio.get_running_loop()
        library = RemoteLibrary(self._remotes["finder"], loop, self._timeout, asker.library)
        reply = await loop.run_in_executor(self._threads, answer, asker, library, asked)
        return reply | {"library": {"version": library.version}}

    def _ask(self, asker: Asker, library: RemoteLibrary, asked: Asked) -> dict[str, Any]:
        own = of_library(varied(asker, asked.kind, asked.k), library)
        return reply_dict(own.ask(asked.question, where=asked.where), n_best=asked.n_best)

    def _search(self, asker: Asker, library: RemoteLibrary, asked: Asked) -> dict[str, Any]:
        return searched(of_library(asker, library), [asked.question], asked.where, asked.k, asked.kind)[0]

    async def _opened(self) -> Asker:
        """The asker, with the calibration of the run, and models that are elsewhere."""
        if self._asker is None:
            loop, models = asyncio.get_running_loop(), {}
            for name, remote, kind in (("reader", "reading", RemoteReader), ("cross_encoder", "ranker", RemoteScorer)):
                if remote in self._remotes:
                    folder = Path(await self._remotes[remote].call("folder"))
                    models[name] = kind(self._remotes[remote], loop, self._timeout, folder)
            given = {name: value for name, value in {**self.opening.settings, **models}.items() if value is not None}
            self._asker = await asyncio.to_thread(lambda: Asker.open(self.opening.index, **given))
        return self._asker


def of_library(asker: Asker, library: RemoteLibrary) -> Asker:
    """The same models, settings and calibration, with another library."""
    asker = copy(asker)
    asker.library = library
    return asker


class Elsewhere:
    """A deployment as a thread calls it, which waits for the result."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._remote, self._loop, self._timeout = remote, loop, timeout

    def _call(self, method: str, *arguments: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(self._remote.call(method, *arguments), self._loop).result(self._timeout)


class RemoteLibrary(Elsewhere):
    """The index of the finders, for one request; `version` is that of its last search."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop, timeout: float, known: Any) -> None:
        super().__init__(remote, loop, timeout)
        self.kinds, self.version = known.kinds, known.version

    def search(
        self, questions: Sequence[str], k: int = 10, *, kind: str | None = None, where: str | None = None
    ) -> list[list[Any]]:
        found = [self._call("find", question, k, kind, where) for question in questions]
        self.version = found[-1]["version"]
        return [each["passages"] for each in found]


class RemoteReader(Elsewhere):
    """The readers."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop, timeout: float, folder: Path) -> None:
        super().__init__(remote, loop, timeout)
        self.folder = folder

    def ask_all(self, pairs: Sequence[tuple[str, str]], *, n_best: int = 1) -> list[Answer]:
        return self._call("read", list(pairs), n_best) if pairs else []


class RemoteScorer(RemoteReader):
    """The cross-encoders."""

    def score(
        self, questions: Sequence[str], texts: Sequence[str], question_of: Sequence[int], text_of: Sequence[int]
    ) -> np.ndarray:
        pairs = [(questions[question], texts[text]) for question, text in zip(question_of, text_of)]
        return np.array(self._call("score", pairs), np.float32)


# --- deployments -----------------------------------------------------------------------------------------------------


def deployments(opening: Opening, settings: ServingConfig) -> dict[str, serve.Application]:
    """What is deployed, by its name in a front."""
    if opening.model("reader") is None:
        raise InputError("there is no reader: give one (--reader, or asking.reader in the run's config)")
    classes: dict[str, type] = {"whole": Whole}
    if settings.separate:
        classes = {"finder": Finder, "reading": Reading}
        classes |= {"ranker": Ranker} if opening.model("cross_encoder") else {}
    return {name: _deployment(kind, settings).bind(opening, settings) for name, kind in classes.items()}


def _deployment(kind: type, settings: ServingConfig) -> serve.Deployment:
    growing = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.max_replicas,
        "target_ongoing_requests": settings.ongoing,
    }
    number = {"num_replicas": settings.replicas} if settings.max_replicas is None else {"autoscaling_config": growing}
    return serve.deployment(kind, name=kind.__name__).options(
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": 0 if kind is Finder else settings.gpus},
        max_ongoing_requests=settings.queue,
        graceful_shutdown_timeout_s=settings.drain,
        **number,
    )


def service_of(opening: Opening, settings: ServingConfig, handles: dict[str, DeploymentHandle]) -> Service:
    return RemoteService(handles["whole"]) if "whole" in handles else Composed(opening, settings, handles)


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
@serve.ingress()
class Front:
    """The HTTP API as a deployment: limits, then calls of the others."""

    def __init__(self, opening: Opening, settings: ServingConfig, handles: dict[str, DeploymentHandle]) -> None:
        self._service, self._settings = service_of(opening, settings, handles), settings
        log_to_stderr()  # which Ray keeps as the replica's log

    def __serve_build_asgi_app__(self) -> Any:
        return app_of(self._service, self._settings, Metrics())


class ServeArgs(BaseModel):
    """What a `serve deploy` file gives: `args` of the application."""

    model_config = ConfigDict(extra="forbid")

    index: str
    asking: dict[str, Any] = {}
    serving: dict[str, Any] = {}


def app_builder(args: ServeArgs) -> serve.Application:
    """The application of a `serve deploy` file (`raydist serve INDEX --write deploy.yaml`)."""
    opening, settings = Opening(args.index, args.asking), checked_section(ServingConfig, "serving", args.serving)
    return Front.bind(opening, settings, deployments(opening, settings))  # type: ignore[attr-defined]


def serve_on_ray(opening: Opening, settings: ServingConfig, *, verbose: bool = False) -> None:
    """Serve an index: models on Ray Serve, the API in this process, until it is told to end."""
    metrics = Metrics()
    server = Server(settings, metrics)  # first: a port that is taken is found before Ray starts
    wanted = deployments(opening, settings)
    needed = len(wanted) * settings.cpus * (settings.max_replicas or settings.replicas) + 1
    with Cluster(ClusterConfig(local_cpus=int(np.ceil(needed))), verbose=verbose) as cluster:
        cluster.start()
        logging.getLogger("ray.serve").setLevel(logging.INFO if verbose else logging.ERROR)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "INFO" if verbose else "ERROR"})
        try:
            say(f"opening {opening.name} on Ray Serve")
            handles = {
                name: serve.run(application, name=f"raydist-{name}", route_prefix=None) for name, application in wanted.items()
            }
            serve_app(
                server,
                app_of(service_of(opening, settings, handles), with_judgements(settings, opening.index), metrics),
                opening.name,
            )
        finally:
            with contextlib.nullcontext() if verbose else hushed():  # of what ends while it ends
                serve.shutdown()
