"""Encoders that a config names: a model, or a retriever of an earlier run with its two towers."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.storage import folder_digest, has_model
from raydist.models.folders import model_folder
from raydist.retrieval import flow
from raydist.retrieval.cross_encoder import load_cross_encoder
from raydist.retrieval.dual_encoder import load_dual_encoder
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run


def test_a_retriever_of_two_towers_finds_candidates_and_is_trained_further(untrained, tmp_path):
    tiny = model_folder("builtin:tiny")
    load_dual_encoder(tiny, towers="separate").save(tmp_path / "two", tiny)
    names = [f"mining.encoder={tmp_path / 'two'}", f"model.name={tmp_path / 'two'}", f"storage={tmp_path}"]

    def run(*more: str) -> Run:
        return Run(load_config("debug_retrieval", [*names, *more]).config, untrained)

    encoder = flow.mining_encoder(run())
    assert encoder.model.digest == folder_digest(tmp_path / "two")
    assert encoder.units() == 64
    assert encoder.model.folder() == run().model_folder == tmp_path / "two"
    further = run("retriever.towers=separate", "data.sample.size=200", "mining.hard_negatives=0", "retriever.loss=softmax")
    flow.train_retriever(further, open_corpora(further, ["train"])["train"], cross_encoder=None, silver=None, weighting="gold")
    assert has_model(further.folder)
    with pytest.raises(InputError, match="holds two towers"):
        _ = run("retriever.towers=shared").model_folder
    with pytest.raises(InputError, match="holds two towers"):
        _ = run("task=reader").model_folder


def broken_copy(folder: Path) -> Path:
    """The tiny model with weights that are no numbers."""
    shutil.copytree(model_folder("builtin:tiny"), folder)
    broken = {name: tensor.fill_(torch.nan) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(broken, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(("weights", "message"), [(None, "has no weights"), (torch.nan, "vectors that are not finite")])
def test_an_encoder_without_weights_or_with_broken_ones_is_one_message_and_status_2(
    command, tmp_path, capsys, weights, message
):
    """By the command itself: the first is seen before anything is indexed, the second by the stage that encodes."""
    folder = broken_copy(tmp_path / "encoder")
    if weights is None:
        (folder / "model.safetensors").unlink()
    status = command("mine", "debug_retrieval", f"mining.encoder={folder}", f"storage={tmp_path / 'runs'}")
    error = capsys.readouterr().err
    assert status == 2, error
    assert f"{folder}" in error
    assert message in error
    assert "Traceback" not in error
    begun = {path.name.rpartition("-")[0] for path in (tmp_path / "runs" / "stages").glob("*-*")}  # none, if seen at once
    assert ("bm25" in begun) == (weights is not None)


@pytest.mark.parametrize("is_trained", ["true", "false"])
def test_questions_too_few_to_judge_a_cross_encoder_are_told_before_it_is_asked(command, tmp_path, capsys, is_trained):
    tiny, ready = model_folder("builtin:tiny"), tmp_path / "cross_encoder"
    load_cross_encoder(tiny).save(ready, tiny)
    given = [f"cross_encoder.model.name={ready}", f"cross_encoder.trained={is_trained}", "mining.dev_share=0.000001"]
    assert command("mine", "debug_retrieval", *given, f"storage={tmp_path / 'runs'}", "data.sample.size=200") == 2
    error = capsys.readouterr().err
    assert re.search(r"questions leave \d+ pairs for training and 0 held out.*: give more questions, or set", error), error
    assert not any((tmp_path / "runs" / "stages").glob("held_out_scores-*"))


def test_a_cross_encoder_with_broken_weights_names_its_pairs_and_costs_nothing_that_was_made(
    command_on, untrained, tmp_path, capsys
):
    command, folder = command_on(untrained), broken_copy(tmp_path / "cross_encoder")
    given = ["debug_retrieval", f"cross_encoder.model.name={folder}", f"storage={tmp_path / 'runs'}", "data.sample.size=200"]
    assert command("mine", *given) == 2
    error = capsys.readouterr().err
    assert re.search(r"gives (\d+) of \1 pairs a score that is not finite: \('.+\?', '.+'\)", error), error
    assert "its weights are broken, train or copy it again" in error
    assert "Traceback" not in error
    stages = tmp_path / "runs" / "stages"
    made = {file: file.stat().st_mtime_ns for file in stages.glob("*/part-*")}
    assert {file.parent.name.rpartition("-")[0] for file in made} >= {"bm25_hits", "dense_hits", "labelled_pairs"}
    assert not any(stages.glob("held_out_scores-*/part-*")), "no score that is not finite is written"

    shutil.copy(model_folder("builtin:tiny") / "model.safetensors", folder)
    assert command("mine", *given, "--fresh") == 0
    assert [str(file) for file, when in made.items() if file.stat().st_mtime_ns != when] == []
    assert any(stages.glob("scores-*/part-*"))
