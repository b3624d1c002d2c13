"""What is known of a run does not depend on where its files lie: the folder of a submitted job is another one every time."""

import shutil

from raydist.cluster.pipeline import Run

from raydist.cluster import pipeline, retrieval
from raydist.config import load_config
from raydist.models.loading import model_folder
from raydist.sweep.driver import Sweep


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


def test_trials_share_a_base_whatever_folder_the_sweep_is_run_from(no_ray, tmp_path, monkeypatch):
    """Two jobs of one command: the working directory is unpacked elsewhere, paths in the config are the same."""
    sweeps = {
        "debug_sweep": ["objectives.hard_learning={}"],
        "debug_retrieval": ["sweep.space.mining.threshold=[0,1]", "sweep.metric=retrieval.sample.gold_silver_weighted.MRR@100"],
    }
    for config, given in sweeps.items():
        bases = []
        for place in ("one", "two"):
            shutil.copytree(model_folder("builtin:tiny"), tmp_path / config / place / "model")
            monkeypatch.chdir(tmp_path / config / place)
            same = [f"storage={tmp_path}", "model.name=model", "data.root=."]
            sweep = Sweep(load_config(config, [*same, *given]).config, no_ray)
            bases.append([sweep.base_of(trial) for trial in sweep.trials.values()])
            absolute = sweep.config_of(next(iter(sweep.trials.values())))
            assert absolute.model.name == str(tmp_path / config / place / "model"), "a trial runs in another folder"
        assert bases[0] == bases[1]
        assert None not in bases[0]
