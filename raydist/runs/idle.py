"""Settings that cannot act on a training of so many rows: said before it begins, so that nobody waits for what never comes."""

from __future__ import annotations

from collections.abc import Iterator

from raydist.config import Config, TrainConfig
from raydist.terminal import say


def say_idle(config: Config, rows: int) -> None:
    """One line for each setting that cannot act."""
    for line in idle_settings(config, rows):
        say(f"no effect: {line}")


def idle_settings(config: Config, rows: int) -> Iterator[str]:
    """What is set, and why it cannot act. Defaults are nobody's wish, and left out."""
    train, usual, of = config.train, TrainConfig(), "cross_encoder." if config.task == "cross_encoder" else ""
    steps = train.num_steps(rows)
    there = f"training has {steps:,} steps ({rows:,} rows in batches of {train.batch_size}, {train.epochs:g} epochs)"
    if train.max_steps and train.max_steps > steps:
        yield f"{of}train.max_steps {train.max_steps:,}: {there}"
    if train.evaluate_every and train.evaluate_every > steps:
        yield f"{of}train.evaluate_every {train.evaluate_every:,}: {there}, and is evaluated at its end alone"
    elif train.early_stop and train.evaluate_every != 0:
        every = train.evaluate_every or max(1, -(-rows // train.batch_size))
        evaluations = -(-steps // every)
        if evaluations <= train.early_stop:
            yield f"{of}train.early_stop {train.early_stop}: there are {evaluations} evaluations in {steps:,} steps"
    if train.checkpoint_every != usual.checkpoint_every and train.checkpoint_every > steps:
        yield f"{of}train.checkpoint_every {train.checkpoint_every:,}: {there}"
    if (warmup := config.optim.num_warmup_steps(steps, train.batch_size)) >= steps and steps > 1:
        yield f"{of}optim.lr is never reached: the warm-up takes {warmup:,} steps, and {there}"
    if config.task == "reader":
        yield from _idle_objectives(config, steps, there)


def _idle_objectives(config: Config, steps: int, there: str) -> Iterator[str]:
    pfa, hard = config.objectives.pfa, config.objectives.hard_learning
    if pfa and pfa.every > steps:
        yield f"objectives.pfa.every {pfa.every:,}: {there}, of which the first alone has a second pass"
    if hard and hard.mode == "hard_em" and hard.hard_em_steps > steps:
        yield (
            f"objectives.hard_learning.hard_em_steps {hard.hard_em_steps:,}: {there}, at whose end the probability has grown "
            f"to {min(steps / hard.hard_em_steps, 0.8):.2f}"
        )
