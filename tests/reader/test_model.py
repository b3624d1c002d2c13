"""Which folders can be a reader, and what is said of the others."""

import json
import shutil

import pytest
from transformers import SplinterConfig, SplinterModel

from raydist.errors import InputError
from raydist.models import model_folder
from raydist.reader.model import load_reader


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
    with pytest.raises(InputError, match="a splinter model has no span head that raydist knows; use a BERT-like encoder"):
        load_reader(tmp_path)


def test_a_new_head_is_drawn_from_the_seed_and_dropout_is_as_asked():
    readers = [load_reader(model_folder("builtin:tiny"), seed=seed, dropout=0.0) for seed in (1, 1, 2)]
    first, again, other = (reader.question_answering.qa_outputs.weight for reader in readers)
    assert first.equal(again)
    assert not first.equal(other)
    assert (readers[0].config.hidden_dropout_prob, readers[0].config.attention_probs_dropout_prob) == (0.0, 0.0)
