"""What is known of a run does not depend on where its files lie: the folder of a submitted job is another one every time."""

import json
import shutil

from helpers.elsewhere import Untrained

from raydist.config import load_config
from raydist.here import Here
from raydist.models.folders import model_folder
from raydist.reader.prepare import prepare
from raydist.retrieval import flow
from raydist.runs.run import Run
from raydist.runs.training import training_identity


def test_a_reader_from_the_same_folder_at_another_path_is_the_same_training(tmp_path):
    identities = []
    for place in ("one", "two"):
        shutil.copytree(model_folder("builtin:tiny"), tmp_path / place)
        given = [f"storage={tmp_path / 'runs'}", f"model.name={tmp_path / place}", "data.dev=null"]
        given += ["data.sample.size=200", "data.train.questions=20"]
        run = Run(load_config("debug_reader", given).config, Here())
        identities.append(training_identity(run, prepare(run, ["train"])))
    assert identities[0] == identities[1]
    assert "model.weights" in identities[0]


def test_a_retriever_from_the_same_folder_at_another_path_is_the_same_training(tmp_path):
    identities = []
    for place in ("one", "two"):
        shutil.copytree(model_folder("builtin:tiny"), tmp_path / place)
        names = [f"{key}={tmp_path / place}" for key in ("model.name", "mining.encoder", "cross_encoder.model.name")]
        given = [*names, f"storage={tmp_path / 'runs'}", "data.sample.size=200", "retriever.variants=[]"]
        run = Run(load_config("debug_retrieval", given).config, Untrained(tmp_path / "node"))
        run.begin()
        flow.train(run)
        trained = [path.parent for path in (tmp_path / "runs").glob("*/training.json")]
        identities.append({folder.name: json.loads((folder / "training.json").read_text())["identity"] for folder in trained})
        for folder in trained:  # else they were done
            shutil.rmtree(folder)
    assert identities[0].keys() == {"debug_retrieval", "debug_retrieval_cross_encoder"}
    assert identities[0] == identities[1]
