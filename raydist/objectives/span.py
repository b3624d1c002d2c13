"""The task itself: cross-entropy of the gold start and end (docs/methods.md 2.2, 2.3). Shapes: B rows, T tokens.

The null span of a row without an answer is its CLS position: column ``cls_B`` of the batch's extras, or 0 without that column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raydist.errors import InputError
from raydist.objectives.base import Batch, Objective, ReaderModel, ReaderOutput, Term, at_least_float32

REDUCTIONS = ("mean", "sum")


def check_reduction(span_reduction: str) -> str:
    """Return the reduction; reject all but mean and sum."""
    if span_reduction not in REDUCTIONS:
        raise InputError(f"span_reduction is {span_reduction!r}; it is one of {', '.join(REDUCTIONS)}")
    return span_reduction


def allowed_positions(batch: Batch, mask_non_passage: bool = True) -> Tensor:
    """Positions where an answer may start or end: the passage and CLS, or (``mask_non_passage`` off) every real token."""
    if not mask_non_passage:
        return batch.attention_BT
    cls_B = batch.extras.get("cls_B", torch.zeros_like(batch.start_B))
    return batch.passage_BT.scatter(1, cls_B[:, None].long(), True)


def span_log_probs(output: ReaderOutput, batch: Batch, mask_non_passage: bool = True) -> tuple[Tensor, Tensor]:
    """log softmax of the start and of the end logits over the allowed positions, both [B, T]; others are very low."""
    allowed_BT = allowed_positions(batch, mask_non_passage)

    def log_softmax(logits_BT: Tensor) -> Tensor:
        logits_BT = at_least_float32(logits_BT)
        # half the lowest value: the difference to any logit is still finite
        return logits_BT.masked_fill(~allowed_BT, torch.finfo(logits_BT.dtype).min / 2).log_softmax(1)

    return log_softmax(output.start_BT), log_softmax(output.end_BT)


def span_losses(output: ReaderOutput, batch: Batch, mask_non_passage: bool = True) -> Tensor:
    """ls + le of every row, [B]."""
    start_BT, end_BT = span_log_probs(output, batch, mask_non_passage)
    return -(start_BT.gather(1, batch.start_B[:, None]) + end_BT.gather(1, batch.end_B[:, None])).squeeze(1)


def span_term(output: ReaderOutput, batch: Batch, *, span_reduction: str, mask_non_passage: bool) -> Term:
    """L_span over all rows of the step: ls + le of a row, or their mean."""
    total = span_losses(output, batch, mask_non_passage).sum()
    return Term(total / 2 if span_reduction == "mean" else total, batch.count(len))


class Span(Objective):
    """L_span, the loss of a plain reader; its reduction scales the weights of all other objectives.

    >>> import torch, raydist
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> ids, place = torch.randint(5, 30, (4, 12)), torch.arange(12).expand(4, 12)
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 4), passage=(place > 4) & (place < 11), start=[5, 6, 7, 8], end=[6, 6, 9, 8]
    ... )
    >>> objective = raydist.Span()
    >>> terms = objective(batch, reader(batch), reader)
    >>> loss = sum(weight * terms[part].mean for part, weight in objective.weights(step=0).items())
    >>> loss.backward()
    >>> sorted(terms), loss.item() > 0
    (['loss'], True)
    """

    def __init__(self, *, span_reduction: str = "mean", mask_non_passage: bool = True) -> None:
        super().__init__()
        self.span_reduction, self.mask_non_passage = check_reduction(span_reduction), mask_non_passage

    def weights(self, step: int) -> dict[str, float]:
        return {"loss": 1.0}

    def forward(self, batch: Batch, output: ReaderOutput, reader: ReaderModel | None = None) -> dict[str, Term]:
        term = span_term(output, batch, span_reduction=self.span_reduction, mask_non_passage=self.mask_non_passage)
        return {"loss": term}
