"""Models by name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from raydist.errors import InputError
from raydist.models.folders import model_folder, open_model, tower_folder


def test_the_new_minilm_has_the_shape_and_the_words_of_the_trained_one_and_other_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path))
    trained, new = model_folder("builtin:minilm"), model_folder("builtin:minilm_new")
    theirs, ours = load_file(trained / "model.safetensors"), load_file(new / "model.safetensors")
    assert {name: weight.shape for name, weight in ours.items()} == {
        name: weight.shape for name, weight in theirs.items() if name != "embeddings.position_ids"
    }
    word = "embeddings.word_embeddings.weight"
    assert ours[word].std() == pytest.approx(0.02, rel=0.01)
    assert not ours[word].equal(theirs[word])
    text = "Who built the lighthouse Zyxquor?"
    assert AutoTokenizer.from_pretrained(new)(text) == AutoTokenizer.from_pretrained(trained)(text)
    assert model_folder("builtin:minilm_new") == new


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("builtin:large", "there are builtin:tiny, builtin:minilm and builtin:minilm_new"),
        ("./nowhere", "no such folder; at hand without a network: builtin:tiny"),
    ],
)
def test_a_name_that_stands_for_nothing_is_answered_with_what_there_is(name, message):
    with pytest.raises(InputError, match=message):
        model_folder(name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no config.json"),
        (["config.json"], "has no weights"),
        (["config.json", "pytorch_model.bin"], "only pytorch_model.bin, which are not read because loading them can run code"),
        (
            ["config.json", "extra.safetensors"],
            r"no weights \(extra.safetensors would not be read: wanted model.safetensors",
        ),
        (["config.json", "pytorch_model.bin", "extra.safetensors"], "only pytorch_model.bin, which are not.*extra.safetensors"),
        (["config.json", "model.safetensors", "tokenizer_config.json"], r"has no tokenizer .*AutoTokenizer.*save_pretrained"),
    ],
)
def test_a_folder_without_safe_weights_or_a_tokenizer_is_refused(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=message):
        model_folder(str(tmp_path))


@pytest.mark.parametrize("ending", ["bin", "safetensors"])
def test_shards_are_weights_where_they_are_safetensors(tmp_path, ending):
    shards = [f"model-0000{number}-of-00002.{ending}" for number in (1, 2)]
    for name in ("config.json", "vocab.txt", "extra.safetensors", *shards):
        (tmp_path / name).write_text("{}")
    index = {"metadata": {}, "weight_map": dict(zip("ab", shards))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    if ending == "safetensors":
        assert model_folder(str(tmp_path)) == tmp_path
    else:
        with pytest.raises(InputError, match=f"only {', '.join(shards)}, which are not read"):
            model_folder(str(tmp_path))


@pytest.mark.parametrize("ending", ["bin", "safetensors"])
def test_weights_that_a_config_names_are_taken_where_they_are_safetensors(tmp_path, ending):
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": f"adapter_model.{ending}"}))
    for name in ("vocab.txt", "extra.safetensors", f"adapter_model.{ending}"):
        (tmp_path / name).touch()
    if ending == "safetensors":
        assert model_folder(str(tmp_path)) == tmp_path
    else:
        with pytest.raises(InputError, match=r"only adapter_model\.bin, which are not read"):
            model_folder(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b'{"model_type": "be', b"[]", b"\xff\xfe"])
def test_a_config_that_was_cut_off_is_told_before_anything_is_read(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=r"config\.json is no JSON object; copy or download it again"):
        model_folder(str(tmp_path))


def test_two_towers_are_taken_where_an_encoder_is_wanted_and_refused_by_name_elsewhere(tmp_path):
    for tower in ("query", "answer"):
        (tmp_path / tower).mkdir()
        (tmp_path / tower / "config.json").write_text("{}")
        (tmp_path / tower / "model.safetensors").touch()
        (tmp_path / tower / "vocab.txt").touch()
    assert model_folder(str(tmp_path), towers=True) == open_model({"name": str(tmp_path)}) == tmp_path
    assert tower_folder(tmp_path, "answer") == tmp_path / "answer"
    with pytest.raises(InputError, match=f"holds two towers.*take {tmp_path}/query or {tmp_path}/answer"):
        model_folder(str(tmp_path))
    (tmp_path / "answer" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=f"{tmp_path}/answer has no weights"):
        model_folder(str(tmp_path), towers=True)


@pytest.mark.parametrize(("given", "expected"), [(None, 5), ("7", 7)])
def test_the_hub_is_given_up_after_five_seconds_of_silence_or_what_the_user_says(monkeypatch, given, expected):
    monkeypatch.delenv("HF_HUB_DOWNLOAD_TIMEOUT", raising=False)  # this process has it from raydist.models.folders
    if given:
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", given)
    code = "import raydist.models.folders; from huggingface_hub import constants; print(constants.HF_HUB_DOWNLOAD_TIMEOUT)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == str(expected), done.stderr
