"""Windows -> n-best lists, by a reader; batched by length and token budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from raydist.reader.decode import Spans, nbest_table, top_spans, top_spans_product
from raydist.reader.rows import WindowRows


def length_batches(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Row numbers, longest first, in batches of at most `batch_tokens` padded tokens (at least one row)."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        count = max(1, batch_tokens // max(1, int(lengths[order[at]])))
        yield order[at : at + count]
        at += count


def predict_examples(
    reader: nn.Module,
    rows: WindowRows,
    examples: pa.Table,
    which: np.ndarray | None = None,
    *,
    k: int,
    max_answer_length: int,
    batch_tokens: int,
    pad_id: int,
    compat: str = "exact",
    precision: str = "fp32",
) -> pa.Table:
    """n-best lists (PREDICTION_SCHEMA) of the examples, or of those numbered `which`, in their order."""
    which = np.arange(examples.num_rows) if which is None else which
    place = np.full(examples.num_rows, -1, np.int64)
    place[which] = np.arange(len(which))
    windows = np.flatnonzero(place[rows.examples] >= 0) if len(rows) else np.empty(0, np.int64)
    spans, null_W = find_spans(
        reader,
        rows,
        windows,
        k=k,
        max_answer_length=max_answer_length,
        batch_tokens=batch_tokens,
        pad_id=pad_id,
        compat=compat,
        precision=precision,
    )
    token_start, token_end, row_offsets = rows.offsets(windows) if len(windows) else (np.empty(0, np.int32),) * 3
    picked = examples.take(which)
    return nbest_table(
        spans,
        null_W,
        place[rows.examples[windows]],
        token_start,
        token_end,
        row_offsets,
        ids=picked["id"].to_pylist(),
        passage_ids=picked["passage_id"].to_pylist(),
        languages=picked["language"].to_pylist(),
        contexts=picked["context"].to_pylist(),
        k=k,
    )


@torch.inference_mode()
def find_spans(
    reader: nn.Module,
    rows: WindowRows,
    windows: np.ndarray,
    *,
    k: int,
    max_answer_length: int,
    batch_tokens: int,
    pad_id: int,
    compat: str = "exact",
    precision: str = "fp32",
) -> tuple[Spans, np.ndarray]:
    """The k best spans of some windows in token positions, and the score of each window's null span."""
    device = next(reader.parameters()).device
    search = top_spans if compat == "exact" else top_spans_product
    found = Spans(
        torch.zeros((len(windows), k), dtype=torch.long),
        torch.zeros((len(windows), k), dtype=torch.long),
        torch.zeros((len(windows), k)),
        torch.zeros((len(windows), k), dtype=torch.bool),
    )
    null_W = np.zeros(len(windows), np.float32)
    was_training = reader.training
    reader.eval()
    for picked in length_batches(rows.lengths[windows], batch_tokens):
        batch = rows.batch(windows[picked], pad_id=pad_id).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            output = reader(batch)
        start_BT, end_BT = output.start_BT, output.end_BT
        if compat != "exact":  # it ranks all positions; padding must not take a place
            lowest = torch.finfo(start_BT.dtype).min
            start_BT, end_BT = (logits.masked_fill(~batch.attention_BT, lowest) for logits in (start_BT, end_BT))
        spans = search(start_BT, end_BT, batch.passage_BT, k, max_answer_length)
        for into, value in zip(found, spans):
            into[torch.from_numpy(picked)] = value.cpu()
        cls_B1 = batch.extras["cls_B"][:, None]
        null_W[picked] = (output.start_BT.gather(1, cls_B1) + output.end_BT.gather(1, cls_B1)).squeeze(1).cpu().numpy()
    reader.train(was_training)
    return found, null_W
