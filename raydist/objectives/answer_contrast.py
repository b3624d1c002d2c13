"""Answer-aware contrast of the two-stage cross-lingual reader: pulls the question to gold and away from its nearest rivals.

Shapes: B rows of this rank, G rows of the group over all ranks, A best spans of a window, N hard negatives of a row, T tokens,
H hidden units, V tokens of the vocabulary.

Rivals are compared with gold as normalised text, by integer codes instead of strings (text_codes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raydist.config.explain import checked_section
from raydist.config.objectives import AnswerContrastConfig
from raydist.draws import keyed_uniform
from raydist.objectives.base import Batch, Objective, ReaderModel, ReaderOutput, Term, at_least_float32, gather_group
from raydist.objectives.span import check_reduction
from raydist.objectives.text_codes import span_text_codes

# (start_BT, end_BT, passage_BT, k, max_answer_length) -> start, end, score, valid [B, k], best first: reader.decode.top_spans
TopSpans = Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor, Tensor]]


def span_masks(start_BA: Tensor, end_BA: Tensor, length: int) -> Tensor:
    """True on start..end of every span, [B, A, T]."""
    position_T = torch.arange(length, device=start_BA.device)
    return (position_T >= start_BA[..., None]) & (position_T <= end_BA[..., None])


def token_means(hidden_BTH: Tensor, mask_BAT: Tensor) -> Tensor:
    """rep(z): the mean of R over the tokens of each mask, in one matrix product. (Prefix sums would lose precision.)"""
    return mask_BAT.to(hidden_BTH.dtype) @ hidden_BTH / mask_BAT.sum(-1, keepdim=True).clamp(min=1)


def contrast_loss(question_BH: Tensor, gold_BH: Tensor, rivals: Sequence[tuple[Tensor, Tensor]], tau: float) -> Tensor:
    """Eq. 8 for each row. Unit vectors; rivals are ([B, N, H] per row or [N, H] for all rows, mask [B, N])."""
    gold_B = (question_BH * gold_BH).sum(1) / tau
    scores = [gold_B[:, None]]
    for vectors, mask_BN in rivals:
        product = "bh,bnh->bn" if vectors.dim() == 3 else "bh,nh->bn"
        scores.append((torch.einsum(product, question_BH, vectors) / tau).masked_fill(~mask_BN, -torch.inf))
    return torch.cat(scores, dim=1).logsumexp(1) - gold_B  # gold is in every sum: never all masked


class AnswerContrast(Objective):
    """L_con over rows with an answer, and the two weights of Eq. 9. The task's own loss gets the weight `base_weight(step)`.

    >>> import torch, raydist
    >>> from transformers import AutoTokenizer
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> tokenizer = AutoTokenizer.from_pretrained(raydist.model_folder("builtin:tiny"))
    >>> ids, place = torch.randint(5, 30, (4, 12)), torch.arange(12).expand(4, 12)
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 4), passage=(place > 4) & (place < 11), start=[5, 6, 7, 8], end=[6, 6, 9, 8]
    ... )
    >>> codes = raydist.piece_codes(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    >>> objective = raydist.AnswerContrast(raydist.top_spans, codes, top=10)
    >>> terms = objective(batch, reader(batch), reader)
    >>> loss = sum(weight * terms[part].mean for part, weight in objective.weights(step=0).items())
    >>> loss.backward()
    >>> sorted(terms)
    ['loss', 'nearest']
    """

    def __init__(
        self,
        top_spans: TopSpans,
        codes_4V: Tensor,
        *,
        max_answer_length: int = 30,
        first_step: int = 0,
        span_reduction: str = "mean",
        **settings: Any,
    ) -> None:
        super().__init__()
        own = checked_section(AnswerContrastConfig, "objectives.answer_contrast", settings)
        self.top_spans = top_spans
        self.codes_4V = codes_4V  # not a buffer: DDP broadcasts buffers in every step
        self.alpha, self.tau, self.top, self.theta, self.select = own.alpha, own.tau, own.top, own.theta, own.select
        self.negatives, self.hard_from_others, self.question = own.negatives, own.hard_from_others, own.question
        self.gather, self.max_answer_length, self.first_step = own.gather, max_answer_length, first_step
        self.span_reduction = check_reduction(span_reduction)

    def alpha_at(self, step: int) -> float:
        """Eq. 9's alpha: 0 before ``first_step`` (the sequential schedule)."""
        return self.alpha if step >= self.first_step else 0.0

    def weights(self, step: int) -> dict[str, float]:
        """alpha; the hard negatives' nearness to gold is only logged."""
        scale = 0.5 if self.span_reduction == "mean" else 1.0  # as for the task's own loss: keeps their ratio
        return {"loss": self.alpha_at(step) * scale} | ({} if self.negatives == "in_batch" else {"nearest": 0.0})

    def base_weight(self, step: int) -> float:
        """The weight of the task's own loss, hard learning or plain: 1 - alpha."""
        return 1.0 - self.alpha_at(step)

    def forward(self, batch: Batch, output: ReaderOutput, reader: ReaderModel | None = None) -> dict[str, Term]:
        """``loss``, and the nearness of the best hard negative to gold."""
        with torch.autocast(output.hidden_BTH.device.type, enabled=False):  # half precision is too coarse for cosines over tau
            return self._terms(batch, output)

    def _terms(self, batch: Batch, output: ReaderOutput) -> dict[str, Term]:
        num_tokens = batch.input_ids_BT.shape[1]
        gold_B1T = span_masks(batch.start_B[:, None], batch.end_B[:, None], num_tokens)
        masks = [self._question(batch)[:, None], gold_B1T]
        if self.negatives != "in_batch":
            start_BN, end_BN, text_BN, usable_BN = self.hard_negatives(batch, output)
            masks.append(span_masks(start_BN, end_BN, num_tokens))
        vectors_BXH = F.normalize(token_means(at_least_float32(output.hidden_BTH), torch.cat(masks, dim=1)), dim=-1)
        question_BH, gold_BH, hard_BNH = vectors_BXH[:, 0], vectors_BXH[:, 1], vectors_BXH[:, 2:]

        answered = batch.count(lambda rows: rows.has_answer.sum())
        others_BC = self._others(batch)
        rivals, terms = [], {}
        if self.negatives != "in_batch":
            rivals.append((hard_BNH, usable_BN))
            terms["nearest"] = Term(self._nearness(batch, hard_BNH[:, 0], gold_BH, usable_BN[:, 0]), answered)
        if self.hard_from_others:
            own_text_B1 = self._texts(batch, batch.start_B[:, None], batch.end_B[:, None])
            text_CN, usable_CN = self._columns(torch.stack([text_BN, usable_BN.long()], 1), batch).unbind(1)
            allowed_BCN = others_BC[..., None] & usable_CN.bool() & (text_CN != own_text_B1[..., None])
            rivals.append((self._columns(hard_BNH, batch).flatten(0, 1), allowed_BCN.flatten(1)))
        if self.negatives != "hard":
            rivals.append((self._columns(gold_BH, batch), others_BC))
        loss_B = contrast_loss(question_BH, gold_BH, rivals, self.tau).masked_fill(~batch.has_answer_B, 0)
        return {"loss": Term(loss_B.sum(), answered)} | terms

    @torch.no_grad()
    def hard_negatives(self, batch: Batch, output: ReaderOutput) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Each row's theta rivals among its best spans: start, end, text code, validity. All [B, N]."""
        start_BA, end_BA, _, valid_BA = self.top_spans(
            output.start_BT, output.end_BT, batch.passage_BT, self.top, self.max_answer_length
        )
        start_BA, end_BA = start_BA.masked_fill(~valid_BA, 0), end_BA.masked_fill(~valid_BA, 0)
        start_BX, end_BX = torch.cat([start_BA, batch.start_B[:, None]], 1), torch.cat([end_BA, batch.end_B[:, None]], 1)
        text_BX = self._texts(batch, start_BX, end_BX)  # gold is the last column
        # Gold itself has gold's text, so this excludes the gold span, too.
        usable_BA = valid_BA & batch.has_answer_B[:, None] & (text_BX[:, :-1] != text_BX[:, -1:])

        if self.select == "nearest":  # Eq. 7
            rep_BXH = token_means(
                at_least_float32(output.hidden_BTH), span_masks(start_BX, end_BX, batch.input_ids_BT.shape[1])
            )
            liking_BA = torch.cosine_similarity(rep_BXH[:, :-1], rep_BXH[:, -1:], dim=-1)
        elif self.select == "top1":
            liking_BA = -torch.arange(float(self.top), device=start_BA.device).expand_as(start_BA)
        else:
            row_B1 = batch.world.row[batch.mine.cpu().numpy()][:, None]
            draws_BA = keyed_uniform(batch.seed, batch.step, "answer_contrast", row_B1 * self.top + np.arange(self.top))
            liking_BA = torch.from_numpy(draws_BA).to(start_BA.device)
        chosen_BN = liking_BA.masked_fill(~usable_BA, -torch.inf).topk(self.theta, dim=1).indices
        start_BN, end_BN, text_BN = (values_BX.gather(1, chosen_BN) for values_BX in (start_BX, end_BX, text_BX))
        return start_BN, end_BN, text_BN, usable_BA.gather(1, chosen_BN)

    @torch.no_grad()
    def _nearness(self, batch: Batch, hard_BH: Tensor, gold_BH: Tensor, usable_B: Tensor) -> Tensor:
        """This rank's sum of cos(rival, gold). The term's count, fixed before the forward pass, covers all rows with an answer:
        rows without a rival get the group's mean over the others (0 if no row has a rival)."""
        near_B = (hard_BH * gold_BH).sum(1) * usable_B
        with_rival = gather_group(usable_B.to(near_B.dtype), batch).sum().clamp(min=1)
        return near_B.sum() * (int(batch.world.has_answer.sum()) / with_rival)

    def _question(self, batch: Batch) -> Tensor:
        """The tokens that represent the question, [B, T]."""
        if self.question == "mean":
            return batch.question_BT
        cls_B = batch.extras.get("cls_B", torch.zeros_like(batch.start_B))
        return torch.zeros_like(batch.question_BT).scatter(1, cls_B[:, None].long(), True)

    def _texts(self, batch: Batch, start_BA: Tensor, end_BA: Tensor) -> Tensor:
        self.codes_4V = self.codes_4V.to(batch.input_ids_BT.device)
        return span_text_codes(self.codes_4V[:, batch.input_ids_BT], start_BA, end_BA)

    def _columns(self, values_BX: Tensor, batch: Batch) -> Tensor:
        return gather_group(values_BX, batch) if self.gather else values_BX

    def _others(self, batch: Batch) -> Tensor:
        """K [B, C]: the rows usable as negatives of each row: of another passage and answer text, so never the row itself."""
        world, mine = batch.world, batch.mine.cpu().numpy()
        column = np.arange(len(world)) if self.gather else mine
        same_passage, same_answer = (of[mine][:, None] == of[column] for of in (world.passage, world.answer))
        return torch.from_numpy(world.has_answer[column] & ~same_passage & ~same_answer).to(batch.start_B.device)
