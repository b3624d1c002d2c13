"""A span reader over any encoder. A plain Hugging Face question answering model that also accepts ready embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raydist.errors import InputError
from raydist.models.encoders import counts_positions, encoder_of, first_position, span_head
from raydist.models.folders import model_folder
from raydist.models.loading import load_pretrained, load_shape, open_weights, refuse_missing
from raydist.models.saving import save_model, save_tokenizer
from raydist.objectives.base import Batch, ReaderOutput, at_least_float32


class SpanReader(nn.Module):
    """Encoder and span head, for a training loop. Only `question_answering` is saved.

    >>> import torch, raydist
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> ids, place = torch.randint(5, 30, (2, 8)), torch.arange(8).expand(2, 8)
    >>> batch = raydist.Batch.whole(ids, question=place < 3, passage=place > 3, start=[4, 5], end=[5, 5])
    >>> reader(batch).start_BT.shape
    torch.Size([2, 8])
    >>> reader(batch, reader.embed(batch) * 1.01).hidden_BTH.shape              # a second pass, over changed embeddings
    torch.Size([2, 8, 64])
    """

    def __init__(self, question_answering: Any) -> None:
        super().__init__()
        self.question_answering: Any = question_answering  # a question answering model of transformers

    @classmethod
    def over(
        cls,
        name: Path | str,
        *,
        revision: str | None = None,
        attention: str = "auto",
        dropout: float | None = None,
        seed: int = 0,
    ) -> SpanReader:
        """A reader over an encoder (built in, a folder, a Hugging Face name), with a new head unless it has one."""
        return load_reader(model_folder(str(name), revision), attention=attention, dropout=dropout, seed=seed)

    @property
    def config(self) -> Any:
        return self.question_answering.config

    def embed(self, batch: Batch) -> Tensor:
        """Word embeddings straight from the lookup table: before positions, types and normalisation."""
        found = self.question_answering.get_input_embeddings()(batch.input_ids_BT)
        return found[0] if isinstance(found, tuple) else found  # I-BERT's come with the scale of their quantisation

    def forward(self, batch: Batch, embeddings_BTH: Tensor | None = None) -> ReaderOutput:
        words = {"input_ids": batch.input_ids_BT} if embeddings_BTH is None else {"inputs_embeds": embeddings_BTH}
        if batch.token_types_BT is not None:
            words["token_type_ids"] = batch.token_types_BT
        if counts_positions(self.config):  # explicit, so that embeddings get the same positions as ids (docs/methods.md 4.1)
            of_padding = first_position(self.config) - 1
            words["position_ids"] = batch.attention_BT.long().cumsum(1) * batch.attention_BT + of_padding
        if encoder_of(self.config).global_attention:
            before_BT = batch.passage_BT.cumsum(1) == 0
            to_question_BT = batch.question_BT.flip(1).cumsum(1).flip(1) > 0
            words["global_attention_mask"] = ((before_BT & to_question_BT) | batch.question_BT).long()
        attention = batch.attention_BT.long()
        hidden_BTH = self.question_answering.base_model(attention_mask=attention, **words).last_hidden_state
        logits_BT2 = at_least_float32(hidden_BTH)
        with torch.autocast(hidden_BTH.device.type, enabled=False):  # in bf16, many spans would tie
            for module in span_head(self.question_answering) or ():
                logits_BT2 = module(logits_BT2)
        start_BT, end_BT = logits_BT2.unbind(-1)
        return ReaderOutput(hidden_BTH, start_BT, end_BT)

    def save(self, folder: Path, tokenizer_folder: Path) -> None:
        """A folder that plain transformers opens: AutoModelForQuestionAnswering and AutoTokenizer."""
        save_model(self.question_answering, folder, tokenizer_folder)
        save_tokenizer(tokenizer_folder, folder)


def load_reader(folder: Path, *, attention: str = "auto", dropout: float | None = None, seed: int = 0) -> SpanReader:
    """A folder's model as a reader. A bare encoder gets a new, seeded span head."""
    from transformers import AutoModelForQuestionAnswering

    model = load_pretrained(AutoModelForQuestionAnswering, folder, attention=attention, dropout=dropout, seed=seed)
    check_span_head(model, folder)
    return SpanReader(model)


def load_trained_reader(folder: Path) -> SpanReader:
    """A folder's model as a reader; one without a trained span head is refused."""
    from transformers import AutoModelForQuestionAnswering

    model, missing = open_weights(AutoModelForQuestionAnswering, folder)
    refuse_missing(folder, "AutoModelForQuestionAnswering", missing)
    check_span_head(model, folder)
    return SpanReader(model)


def check_reader(folder: Path) -> None:
    """Reject a folder whose model has no span head that this package can call."""
    from transformers import AutoModelForQuestionAnswering

    check_span_head(load_shape(AutoModelForQuestionAnswering, folder), folder)


def check_span_head(model: Any, folder: Path) -> None:
    """Reject a loaded model whose head this package cannot call on its own."""
    if span_head(model) is None or model.base_model is model:
        kind = model.config.model_type
        raise InputError(f"{folder}: a {kind} model has no span head that raydist supports; use a BERT-like encoder")
