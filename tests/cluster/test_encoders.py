"""Encoders that a config names: a model, or a retriever of an earlier run with its two towers."""

import shutil

import pytest
import torch

from raydist.cluster import retrieval
from raydist.cluster.connect import Cluster
from raydist.cluster.pipeline import Run
from raydist.config import ClusterConfig, load_config
from raydist.errors import InputError
from raydist.mining import parts
from raydist.models import model_folder, open_model
from raydist.retriever.dual_encoder import load_dual_encoder
from raydist.storage import folder_digest


def test_a_retriever_of_two_towers_finds_candidates_and_is_trained_further(tmp_path):
    tiny = model_folder("builtin:tiny")
    load_dual_encoder(tiny, towers="separate").save(tmp_path / "two", tiny)
    names = [f"mining.encoder={tmp_path / 'two'}", f"model.name={tmp_path / 'two'}", f"storage={tmp_path}"]

    def run(*more: str) -> Run:
        return Run(load_config("debug_retrieval", [*names, *more]).config, Cluster(ClusterConfig()))

    encoder = retrieval.mining_encoder(run())
    assert encoder.digest == folder_digest(tmp_path / "two")
    assert retrieval.encoder_units(encoder) == 64
    assert open_model(encoder.where) == run().model_folder == tmp_path / "two"
    lengths = {"max_question_length": 32, "max_answer_length": 32}
    parts.pair_rows_part_maker(
        model=encoder.where, context=False, lengths=lengths, weighting="gold", negatives={}, everything={}
    )
    with pytest.raises(InputError, match="holds two towers"):
        _ = run("retriever.towers=shared").model_folder
    with pytest.raises(InputError, match="holds two towers"):
        _ = run("task=reader").model_folder


@pytest.mark.parametrize(("weights", "message"), [(None, "has no weights"), (torch.nan, "vectors that are not finite")])
def test_an_encoder_without_weights_or_with_broken_ones_is_one_message_and_status_2(no_ray, tmp_path, capsys, weights, message):
    """By the command itself: the first is seen before anything is indexed, the second by the stage that encodes."""
    from safetensors.torch import load_file, save_file

    from raydist.cli import job

    folder = tmp_path / "encoder"
    shutil.copytree(model_folder("builtin:tiny"), folder)
    if weights is None:
        (folder / "model.safetensors").unlink()
    else:
        broken = {name: tensor.fill_(weights) for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(broken, folder / "model.safetensors", {"format": "pt"})
    status = job("mine", ["debug_retrieval", f"mining.encoder={folder}", f"storage={tmp_path / 'runs'}"])
    error = capsys.readouterr().err
    assert status == 2, error
    assert f"{folder}" in error
    assert message in error
    assert "Traceback" not in error
    begun = {path.name.rpartition("-")[0] for path in (tmp_path / "runs" / "stages").iterdir()}
    assert ("bm25" in begun) == (weights is not None)
