"""Questions to a trained reader, in memory: the answers of `raydist predict`, without files or a run.

reader = Reader.load("runs/bridges")
answer = reader.ask("When was the bridge built?", "Mina Orlov built the bridge in 1894.")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from torch import nn

from raydist.config import Config, DataConfig, PredictConfig
from raydist.errors import InputError
from raydist.files.given import expanded
from raydist.files.storage import Storage
from raydist.files.yaml_text import load_yaml
from raydist.models.encoders import longest_input
from raydist.models.folders import model_folder
from raydist.models.packed import load_for_inference
from raydist.models.saving import read_settings
from raydist.reader.features import make_windows
from raydist.reader.model import SpanReader, check_span_head
from raydist.reader.packed import packed_reader
from raydist.reader.predict import predict_examples
from raydist.reader.rows import WindowRows
from raydist.records import Example, examples_table

if TYPE_CHECKING:
    from raydist.reader.model import SpanReader

TOGETHER = 256  # pairs in memory at once
KEPT = PredictConfig().n_best  # the softmax covers at least this many spans


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A piece of the passage: `passage[start:end] == text`."""

    text: str
    start: int
    end: int
    score: float  # start logit + end logit
    probability: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The best span of a passage, and its competitors.

    Probabilities are a softmax over the scores of the best spans (20, or `n_best` if larger) and of the null span, which means
    "no answer in this passage". They are not calibrated: they rank the reader's own choices. `text` is the best span even if
    `answered` is false.

    >>> import raydist
    >>> answer = raydist.Reader.load("runs/bridges").ask("When did it fall?", "It fell in 1911.", n_best=20)
    >>> round(sum(span.probability for span in answer.nbest) + answer.null_probability, 6)
    1.0
    >>> answer.answered == (answer.score >= answer.null_score)        # or by the threshold that the run was evaluated with
    True
    """

    text: str
    start: int
    end: int
    score: float
    probability: float
    answered: bool  # null score less best score is at most the reader's threshold
    null_score: float
    null_probability: float
    nbest: tuple[AnswerSpan, ...]  # best first; the first is the answer


@dataclass(frozen=True)
class ReadingSettings:
    """Settings of windows and of the span search, named as in a config's `data` and `predict`."""

    max_length: int = 384
    max_question_length: int = 64
    doc_stride: int = 128
    passage_first: bool = False
    max_answer_length: int = 30
    nbest_compat: str = "exact"
    batch_tokens: int = 4096
    precision: str = "fp32"
    null_threshold: float = 0.0  # a question stays unanswered if null score less best score is above it

    @classmethod
    def of_run(cls, data: DataConfig, predict: PredictConfig, null_threshold: float) -> Self:
        of_data = ("max_length", "max_question_length", "doc_stride", "passage_first")
        of_predict = ("max_answer_length", "nbest_compat", "batch_tokens", "precision")
        taken = {name: getattr(data, name) for name in of_data} | {name: getattr(predict, name) for name in of_predict}
        return cls(**taken, null_threshold=null_threshold)

    def within(self, longest: int | None) -> Self:
        """The settings for a model with `longest` positions: shorter windows if needed."""
        if longest is None or self.max_length <= longest:
            return self
        return replace(
            self,
            max_length=longest,
            max_question_length=min(self.max_question_length, longest // 4),
            doc_stride=min(self.doc_stride, longest // 3),
        )


class Reader:
    """A trained reader, ready for questions.

    >>> import raydist
    >>> reader = raydist.Reader.load("runs/bridges")           # a run, a model's folder, or a Hugging Face name
    >>> answer = reader.ask("Who built the bridge?", "Mina Orlov built the bridge in 1894.", n_best=3)
    >>> answer.text == "Mina Orlov built the bridge in 1894."[answer.start : answer.end]
    True
    >>> len(answer.nbest), 0 < answer.probability < 1
    (3, True)
    >>> pairs = [("Who built it?", "Mina Orlov did."), ("When?", "In 1894. " * 500)]      # of any length
    >>> [type(answer).__name__ for answer in reader.ask_all(pairs)]
    ['Answer', 'Answer']
    """

    def __init__(
        self, model: SpanReader, tokenizer: Any, settings: ReadingSettings | None = None, folder: Path | None = None
    ) -> None:
        longest = longest_input(model.config)
        settings = settings or ReadingSettings().within(longest)
        if longest is not None and settings.max_length > longest:
            raise InputError(f"max_length is {settings.max_length}, and the model has {longest} positions: lower it")
        self._reading: nn.Module = model  # not packed: its owner may be training it
        self.model, self.tokenizer, self.settings, self.folder = model.eval(), tokenizer, settings, folder

    @classmethod
    def load(cls, name: Path | str, *, device: str | None = None, **settings: Any) -> Reader:
        """The reader of a run (its folder or URI) or of a model (its folder or Hugging Face name).

        A run's reader predicts as `raydist predict` does, with the run's own `data.max_length`, `predict.max_answer_length` and
        so on, and so does a copy of its folder `model`; others get defaults. Override settings by name:
        `Reader.load("runs/bridges", max_answer_length=10)`.
        """

        folder, of_run = _locate(name)
        model, tokenizer = load_for_inference("AutoModelForQuestionAnswering", folder, device)
        check_span_head(model, folder)
        usual = of_run or ReadingSettings().within(longest_input(model.config))
        reader = cls(SpanReader(model), tokenizer, _changed(usual, settings), folder)
        reader._reading = packed_reader(reader.model, reader.settings.precision)
        return reader

    def ask(self, question: str, passage: str, *, n_best: int = 1) -> Answer:
        """The answer to a question in a passage of any length, and the `n_best` best spans."""
        return next(self._answers([(question, passage)], n_best))

    def ask_all(self, pairs: Iterable[tuple[str, str]], *, n_best: int = 1) -> list[Answer]:
        """The answers to (question, passage) pairs, in their order; batched, so faster than one at a time."""
        return list(self._answers(pairs, n_best))

    def _answers(self, pairs: Iterable[tuple[str, str]], n_best: int) -> Iterator[Answer]:
        if n_best < 1:
            raise InputError(f"n_best is {n_best}; wanted 1 or more")
        source, first = iter(pairs), 0
        while block := list(islice(source, TOGETHER)):
            for row in self._predict(block, first, max(KEPT, n_best)).to_pylist():
                yield _answer(row, n_best, self.settings.null_threshold)
            first += len(block)

    def _predict(self, pairs: Sequence[tuple[str, str]], first: int, k: int) -> pa.Table:
        """One row (PREDICTION_SCHEMA) per pair; `first` is the number of the first pair, for messages."""

        given = self.settings
        examples = examples_table(_example(question, passage, first + i) for i, (question, passage) in enumerate(pairs))
        windows = make_windows(
            examples,
            self.tokenizer,
            max_length=given.max_length,
            max_question_length=given.max_question_length,
            doc_stride=given.doc_stride,
            passage_first=given.passage_first,
        )
        rows = WindowRows([windows.replace_schema_metadata({"raydist": json.dumps({"examples": len(pairs)})})])
        unread = np.setdiff1d(np.arange(len(pairs)), rows.examples)
        if len(unread):
            raise InputError(
                f"the passage of pair {first + unread[0] + 1} has no word: {pairs[unread[0]][1][:60]!r}; leave it out"
            )
        return predict_examples(
            self._reading,
            rows,
            examples,
            k=k,
            max_answer_length=given.max_answer_length,
            batch_tokens=given.batch_tokens,
            pad_id=self.tokenizer.pad_token_id,
            compat=given.nbest_compat,
            precision=given.precision,
        )


def _example(question: str, passage: str, number: int) -> Example:
    for name, text in (("question", question), ("passage", passage)):
        if not isinstance(text, str):
            raise InputError(f"the {name} of pair {number + 1} is a {type(text).__name__}; wanted a text")
        if not text.strip():
            raise InputError(f"the {name} of pair {number + 1} is empty; leave it out")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"the {name} of pair {number + 1} contains a lone surrogate; decode it again") from None
    return Example(id=f"pair {number + 1}", question=question, context=passage, answers=[], passage_id=str(number))


def _answer(row: dict[str, Any], n_best: int, null_threshold: float) -> Answer:
    """The answer in a row of predictions; the softmax includes the null span."""
    if not row["nbest"]:  # no candidate of `top_n_product` is a span of the passage
        return Answer("", 0, 0, -np.inf, 0.0, False, row["null_score"], 1.0, ())
    scores = np.array([span["score"] for span in row["nbest"]] + [row["null_score"]], np.float64)
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    spans = tuple(
        AnswerSpan(span["text"], span["start"], span["end"], span["score"], share)
        for span, share in zip(row["nbest"][:n_best], shares)
    )
    best, null = spans[0], row["null_score"]
    answered = null - best.score <= null_threshold
    return Answer(best.text, best.start, best.end, best.score, best.probability, answered, null, shares[-1], spans)


# --- location of a reader --------------------------------------------------------------------------------------------


def _locate(name: Path | str) -> tuple[Path, ReadingSettings | None]:
    """The model's folder, and the settings of its run, if it has one."""
    path = str(name)
    if "://" in path or (expanded(path) / "config.yaml").is_file():
        run = Storage(path)
        return _model_of(run), _settings_of(run)
    above = expanded(path).absolute().parent
    of_run = Path(path).name == "model" and (above / "config.yaml").is_file()
    folder = model_folder(path)
    return folder, _settings_of(Storage(str(above))) if of_run else _saved_settings(folder)


def _saved_settings(folder: Path) -> ReadingSettings | None:
    """The settings in a folder that raydist wrote, wherever it is now."""
    saved = read_settings(folder)
    known = {name: saved[name] for name in ReadingSettings.__dataclass_fields__ if name in saved}
    return ReadingSettings(**known) if saved.get("task") == "reader" else None


def _model_of(run: Storage) -> Path:
    if not run.exists("model/config.json"):
        raise InputError(f"run {run.uri} has no model yet: train it first (raydist train)")
    return run.local_copy("model")


def _settings_of(run: Storage) -> ReadingSettings:
    if not run.exists("config.yaml"):
        raise InputError(f"{run.uri} is not a run: it has no config.yaml")
    try:
        config = Config.model_validate(load_yaml(run.read_bytes("config.yaml")))
    except ValueError as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{run.uri}: its config.yaml cannot be read ({why}); take its folder `model` alone") from None
    if config.task != "reader":
        raise InputError(f"{run.uri} is a run with task: {config.task}, and a reader answers questions: take another")
    metrics = run.read_json("metrics.json") if run.exists("metrics.json") else {}
    return ReadingSettings.of_run(config.data, config.predict, metrics.get("dev.null_threshold", 0.0))


def _changed(settings: ReadingSettings, changes: dict[str, Any]) -> ReadingSettings:
    names = list(ReadingSettings.__dataclass_fields__)
    unknown = [name for name in changes if name not in names]
    if unknown:
        raise InputError(f"unknown setting {unknown[0]!r}; there are {', '.join(names)}")
    return replace(settings, **changes)
