"""Hard learning of the two-stage cross-lingual reader: the n-best spans of a base reader, weighted by closeness to gold.

Shapes: B rows of this rank, K spans of a row's n-best set Z, T tokens.

Z comes with the batch, as ``extras``: ``nbest_start_BK`` and ``nbest_end_BK`` (tokens of this window, inclusive),
``nbest_mask_BK`` (the span exists and lies wholly in this window), ``nbest_type_BK`` (0 gold, 1 one boundary agrees, 2 neither)
and ``nbest_gold_B`` (gold's position). Equation 5 of the paper cannot be used as printed (its weights cancel or vanish); this
is a tempered marginal likelihood with a prior that prefers overlap with gold, and a floor under gold (methods 6.4).

This is the task's own loss, in place of the plain span loss. A window without the answer is exempt from hard learning and keeps
the span loss of the plain reader (its label is CLS). With one span in Z, or rho = 1, the loss is that of the plain reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raydist.config.explain import checked_section
from raydist.config.objectives import HardLearningConfig
from raydist.draws import keyed_uniform
from raydist.errors import InputError
from raydist.objectives.base import Batch, Objective, ReaderModel, ReaderOutput, Term
from raydist.objectives.span import check_reduction, span_log_probs

PRIOR_LR = 1e-2


def overlap_f1(start_BK: Tensor, end_BK: Tensor, gold_start_B: Tensor, gold_end_B: Tensor) -> Tensor:
    """F1 of each span with the row's gold span, by shared positions: 2 |z and gold| / (|z| + |gold|)."""
    gold_start_B1, gold_end_B1 = gold_start_B[:, None], gold_end_B[:, None]
    shared_BK = (torch.minimum(end_BK, gold_end_B1) - torch.maximum(start_BK, gold_start_B1) + 1).clamp(min=0)
    return 2 * shared_BK.double() / ((end_BK - start_BK + 1) + (gold_end_B1 - gold_start_B1 + 1))


def masked_log_softmax(score_BK: Tensor, mask_BK: Tensor) -> Tensor:
    """Log-softmax over the masked-in elements; the others get a very negative, finite value and no gradient."""
    return _hide(score_BK, mask_BK).log_softmax(1)


def tempered_marginal(loss_BK: Tensor, log_prior_BK: Tensor, mask_BK: Tensor, temperature: float) -> Tensor:
    """G = -Tm log sum_l pi_l exp(-l_l / Tm): the least of sum_l w_l l_l + Tm KL(w || pi) over all weights w."""
    return -temperature * _hide(log_prior_BK - loss_BK / temperature, mask_BK).logsumexp(1)


def _hide(score_BK: Tensor, mask_BK: Tensor) -> Tensor:
    """Finite, so that a row with an empty mask has a zero gradient instead of NaN."""
    return score_BK.masked_fill(~mask_BK, torch.finfo(score_BK.dtype).min)


