"""The table of encoders against transformers' own classes: for every kind in it a small model with random weights."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from helpers.tiny import make_batch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    FNetConfig,
    MPNetConfig,
    XLNetConfig,
)

from raydist.models.encoders import ENCODERS, counts_positions, encoder_of, longest_input, set_dropout, takes_types
from raydist.models.loading import load_pretrained
from raydist.models.packed import PackedEncoder
from raydist.objectives.base import Batch
from raydist.reader.model import SpanReader

ROWS = 42  # of a table of positions
SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": ROWS,
}
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
OF_THEIR_OWN = {
    "albert": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 32},
    "electra": {"embedding_size": 16},
    "longformer": {"attention_window": 4, "sep_token_id": 2},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "modernbert": SPECIAL_TOKENS,
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "squeezebert": {"embedding_size": 32},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}
HEADS = {"question answering": AutoModelForQuestionAnswering, "classification": AutoModelForSequenceClassification}
PER_KIND = pytest.mark.parametrize("kind", ENCODERS)


def config_of(kind: str, **changes):
    return AutoConfig.for_model(kind, **SHAPE | OF_THEIR_OWN.get(kind, {}) | changes)


@cache
def model_of(kind: str, head: str = "question answering"):
    """With weights large enough that scores differ from row to row."""
    torch.manual_seed(0)
    model = HEADS[head].from_config(config_of(kind)).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.3)
    return model


def words(length: int, rows: int = 1) -> dict[str, Tensor]:
    """Token ids without a special one but the three separators that a Longformer finds its question by."""
    ids = torch.arange(3, 3 + length).expand(rows, length) % 40 + 3
    ids = ids.index_fill(1, torch.tensor([4, 5, length - 1]), 2)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@PER_KIND
@torch.inference_mode()
def test_the_longest_input_runs_and_one_token_more_does_not(kind):
    model = model_of(kind)
    longest = longest_input(model.config)
    assert model(**words(longest)).start_logits.shape == (1, longest)
    if encoder_of(model.config).positions == "relative":
        assert longest == ROWS
        assert model(**words(longest + 1)).start_logits.shape == (1, longest + 1)
    else:
        with pytest.raises((IndexError, RuntimeError)):
            model(**words(longest + 1))


@pytest.mark.parametrize("kind", [kind for kind in ENCODERS if ENCODERS[kind].positions == "counted"])
def test_counted_positions_begin_after_the_padding_id_whatever_it_is(kind):
    longest = longest_input(config_of(kind, pad_token_id=5))
    assert longest == ROWS - 6
    model = AutoModel.from_config(config_of(kind, pad_token_id=5)).eval()
    inputs = words(longest + 1)
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["input_ids"] == 5, 7)
    model(**{name: value[:, :-1] for name, value in inputs.items()})
    with pytest.raises((IndexError, RuntimeError)):
        model(**inputs)


def test_an_mpnet_counts_from_two_whatever_its_padding_id():
    model = AutoModel.from_config(MPNetConfig(**SHAPE, pad_token_id=5)).eval()
    assert longest_input(model.config) == ROWS - 2
    assert model(**words(ROWS - 2)).last_hidden_state.shape[1] == ROWS - 2


def test_a_kind_that_is_not_named_may_be_as_long_as_its_config_says():
    assert longest_input(FNetConfig(max_position_embeddings=77)) == 77
    assert longest_input(XLNetConfig()) is None


@PER_KIND
@torch.inference_mode()
def test_a_packed_encoder_takes_exactly_the_longest_input(kind):
    model = model_of(kind, "classification")
    longest = longest_input(model.config)
    encoder = PackedEncoder(model)
    assert encoder.max_tokens == longest
    assert encoder.score([(list(range(3, 3 + longest)), [0] * longest)]).shape == (1, model.config.num_labels)


@PER_KIND
@torch.inference_mode()
def test_packed_or_not_a_score_is_that_of_the_plain_model(kind):
    model = model_of(kind, "classification")
    encoder = PackedEncoder(model)
    assert encoder.is_packed == ENCODERS[kind].is_packed
    rows = [words(length) for length in (7, 12, 12, 30)]
    scores = encoder.score([(row["input_ids"][0].tolist(), [0] * row["input_ids"].shape[1]) for row in rows])
    plain = torch.cat([model(**row).logits for row in rows])
    torch.testing.assert_close(torch.from_numpy(scores), plain, atol=2e-5, rtol=0)
    assert plain.std(0).max() > 0.01, "else nothing was compared"


@PER_KIND
@torch.inference_mode()
def test_a_reader_gives_transformers_logits_by_ids_and_by_embeddings(kind):
    model = model_of(kind)
    reader, batch = SpanReader(model), with_separators(make_batch(4), model.config.pad_token_id)
    theirs = model(batch.input_ids_BT, attention_mask=batch.attention_BT.long())
    for ours in (reader(batch), reader(batch, reader.embed(batch))):
        for one, other in ((ours.start_BT, theirs.start_logits), (ours.end_BT, theirs.end_logits)):
            torch.testing.assert_close(one[batch.attention_BT], other[batch.attention_BT], rtol=0, atol=1e-5)
    assert theirs.start_logits[batch.attention_BT].std() > 1e-3, "else nothing was compared"


def with_separators(batch: Batch, pad_id: int) -> Batch:
    """`[CLS] question [SEP] [SEP] passage [SEP]` of words that are not special."""
    ids_BT, rows = batch.input_ids_BT.clamp(min=6), torch.arange(len(batch.input_ids_BT))
    first_B = batch.passage_BT.int().argmax(1)
    for place in (first_B - 1, first_B, batch.attention_BT.sum(1) - 1):
        ids_BT[rows, place] = 2
    return replace(batch, input_ids_BT=ids_BT.masked_fill(~batch.attention_BT, pad_id))


# --- dropouts --------------------------------------------------------------------------------------------------------


def is_random(model: nn.Module) -> bool:
    """Whether two passes in training differ."""
    first, second = (next(iter(model.train()(**words(24, rows=4)).values())) for _ in range(2))
    return not torch.equal(first, second)


@PER_KIND
def test_the_dropouts_of_a_kind_are_all_that_it_has(kind):
    """Without them a model in training is not random; each of them alone makes it so, with one of its heads."""
    torch.manual_seed(0)
    config = config_of(kind)
    assert all(hasattr(config, name) for name in ENCODERS[kind].dropouts)
    set_dropout(config, 0.0)
    assert not any(is_random(head.from_config(config)) for head in HEADS.values())
    for name in ENCODERS[kind].dropouts:
        only = config_of(kind)
        set_dropout(only, 0.0)
        setattr(only, name, 0.5)
        assert any(is_random(head.from_config(only)) for head in HEADS.values()), name


def test_a_rate_that_follows_another_is_left_to_follow_it():
    config = BertConfig(**SHAPE)
    set_dropout(config, 0.3)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout) == (0.3, 0.3, None)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "albert"])
def test_a_model_is_opened_with_the_rate_that_is_asked_for(tmp_path, kind):
    AutoModel.from_config(config_of(kind)).save_pretrained(tmp_path)
    model = load_pretrained(AutoModelForSequenceClassification, tmp_path, dropout=0.25)
    rates = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.25}


# --- the rest of a line ----------------------------------------------------------------------------------------------


@PER_KIND
@torch.inference_mode()
def test_positions_depend_on_token_ids_exactly_where_they_are_counted(kind):
    """The padding id as a word: where positions are counted, by ids those behind it move, and by embeddings they do not."""
    reader = SpanReader(model_of(kind))
    ids = words(12)["input_ids"].index_fill(1, torch.tensor([7]), reader.config.pad_token_id)
    embeddings = reader.question_answering.get_input_embeddings()(ids)
    embeddings = embeddings[0] if isinstance(embeddings, tuple) else embeddings
    base = reader.question_answering.base_model
    by_ids, by_embeddings = base(ids).last_hidden_state, base(inputs_embeds=embeddings).last_hidden_state
    assert torch.allclose(by_ids, by_embeddings, atol=1e-5) != counts_positions(reader.config)


@PER_KIND
def test_token_types_are_taken_where_there_is_a_table_of_them(kind):
    model = AutoModel.from_config(config_of(kind))
    has_table = any(name.endswith("token_type_embeddings") for name, _ in model.named_modules())
    assert takes_types(model) >= has_table
