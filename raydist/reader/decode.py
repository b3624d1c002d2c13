"""Logits -> n-best spans -> text (docs/methods.md 2.4).

Shapes: B windows of a batch, W windows of all batches, T tokens, L longest answer, S starts kept, N candidates, K spans kept.

The order of spans is fully determined: score descending, then start, then end ascending. Quantised models do give equal scores,
and ``torch.topk`` leaves the order of ties undefined, so scores are compared together with their position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from raydist.errors import InputError
from raydist.kernels.first_k import first_k
from raydist.kernels.text_slices import text_slices
from raydist.records import PREDICTION_SCHEMA, SPAN_TYPE

_LOWEST = float("-inf")


class Spans(NamedTuple):
    """The best spans of each window, best first; ``valid`` is false once the window has no more."""

    start_BK: Tensor  # int64, tokens, inclusive
    end_BK: Tensor
    score_BK: Tensor  # float32; -inf where not valid
    valid_BK: Tensor  # bool


def _padded(start_BN: Tensor, end_BN: Tensor, score_BN: Tensor, k: int) -> Spans:
    valid_BN = score_BN != _LOWEST
    spans = Spans(start_BN.where(valid_BN, 0), end_BN.where(valid_BN, 0), score_BN, valid_BN)
    missing = k - score_BN.shape[1]  # fewer candidates than asked for
    return Spans(*(F.pad(x, (0, missing), value=fill) for x, fill in zip(spans, (0, 0, _LOWEST, False)))) if missing else spans


@torch.no_grad()
def top_spans(start_BT: Tensor, end_BT: Tensor, passage_BT: Tensor, k: int, max_answer_length: int) -> Spans:
    """The k best spans (s, e) of every window with both ends in the passage, s <= e and at most max_answer_length tokens.

    The search is exact and needs only a [B, k, L] table. A start's best span is its logit plus the largest end logit in reach;
    a span whose start is not among the k best starts by that measure has k spans before it, so it is not among the k best.

    >>> import torch, raydist
    >>> start, end = torch.tensor([[0.0, 3.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, 2.0, 1.0]])
    >>> spans = raydist.top_spans(start, end, torch.ones(1, 4).bool(), k=2, max_answer_length=2)
    >>> spans.start_BK.tolist(), spans.end_BK.tolist(), spans.score_BK.tolist()
    ([[1, 1]], [[2, 1]], [[5.0, 3.0]])
    """
    L = min(max_answer_length, start_BT.shape[1])
    start_BT = start_BT.float().where(passage_BT, _LOWEST).add_(0.0)  # avoids minus zero in the sums
    end_BT = F.pad(end_BT.float().where(passage_BT, _LOWEST), (0, L - 1), value=_LOWEST)

    reach_BT = F.max_pool1d(end_BT, L, stride=1)
    kept_BS = first_k(start_BT + reach_BT, k).sort(1).values  # in text order, which the table keeps
    row_B1 = torch.arange(len(kept_BS), device=kept_BS.device)[:, None]
    end_BSL = end_BT.unfold(1, L, 1)[row_B1, kept_BS]
    score_BN = end_BSL.add_(start_BT.gather(1, kept_BS)[:, :, None]).flatten(1)

    best_BK = first_k(score_BN, k)
    start_BK = kept_BS.gather(1, best_BK // L)
    return _padded(start_BK, start_BK + best_BK % L, score_BN.gather(1, best_BK), k)


@torch.no_grad()
def top_spans_product(
    start_BT: Tensor, end_BT: Tensor, passage_BT: Tensor, k: int, max_answer_length: int, n: int = 20
) -> Spans:
    """`nbest_compat: top_n_product`: pairs the n best starts with the n best ends of all positions, then drops pairs that are
    no spans of the passage. Can return fewer than k spans, and miss better ones."""
    start_BT, end_BT = start_BT.float() + 0.0, end_BT.float() + 0.0  # no minus zero
    start_Bn, end_Bn = first_k(start_BT, n).sort(1).values, first_k(end_BT, n).sort(1).values
    score_Bnn = start_BT.gather(1, start_Bn)[:, :, None] + end_BT.gather(1, end_Bn)[:, None, :]
    inside_Bnn = passage_BT.gather(1, start_Bn)[:, :, None] & passage_BT.gather(1, end_Bn)[:, None, :]
    length_Bnn = end_Bn[:, None, :] - start_Bn[:, :, None] + 1
    fits_Bnn = inside_Bnn & (length_Bnn >= 1) & (length_Bnn <= max_answer_length)
    score_BN = score_Bnn.where(fits_Bnn, _LOWEST).flatten(1)

    best_BK = first_k(score_BN, k)
    m = end_Bn.shape[1]
    return _padded(start_Bn.gather(1, best_BK // m), end_Bn.gather(1, best_BK % m), score_BN.gather(1, best_BK), k)


def nbest_table(
    spans: Spans,
    null_score_W: np.ndarray,
    example_W: np.ndarray,
    token_start: np.ndarray,
    token_end: np.ndarray,
    row_offsets: np.ndarray,
    *,
    ids: Sequence[str],
    passage_ids: Sequence[str],
    languages: Sequence[str],
    contexts: Sequence[str],
    k: int,
) -> pa.Table:
    """One row (PREDICTION_SCHEMA) per example from the spans of all its windows, in any order.

    ``spans`` covers all W windows, as tensors or arrays; ``null_score_W`` is start + end logit of CLS; ``example_W`` is the
    window's example, as a position in ``ids``. Window w's tokens cover the characters ``[token_start[i], token_end[i])`` of the
    context for i in ``row_offsets[w] .. row_offsets[w + 1]``, -1 outside the passage.
    """
    start_WK, end_WK, score_WK, valid_WK = (np.asarray(x) for x in spans)
    window, _ = valid_WK.nonzero()
    score = score_WK[valid_WK].astype(np.float32, copy=False)
    example = np.asarray(example_W, np.int64)[window]
    first_token = np.asarray(row_offsets, np.int64)[window]
    char_start = np.asarray(token_start)[first_token + start_WK[valid_WK]].astype(np.int64)
    char_end = np.asarray(token_end)[first_token + end_WK[valid_WK]].astype(np.int64)
    if not np.isfinite(score).all():
        bad = ids[example[~np.isfinite(score)][0]]
        raise InputError(
            f"question {bad!r}: a span's score is not a number: the reader's weights are broken; train or copy it again"
        )
    if len(score) and char_start.min() < 0:
        raise ValueError(f"question {ids[example[char_start.argmin()]]!r}: a span starts at a token that has no characters")

    # The best score per (example, char start, char end), in that order: the three as one number sort several times faster.
    width = max(1, int(char_end.max(initial=0))).bit_length()
    if len(ids).bit_length() + 2 * width > 63:
        raise ValueError(f"{len(ids):,} examples with contexts of {1 << width:,} characters are too many for one call")
    key = (example << 2 * width) | (char_start << width) | char_end
    order = np.argsort(key)
    key = key[order]
    group = np.flatnonzero(np.diff(key, prepend=-1))
    key = key[group]
    score = np.maximum.reduceat(score[order], group) if len(group) else score
    example = key >> 2 * width

    # Best first within the example; equal scores stay in the order of their characters.
    bits = (score + np.float32(0)).view(np.int32)
    falling = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) + (1 << 31)
    order = np.argsort((example << 32) + falling, kind="stable")
    count = np.bincount(example, minlength=len(ids))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    order = order[rank < k]
    key, score, example = key[order], score[order], example[order]
    count = np.minimum(count, k)
    char_start, char_end = (key >> width) & ((1 << width) - 1), key & ((1 << width) - 1)

    offsets = np.concatenate([[0], np.cumsum(count)])
    filled = offsets[:-1][count > 0]
    if len(filled):
        weight = np.exp(score - np.repeat(score[filled], count[count > 0]))
        probability = weight / np.repeat(np.add.reduceat(weight, filled), count[count > 0])
    else:
        probability = score

    spans_column = pa.StructArray.from_arrays(
        [
            text_slices(contexts, example, char_start, char_end),
            pa.array(char_start.astype(np.int32)),
            pa.array(char_end.astype(np.int32)),
            pa.array(score),
            pa.array(probability),
        ],
        fields=list(SPAN_TYPE),
    )
    null_score = np.full(len(ids), np.inf, np.float32)
    np.minimum.at(null_score, example_W, np.asarray(null_score_W, np.float32))
    columns = [
        pa.array(ids, pa.string()),
        pa.array(passage_ids, pa.string()),
        pa.array(languages, pa.string()),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), spans_column),
        pa.array(null_score, mask=np.isposinf(null_score)),  # null: an example without windows
    ]
    return pa.Table.from_arrays(columns, schema=PREDICTION_SCHEMA)
