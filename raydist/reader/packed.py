"""An inference-only reader: no padding, no gradients (models/packed.py). On a CPU it takes a third of the time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raydist.models.encoders import span_head
from raydist.models.packed import PackedEncoder
from raydist.objectives.base import Batch, ReaderOutput, at_least_float32
from raydist.reader.model import SpanReader


class PackedReader(nn.Module):
    """A span reader whose encoder is packed; hidden states of padding are zeros."""

    def __init__(self, reader: SpanReader, encoder: PackedEncoder) -> None:
        super().__init__()
        self.question_answering, self.encoder = reader.question_answering, encoder

    def forward(self, batch: Batch, embeddings_BTH: Tensor | None = None) -> ReaderOutput:
        assert embeddings_BTH is None
        real_BT = batch.attention_BT
        lengths = real_BT.sum(1).tolist()
        types = None if batch.token_types_BT is None else _rows(batch.token_types_BT[real_BT], lengths)
        with torch.autocast(real_BT.device.type, enabled=False):  # the encoder picks its own precision
            hidden_TH = at_least_float32(self.encoder.token_states(_rows(batch.input_ids_BT[real_BT], lengths), types))
            hidden_BTH = hidden_TH.new_zeros(*real_BT.shape, hidden_TH.shape[1])
            hidden_BTH[real_BT] = hidden_TH
            logits_BT2 = hidden_BTH
            for module in span_head(self.question_answering) or ():
                logits_BT2 = module(logits_BT2)
        start_BT, end_BT = logits_BT2.unbind(-1)
        return ReaderOutput(hidden_BTH, start_BT, end_BT)


def _rows(values_T: Tensor, lengths: Sequence[int]) -> list[list[int]]:
    return [row.tolist() for row in values_T.split(list(lengths))]


def packed_reader(reader: SpanReader, precision: str) -> nn.Module:
    """The reader, packed if its encoder supports it."""
    encoder = PackedEncoder(reader.question_answering, precision=precision)
    return PackedReader(reader, encoder) if encoder.is_packed else reader
