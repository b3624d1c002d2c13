"""Traits of transformers' kinds of encoders: positions, heads, dropouts, packing.

Every kind named here has AutoModel, AutoModelForQuestionAnswering and AutoModelForSequenceClassification;
tests/models/test_encoders.py checks each line against transformers' own classes. Other kinds follow `UNNAMED`.
Left out on purpose: ConvBERT, MobileBERT and Nystromformer, whose results depend on the padding of a batch.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

# learned: a table with a row for each position, row 0 for the first token
# counted: the same, but positions are counted over the token ids, from the padding id: row padding id + 1 for the first token
# counted from 2: the same, regardless of the config's padding id
# relative: no table; max_position_embeddings is the length that the model was made for, which transformers does not check
Positions = Literal["learned", "counted", "counted from 2", "relative"]

BERT_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
BERT_HEAD, MODERN_BERT_HEAD = ("qa_outputs",), ("head", "drop", "classifier")


@dataclass(frozen=True)
class Encoder:
    """A kind of encoder: a `model_type` of transformers."""

    positions: Positions = "learned"
    dropouts: tuple[str, ...] = (*BERT_DROPOUTS, "classifier_dropout")  # of the config; one that is None follows another
    span_head: tuple[str, ...] = BERT_HEAD  # of its question answering model: hidden states to logits
    is_packed: bool = False  # by models/packed.py: BERT's layers, in BERT's order, under BERT's names
    global_attention: bool = False  # its question answering model lets all tokens attend to the question


BERT = Encoder()
ROBERTA = Encoder(positions="counted")

ENCODERS = {
    "albert": Encoder(dropouts=(*BERT_DROPOUTS, "classifier_dropout_prob")),
    "bert": Encoder(is_packed=True),
    "camembert": Encoder(positions="counted", is_packed=True),
    "data2vec-text": ROBERTA,
    "deberta": Encoder(dropouts=(*BERT_DROPOUTS, "pooler_dropout")),
    "deberta-v2": Encoder(dropouts=(*BERT_DROPOUTS, "pooler_dropout")),
    "distilbert": Encoder(dropouts=("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout")),
    "electra": BERT,
    "ernie": BERT,
    "ibert": Encoder(positions="counted", dropouts=BERT_DROPOUTS),
    "longformer": Encoder(positions="counted", dropouts=BERT_DROPOUTS, global_attention=True),
    "luke": ROBERTA,
    "megatron-bert": Encoder(dropouts=BERT_DROPOUTS),
    "modernbert": Encoder(
        positions="relative",
        dropouts=("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
        span_head=MODERN_BERT_HEAD,
    ),
    "mpnet": Encoder(positions="counted from 2", dropouts=BERT_DROPOUTS),
    "rembert": Encoder(dropouts=(*BERT_DROPOUTS, "classifier_dropout_prob")),
    "roberta": Encoder(positions="counted", is_packed=True),
    "roberta-prelayernorm": ROBERTA,
    "roformer": Encoder(dropouts=BERT_DROPOUTS),
    "squeezebert": Encoder(dropouts=BERT_DROPOUTS),
    "xlm-roberta": Encoder(positions="counted", is_packed=True),
    "xlm-roberta-xl": ROBERTA,
    "xmod": ROBERTA,
}

UNNAMED = Encoder(dropouts=tuple(dict.fromkeys(name for encoder in ENCODERS.values() for name in encoder.dropouts)))


def encoder_of(config: Any) -> Encoder:
    """The line for a config of transformers."""
    return ENCODERS.get(config.model_type, UNNAMED)


def counts_positions(config: Any) -> bool:
    """Whether the position of a token depends on the ids before it: padding has none of its own."""
    return encoder_of(config).positions in ("counted", "counted from 2")


def first_position(config: Any) -> int:
    """The row of the first token in the table of positions."""
    positions = encoder_of(config).positions
    if positions == "counted":
        return config.pad_token_id + 1
    return 2 if positions == "counted from 2" else 0


def longest_input(config: Any) -> int | None:
    """The most tokens of one sequence, special tokens included; None where the model sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    return positions - first_position(config) if positions and positions > 0 else None


def set_dropout(config: Any, rate: float) -> None:
    """Set every dropout of the model to one rate."""
    for name in encoder_of(config).dropouts:
        if getattr(config, name, None) is not None:
            setattr(config, name, rate)


def span_head(question_answering: Any) -> list[Any] | None:
    """The modules from hidden states to start and end logits, in order; None if there is no such head."""
    named = ENCODERS.get(question_answering.config.model_type)
    heads = (named.span_head,) if named else (BERT_HEAD, MODERN_BERT_HEAD)
    found = [[getattr(question_answering, name, None) for name in names] for names in heads]
    return next((modules for modules in found if all(modules)), None)


def takes_types(encoder: Any) -> bool:
    """Whether an encoder sees token types, which mark the second text of a pair."""
    return "token_type_ids" in inspect.signature(encoder.forward).parameters
