"""Models that travel: their cards, their settings, their tokenizers, and what is left of a finished training."""

import re
import shutil
from pathlib import Path

import pytest
import tokenizers
from helpers.tiny_reader import write_reader
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoTokenizer

from raydist.config import load_config
from raydist.files.storage import folder_digest
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.models.saving import read_settings, save_tokenizer, write_settings
from raydist.reader import flow
from raydist.reader.answers import Reader
from raydist.runs.card import write_card
from raydist.runs.run import Run

SMALL = (
    *("data.sample.size=200", "data.train.questions=40", "data.dev.questions=10", "data.test={}", "data.max_length=96"),
    *("data.doc_stride=16", "data.max_question_length=24", "predict.max_answer_length=7", "model.dropout=0.37"),
    *("train.max_steps=4", "train.checkpoint_every=2", "train.choose=last", "cluster.threads_per_worker=1"),
)


def make_run(folder: Path, *settings: str) -> Run:
    run = Run(load_config("debug_reader", [f"storage={folder}", *SMALL, *settings]).config, Here())
    run.begin()
    return run


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cards")


@pytest.fixture(scope="module")
def run(storage) -> Run:
    run = make_run(storage, "name=carded")
    flow.train(run)
    flow.score_sets(run)
    return run


def test_the_card_says_data_settings_scores_licence_and_limits(run):
    text = Path(run.folder.path("model", "README.md")).read_text()
    about = ModelCard(text).data.to_dict()
    assert (about["pipeline_tag"], about["library_name"], about["license"]) == ("question-answering", "transformers", "unknown")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Data", "Settings", "Scores", "Licence", "Use", "Limits"]
    f1 = run.folder.read_json("metrics.json")["dev.f1"]
    assert f"| dev.f1 | {f1:.4g} |" in text
    assert "| data.max_length | `96` |" in text
    assert "| train | `train.json`, 40 questions |" in text
    assert str(Path(run.folder.path()).parent) not in text, "no path of the machine"


def test_the_code_of_the_card_runs(run, monkeypatch, capsys):
    text = Path(run.folder.path("model", "README.md")).read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(run.folder.path("model"))
    exec(code, {})
    ours = Reader.load(run.folder.path()).ask("When was it built?", "The bridge was built in 1894.").text
    assert "".join(capsys.readouterr().out.split()) == "".join(ours.lower().split())


def test_a_copied_folder_is_read_with_the_lengths_that_it_was_trained_with(run, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(run.folder.path("model"), copy)
    settings = Reader.load(copy).settings
    assert settings == Reader.load(run.folder.path()).settings
    assert (settings.max_length, settings.doc_stride, settings.max_answer_length) == (96, 16, 7)
    assert Reader.load(copy, max_answer_length=3).settings.max_answer_length == 3
    (copy / "raydist.json").write_text("{")
    assert Reader.load(copy).settings.max_length != 96, "of no use, as if it were not there"


def test_what_a_card_says_is_no_part_of_the_model(run):
    folder = Path(run.folder.path("model"))
    before = folder_digest(folder)
    run.add_metrics({"dev.null_threshold": 1.5})
    write_card(run)
    assert read_settings(folder)["null_threshold"] == 1.5
    assert Reader.load(shutil.copytree(folder, folder.parent / "copied")).settings.null_threshold == 1.5
    assert folder_digest(folder) == before
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert folder_digest(folder) != before


def test_dropout_is_saved_as_it_was_before_training(run):
    saved, origin = (
        AutoConfig.from_pretrained(run.folder.path("model")),
        AutoConfig.from_pretrained(model_folder("builtin:tiny")),
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        assert getattr(saved, name) == getattr(origin, name) != 0.37


def test_a_saved_tokenizer_neither_cuts_nor_pads(tmp_path):
    origin = model_folder("builtin:minilm")
    assert len(tokenizers.Tokenizer.from_file(str(origin / "tokenizer.json")).encode("a " * 300).ids) == 128
    save_tokenizer(origin, tmp_path)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [len(plain.encode("a " * words).ids) for words in (1, 300)] == [3, 302]
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(origin)
    text = "Zürich flows – 310 metres wide"
    assert ours(text, "who?", truncation="only_first", max_length=9) == theirs(
        text, "who?", truncation="only_first", max_length=9
    )


def test_checkpoints_of_a_finished_training_go_and_its_end_is_still_known(run, storage, capsys):
    assert not run.folder.folders("checkpoints")
    assert not run.folder.folders("best")
    again = make_run(storage, "name=carded")
    flow.train(again)
    assert "train: already done (4 steps)" in capsys.readouterr().out
    kept = make_run(storage, "name=kept", "train.keep_finished=true")
    flow.train(kept)
    assert len(kept.folder.folders("checkpoints")) == 2
    flow.train(make_run(storage, "name=kept"))  # it may be changed later, which says nothing of the weights
    assert not kept.folder.folders("checkpoints")
    model = Path(kept.folder.path("model", "model.safetensors"))
    before = model.read_bytes()
    shutil.rmtree(model.parent)
    flow.train(make_run(storage, "name=kept"))
    assert model.read_bytes() == before, "trained anew from its beginning"


def test_a_run_without_a_model_has_no_card(storage):
    empty = make_run(storage, "name=empty")
    write_card(empty)
    assert not empty.folder.exists("model/README.md")
    write_reader(Path(empty.folder.path("model")))
    before = folder_digest(empty.folder.path("model"))
    write_card(empty)
    assert folder_digest(empty.folder.path("model")) == before, "of a version before the cards: it stays the model that it was"
    write_settings(Path(empty.folder.path("model")), "reader", {})
    write_card(empty)
    assert folder_digest(empty.folder.path("model")) == before
    assert "Not scored yet" in empty.folder.read_bytes("model/README.md").decode()