class HardLearning(Objective):
    """L_hl of every row; replaces the span loss. ``learned`` alone has parameters: one number per type of span.

    Each row has a base reader's best spans, gold among them, as columns of the batch's extras:

    >>> import torch, raydist
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> ids, place = torch.randint(5, 30, (4, 12)), torch.arange(12).expand(4, 12)
    >>> start, end = torch.tensor([[5, 6], [6, 5], [7, 7], [8, 5]]), torch.tensor([[6, 6], [6, 6], [9, 7], [8, 5]])
    >>> extras = {"nbest_start_BK": start, "nbest_end_BK": end, "nbest_mask_BK": torch.ones(4, 2).bool()}
    >>> extras |= {"nbest_type_BK": torch.tensor([[0, 1]] * 4), "nbest_gold_B": torch.zeros(4).long()}    # gold: column 0
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 4), passage=(place > 4) & (place < 11), start=[5, 6, 7, 8], end=[6, 6, 9, 8],
    ...     extras=extras
    ... )
    >>> objective = raydist.HardLearning()
    >>> terms = objective(batch, reader(batch), reader)
    >>> loss = sum(weight * terms[part].mean for part, weight in objective.weights(step=0).items())
    >>> loss.backward()
    >>> sorted(terms)
    ['entropy', 'gold_first', 'loss']
    """

    def __init__(self, *, span_reduction: str = "mean", mask_non_passage: bool = True, **settings: Any) -> None:
        super().__init__()
        own = checked_section(HardLearningConfig, "objectives.hard_learning", settings)
        self.mode, self.temperature, self.kappa, self.rho, self.eta = own.mode, own.temperature, own.kappa, own.rho, own.eta
        self.hard_em_steps, self.mask_non_passage = own.hard_em_steps, mask_non_passage
        self.span_reduction = check_reduction(span_reduction)
        if own.mode == "learned":
            self.type_logits = nn.Parameter(torch.tensor([4.0, 0.0, -2.0]))  # gold, one boundary, neither

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The learned prior: at the encoder's rate its three numbers would hardly move."""
        return [{"params": [self.type_logits], "lr": PRIOR_LR, "weight_decay": 0.0}] if self.mode == "learned" else []

    def weights(self, step: int) -> dict[str, float]:
        """1 on the scale of start plus end loss, and eta for the anchor; Z's weighting is only logged."""
        scale = 0.5 if self.span_reduction == "mean" else 1.0
        anchor = {"anchor": self.eta * scale} if self.mode == "learned" else {}
        logged = {} if self.mode == "ce" else {"entropy": 0.0, "gold_first": 0.0}
        return {"loss": scale, **anchor, **logged}

    def takes_hard_branch(self, seed: int, step: int) -> bool:
        """Hard EM's coin: the same for all rows, groups and ranks of a step."""
        return float(keyed_uniform(seed, step, "hard_em", np.zeros(1, np.int64))[0]) < min(step / self.hard_em_steps, 0.8)

    def forward(self, batch: Batch, output: ReaderOutput, reader: ReaderModel | None = None) -> dict[str, Term]:
        """``loss`` (and ``anchor``) over all rows; Z's weighting over rows with an answer."""
        log_start_BT, log_end_BT = span_log_probs(output, batch, self.mask_non_passage)
        plain_B = -(log_start_BT.gather(1, batch.start_B[:, None]) + log_end_BT.gather(1, batch.end_B[:, None])).squeeze(1)
        rows, answered = batch.count(len), batch.count(lambda rows: rows.has_answer.sum())
        if self.mode == "ce":  # gold alone: needs no set
            return {"loss": Term(plain_B.sum(), rows)}

        start_BK, end_BK, mask_BK, gold_B = self._spans(batch)
        loss_BK = -(log_start_BT.gather(1, start_BK) + log_end_BT.gather(1, end_BK)).masked_fill(~mask_BK, 0)
        closeness_BK = overlap_f1(start_BK, end_BK, batch.start_B, batch.end_B).to(loss_BK.dtype)
        log_prior_BK = masked_log_softmax(self.kappa * closeness_BK, mask_BK)  # pi
        anchor_B = torch.zeros_like(plain_B)
        if self.mode == "learned":
            a_BK = self.type_logits.to(loss_BK.dtype)[batch.extras["nbest_type_BK"].long()]
            log_learned_BK = masked_log_softmax(a_BK, mask_BK)
            anchor_B = (log_prior_BK.exp() * (log_prior_BK - log_learned_BK)).masked_fill(~mask_BK, 0).sum(1)  # KL(pi0 || pi)
            log_prior_BK = log_learned_BK

        if self.mode in ("posterior", "learned"):
            soft_B = tempered_marginal(loss_BK, log_prior_BK, mask_BK, self.temperature)
            hard_learning_B = self.rho * plain_B + (1 - self.rho) * soft_B
        elif self.mode == "hard_em" and self.takes_hard_branch(batch.seed, batch.step):
            hard_learning_B = -_hide(-loss_BK, mask_BK).amax(1)  # min_l l_l
        else:
            hard_learning_B = -_hide(-loss_BK, mask_BK).logsumexp(1)  # Eq. 4

        has_B = batch.has_answer_B
        terms = {"loss": Term(torch.where(has_B, hard_learning_B, plain_B).sum(), rows)}
        if self.mode == "learned":
            terms["anchor"] = Term(anchor_B.masked_fill(~has_B, 0).sum(), rows)
        with torch.no_grad():
            score_BK = -loss_BK  # mml, hard_em: P(z) normalised over Z, L_mml's weight of each span's gradient
            if self.mode in ("posterior", "learned"):
                score_BK = log_prior_BK - loss_BK / self.temperature  # the minimiser w of G
            log_weight_BK = masked_log_softmax(score_BK, mask_BK)
            entropy_B = -(log_weight_BK.exp() * log_weight_BK).masked_fill(~mask_BK, 0).sum(1)
            gold_first_B = _hide(-loss_BK, mask_BK).argmax(1) == gold_B
            terms["entropy"] = Term((entropy_B * has_B).sum(), answered)
            terms["gold_first"] = Term((gold_first_B & has_B).to(entropy_B).sum(), answered)
        return terms

    def _spans(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Z of this window, with masked spans at position 0; rejected if its gold differs from the rows' gold."""
        missing = {"nbest_start_BK", "nbest_end_BK", "nbest_mask_BK", "nbest_type_BK", "nbest_gold_B"} - batch.extras.keys()
        if missing:
            raise InputError(
                f"the training rows have no n-best spans ({', '.join(sorted(missing))} missing); write them with "
                "`raydist predict ... predict.split=train`, or leave objectives.hard_learning out"
            )
        mask_BK = batch.extras["nbest_mask_BK"].bool() & batch.has_answer_B[:, None]
        start_BK = batch.extras["nbest_start_BK"].long().masked_fill(~mask_BK, 0)
        end_BK = batch.extras["nbest_end_BK"].long().masked_fill(~mask_BK, 0)
        gold_B = batch.extras["nbest_gold_B"].long()
        is_gold_BK = mask_BK & (start_BK == batch.start_B[:, None]) & (end_BK == batch.end_B[:, None])
        stray_B = batch.has_answer_B & ~is_gold_BK.gather(1, gold_B.clamp(min=0)[:, None])[:, 0]
        if stray_B.any():
            rows = batch.world.row[batch.mine[stray_B].cpu().numpy()].tolist()
            raise InputError(
                f"the gold span in the n-best set is not the gold span of training row {rows[0]} ({len(rows)} such rows in "
                "this batch): the sets were made by another tokenizer or from another data file; recreate them with "
                "`raydist predict ... predict.split=train`"
            )
        return start_BK, end_BK, mask_BK, gold_B


def put_gold_in(spans: np.ndarray, gold: tuple[int, int], size: int) -> tuple[np.ndarray, int]:
    """The best ``size`` spans [K, 2] (character start and end, best first) with gold among them, and gold's position.

    A missing gold replaces the last span, or extends a list shorter than ``size``.
    """
    if size < 1:
        raise InputError(f"objectives.hard_learning.size should be 1 or more, got {size}")
    spans = np.asarray(spans, dtype=np.int64).reshape(-1, 2)[:size]
    found = np.flatnonzero((spans == gold).all(axis=1))
    if len(found):
        return spans, int(found[0])
    kept = np.concatenate([spans[: size - 1], np.array([gold], dtype=np.int64)])
    return kept, len(kept) - 1


def span_types(spans: np.ndarray, gold: tuple[int, int]) -> np.ndarray:
    """0 for gold, 1 if exactly one boundary agrees, 2 if neither does."""
    return (np.asarray(spans).reshape(-1, 2) != gold).sum(axis=1).astype(np.int8)
