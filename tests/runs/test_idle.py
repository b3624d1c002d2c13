"""Settings that cannot act are said before a training begins."""

import pytest

from raydist.config import load_config
from raydist.runs.idle import idle_settings

STEPS = "training has 38 steps (600 rows in batches of 16, 1 epochs)"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], []),
        (["train.max_steps=60"], [f"train.max_steps 60: {STEPS}"]),
        (["train.max_steps=38"], []),
        (["train.evaluate_every=200"], [f"train.evaluate_every 200: {STEPS}, and is evaluated at its end alone"]),
        (["train.evaluate_every=10", "train.early_stop=4"], ["train.early_stop 4: there are 4 evaluations in 38 steps"]),
        (["train.evaluate_every=10", "train.early_stop=3"], []),
        (["train.evaluate_every=null", "train.early_stop=1"], ["train.early_stop 1: there are 1 evaluations in 38 steps"]),
        (["train.checkpoint_every=500"], [f"train.checkpoint_every 500: {STEPS}"]),
        (["optim.warmup_steps=38"], [f"optim.lr is never reached: the warm-up takes 38 steps, and {STEPS}"]),
        (["optim.warmup_examples=590"], []),
        (["objectives.pfa.every=50"], [f"objectives.pfa.every 50: {STEPS}, of which the first alone has a second pass"]),
        (
            ["objectives.hard_learning={mode: hard_em, hard_em_steps: 76}"],
            [f"objectives.hard_learning.hard_em_steps 76: {STEPS}, at whose end the probability has grown to 0.50"],
        ),
    ],
)
def test_what_cannot_act_is_named_with_what_there_is(given, said):
    config = load_config("debug_reader", ["train.epochs=1", "train.batch_size=16", "train.accumulate=1", *given]).config
    assert list(idle_settings(config, 600)) == said


def test_of_a_cross_encoder_the_keys_are_its_own():
    config = load_config("debug_retrieval", ["task=cross_encoder", "train.max_steps=60", "train.epochs=1"]).config
    assert next(idle_settings(config, 32)).startswith("cross_encoder.train.max_steps 60: training has 2 steps")
