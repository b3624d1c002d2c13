"""QAInfomax (docs/methods.md 3): an answer stays informative of its context and of the whole text.

Shapes: B rows of this rank, G rows of the group, T tokens, H hidden units, K vectors scored against one row's words.

A row i needs g(x_i, R_i), g(x_i, R_j) and g(x_j, R_i), j its partner. Only the vectors x and s travel between ranks: the rank
that holds the words R_b multiplies them once with all their vectors, for both discriminators: slot 0 has the row's own vector,
slot 1 its partner's, the other slots those of the rows whose partner it is. No words are copied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raydist.config.explain import checked_section
from raydist.config.objectives import InfomaxConfig
from raydist.draws import keyed_uniform
from raydist.objectives.base import (
    Batch,
    GroupRows,
    Objective,
    ReaderModel,
    ReaderOutput,
    Term,
    at_least_float32,
    gather_group,
    keyed_dropout,
    masked_mean,
)
from raydist.objectives.span import check_reduction

WEIGHTS = {"paper": 0.3, "reference": 0.25}  # lambda, relative to L_span(sum)
REDRAWS = 4


class Discriminator(nn.Module):
    """g(x, y) = sigmoid(x^T W y + b), as logits (3.2). Returns x^T W and b: the product with y comes for all x at once."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        bound = math.sqrt(6 / (hidden_size * hidden_size + hidden_size))  # Xavier's rule on a [1, d, d] tensor
        self.weight = nn.Parameter(torch.empty(hidden_size, hidden_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x_GH: Tensor) -> Tensor:
        return x_GH @ self.weight


def draw_partners(rows: GroupRows, seed: int, step: int, variant: str = "paper") -> np.ndarray:
    """The partner of every row of the group, [G]; -1 for rows without one (3.4). The same on every rank.

    ``paper``: a random derangement of the rows with an answer; a partner of the same passage is redrawn, up to four times.
    ``reference``: the next row with an answer, whatever its passage.
    """
    partner_G = np.full(len(rows), -1)
    valid = np.flatnonzero(rows.has_answer)
    n = len(valid)
    if n < 2:
        return partner_G
    if variant == "reference":
        partner_G[valid] = np.roll(valid, -1)
        return partner_G
    order = valid[np.argsort(keyed_uniform(seed, step, "infomax.order", rows.row[valid]), kind="stable")]
    place = np.arange(n)
    shift = keyed_uniform(seed, step, "infomax.shift", rows.row[order[:1]])
    left = np.ones(n, dtype=bool)  # rows without a partner so far
    for draw in range(1 + REDRAWS):
        offset = 1 + np.floor((n - 1) * shift).astype(int)  # 1 .. n-1: never the row itself
        partner = order[(place + offset) % n]
        fits = left & (rows.passage[order] != rows.passage[partner])
        partner_G[order[fits]] = partner[fits]
        left &= ~fits
        shift = keyed_uniform(seed, step, f"infomax.again{draw}", rows.row[order])
    return partner_G if (partner_G >= 0).sum() >= 2 else np.full(len(rows), -1)


def meeting_rows(partner_G: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For the words of each of my rows: the rows of the vectors scored against them, [B, K], -1 for none; and the rows whose
    bounds the scores enter, [B, K]."""
    chosen_by: list[list[int]] = [[] for _ in partner_G]
    for i in np.flatnonzero(partner_G >= 0):
        chosen_by[partner_G[i]].append(i)
    width = 2 + max((len(chosen_by[b]) for b in mine), default=0)
    source_BK = np.full((len(mine), width), -1)
    bound_BK = np.repeat(mine[:, None], width, axis=1)
    for place, b in enumerate(mine):
        if partner_G[b] >= 0:
            source_BK[place, :2] = b, partner_G[b]
        for k, i in enumerate(chosen_by[b], start=2):
            source_BK[place, k] = bound_BK[place, k] = i
    return source_BK, bound_BK


def infomax_bound(logits_BKT: Tensor, mask_BT: Tensor, weight_BK: Tensor) -> Tensor:
    """This rank's share of the sum of LC_i (or GC_i) over rows: slot 0 holds the pairs within one example."""
    score_BKT = torch.cat([F.logsigmoid(logits_BKT[:, :1]), F.logsigmoid(-logits_BKT[:, 1:])], dim=1)
    return (weight_BK * _mean_over_words(score_BKT, mask_BT)).sum()  # log g(x, y) and log(1 - g(x, y'))


def hit_rate(logits_BKT: Tensor, mask_BT: Tensor, used_BK: Tensor) -> Tensor:
    """This rank's share of the sum of accuracies over rows: pairs within one example count half, the others half."""
    right_BKT = torch.cat([logits_BKT[:, :1] > 0, logits_BKT[:, 1:] < 0], dim=1).to(logits_BKT.dtype)
    return (_halves(used_BK) * _mean_over_words(right_BKT, mask_BT)).sum() / 2


def _mean_over_words(values_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    return masked_mean(values_BKT, mask_BT[:, None].expand_as(values_BKT))


def _halves(used_BK: Tensor) -> Tensor:
    """1, 1/2, 1/2 for used slots (3.5)."""
    return torch.cat([used_BK[:, :1], 0.5 * used_BK[:, 1:]], dim=1)


class Infomax(Objective):
    """LC and GC with their discriminators; either alone when the other's weight is 0.

    Parts ``local`` and ``global`` are -LC and -GC, means over the usable rows; ``local_accuracy`` and ``global_accuracy`` are
    only logged. Dropout on the inputs of g is drawn once per vector, by its row, and shared by all pairs of that vector.
    `settings` are the keys of `objectives.infomax`.

    >>> import torch, raydist
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> ids, place = torch.randint(5, 30, (4, 12)), torch.arange(12).expand(4, 12)
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 4), passage=(place > 4) & (place < 11), start=[5, 6, 7, 8], end=[6, 6, 9, 8]
    ... )
    >>> objective = raydist.Infomax(reader.config.hidden_size)
    >>> terms = objective(batch, reader(batch), reader)
    >>> loss = sum(weight * terms[part].mean for part, weight in objective.weights(step=0).items())
    >>> loss.backward()
    >>> sorted(terms)
    ['global', 'global_accuracy', 'local', 'local_accuracy']
    """

    def __init__(self, hidden_size: int, *, span_reduction: str = "mean", **settings: Any) -> None:
        super().__init__()
        check_reduction(span_reduction)
        own = checked_section(InfomaxConfig, "objectives.infomax", settings)
        weight = WEIGHTS[own.variant] if own.weight is None else own.weight
        scale = weight * (0.5 if span_reduction == "mean" else 1.0)  # lambda is relative to L_span(sum) (3.6)
        self.part_weights = {part: scale * share for part, share in (("local", own.alpha), ("global", own.beta)) if share}
        self.discriminators = nn.ModuleDict({part: Discriminator(hidden_size) for part in self.part_weights})
        self.context, self.summary, self.variant, self.dropout, self.lr = (
            own.context,
            own.summary,
            own.variant,
            own.dropout,
            own.lr,
        )
        self.total_scale = 1 / 3 if own.variant == "reference" else 1.0  # released code: (ls + le + 0.25 info) / 3

    def weights(self, step: int) -> dict[str, float]:
        return self.part_weights | {f"{part}_accuracy": 0.0 for part in self.part_weights}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The discriminators, if they have their own rate: then without decay."""
        if self.lr is None:
            return []
        return [{"params": list(self.discriminators.parameters()), "lr": self.lr, "weight_decay": 0.0}]

    def forward(self, batch: Batch, output: ReaderOutput, reader: ReaderModel | None = None) -> dict[str, Term]:
        partners = [draw_partners(rows, batch.seed, batch.step, self.variant) for rows in batch.groups]
        num_usable = float(sum((partner_G >= 0).sum() for partner_G in partners))
        partner_G = partners[batch.group]
        source, bound = meeting_rows(partner_G, batch.mine.cpu().numpy())

        device = output.hidden_BTH.device
        hidden_BTH = self._dropped(output.hidden_BTH, batch, "infomax.words")
        source_BK = torch.from_numpy(source).to(device)
        used_BK = (source_BK >= 0).to(hidden_BTH.dtype)
        vector_BH, mask_BT = self.vectors_and_words(batch, output.hidden_BTH)

        # one gather and one product over the words for both discriminators
        parts = list(self.discriminators)
        stacked_BPH = torch.stack([vector_BH[part] for part in parts], dim=1)
        gathered_GPH = gather_group(self._dropped(stacked_BPH, batch, "infomax.vectors"), batch)
        asked_GPH = torch.stack([self.discriminators[part](gathered_GPH[:, p]) for p, part in enumerate(parts)], dim=1)
        asked_BKPH = asked_GPH[source_BK.clamp(min=0)]
        logits_BKPT = (asked_BKPH.flatten(1, 2) @ hidden_BTH.transpose(1, 2)).view(*asked_BKPH.shape[:3], hidden_BTH.shape[1])

        terms = {}
        for p, part in enumerate(parts):
            logits_BKT = at_least_float32(logits_BKPT[:, :, p] + self.get_parameter(f"discriminators.{part}.bias"))
            if self.variant == "reference":
                weight_BK = used_BK * self._share_of_all_pairs(mask_BT[part], batch, partner_G, bound).to(used_BK.dtype)
            else:
                weight_BK = _halves(used_BK)
            terms[part] = Term(-infomax_bound(logits_BKT, mask_BT[part], weight_BK), num_usable)
            terms[f"{part}_accuracy"] = Term(hit_rate(logits_BKT.detach(), mask_BT[part], used_BK), num_usable)
        return terms

    def _dropped(self, values_BX: Tensor, batch: Batch, stream: str) -> Tensor:
        return keyed_dropout(values_BX, self.dropout, batch, stream) if self.training and self.dropout else values_BX

    def vectors_and_words(self, batch: Batch, hidden_BTH: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """x and s of my rows [B, H], and masks of the words to score them against [B, T] (3.3; the reference column of 3.8)."""
        T, device = hidden_BTH.shape[1], hidden_BTH.device
        position_T = torch.arange(T, device=device)
        if self.variant == "reference":
            low_B = (batch.start_B - self.context).clamp(min=0)
            high_B = (batch.end_B + self.context - 1).clamp(max=T - 1).maximum(batch.end_B)  # always contains the answer
            window_BT = (position_T >= low_B[:, None]) & (position_T <= high_B[:, None])
            inside_BT = (position_T >= batch.start_B[:, None]) & (position_T <= batch.end_B[:, None])
            answer_BT, others_BT = window_BT, ~inside_BT  # specials and padding included, as released
        else:
            low_B, high_B = batch.start_B, batch.end_B
            answer_BT = (position_T >= low_B[:, None]) & (position_T <= high_B[:, None])
            near_BT = (position_T >= low_B[:, None] - self.context) & (position_T <= high_B[:, None] + self.context)
            window_BT = near_BT & batch.passage_BT
            others_BT = (batch.question_BT | batch.passage_BT) & ~answer_BT

        def draw(stream: str) -> Tensor:
            """One position in low..high per row."""
            uniform = keyed_uniform(batch.seed, batch.step, stream, batch.world.row[batch.mine.cpu().numpy()])
            return low_B + (torch.from_numpy(uniform).to(device) * (high_B - low_B + 1)).floor().long()

        row_B = torch.arange(len(low_B), device=device)
        word_B = draw("infomax.word")
        if self.variant == "paper":  # x is not among its own words
            window_BT = window_BT & (position_T != word_B[:, None])
        if self.summary == "mean":
            summary_BH = masked_mean(hidden_BTH, answer_BT, dim=1).sigmoid()
        elif self.summary == "max":
            summary_BH = hidden_BTH.masked_fill(~answer_BT[..., None], -torch.inf).amax(1).sigmoid()
        else:
            summary_BH = hidden_BTH[row_B, draw("infomax.summary")]
        return {"local": hidden_BTH[row_B, word_B], "global": summary_BH}, {"local": window_BT, "global": others_BT}

    def _share_of_all_pairs(self, mask_BT: Tensor, batch: Batch, partner_G: np.ndarray, bound: np.ndarray) -> Tensor:
        """n of a slot's words over the 2 n1 + n2 pairs of the bound it counts for: one mean over all pairs (reference)."""
        size_B = mask_BT.sum(1).to(torch.float64)
        size_G = gather_group(size_B, batch)
        bound_BK = torch.from_numpy(bound).to(size_G.device)
        partner_BK = torch.from_numpy(partner_G).to(size_G.device)[bound_BK]
        return size_B[:, None] / (2 * size_G[bound_BK] + size_G[partner_BK]).clamp(min=1)
