"""How questions about documents are answered, and the questions that evaluate it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from raydist.config.section import NOTHING, ROWS, SCORES, Section, is_plain_name, key, listed


def _files_by_name(value: Any) -> Any:
    return {name: listed(files) for name, files in value.items()} if isinstance(value, dict) else value or {}


class AskingConfig(Section):
    """Question answering over documents: find passages, rerank, read, and merge the answers (docs/asking.md)."""

    reader: str | None = key(None, "Reader: a run, a model's folder or a Hugging Face name", SCORES, later=True)
    cross_encoder: str | None = key(
        None, "Cross-encoder that reranks passages: a model's folder or a Hugging Face name; null: none", SCORES, later=True
    )
    kind: Literal["hybrid", "bm25", "dense"] | None = key(
        None, "How passages are found; null: hybrid, or bm25 if the library has no vectors", SCORES, later=True
    )
    k: int = key(10, "Passages to read for each question", SCORES, unit="passages", later=True, ge=1)
    depth: int = key(30, "Passages that the cross-encoder reranks", SCORES, unit="passages", later=True, ge=1)
    questions: Annotated[dict[str, list[str]], BeforeValidator(_files_by_name)] = key(
        {},
        "Question files by name, in SQuAD format or JSON Lines; the set named dev fits the calibration",
        ROWS,
        shared=False,
        later=True,
    )
    calibration: str | None = key(
        None, "Calibration file from another run; null: the run's own, if it has one", SCORES, later=True
    )
    precision: float | None = key(
        None,
        "Target share of correct answers among those given; null: withhold answers more likely wrong than right",
        SCORES,
        later=True,
        gt=0,
        le=1,
    )
    threshold: float | None = key(
        None,
        "Answers with a lower probability are withheld; null: derived from asking.precision",
        SCORES,
        later=True,
        ge=0,
        le=1,
    )
    products: Literal["auto", "fp32", "bf16"] = key(
        "auto", "Precision of matrix products in the models; auto: bf16 if the processor supports it", SCORES, later=True
    )
    block: int = key(64, "Questions processed together in an evaluation", NOTHING, unit="questions", later=True, ge=1)

    def _problems(self) -> Iterator[str]:
        for name in self.questions:
            if not is_plain_name(name):
                yield f"questions: a set cannot be called {name!r}; use letters, digits, - and _"
        if self.precision is not None and self.threshold is not None:
            yield "precision and threshold both set the threshold: leave one of them out"
