"""Ranking (methods 5.3, 5.5, 5.6): the dual encoder's weighted in-batch softmax, its alternatives, the cross-encoder's loss.

Shapes: B pairs of this rank, G pairs of the group over all ranks, K mined negatives, N columns, C candidates of one question
(its answer first, then its own negatives), D units of a vector.

    S[i,j] = s * <u_i, v_j>                                   columns j: the answers of the group, then its mined negatives
    l_i    = -S[i,i] + logsumexp over {j : M[i,j] = 1} of S[i,j]
    L      = (1/N) * sum_i w_i * l_i

A rank has its own rows i and all columns j, gathered with gradient: its loss is its part of the sum, for any number of ranks.
Columns come from one group: gradient accumulation reduces their number (cached gradients, training/cached.py, do not).
All computations use at least float32: with s = 100 the exponents reach 100.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raydist.config.explain import checked_section
from raydist.config.retrieval import RetrieverConfig
from raydist.errors import InputError
from raydist.objectives.base import Objective, Term, at_least_float32, gather_rows
from raydist.objectives.pairs import CrossBatch, PairBatch, PairGroup, PairVectors


def allowed_columns(rows: PairGroup, mine: np.ndarray, mask_known_positives: bool = True) -> np.ndarray:
    """M of some rows of the group (methods 5.6), bool [B, G + K]: the answers and mined negatives that are their columns.

    Excludes columns with the words, in any order, of the row's answer or of another known positive (gold or kept silver) of its
    question, and other answers of the same question. A row's own answer is always included.
    """
    num_rows, num_columns = len(mine), len(rows) + len(rows.negative_bag_key)
    allowed_BN = np.ones((num_rows, num_columns), bool)
    if not mask_known_positives:
        return allowed_BN
    bag_N = np.concatenate([rows.bag_key, rows.negative_bag_key])
    allowed_BN &= bag_N != rows.bag_key[mine][:, None]
    allowed_BN[:, : len(rows)] &= rows.question != rows.question[mine][:, None]
    place_G = np.full(len(rows), -1)
    place_G[mine] = np.arange(num_rows)
    order_N = np.argsort(bag_N, kind="stable")
    first, last = (np.searchsorted(bag_N[order_N], rows.positives, side) for side in ("left", "right"))
    for known in np.flatnonzero((last > first) & (place_G[rows.positives_of] >= 0)):
        allowed_BN[place_G[rows.positives_of[known]], order_N[first[known] : last[known]]] = False
    allowed_BN[np.arange(num_rows), mine] = True
    return allowed_BN


def softmax_losses(scores_BN: Tensor, own_B: Tensor, allowed_BN: Tensor, objective: str = "log") -> Tensor:
    """l_i of every row: -log of the softmax at its own column, or (``prob``, the printed form) the negative softmax itself."""
    own_score_B = scores_BN.gather(1, own_B[:, None]).squeeze(1)
    log_probability_B = own_score_B - scores_BN.masked_fill(~allowed_BN, -torch.inf).logsumexp(1)
    return -log_probability_B if objective == "log" else -log_probability_B.exp()


def margin_mse_losses(scores_BC: Tensor, teacher_BC: Tensor, real_BC: Tensor) -> Tensor:
    """Mean over a row's negatives of (student margin - teacher margin)^2; margin: the answer's score less the negative's."""
    apart_BC = (scores_BC[:, :1] - scores_BC) - (teacher_BC[:, :1] - teacher_BC)
    negative_BC = real_BC.clone()
    negative_BC[:, 0] = False
    return apart_BC.masked_fill(~negative_BC, 0).square().sum(1) / negative_BC.sum(1).clamp(min=1)


