"""Which folders can be a reader, and what is said of the others."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from helpers.tiny import make_batch
from transformers import AutoConfig, AutoModel, AutoModelForQuestionAnswering, SplinterConfig, SplinterModel

from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.objectives.base import Batch
from raydist.reader.model import check_reader, load_reader

SHAPE = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
ENCODERS = {
    "bert": {},
    "electra": {"embedding_size": 4},
    "distilbert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 8},
    "roberta": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "longformer": {"pad_token_id": 0, "sep_token_id": 2, "attention_window": 4},
}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", '{"model_type": "be', "not a valid JSON file"),
        ("config.json", "{}", "Unrecognized model"),
        ("config.json", json.dumps({"model_type": "bert", "hidden_size": "many"}), "expected int, got str"),
        ("model.safetensors", "cut off", "header"),
    ],
)
def test_a_damaged_folder_is_one_message(tmp_path, file, content, message):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("builtin:tiny"), folder)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=rf"{folder}: cannot be opened with AutoModelForQuestionAnswering: .*{message}"):
        load_reader(folder)


def test_an_encoder_without_a_span_head_of_the_known_kind_is_refused_by_name(tmp_path):
    shape = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    SplinterModel(SplinterConfig(**shape)).save_pretrained(tmp_path)  # its head picks spans for question tokens
    for refuse in (check_reader, load_reader):
        with pytest.raises(
            InputError, match="a splinter model has no span head that raydist supports; use a BERT-like encoder"
        ):
            refuse(tmp_path)


def with_separators(batch: Batch) -> Batch:
    """`<s> question </s></s> passage </s>`, as RoBERTa has it: a Longformer finds the question by them."""
    ids_BT, rows = batch.input_ids_BT.clamp(min=3), torch.arange(len(batch.input_ids_BT))
    first_B = batch.passage_BT.int().argmax(1)
    for place in (first_B - 1, first_B, batch.attention_BT.sum(1) - 1):
        ids_BT[rows, place] = 2
    ids_BT[:, 0] = 1
    return replace(batch, input_ids_BT=ids_BT.masked_fill(~batch.attention_BT, 0))


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_exported_reader_gives_in_transformers_the_logits_it_was_trained_with(tmp_path, kind):
    """Of an encoder drawn by its config; by token ids, and by embeddings, which some objectives train with."""
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(kind, **SHAPE | ENCODERS[kind])).save_pretrained(tmp_path / "encoder")
    check_reader(tmp_path / "encoder")
    reader = load_reader(tmp_path / "encoder", seed=1).eval()
    reader.question_answering.save_pretrained(tmp_path / "exported")
    exported, told = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "exported", output_loading_info=True)
    assert not told["missing_keys"]
    batch = with_separators(make_batch(4))
    with torch.inference_mode():
        theirs = exported.eval()(batch.input_ids_BT, attention_mask=batch.attention_BT.long())
        for ours in (reader(batch), reader(batch, reader.embed(batch))):
            torch.testing.assert_close(ours.start_BT, theirs.start_logits, rtol=0, atol=1e-6)
            torch.testing.assert_close(ours.end_BT, theirs.end_logits, rtol=0, atol=1e-6)
    assert theirs.start_logits[batch.attention_BT].std() > 1e-3, "else nothing was compared"


def test_a_new_head_is_drawn_from_the_seed_and_dropout_is_as_asked():
    readers = [load_reader(model_folder("builtin:tiny"), seed=seed, dropout=0.0) for seed in (1, 1, 2)]
    first, again, other = (reader.question_answering.qa_outputs.weight for reader in readers)
    assert first.equal(again)
    assert not first.equal(other)
    assert (readers[0].config.hidden_dropout_prob, readers[0].config.attention_probs_dropout_prob) == (0.0, 0.0)


def test_in_bf16_the_encoder_is_rounded_and_scores_are_not():
    reader, batch = load_reader(model_folder("builtin:tiny"), seed=1).eval(), make_batch(4)
    with torch.inference_mode():
        full = reader(batch).start_BT
        with torch.autocast("cpu", torch.bfloat16):
            half = reader(batch).start_BT
    assert half.dtype == torch.float32
    assert not half.equal(half.bfloat16().float()), "scores that bf16 could hold would be the same for many spans"
    assert not half.equal(full)
    torch.testing.assert_close(half, full, rtol=0, atol=0.02)
