"""Questions to a library of documents, in memory: retrieve passages, rerank and read them, merge the answers.

asker = Asker.open("runs/docs", reader="runs/bridges")
reply = asker.ask("When was the bridge built?")
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from raydist.asking.calibration import Calibration, uncalibrated_order, uncalibrated_probability
from raydist.asking.merge import Candidate, feature_table, merge_spans
from raydist.asking.places import Places, find_places, open_library, weights_digest
from raydist.asking.retriever import Passage, Retriever
from raydist.config.asking import AskingConfig
from raydist.cores import bf16_instructions
from raydist.errors import InputError
from raydist.reader.answers import Reader
from raydist.retrieval.scoring import CrossScorer

USUAL = AskingConfig()
SETTINGS = ("kind", "k", "depth")
SPANS = 5  # merged per passage
UNCALIBRATED = "probabilities are not calibrated, and no answer is withheld: shares of the reader's own scores"


@dataclass(frozen=True)
class Reply:
    """The best answer to a question, its source, and its competitors.

    With a calibration, `probability` is how often such an answer is right, and `answered` is false if it is below the
    threshold: "not in these documents". Without one it is a share of the reader's own scores, and every answer is given. `text`
    is the best answer even if `answered` is false, and empty if no passage was found.
    """

    question: str
    answered: bool
    text: str
    probability: float
    source: Any  # the passage, as the library returns it; None if there is none
    start: int  # in source.text
    end: int
    candidates: tuple[Candidate, ...]  # best first; the first is the answer
    passages: tuple[Any, ...]  # passages read; candidates refer to them by number
    seconds: Mapping[str, float]  # retrieve, rerank, read: for all questions of the same call
    calibrated: bool
    threshold: float


@dataclass(frozen=True)
class Gathered:
    """Results for a question before its answers are weighed."""

    question: str
    found: Sequence[Any]  # passages in the order of the library
    ranked: Sequence[Any]  # the same, reranked by the cross-encoder, if any
    read: Sequence[Any]  # passages read, best first
    candidates: list[Candidate]

    @property
    def features(self) -> np.ndarray:
        return feature_table(self.candidates)


class Asker:
    """A library, a reader and an optional cross-encoder, ready for questions.

    >>> import raydist, types
    >>> passage = types.SimpleNamespace(passage_id="bridges.md#0", document_id="bridges.md", scores={"bm25": 2.5})
    >>> passage.text = "Mina Orlov built the bridge in 1894."
    >>> class Bridges:                                     # a run or its index may stand for it; so may anything that searches
    ...     def search(self, questions, k=10, *, kind=None, where=None):
    ...         return [[passage] for _ in questions]
    >>> asker = raydist.Asker.open(Bridges(), reader="runs/bridges")
    >>> reply = asker.ask("Who built the bridge?")
    >>> reply.source.document_id, reply.source.text[reply.start : reply.end] == reply.text
    ('bridges.md', True)
    >>> reply.answered, reply.calibrated, sorted(reply.seconds)                 # without a calibration every answer is given
    (True, False, ['read', 'rerank', 'retrieve'])
    >>> [reply.question for reply in asker.ask(["Who built it?", "When?"])]     # together, which takes less time
    ['Who built it?', 'When?']
    """

    def __init__(
        self,
        library: Retriever,
        reader: Reader,
        *,
        cross_encoder: CrossScorer | None = None,
        calibration: Calibration | None = None,
        kind: str | None = USUAL.kind,
        k: int = USUAL.k,
        depth: int = USUAL.depth,
        precision: float | None = None,
        threshold: float | None = None,
    ) -> None:
        for name, value in (("k", k), ("depth", depth)):
            if value < 1:
                raise InputError(f"{name} is {value}; wanted 1 passage or more")
        self.library, self.reader, self.cross_encoder = library, reader, cross_encoder
        self.kind, self.k, self.depth = kind, k, depth
        self.calibration = calibration
        self.threshold = _threshold(calibration, precision, threshold)
        self.notes = [] if calibration else [UNCALIBRATED]
        self.seconds: dict[str, float] = {}  # of the last call

    @classmethod
    def open(
        cls,
        library: Path | str | Retriever,
        *,
        reader: Path | str | Reader | None = None,
        cross_encoder: Path | str | CrossScorer | None = None,
        calibration: Path | str | Calibration | None = None,
        precision: float | None = None,
        threshold: float | None = None,
        products: str | None = None,
        **settings: Any,
    ) -> Self:
        """Open the library of a run (its folder, or that of its index), with the section `asking` of the run's config.

        Arguments override the config: a reader or cross-encoder (a run, a model's folder, a Hugging Face name), a
        calibration, `precision` or `threshold`, `kind`, `k`, `depth`; and `products`, the precision of the models' products:
        fp32, bf16, or auto (bf16 if the processor has it). The run's own calibration is used if it was made with the same
        models and settings.
        """
        places = find_places(library) if isinstance(library, str | Path) else Places()
        if unknown := set(settings) - set(SETTINGS):
            raise InputError(f"unknown setting {min(unknown)!r}; there are {', '.join(SETTINGS)}")
        settings = {**places.settings} | {name: value for name, value in settings.items() if value is not None}
        reader = reader or places.reader
        if reader is None:
            raise InputError(
                "there is no reader: give one (--reader, or reader=), such as a reader's run or a Hugging Face name, or set "
                "asking.reader in the run's config"
            )
        searched = open_library(library) if isinstance(library, str | Path) else library
        scorer, how = cross_encoder or places.cross_encoder, precision_of(products or places.products)
        asker = cls(searched, _reader(reader, how), cross_encoder=_cross_encoder(scorer, how), **settings)
        found, note = _find_calibration(calibration, places, asker)
        if precision is None and threshold is None:
            precision, threshold = (places.precision, places.threshold) if found else (None, None)
        asker = asker.calibrated(found, precision=precision, threshold=threshold)
        asker.notes = [note] * bool(note) + asker.notes
        return asker

    def calibrated(
        self, calibration: Calibration | None, *, precision: float | None = None, threshold: float | None = None
    ) -> Self:
        """The same library and models, with another calibration."""
        return type(self)(
            self.library,
            self.reader,
            cross_encoder=self.cross_encoder,
            calibration=calibration,
            kind=self.kind,
            k=self.k,
            depth=self.depth,
            precision=precision,
            threshold=threshold,
        )

    @property
    def setup(self) -> dict[str, str]:
        """The models and settings that a calibration is valid for."""
        models = {"reader": self.reader.folder, "cross_encoder": self.cross_encoder and self.cross_encoder.folder}
        digests = {name: weights_digest(folder) if folder else "" for name, folder in models.items()}
        return digests | {"kind": self.kind or getattr(self.library, "kinds", ("",))[0], "k": str(self.k)}

    # --- asking ------------------------------------------------------------------------------------------------------

    @overload
    def ask(self, question: str, *, where: str | None = None, k: int | None = None) -> Reply: ...  # type: ignore[overload-overlap]  # a str is a sequence, too
    @overload
    def ask(self, question: Sequence[str], *, where: str | None = None, k: int | None = None) -> list[Reply]: ...
    def ask(self, question: str | Sequence[str], *, where: str | None = None, k: int | None = None) -> Reply | list[Reply]:
        """The reply to a question, or to each of several; `where` filters passages by their metadata."""
        if isinstance(question, str):
            return self.ask([question], where=where, k=k)[0]
        return [self.weigh(gathered) for gathered in self.gather(list(question), where=where, k=k)]

    def gather(
        self, questions: Sequence[str], *, where: str | None = None, k: int | None = None, depth: int = 0
    ) -> list[Gathered]:
        """Retrieve, rerank and read: the candidates of each question. At least `depth` passages are retrieved."""
        for question in questions:
            if not isinstance(question, str) or not question.strip():
                raise InputError(f"a question is empty, or no text: {question!r}")
        self.seconds, k = {}, k or self.k
        with self._timed("retrieve"):
            filters = {} if where is None else {"where": where}
            deepest = max(k, depth, self.depth if self.cross_encoder else 0)
            found = [list(passages) for passages in self.library.search(questions, deepest, kind=self.kind, **filters)]
        with self._timed("rerank"):
            ranked = rerank_passages(self.cross_encoder, questions, found, max(k, self.depth)) if self.cross_encoder else found
        with self._timed("read"):
            read = [[passage for passage in passages if can_be_read(passage)][:k] for passages in ranked]
            candidates = self._read(questions, read)
        return [Gathered(*row) for row in zip(questions, found, ranked, read, candidates)]

    def _read(self, questions: Sequence[str], read: Sequence[Sequence[Passage]]) -> list[list[Candidate]]:
        pairs = [(question, passage.text) for question, passages in zip(questions, read) for passage in passages]
        answers = iter(self.reader.ask_all(pairs, n_best=SPANS))
        return [merge_spans(passages, [next(answers) for _ in passages], SPANS) for passages in read]

    def weigh(self, gathered: Gathered) -> Reply:
        """The reply: candidates, strongest evidence first, and the probability of the first."""
        calibration, candidates = self.calibration, gathered.candidates
        if not candidates:
            return self._reply(gathered, (), 0.0)
        table = gathered.features
        logits = calibration.order(table) if calibration else uncalibrated_order(table)
        probability = calibration.probability(logits) if calibration else uncalibrated_probability(logits)
        order = np.argsort(-logits, kind="stable")
        return self._reply(gathered, tuple(candidates[place] for place in order), probability)

    def _reply(self, gathered: Gathered, candidates: tuple[Candidate, ...], probability: float) -> Reply:
        best = candidates[0] if candidates else None
        return Reply(
            question=gathered.question,
            answered=best is not None and probability >= self.threshold,
            text=best.text if best else "",
            probability=probability,
            source=gathered.read[best.passage] if best else None,
            start=best.start if best else 0,
            end=best.end if best else 0,
            candidates=candidates,
            passages=tuple(gathered.read),
            seconds=dict(self.seconds),
            calibrated=self.calibration is not None,
            threshold=self.threshold,
        )

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def can_be_read(passage: Passage) -> bool:
    """Whether a passage has a word: a reader refuses one without."""
    return any(map(str.isalnum, passage.text))


def rerank_passages(
    scorer: CrossScorer, questions: Sequence[str], found: Sequence[Sequence[Any]], depth: int
) -> list[list[Any]]:
    """The first passages reranked by a cross-encoder, with its logit among their scores; then the rest unchanged."""
    pairs = [(number, passage) for number, passages in enumerate(found) for passage in passages[:depth]]
    if not pairs:
        return [list(passages) for passages in found]
    places = {text: place for place, text in enumerate(dict.fromkeys(passage.text for _, passage in pairs))}
    texts_of = [places[passage.text] for _, passage in pairs]
    logits = scorer.score(questions, list(places), [number for number, _ in pairs], texts_of)
    ranked: list[list[Any]] = [[] for _ in found]
    for (number, passage), logit in zip(pairs, logits.tolist()):
        ranked[number].append(replace(passage, score=logit, scores={**passage.scores, "cross_encoder": logit}))
    best_first = [sorted(passages, key=lambda passage: -passage.score) for passages in ranked]
    return [[*first, *passages[depth:]] for first, passages in zip(best_first, found)]


# --- models and calibration ------------------------------------------------------------------------------------------


def precision_of(wanted: str) -> str:
    """The precision of models' products: fp32, bf16, or auto (bf16 if the processor has it)."""
    if wanted == "auto":
        return "bf16" if bf16_instructions() else "fp32"
    if wanted not in ("fp32", "bf16"):
        raise InputError(f"products is {wanted!r}; wanted auto, fp32 or bf16")
    return wanted


def _reader(reader: Path | str | Reader, precision: str) -> Reader:
    return Reader.load(reader, precision=precision) if isinstance(reader, str | Path) else reader


def _cross_encoder(scorer: Path | str | CrossScorer | None, precision: str) -> CrossScorer | None:
    return CrossScorer(scorer, precision=precision) if isinstance(scorer, str | Path) else scorer


def _threshold(calibration: Calibration | None, precision: float | None, threshold: float | None) -> float:
    if precision is not None and threshold is not None:
        raise InputError("precision and threshold both set the threshold: leave one of them out")
    if threshold is not None:
        return threshold
    if calibration is not None:
        return calibration.threshold_for(precision)
    if precision is not None:
        raise InputError("a wanted precision needs a calibration: make one with `raydist evaluate`, or give a threshold")
    return 0.0


def _find_calibration(given: Path | str | Calibration | None, places: Places, asker: Asker) -> tuple[Calibration | None, str]:
    """The requested calibration, else the run's own if it has the same setup; and a note about it."""
    if isinstance(given, Calibration):
        return given, ""
    path = Path(given) if given else places.calibration
    if path is None:
        return None, ""
    found, now = Calibration.load(path), asker.setup
    others = [name.replace("_", "-") for name, value in found.setup.items() if now.get(name) != value]
    if not others:
        return found, ""
    note = f"{path} was made with another {', '.join(others)}"
    if given:
        raise InputError(f"{note}: use the same, or recalibrate with `raydist evaluate`")
    return None, f"{note}: it is not used"
