"""Questions to documents: how they are answered, and which questions evaluate that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from raydist.config.section import NOTHING, ROWS, SCORES, Section, is_plain_name, key, listed


def _files_by_name(value: Any) -> Any:
    return {name: listed(files) for name, files in value.items()} if isinstance(value, dict) else value or {}


class AskingConfig(Section):
    """Questions about documents: passages are found, maybe ranked anew, read, and what was read is merged (docs/asking.md)."""

    reader: str | None = key(None, "Reader: a run, a model's folder, or a Hugging Face name", SCORES, later=True)
    cross_encoder: str | None = key(
        None, "Cross-encoder that ranks passages anew: a model's folder, or a Hugging Face name; null: none", SCORES, later=True
    )
    kind: Literal["hybrid", "bm25", "dense"] | None = key(
        None, "How passages are found; null: hybrid, or bm25 where the library has no vectors", SCORES, later=True
    )
    k: int = key(10, "Passages that are read for a question", SCORES, unit="passages", later=True, ge=1)
    depth: int = key(30, "Passages that the cross-encoder ranks anew", SCORES, unit="passages", later=True, ge=1)
    questions: Annotated[dict[str, list[str]], BeforeValidator(_files_by_name)] = key(
        {},
        "Files of questions by name, SQuAD-shaped or JSON Lines; those called dev fit the calibration",
        ROWS,
        shared=False,
        later=True,
    )
    calibration: str | None = key(
        None, "File of a calibration made elsewhere; null: the run's own, where it has one", SCORES, later=True
    )
    precision: float | None = key(
        None,
        "Share of given answers that is to be right, the rest withheld; null: withhold what is more likely wrong",
        SCORES,
        later=True,
        gt=0,
        le=1,
    )
    threshold: float | None = key(
        None, "Probability below which an answer is withheld; null: by asking.precision", SCORES, later=True, ge=0, le=1
    )
    products: Literal["auto", "fp32", "bf16"] = key(
        "auto", "Precision of the models' products; auto: bf16 where the processor has it", SCORES, later=True
    )
    block: int = key(64, "Questions that are asked together in an evaluation", NOTHING, unit="questions", later=True, ge=1)

    def _problems(self) -> Iterator[str]:
        for name in self.questions:
            if not is_plain_name(name):
                yield f"questions: a set cannot be called {name!r}; use letters, digits, - and _"
        if self.precision is not None and self.threshold is not None:
            yield "precision chooses a threshold, and threshold is one: leave one of the two out"
