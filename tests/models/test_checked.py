"""What is wrong with a model's folder is said in one message, before its weights are loaded or any work begins."""

import json
import shutil

import pytest
import torch
from helpers.tiny_reader import write_cross_encoder, write_reader
from safetensors.torch import load_file, save_file

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.models.checked import check_model
from raydist.models.folders import model_folder
from raydist.models.located import Model, NamedModel
from raydist.models.packed import load_for_inference
from raydist.reader.flow import predict
from raydist.reader.model import load_reader
from raydist.reader.stages import open_reader
from raydist.retrieval.encode import TextEncoder
from raydist.retrieval.flow import index, mine
from raydist.runs.run import Run

DEEP = "[" * 100_000 + "]" * 100_000
QA = "AutoModelForQuestionAnswering"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_reader(tmp_path_factory.mktemp("whole") / "reader")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refused(folder, message):
    """By whoever looks at the folder and by whoever loads it."""
    for use in (lambda: check_model(model_folder(str(folder)), QA), lambda: load_for_inference(QA, model_folder(str(folder)))):
        with pytest.raises(InputError, match=message) as caught:
            use()
        assert str(folder) in str(caught.value)
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 10**9}, r"has the shape \[64\] in its weights, and \[1000000000\] by its config.json"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000; wanted 0 to 1,000"),
        ({"num_hidden_layers": -1}, "num_hidden_layers: -1; wanted"),
        ({"vocab_size": 10**12}, "vocab_size: 1000000000000; wanted"),
        ({"num_labels": 10**9}, "num_labels: 1000000000; wanted"),
        ({"num_attention_heads": 0}, "cannot be opened .*ZeroDivisionError"),
        ({"hidden_act": "nope"}, "cannot be opened .*nope.*copy or download them again"),
        ({"quantization_config": {"quant_method": "gptq"}}, "has quantized weights"),
        ({"attn_implementation": "someone/flash"}, "wants kernels from the Hugging Face hub"),
        ({"use_kernels": True}, "wants kernels from the Hugging Face hub"),
        ({"model_type": ["bert"]}, "cannot be opened"),
    ],
)
def test_a_config_that_no_model_can_have_is_refused(folder, values, message):
    change(folder / "config.json", **values)
    refused(folder, message)


@pytest.mark.parametrize(
    "weight_map", [["a"], None, {"a": 3}, {"a": {"b": 1}}, {"a": "../model.safetensors"}, {"a": "gone.safetensors"}]
)
def test_an_index_of_weights_that_names_no_files_is_refused(folder, weight_map):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(folder, "has no weight_map of names to files beside it|names gone.safetensors, which is not there")


def test_weights_of_another_model_or_type_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    for other, message in (
        ({name: value.to(torch.int8) for name, value in weights.items()}, "is stored as I8: quantized weights are not read"),
        ({name: value[:2].clone() for name, value in weights.items()}, "has the shape .* in its weights, and"),
        ({"x": torch.zeros(2)}, "none of its weights is one of a BertForQuestionAnswering"),
    ):
        save_file(other, folder / "model.safetensors", {"format": "pt"})
        refused(folder, message)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(folder, "its weights are cut off or damaged")


def of_words(folder, **changes):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    return tokenizer | {"model": tokenizer["model"] | changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda folder: json.dumps(of_words(folder))[:3000], "cannot be opened with AutoTokenizer"),
        (lambda folder: "", "cannot be opened with AutoTokenizer"),
        (lambda folder: f'{{"a": {DEEP}}}', "cannot be opened with AutoTokenizer: RecursionError"),
        (lambda folder: json.dumps(of_words(folder, vocab={})), "its tokenizer has 5 tokens, special ones included"),
        (
            lambda folder: json.dumps(of_words(folder) | {"post_processor": None}),
            "no special tokens for padding, or none around",
        ),
        (
            lambda folder: json.dumps(of_words(folder, vocab={w: i + 9000 * (i > 50) for w, i in words(folder).items()})),
            "its tokenizer has the id 17438, and the model 8,439 embeddings",
        ),
    ],
    ids=["cut off", "empty", "bottomless", "no words", "no special tokens", "ids beyond"],
)
def test_a_tokenizer_that_does_not_fit_is_refused(folder, content, message):
    (folder / "tokenizer.json").write_text(content(folder))
    refused(folder, message)


def words(folder):
    return json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]


def test_a_whole_folder_passes_and_a_bare_encoder_as_what_training_starts_from(folder, tmp_path):
    check_model(folder, QA, trained_head=True)
    check_model(model_folder("builtin:tiny"), QA)
    check_model(write_cross_encoder(tmp_path / "cross"), "AutoModelForSequenceClassification", trained_head=True, num_labels=1)
    assert load_reader(model_folder("builtin:tiny"))


class _NoMachine(Here):
    def executor(self, settings):
        raise AssertionError("work began")


def test_a_reader_without_a_span_head_predicts_nothing(whole, tmp_path):
    """Its head would be random."""
    encoder = shutil.copytree(model_folder("builtin:tiny"), tmp_path / "encoder")
    settings = [f"predict.model={encoder}", f"storage={tmp_path}"]
    run = Run(load_config("debug_reader", settings).config, _NoMachine())
    with pytest.raises(InputError, match=r"encoder has no weights for qa_outputs.weight, qa_outputs.bias"):
        predict(run)
    with pytest.raises(InputError, match=r"has no weights for qa_outputs"):  # on a worker, too
        open_reader(Model(NamedModel(str(encoder)), ""), 1)
    assert open_reader(Model(NamedModel(str(whole)), ""), 1)


@pytest.mark.parametrize("key", ["model.name", "mining.encoder", "cross_encoder.model.name"])
def test_broken_models_of_retrieval_are_refused_before_work_begins(folder, tmp_path, key):
    change(folder / "config.json", hidden_act="nope")
    settings = [f"{key}={folder}", f"storage={tmp_path}", "index.kind=dense"]
    run = Run(load_config("debug_retrieval", settings).config, _NoMachine())
    with pytest.raises(InputError, match="cannot be opened"):
        mine(run)
    if key == "model.name":
        with pytest.raises(InputError, match="cannot be opened"):
            index(run)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("sentence_bert_config.json", "[]"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}'),
        ("modules.json", '{"a": 1}'),
        ("modules.json", "[1]"),
        ("modules.json", DEEP),
    ],
)
def test_files_of_sentence_transformers_of_another_form_are_refused(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=file):
        TextEncoder(folder)
