"""What is known of a run does not depend on where its files lie: the folder of a submitted job is another one every time."""

import shutil

from raydist.cluster.pipeline import Run

from raydist.cluster import pipeline, retrieval
from raydist.config import load_config
from raydist.models.folders import model_folder


def test_a_reader_from_the_same_folder_at_another_path_is_the_same_training(no_ray, tmp_path):
    identities = []
    for place in ("one", "two"):
        shutil.copytree(model_folder("builtin:tiny"), tmp_path / place)
        given = [f"storage={tmp_path / 'runs'}", f"model.name={tmp_path / place}", "data.train.questions=20", "data.dev=null"]
        run = Run(load_config("debug_reader", given).config, no_ray)
        sets = {name: ready.where for name, ready in pipeline.prepare(run, ["train"]).items()}
        identities.append(pipeline._training_identity(run, sets))
    assert identities[0] == identities[1]
    assert "model.weights" in identities[0]


def test_a_retriever_from_the_same_folder_at_another_path_is_the_same_training(trained, no_ray, tmp_path):
    identities = []
    for place in ("one", "two"):
        shutil.copytree(model_folder("builtin:tiny"), tmp_path / place)
        names = [f"{key}={tmp_path / place}" for key in ("model.name", "mining.encoder", "cross_encoder.model.name")]
        given = [*names, f"storage={tmp_path / 'runs'}", "data.sample.size=200", "retriever.variants=[]"]
        run = Run(load_config("debug_retrieval", given).config, no_ray)
        run.begin()
        retrieval.build_retriever(run, retrieval.open_corpora(run, ["train"])["train"])
        identities.append(dict(trained))
    assert identities[0].keys() == {"debug_retrieval", "debug_retrieval_cross_encoder"}
    assert identities[0] == identities[1]
