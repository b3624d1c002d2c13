"""The training loop, in the order of events. Plain torch: runs in a notebook as well as in a Ray Train worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from raydist.objectives.base import Term, world_size
from raydist.training.dropout import fast_dropout
from raydist.training.optim import own_groups
from raydist.training.plan import epoch_plan


class TrainBatch(Protocol):
    """The loop's view of a batch: this rank's rows of one group. All else is private to rows, task and objective."""

    @property
    def rows_name(self) -> str: ...  # name of its rows in messages: windows, pairs

    @property
    def world(self) -> Any: ...  # all rows of the group; `row` are their numbers in the training file

    @property
    def mine(self) -> Tensor: ...  # positions of this rank's rows in the group

    @property
    def step(self) -> int: ...

    def to(self, device: torch.device | str) -> Any: ...


class TrainRows(Protocol):
    """The loop's view of a training set."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray: ...  # tokens of each row: rows of similar length share a batch

    def step_batches(
        self, groups: Sequence[np.ndarray], *, rank: int, ranks: int, pad_id: int, seed: int, step: int
    ) -> Sequence[TrainBatch]: ...


class NonFiniteLoss(RuntimeError):
    """A term of the loss is not finite: the run stops before the update and names the step and rows. `rows`: row numbers."""

    def __init__(self, message: str, rows: np.ndarray) -> None:
        super().__init__(message)
        self.rows = rows


class StepReport(NamedTuple):
    loss: float  # the minimized value
    terms: dict[str, float]  # unweighted means over the global batch
    rows: dict[str, float]  # number of rows (or tokens) behind each
    grad_norm: float  # of the parameters clipped together


def training_steps(
    rows: TrainRows, *, seed: int, batch_size: int, accumulate: int, first: int, last: int, rank: int, ranks: int, pad_id: int
) -> Iterator[tuple[int, Sequence[TrainBatch]]]:
    """Steps first..last-1 of a run with this rank's batches. A step's rows depend on (seed, step) alone."""
    per_epoch = -(-len(rows) // batch_size)
    for epoch in range(first // per_epoch, -(-last // per_epoch)):
        plan = epoch_plan(rows.lengths, seed=seed, epoch=epoch, batch_size=batch_size, accumulate=accumulate)
        for within in range(max(0, first - epoch * per_epoch), min(per_epoch, last - epoch * per_epoch)):
            step = epoch * per_epoch + within
            yield step, rows.step_batches(plan[within], rank=rank, ranks=ranks, pad_id=pad_id, seed=seed, step=step)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Random states of a step (dropout) are a function of (seed, step, rank), so checkpoints need not hold them."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def train_step(
    task: nn.Module,
    batches: Sequence[TrainBatch],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    weights: Mapping[str, float],
    *,
    clip_norm: float,
    precision: str = "fp32",
) -> StepReport:
    """One update from the groups of one global batch."""
    device = next(task.parameters()).device
    sums: dict[str, list[Tensor]] = {}
    counts: dict[str, float] = {}
    for number, batch in enumerate(batches):
        waits = number + 1 < len(batches) and hasattr(task, "no_sync")
        with task.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator]
            drawing = fast_dropout() if device.type == "cpu" else contextlib.nullcontext()
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"), drawing:
                terms = task(batch.to(device))
            (total_loss(terms, weights) * world_size()).backward()  # DDP averages over ranks; our loss is a sum
        for name, term in terms.items():
            sums.setdefault(name, []).append(term.total.detach())
            counts[name] = term.count  # 0: this objective was idle in this step
    means = _global_means(sums, counts)
    for name, mean in means.items():
        if not np.isfinite(mean):
            raise _where(name, mean, sums[name], batches)
    grad_norm, *own_norms = clip_gradients(task, clip_norm)
    for norm in (grad_norm, *own_norms):
        if not np.isfinite(norm):
            raise _where("the gradient", norm, [], batches)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    return StepReport(sum(weights.get(name, 0.0) * mean for name, mean in means.items()), means, counts, grad_norm)


def clip_gradients(task: nn.Module, clip_norm: float) -> list[float]:
    """Clip gradients to `clip_norm`; returns the norms before: of all common parameters, then of each group owned by a module.
    So a large gradient of a critic never shrinks the reader's step."""
    own = [group["params"] for group in own_groups(task)]
    taken = {id(parameter) for parameters in own for parameter in parameters}
    common = [parameter for parameter in task.parameters() if id(parameter) not in taken]
    return [float(clip_grad_norm_(parameters, clip_norm)) for parameters in (common, *own)]


def total_loss(terms: Mapping[str, Term], weights: Mapping[str, float]) -> Tensor:
    """This rank's share of the loss; shares add up over ranks and groups. The only place that applies weights."""
    return torch.stack([weights[name] * term.mean.float() for name, term in terms.items() if name in weights]).sum()


def _global_means(sums: Mapping[str, list[Tensor]], counts: Mapping[str, float]) -> dict[str, float]:
    local = torch.stack([torch.stack([value.double() for value in values]).sum() for values in sums.values()])
    if world_size() > 1:
        dist.all_reduce(local)
    return {name: float(total) / max(1.0, counts[name]) for name, total in zip(sums, local)}


def _where(name: str, value: float, totals: list[Tensor], batches: Sequence[TrainBatch]) -> NonFiniteLoss:
    """The error naming term, step and rows: this rank's rows in the groups with bad values, else the whole batch."""
    bad = [batch for batch, total in zip(batches, totals) if not torch.isfinite(total)]
    mine = [batch.world.row[batch.mine.cpu().numpy()] for batch in bad]
    rows = np.concatenate(mine or [batch.world.row for batch in batches])
    listed = ", ".join(map(str, rows[:32])) + (", ..." if len(rows) > 32 else "")
    return NonFiniteLoss(
        f"{name} is {value} at step {batches[0].step}, before the update; {batches[0].rows_name} {listed}. "
        f"Look at their questions, lower optim.lr, or use train.precision=fp32",
        rows,
    )
