import pytest
from torch import nn

from raydist.config import OptimConfig
from raydist.training.optim import build_optimizer, build_schedule, lr_share


def shares(**settings) -> list[float]:
    return [lr_share(step, **{"warmup": 2, "total": 6, "schedule": "linear", "final": 0.0} | settings) for step in range(7)]


def test_linear_warm_up_and_decay_by_hand():
    # two steps up, then from 1 down to 0 over the four that are left
    assert shares() == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_cosine_ends_at_its_final_share():
    # half-way through the cosine the share is half-way between 1 and 0.2
    assert shares(schedule="cosine", final=0.2) == pytest.approx([0.5, 1.0, 1.0, 0.8828427, 0.6, 0.3171573, 0.2])


def test_constant_stays():
    assert shares(schedule="constant") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({}, 10), ({"warmup_share": 0.5}, 50), ({"warmup_steps": 7}, 7), ({"warmup_examples": 100}, 7), ({"warmup_steps": 0}, 0)],
)
def test_warm_up_in_share_steps_or_examples(settings, steps):
    # 100 examples are 6.25 batches of 16: seven steps
    assert OptimConfig(**settings).num_warmup_steps(100, 16) == steps


def test_biases_and_norms_are_not_decayed_and_a_module_may_have_its_own_rate():
    class Critic(nn.Linear):
        def parameter_groups(self):
            return [{"params": list(self.parameters()), "lr": 0.5, "weight_decay": 0.0}]

    task = nn.ModuleDict({"encoder": nn.Linear(2, 3), "norm": nn.LayerNorm(3), "critic": Critic(3, 1)})
    optimizer = build_optimizer(task, OptimConfig(lr=0.1, weight_decay=0.01))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(task["encoder"].weight)] == 0.01
    assert decay[id(task["encoder"].bias)] == decay[id(task["norm"].weight)] == decay[id(task["critic"].weight)] == 0.0
    assert rate[id(task["encoder"].weight)] == 0.1
    assert rate[id(task["critic"].bias)] == 0.5
    assert len(decay) == len(list(task.parameters()))
    schedule = build_schedule(optimizer, OptimConfig(warmup_steps=2, lr=0.1), total_steps=10, batch_size=1)
    assert schedule.get_last_lr() == pytest.approx([0.05, 0.05, 0.25])
