"""The common types of objectives: the batch, the reader's output, a term of the loss.

Shapes: B rows of this rank, G rows of the group over all ranks, T tokens, H hidden units.

A step's global batch is cut into groups (one, unless gradients are accumulated), and each group is spread over the ranks.
Every rank holds a few numbers about every row of the step (``GroupRows``), read from the same memory-mapped file, so draws
and counts agree on all ranks without communication. Draws are keyed by (seed, step, row), never by rank.

An objective returns its parts by name, unweighted, each a ``Term``; ``weights(step)`` returns their weights, and only the
training loop applies them:

    loss of this rank = total_scale * sum over parts of weights(step)[part] * term.mean        (summed over ranks: the loss)

A part of weight 0 is only logged (an accuracy, say). A term whose count is 0 measured nothing in this step: its total is a zero
that touches every parameter of the objective, and running means skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raydist.draws import keyed_uniform


@dataclass(frozen=True)
class GroupRows:
    """The facts about all rows of one group that every rank holds. Arrays of length G."""

    row: np.ndarray  # int64, the row's number in the training file
    has_answer: np.ndarray  # bool, the gold span lies wholly inside this window
    passage: np.ndarray  # int64, hash of the passage
    answer: np.ndarray  # int64, hash of the normalised gold answer text
    tokens: np.ndarray  # int64, real tokens
    passage_tokens: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Batch:
    """The rows of one rank in one group. For your own loop, in one process, `whole` makes a batch from tensors.

    >>> import torch, raydist
    >>> ids = torch.randint(5, 30, (2, 8))                      # [CLS] question question [SEP] passage passage passage [SEP]
    >>> place = torch.arange(8).expand(2, 8)
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 3), passage=(place > 3) & (place < 7), start=[4, 5], end=[5, 5]
    ... )
    >>> batch.answer_BT.int().tolist()
    [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]]
    """

    rows_name: ClassVar[str] = "windows"  # in messages

    input_ids_BT: Tensor
    attention_BT: Tensor  # bool, real tokens
    question_BT: Tensor  # bool, question tokens: no specials
    passage_BT: Tensor  # bool, passage tokens
    start_B: Tensor  # gold tokens, inclusive; the CLS position where has_answer is false
    end_B: Tensor
    has_answer_B: Tensor  # bool
    token_types_BT: Tensor | None
    groups: tuple[GroupRows, ...]  # all groups of this step
    group: int  # index of this batch's group
    mine: Tensor  # int64 [B], positions of this rank's rows in the group
    seed: int = 0
    step: int = 0
    extras: dict[str, Tensor] = field(default_factory=dict)  # inputs of a single objective, by column name

    @classmethod
    def whole(
        cls,
        input_ids: Tensor,
        *,
        question: Tensor,
        passage: Tensor,
        start: Tensor | Sequence[int],
        end: Tensor | Sequence[int],
        attention: Tensor | None = None,
        token_types: Tensor | None = None,
        has_answer: Tensor | Sequence[bool] | None = None,
        passage_keys: Sequence[int] | None = None,
        answer_keys: Sequence[int] | None = None,
        seed: int = 0,
        step: int = 0,
        extras: dict[str, Tensor] | None = None,
    ) -> Batch:
        """A whole step in one process. `start` and `end` are the gold tokens, inclusive; masks are [rows, tokens].

        By default every token is real, every row has an answer, and passages and answers all differ. Rows with equal
        `passage_keys` share the passage, rows with equal `answer_keys` the answer text.
        """
        rows, device = len(input_ids), input_ids.device
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention is None else attention.bool()
        answered = torch.ones(rows, dtype=torch.bool) if has_answer is None else torch.as_tensor(has_answer).bool()
        world = GroupRows(
            row=np.arange(rows),
            has_answer=answered.cpu().numpy(),
            passage=np.arange(rows) if passage_keys is None else np.asarray(passage_keys),
            answer=np.arange(rows) if answer_keys is None else np.asarray(answer_keys),
            tokens=real.sum(1).cpu().numpy(),
            passage_tokens=passage.bool().sum(1).cpu().numpy(),
        )
        return cls(
            input_ids_BT=input_ids,
            attention_BT=real,
            question_BT=question.bool(),
            passage_BT=passage.bool(),
            start_B=torch.as_tensor(start, device=device),
            end_B=torch.as_tensor(end, device=device),
            has_answer_B=answered.to(device),
            token_types_BT=token_types,
            groups=(world,),
            group=0,
            mine=torch.arange(rows, device=device),
            seed=seed,
            step=step,
            extras=extras or {},
        )

    @property
    def world(self) -> GroupRows:
        return self.groups[self.group]

    @property
    def answer_BT(self) -> Tensor:
        """True on start..end of rows with an answer in this window."""
        position_T = torch.arange(self.input_ids_BT.shape[1], device=self.input_ids_BT.device)
        inside_BT = (position_T >= self.start_B[:, None]) & (position_T <= self.end_B[:, None])
        return inside_BT & self.has_answer_B[:, None]

    def count(self, of: Callable[[GroupRows], int | float]) -> float:
        """A count over the whole step: all groups, all ranks."""
        return float(sum(of(rows) for rows in self.groups))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        extras = {name: value.to(device, non_blocking=True) for name, value in self.extras.items()}
        return replace(self, **moved, extras=extras)


class ReaderOutput(NamedTuple):
    hidden_BTH: Tensor  # last layer
    start_BT: Tensor  # raw logits, every position
    end_BT: Tensor


class ReaderModel(Protocol):
    """A span reader. A second pass over changed embeddings is ``reader(batch, embeddings_BTH)``."""

    def __call__(self, batch: Batch, embeddings_BTH: Tensor | None = None) -> ReaderOutput: ...

    def embed(self, batch: Batch) -> Tensor: ...


class Term(NamedTuple):
    """A term of the loss: this rank's sum, and the count over the whole step (all ranks, all groups) that normalises it."""

    total: Tensor
    count: float  # type: ignore[assignment]  # hides tuple.count, which is unused

    @property
    def mean(self) -> Tensor:
        return self.total / max(1.0, self.count)


