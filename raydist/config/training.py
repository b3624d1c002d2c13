"""Settings of training: the model, the loop, the optimizer, and the trials of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from raydist.config.section import NOTHING, WEIGHTS, Section, key

Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Section):
    """The pretrained encoder."""

    name: str = key(
        "builtin:minilm", "builtin:minilm, builtin:minilm_new, builtin:tiny, a Hugging Face name, or a folder", WEIGHTS
    )
    revision: str | None = key(None, "Revision of a Hugging Face name: a branch, tag or commit", WEIGHTS)
    attention: Literal["auto", "sdpa", "eager"] = key("auto", "Implementation of attention", WEIGHTS)
    dropout: float | None = key(None, "Dropout of the encoder; null: what its own config says", WEIGHTS, ge=0, lt=1)


class TrainConfig(Section):
    """The training loop."""

    epochs: float = key(2, "Passes over the training rows; may be a fraction", WEIGHTS, unit="epochs", gt=0)
    max_steps: int | None = key(None, "Steps to stop after, if epochs would take more", WEIGHTS, unit="steps", ge=1)
    batch_size: int = key(16, "Rows of a step, over all workers", WEIGHTS, unit="rows", ge=1)
    accumulate: int = key(1, "Groups a batch is cut into, one forward pass each", WEIGHTS, unit="groups", ge=1)
    precision: Literal["fp32", "bf16"] = key("fp32", "Precision of products in training", WEIGHTS)
    checkpoint_every: int = key(200, "Steps between checkpoints", NOTHING, unit="steps", ge=1)
    keep_checkpoints: int = key(2, "Latest checkpoints that are kept", NOTHING, unit="checkpoints", ge=1)
    keep_finished: bool = key(False, "Keep checkpoints once training has ended and its model is written", NOTHING, later=True)
    evaluate_every: int | None = key(
        None, "Steps between evaluations; null: after each epoch; 0: never", WEIGHTS, unit="steps", ge=0
    )
    dev_questions: int | None = key(
        None, "A seeded choice of dev, for evaluation during training; null: all", WEIGHTS, unit="questions", ge=1
    )
    choose: Literal["best", "last"] = key("best", "Model that is kept: the best on dev, or the last", WEIGHTS)
    metric: Literal["f1", "em", "average_precision", "accuracy"] = key(
        "f1",
        "Score that the best reader or cross-encoder is chosen by; a retriever is chosen by MRR",
        WEIGHTS,
    )
    early_stop: int | None = key(
        None, "Evaluations without a better score, after which training stops", WEIGHTS, unit="evaluations", ge=1
    )
    log_every: int = key(10, "Steps between lines of metrics.jsonl", NOTHING, unit="steps", ge=1)

    def _problems(self) -> Iterator[str]:
        if self.accumulate > self.batch_size:
            yield f"cannot cut a batch of {self.batch_size} into {self.accumulate} groups: lower accumulate"
        if self.evaluate_every == 0 and (self.choose == "best" or self.early_stop):
            yield "choosing the best or stopping early needs evaluations: set evaluate_every, or choose: last"

    def num_steps(self, rows: int) -> int:
        """The number of steps of training on so many rows."""
        steps = max(1, round(-(-rows // self.batch_size) * self.epochs))
        return min(steps, self.max_steps) if self.max_steps else steps


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = key(3e-5, "Highest learning rate of the schedule", WEIGHTS, gt=0)
    weight_decay: float = key(0.01, "Decoupled weight decay", WEIGHTS, ge=0)
    betas: tuple[Beta, Beta] = key((0.9, 0.999), "Decay rates of Adam's two moments", WEIGHTS)
    eps: float = key(1e-8, "Term that keeps Adam's denominator above 0", WEIGHTS, gt=0)
    clip_norm: float = key(1.0, "Norm that gradients are clipped to", WEIGHTS, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = key("linear", "Course of the learning rate after warm-up", WEIGHTS)
    final_lr_share: float = key(0.0, "Share of lr that is left at the last step", WEIGHTS, ge=0, le=1)
    warmup_share: float | None = key(
        None, "Warm-up as a share of all steps; 0.1 where no warm-up is given", WEIGHTS, ge=0, le=1
    )
    warmup_steps: int | None = key(None, "Warm-up in steps", WEIGHTS, unit="steps", ge=0)
    warmup_examples: int | None = key(None, "Warm-up in training rows", WEIGHTS, unit="rows", ge=0)

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        given = [name for name in ("warmup_share", "warmup_steps", "warmup_examples") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given: keep one")
        return self

    def num_warmup_steps(self, total_steps: int, batch_size: int) -> int:
        """The number of steps of the warm-up, in whichever unit it is given."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.warmup_examples is not None:
            return math.ceil(self.warmup_examples / batch_size)
        return round((0.1 if self.warmup_share is None else self.warmup_share) * total_steps)


class SweepConfig(Section):
    """Trials of one config (`raydist sweep`): dotted keys take values of `space`, which raydist/sweep checks."""

    space: dict[str, Any] = key(
        ...,
        "Values by dotted key: a list, {choice: [...]}, or the ends of a range, {uniform | loguniform | int: [low, high]}",
        NOTHING,
        min_length=1,
    )
    search: Literal["grid", "random", "optuna"] = key("grid", "How settings are chosen from the space", NOTHING)
    trials: int | None = key(
        None, "Settings to try, each with all seeds; 20 for random and optuna; a grid tries all", NOTHING, unit="settings", ge=1
    )
    seeds: list[Annotated[int, Field(ge=0)]] = key(
        [], "Seeds that every setting is tried with; empty: the config's own", NOTHING
    )
    metric: str = key("dev.f1", "Key of metrics.json that settings are ranked by", NOTHING, pattern=r"^[A-Za-z0-9_-]+\..+$")
    metric_is_test: Literal["refuse", "allow"] = key(
        "refuse", "Whether settings may be ranked by a test set; what it then says of the best one is too good", NOTHING
    )
    mode: Literal["max", "min"] = key("max", "Whether a high or a low metric is better", NOTHING)
    at_once: int | None = key(
        None, "Trials at the same time; null: as many as the CPUs (or GPUs) hold", NOTHING, unit="trials", ge=1
    )
    keep: int = key(1, "Best trials whose models are kept; the others keep their numbers alone", NOTHING, unit="trials", ge=0)
    scheduler: Literal["none", "asha", "median"] = key(
        "none", "What stops trials early, by the dev score during training", NOTHING
    )
    grace_steps: int | None = key(
        None, "Steps before which no trial is stopped; null: train.evaluate_every", NOTHING, unit="steps", ge=1
    )
    reduction: float = key(3.0, "asha: of the trials at a rung, one in so many goes on", NOTHING, gt=1)

    @field_validator("scheduler", mode="before")
    @classmethod
    def _no_pbt(cls, value: Any) -> Any:
        if value == "pbt":
            raise ValueError(
                "population-based training is left out: it changes settings while it trains, so no config could make the best "
                "model again; use asha or median"
            )
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError(f"a seed is given twice: {value}")
        return value
