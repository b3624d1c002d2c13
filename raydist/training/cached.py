"""Cached two-pass gradients: the whole global batch as columns, the activations of one chunk at a time in memory.

Pass one embeds chunk after chunk and keeps nothing but the vectors. The loss over all of them gives every vector's gradient.
Pass two takes the chunks once more, from the same random state (the same dropout), and carries each chunk's gradient on to the
parameters. That is activation checkpointing with the chunk as its unit, so torch's own does it: the second pass of a chunk
runs when the backward pass reaches it, and autograd hands a parameter its gradient once, after the last chunk, which is when
DDP sends it.

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

CHUNK_ROWS = 16  # of a cached batch, where no number is asked for: in one chunk it would save nothing


def embed_in_chunks(embed: Callable[[Tokens], Tensor], tokens: Tokens, *, chunk_rows: int | None, cached: bool) -> Tensor:
    """The vectors of all rows, in their order. Rows of like length share a chunk, padded to its longest; None: one chunk,
    or with ``cached`` chunks of CHUNK_ROWS.
    """

    def run(*parts: Any) -> Tensor:
        with fast_dropout():  # in both passes: the second is outside of what the loop puts around the first
            return embed(Tokens(*parts))

    order = tokens.attention_BT.sum(1).argsort(descending=True, stable=True)
    vectors = []
    for rows in order.split(chunk_rows or (CHUNK_ROWS if cached else max(1, len(order)))):
        chunk = tokens.take(rows)
        parts = chunk.ids_BT, chunk.attention_BT, chunk.types_BT  # checkpoint keeps the random state of tensors' devices
        vectors.append(checkpoint(run, *parts, use_reentrant=False, preserve_rng_state=True) if cached else run(*parts))
    return torch.cat(vectors)[order.argsort()]
