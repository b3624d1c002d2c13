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
    dropout: float | None = key(None, "Dropout of the encoder; null: as its own config declares", WEIGHTS, ge=0, lt=1)


class TrainConfig(Section):
    """The training loop."""

    epochs: float = key(2, "Passes over the training rows; fractions are allowed", WEIGHTS, unit="epochs", gt=0)
    max_steps: int | None = key(None, "Maximum number of steps; null: as many as epochs take", WEIGHTS, unit="steps", ge=1)
    batch_size: int = key(16, "Rows per step, over all workers", WEIGHTS, unit="rows", ge=1)
    accumulate: int = key(1, "Groups into which a batch is split, with one forward pass each", WEIGHTS, unit="groups", ge=1)
    precision: Literal["fp32", "bf16"] = key("fp32", "Precision of matrix products in training", WEIGHTS)
    checkpoint_every: int = key(200, "Steps between checkpoints", NOTHING, unit="steps", ge=1)
    keep_checkpoints: int = key(2, "Number of latest checkpoints to keep", NOTHING, unit="checkpoints", ge=1)
    keep_finished: bool = key(False, "Keep checkpoints once training has ended and its model is written", NOTHING, later=True)
    evaluate_every: int | None = key(
        None, "Steps between evaluations; null: after each epoch; 0: never", WEIGHTS, unit="steps", ge=0
    )
    dev_questions: int | None = key(
        None, "Size of a seeded sample of dev for evaluation during training; null: all", WEIGHTS, unit="questions", ge=1
    )
    choose: Literal["best", "last"] = key("best", "Which model to keep: the best on dev, or the last", WEIGHTS)
    metric: Literal["f1", "em", "average_precision", "accuracy"] = key(
        "f1",
        "Dev score that chooses the best reader or cross-encoder; a retriever is chosen by MRR",
        WEIGHTS,
    )
    early_stop: int | None = key(
        None, "Stop after this many evaluations without a better score; null: never", WEIGHTS, unit="evaluations", ge=1
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

    lr: float = key(3e-5, "Peak learning rate of the schedule", WEIGHTS, gt=0)
    weight_decay: float = key(0.01, "Decoupled weight decay", WEIGHTS, ge=0)
    betas: tuple[Beta, Beta] = key((0.9, 0.999), "Decay rates of Adam's two moments", WEIGHTS)
    eps: float = key(1e-8, "Constant that keeps Adam's denominator above 0", WEIGHTS, gt=0)
    clip_norm: float = key(1.0, "Maximum norm of the gradients, which are clipped to it", WEIGHTS, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = key("linear", "Shape of the learning rate after warm-up", WEIGHTS)
    final_lr_share: float = key(0.0, "Share of lr remaining at the last step", WEIGHTS, ge=0, le=1)
    warmup_share: float | None = key(None, "Warm-up as a share of all steps; 0.1 if no warm-up is set", WEIGHTS, ge=0, le=1)
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
        None,
        "Settings to try, each with all seeds; null: 20 for random and optuna, all for a grid",
        NOTHING,
        unit="settings",
        ge=1,
    )
    seeds: list[Annotated[int, Field(ge=0)]] = key([], "Seeds to try with every setting; empty: the config's own seed", NOTHING)
    metric: str = key("dev.f1", "Key of metrics.json by which settings are ranked", NOTHING, pattern=r"^[A-Za-z0-9_-]+\..+$")
    metric_is_test: Literal["refuse", "allow"] = key(
        "refuse", "Allow ranking settings by a test set, whose score of the best one is then too optimistic", NOTHING
    )
    mode: Literal["max", "min"] = key("max", "Whether a high or a low metric is better", NOTHING)
    at_once: int | None = key(None, "Concurrent trials; null: as many as fit the CPUs (or GPUs)", NOTHING, unit="trials", ge=1)
    keep: int = key(
        1, "Number of best trials whose models are kept; of the others only numbers remain", NOTHING, unit="trials", ge=0
    )
    scheduler: Literal["none", "asha", "median"] = key(
        "none", "Scheduler that stops trials early, by their dev scores during training", NOTHING
    )
    grace_steps: int | None = key(
        None, "Minimum number of steps before a trial may be stopped; null: train.evaluate_every", NOTHING, unit="steps", ge=1
    )
    reduction: float = key(3.0, "asha: one in this many trials continues past each rung", NOTHING, gt=1)

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
