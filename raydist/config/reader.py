"""Data sets of a reader, its predictions and their scores."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raydist.config.section import NOTHING, ROWS, SCORES, WEIGHTS, OneOf, Section, is_plain_name, key, listed, section

EXAMPLE_COLUMNS = ("id", "question", "context", "answer", "answers", "answer_start", "title", "language", "is_impossible")


class SourceConfig(Section):
    """A data set: files and globs (``sample:en/train.json`` is in the embedded sample), or a `datasets` name."""

    files: Annotated[list[str], BeforeValidator(listed)] = key(
        [], "Files, globs and folders; sample:NAME is a file of the embedded sample", ROWS
    )
    hub: str | None = key(None, "Name of a data set on the Hugging Face hub, instead of files", ROWS)
    hub_config: str | None = key(None, "Configuration of the hub's data set, if it has several", ROWS)
    split: str | None = key(
        None,
        "Split of a data set that has several; null: train, validation or test, by the key that the set stands under",
        ROWS,
    )
    format: Annotated[str, OneOf("auto", table="raydist.corpus.formats:READER_FORMATS")] = key(
        "auto", "Format of the files; auto: recognised from their content", ROWS
    )
    language: str | None = key(None, "Language of all rows, such as de; null: taken from the rows or file names", ROWS)
    columns: dict[str, str] = key({}, "Names of the columns in a table: {question: its name}", ROWS)
    rule: Literal["auto", "squad", "mrqa", "hotpotqa", "mlqa"] = key(
        "auto", "Rule for normalising and scoring answers (docs/methods.md 2.5); auto: chosen by the data", SCORES
    )
    adversarial: bool = key(
        False, "Score rows X and X-... as AddSent does, in addition to the plain mean (docs/methods.md 3.7)", SCORES
    )
    questions: int | None = key(
        None,
        "Size of a seeded sample of the questions (of the original ones in an adversarial set); null: all",
        ROWS,
        unit="questions",
        ge=1,
    )
    leave_out: tuple[int, int] | None = key(
        None, "[fold, folds]: leave out the questions in this fold, numbered from 0 to folds - 1", ROWS
    )

    only: tuple[int, int] | None = key(
        None,
        "[fold, folds]: keep only the questions in this fold, the ones that leave_out would drop",
        ROWS,
        later=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"files": value} if isinstance(value, str | list) else value

    def _problems(self) -> Iterator[str]:
        if bool(self.files) == bool(self.hub):
            yield "give either files or hub"
        for name, fold in (("leave_out", self.leave_out), ("only", self.only)):
            if fold and not 0 <= fold[0] < fold[1] > 1:
                yield f"{name} should be [fold, folds] with fold from 0 to folds - 1, got {list(fold)}"
        if self.leave_out and self.only:
            yield "leave_out and only are both given: keep one"
        for name in self.columns:
            if name not in EXAMPLE_COLUMNS:
                near = difflib.get_close_matches(name, EXAMPLE_COLUMNS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(EXAMPLE_COLUMNS)}"
                yield f"columns: unknown name {name!r}; {hint}"


class SampleConfig(Section):
    """The embedded sample world, made on first use."""

    size: Annotated[int, Field(ge=100)] | Literal["small", "medium", "large"] = key(
        "small", "Size of the sample world, or the number of sentences in its corpus", ROWS
    )
    seed: int = key(0, "Seed of the invented world", ROWS)


class DataConfig(Section):
    """Data sets of a reader and how they are cut into windows."""

    train: SourceConfig | None = key(None, "Training set", ROWS)
    dev: SourceConfig | None = key(None, "Development set, used to choose the model during training", ROWS)
    test: Annotated[dict[str, SourceConfig], BeforeValidator(lambda value: value or {})] = key({}, "Test sets by name", ROWS)
    overlap: Literal["warn", "refuse"] = key(
        "warn",
        "What to do if train, or a dev set used for choices, shares questions or passages with a test set",
        NOTHING,
        later=True,
    )
    sample: SampleConfig = section(SampleConfig(), "The embedded sample world")
    seed: int = key(0, "Seed for sampling questions, independent of the run's seed", ROWS, ge=0)
    root: str = key("", "Folder that relative file names are resolved against", ROWS)
    max_length: int = key(384, "Maximum length of a window", ROWS, unit="tokens", ge=16)
    max_question_length: int = key(64, "Length to which questions are truncated", ROWS, unit="tokens", ge=4)
    doc_stride: int = key(128, "Passage tokens shared by neighbouring windows", ROWS, unit="tokens", ge=1)
    no_answer_windows: Literal["cls", "drop"] = key(
        "cls", "Training windows without the answer: label them with the first token, or drop them", ROWS
    )
    passage_first: bool = key(False, "Put the passage before the question; the model must then be used the same way", ROWS)
    max_rejected: float = key(0.01, "Maximum share of rejected rows in a data set; above it the run stops", ROWS, ge=0, le=1)
    repair_offsets: bool = key(False, "Correct wrong answer offsets by searching for the answer's text", ROWS)
    part_rows: int = key(1000, "Examples in a part file of a stage", ROWS, unit="rows", ge=1)

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if self.max_question_length + self.doc_stride + 8 > self.max_length:
            raise ValueError(
                f"max_length {self.max_length} leaves no room for a passage beside max_question_length "
                f"{self.max_question_length} and doc_stride {self.doc_stride}: raise the first or lower the others"
            )
        return self

    @field_validator("test")
    @classmethod
    def _plain_names(cls, value: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        for name in value:
            if name in ("train", "dev") or not is_plain_name(name):
                raise ValueError(
                    f"a test set cannot be called {name!r}: use letters, digits, - and _, and neither train nor dev"
                )
        return value


class PredictConfig(Section):
    """How a reader answers."""

    split: Annotated[list[str], BeforeValidator(listed)] = key(
        [], "Data sets to predict; empty: dev and every test set", SCORES
    )
    model: str | None = key(None, "Folder of a reader; null: the run's own", SCORES)
    n_best: int = key(20, "Answers to list for each question", SCORES, unit="answers", ge=1)
    max_answer_length: int = key(
        30, "Maximum length of an answer", WEIGHTS, unit="tokens", ge=1
    )  # dev uses it to choose the model
    nbest_compat: Literal["exact", "top_n_product"] = key(
        "exact",
        "exact: the best spans of all; top_n_product: the best among the n best starts and ends, as in other tools",
        SCORES,
    )
    batch_tokens: int = key(4096, "Padded tokens in one forward pass", SCORES, unit="tokens", ge=16)
    precision: Literal["fp32", "bf16"] = key("fp32", "Precision of matrix products in prediction", WEIGHTS)  # on dev, too


class EvaluateConfig(Section):
    """How answers and ranked lists are scored."""

    predictions: dict[str, str] = key(
        {}, "Another tool's output by test set: answers in the SQuAD layout or, for retrieval, TREC runs", SCORES
    )
    at_k: list[Annotated[int, Field(ge=1)]] = key(
        [1, 3, 5, 10, 20], "Values of k for the share of questions answered among the first k", SCORES, unit="answers"
    )
    bootstrap: int = key(1000, "Bootstrap samples for confidence intervals; 0: no intervals", SCORES, unit="samples", ge=0)
    ties: Literal["id", "pessimistic"] = key("id", "Order of candidates with equal scores: by id, or wrong ones first", SCORES)