def kl_losses(scores_BC: Tensor, teacher_BC: Tensor, real_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of every row over its candidates, both at a temperature, times its square as usual."""
    lowest = torch.finfo(scores_BC.dtype).min / 2
    student_BC = (scores_BC / temperature).masked_fill(~real_BC, lowest).log_softmax(1)
    teacher_BC = (teacher_BC / temperature).masked_fill(~real_BC, lowest).log_softmax(1)
    return (teacher_BC.exp() * (teacher_BC - student_BC)).masked_fill(~real_BC, 0).sum(1) * temperature**2


def by_row(own_B: Tensor, negative_K: Tensor, row_K: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the answers and of the negatives as one row per question, [B, C], and the mask of real ones."""
    size_B = torch.bincount(row_K, minlength=len(own_B))
    width = int(size_B.max()) if len(size_B) else 0
    real_BC = torch.arange(1 + width, device=own_B.device) < 1 + size_B[:, None]
    slot_K = torch.arange(len(row_K), device=row_K.device) - (size_B.cumsum(0) - size_B)[row_K]
    padded_BC = torch.cat([own_B[:, None], own_B.new_zeros(len(own_B), width)], 1)
    return padded_BC.index_put((row_K, 1 + slot_K), negative_K.to(own_B.dtype)), real_BC


class Ranking(Objective):
    """The dual encoder's loss. Rows have weights; a term is a sum over this rank's rows and the count over the step.

    >>> import torch, raydist
    >>> questions, answers = (raydist.Tokens(torch.randint(5, 30, (4, 6)), torch.ones(4, 6).bool()) for _ in range(2))
    >>> batch = raydist.PairBatch.whole(questions, answers, weights=[1, 1, 0.5, 1])
    >>> towers = torch.randn(2, 4, 8, requires_grad=True)                       # in place of an encoder's vectors
    >>> vectors = torch.nn.functional.normalize(towers, dim=2)
    >>> terms = raydist.Ranking(scale=20.0)(batch, raydist.PairVectors(vectors[0], vectors[1], torch.zeros(0, 8)))
    >>> terms["loss"].mean.backward()
    >>> sorted(terms), towers.grad.abs().sum().item() > 0
    (['accuracy', 'loss'], True)
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        own = checked_section(RetrieverConfig, "retriever", settings)
        self.loss, self.objective, self.normalise = own.loss, own.objective, own.normalise
        self.scale, self.mask_known_positives, self.temperature = own.scale, own.mask_known_positives, own.temperature

    def weights(self, step: int) -> dict[str, float]:
        return {"loss": 1.0}

    def forward(self, batch: PairBatch, output: PairVectors, encoder: Any = None) -> dict[str, Term]:
        with torch.autocast(output.question_BD.device.type, enabled=False):
            vectors = PairVectors(*(at_least_float32(part) for part in output))
            return self._in_batch(batch, vectors) if self.loss == "softmax" else self._distilled(batch, vectors)

    def _in_batch(self, batch: PairBatch, vectors: PairVectors) -> dict[str, Term]:
        rows: PairGroup = batch.world
        # one gather for both: a rank without negatives must also join the backward sum
        own = torch.cat([vectors.answer_BD, vectors.negative_KD])
        places = torch.cat([batch.mine, len(rows) + batch.negatives_mine])
        column_ND = gather_rows(own, places, len(rows) + len(rows.negative_bag_key))
        scores_BN = self.scale * vectors.question_BD @ column_ND.T
        allowed = allowed_columns(rows, batch.mine.cpu().numpy(), self.mask_known_positives)
        allowed_BN = torch.from_numpy(allowed).to(scores_BN.device)
        losses_B = softmax_losses(scores_BN, batch.mine, allowed_BN, self.objective)
        with torch.no_grad():  # ties count as errors: identical vectors score 0
            others_BN = scores_BN.masked_fill(~allowed_BN, -torch.inf).scatter(1, batch.mine[:, None], -torch.inf)
            is_first_B = scores_BN.gather(1, batch.mine[:, None]).squeeze(1) > others_BN.max(1).values
        accuracy = Term(is_first_B.to(losses_B.dtype).sum(), batch.count(len))
        return {"loss": self._weighted(batch, losses_B, lambda rows: np.ones(len(rows), bool)), "accuracy": accuracy}

    def _distilled(self, batch: PairBatch, vectors: PairVectors) -> dict[str, Term]:
        own_B = self.scale * (vectors.question_BD * vectors.answer_BD).sum(1)
        negative_K = self.scale * (vectors.question_BD[batch.negative_row_K] * vectors.negative_KD).sum(1)
        scores_BC, real_BC = by_row(own_B, negative_K, batch.negative_row_K)
        teacher_BC, _ = by_row(batch.teacher_B.to(own_B.dtype), batch.teacher_K, batch.negative_row_K)
        if self.loss == "margin_mse":
            losses_B = margin_mse_losses(scores_BC, teacher_BC, real_BC)
        else:
            losses_B = kl_losses(scores_BC, teacher_BC, real_BC, self.temperature)
        return {"loss": self._weighted(batch, losses_B, lambda rows: rows.has_teacher)}

    def _weighted(self, batch: PairBatch, losses_B: Tensor, usable: Callable[[PairGroup], np.ndarray]) -> Term:
        """sum_i w_i * l_i over this rank's usable rows; over the step's usable rows, or (``weight_sum``) over their weights."""
        mine, rows = batch.mine.cpu().numpy(), batch.world
        weight_B = torch.from_numpy(np.where(usable(rows), rows.weight, 0.0)[mine]).to(losses_B)
        total = (weight_B * losses_B).sum()
        count = batch.count(lambda rows: usable(rows).sum())
        if self.normalise == "weight_sum":
            weight_sum = batch.count(lambda rows: rows.weight[usable(rows)].sum())
            total = total * (count / weight_sum if weight_sum > 0 else 0.0)  # makes total / count the weighted mean
        return Term(total, count)


class CrossEntropy(Objective):
    """L_ce of a cross-encoder with one logit (docs/methods.md 5.3), and its accuracy at p = 1/2.

    >>> import torch, raydist
    >>> tokens = raydist.Tokens(torch.randint(5, 30, (3, 7)), torch.ones(3, 7).bool())
    >>> logits = torch.zeros(3, requires_grad=True)                             # in place of a model's
    >>> terms = raydist.CrossEntropy()(raydist.CrossBatch.whole(tokens, labels=[1, 0, 0]), logits)
    >>> terms["loss"].mean.backward()
    >>> round(terms["loss"].mean.item(), 4), round(terms["accuracy"].mean.item(), 4)
    (0.6931, 0.3333)
    """

    def weights(self, step: int) -> dict[str, float]:
        return {"loss": 1.0}

    def forward(self, batch: CrossBatch, logit_B: Tensor, cross_encoder: Any = None) -> dict[str, Term]:
        logit_B = at_least_float32(logit_B)
        label_B = batch.label_B.to(logit_B.dtype)
        if logit_B.shape != label_B.shape:  # [B, 1] would silently broadcast to [B, B]
            shapes = f"{list(logit_B.shape)} for labels of shape {list(label_B.shape)}"
            raise InputError(f"logits of shape {shapes}; wanted one logit for each pair")
        count = batch.count(len)
        total = F.binary_cross_entropy_with_logits(logit_B, label_B, reduction="sum")
        is_right_B = (logit_B.detach() >= 0) == (label_B >= 0.5)
        return {"loss": Term(total, count), "accuracy": Term(is_right_B.to(logit_B.dtype).sum(), count)}