class Objective(nn.Module):
    """The training loop's view of an objective: ``forward(batch, output, reader) -> dict[str, Term]``, and these members.

    A base class, not a protocol, since most objectives need only the defaults.
    """

    total_scale: float = 1.0  # multiplies the whole loss, other objectives included (for published code that divides its sum)

    def weights(self, step: int) -> dict[str, float]:
        """The effective weight of every part in this step: published weights, converted to the span loss in use."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimizer groups of the parameters that do not follow the common rate and decay."""
        return []

    def nothing(self) -> Tensor:
        """A zero that touches every parameter, so that each has a gradient on every rank in every step."""
        return sum((parameter.sum() * 0.0 for parameter in self.parameters()), start=torch.zeros(()))


def masked_mean(values: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Mean of the values where the mask is set; 0 over an empty set. Values may have extra trailing dimensions (mask [B, T] for
    values [B, T, H], dim=1). Masked values may be anything, NaN included."""
    wide = mask.bool().reshape(mask.shape + (1,) * (values.dim() - mask.dim()))
    kept = values.masked_fill(~wide, 0)
    return kept.sum(dim) / wide.sum(dim).clamp(min=1)


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision converted to float32; higher precision (a test in float64) stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Gather(torch.autograd.Function):
    """All ranks' rows, in the group's order. Backward sums every rank's gradient and keeps this rank's own rows."""

    @staticmethod
    def forward(ctx, rows_BX: Tensor, mine: Tensor, group_size: int) -> Tensor:
        ctx.save_for_backward(mine)
        full_GX = rows_BX.new_zeros((group_size, *rows_BX.shape[1:]))
        full_GX[mine] = rows_BX
        if world_size() > 1:
            dist.all_reduce(full_GX)  # exactly one rank fills each row: a sum is a gather, whatever the slices' sizes
        return full_GX

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[override]
        (mine,) = ctx.saved_tensors
        full_GX = grads[0].contiguous()
        if world_size() > 1:
            full_GX = full_GX.clone()
            dist.all_reduce(full_GX)
        return full_GX[mine], None, None


def gather_group(rows_BX: Tensor, batch: Batch) -> Tensor:
    """This rank's vectors and all other ranks', as [G, ...] in the group's order, with gradient.

    The gradient that reaches a rank's rows is the sum over all ranks: right for a loss that is the sum of the ranks' totals.
    """
    return gather_rows(rows_BX, batch.mine, len(batch.world))


def gather_rows(rows_BX: Tensor, mine: Tensor, size: int) -> Tensor:
    """`gather_group` for any rows spread over the ranks: `mine` holds the positions of this rank's rows among all `size`."""
    return _Gather.apply(rows_BX, mine, size)


def keyed_dropout(values_BX: Tensor, rate: float, batch: Batch, stream: str) -> Tensor:
    """Dropout that is a pure function of (seed, step, stream, row), independent of the rank, the other rows and the padding.
    The rate is rounded to the nearest 65536th."""
    row_B = batch.world.row[batch.mine.cpu().numpy()]
    seeds = keyed_uniform(batch.seed, batch.step, stream, row_B) * float(1 << 53)
    size, least = values_BX[:1].numel(), min(round(rate * 65536), 65535)
    draws = np.empty((len(row_B), -(-size // 4)), np.uint64)
    for place, seed in enumerate(seeds):
        draws[place] = np.random.SFC64(int(seed)).random_raw(draws.shape[1])
    kept = torch.from_numpy(draws.view(np.uint16)[:, :size] >= least).view(values_BX.shape)
    return values_BX * kept.to(values_BX.device) * (65536 / (65536 - least))
