"""Cached two-pass gradients: the whole global batch as columns, the activations of one chunk at a time in memory.

Pass one embeds chunk by chunk and keeps only the vectors. The loss over all of them gives every vector's gradient. Pass two
repeats the chunks from the same random state (the same dropout) and backpropagates each chunk's gradient to the parameters.
This is activation checkpointing with the chunk as its unit, so torch's own does it: the second pass of a chunk runs when the
backward pass reaches it, and autograd accumulates a parameter's gradient once, after the last chunk, when DDP sends it.

Gradients are those of one pass; only the order of summation differs. Cost: one forward pass more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from raydist.objectives.pairs import Tokens
from raydist.training.dropout import fast_dropout

CHUNK_ROWS = 16  # default of a cached batch: a single chunk would save nothing


def embed_in_chunks(embed: Callable[[Tokens], Tensor], tokens: Tokens, *, chunk_rows: int | None, cached: bool) -> Tensor:
    """The vectors of all rows, in their order. Rows of similar length share a chunk, padded to its longest; None: one chunk,
    or with ``cached`` chunks of CHUNK_ROWS.
    """

    def run(*parts: Any) -> Tensor:
        with fast_dropout():  # in both passes: the second runs outside the loop's own context
            return embed(Tokens(*parts))

    order = tokens.attention_BT.sum(1).argsort(descending=True, stable=True)
    vectors = []
    for rows in order.split(chunk_rows or (CHUNK_ROWS if cached else max(1, len(order)))):
        chunk = tokens.take(rows)
        parts = chunk.ids_BT, chunk.attention_BT, chunk.types_BT  # checkpoint saves the random state of the tensors' devices
        vectors.append(checkpoint(run, *parts, use_reentrant=False, preserve_rng_state=True) if cached else run(*parts))
    return torch.cat(vectors)[order.argsort()]
