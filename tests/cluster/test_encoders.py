"""Encoders that a config names: a model, or a retriever of an earlier run with its two towers."""

import pytest

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
