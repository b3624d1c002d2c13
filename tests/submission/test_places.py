"""The paths in a config: which travel, which a cluster elsewhere cannot see."""

import shutil

import pytest
from helpers.submission import refused

from raydist.submission.preflight import prepare


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("data.dev={here}/dev.json", "data.dev.files: {here}/dev.json"),
        ("data.dev=../dev.json", "data.dev.files: {here}/dev.json"),
        ("data={{root: {here}, dev: dev.json}}", "data.dev.files: {here}/dev.json"),
        ("evaluate.predictions.dev={here}/dev.json", "evaluate.predictions.dev: {here}/dev.json"),
        ("model.name=../model", "model.name: {here}/model"),
        ("data.dev={{hub: ../model}}", "data.dev.hub: {here}/model"),
    ],
)
def test_a_path_that_only_this_machine_has_is_named(change, place, dashboard, working_dir, capsys):
    here = working_dir.parent
    shutil.copy("data/dev.json", here)
    (here / "model").mkdir()
    url = dashboard()
    change, place = change.format(here=here), place.format(here=here)
    said = refused(capsys, "evaluate", "bridges.yaml", change, "storage=s3://b/runs", "--address", url)
    assert "1 problem\n" in said
    assert f"{place} is on this machine only, the cluster is elsewhere" in said
    assert prepare("evaluate", "bridges.yaml", [change, "storage=s3://b/runs"], address=url, shared=[str(here)])


@pytest.mark.parametrize("storage", ["runs", "/data/runs", "file:///data/runs"])
def test_storage_that_the_nodes_do_not_share_is_named(storage, dashboard, capsys):
    said = refused(capsys, "evaluate", "bridges.yaml", f"storage={storage}", "--address", dashboard())
    assert "1 problem\n" in said
    assert f"storage: {storage} is a folder of one machine" in said


def test_a_trackers_database_must_be_where_the_nodes_see_it(dashboard, working_dir, capsys):
    given = ["storage=s3://b/x", "track.mlflow=sqlite:///m.db", "track.wandb=team/data"]
    url = dashboard()
    said = refused(capsys, "train", "bridges.yaml", *given, "--address", url)
    assert "1 problem\n" in said
    assert "track.mlflow: sqlite:///m.db is a file of one machine" in said
    (working_dir / "team").symlink_to("data")  # a project is no path, even if it looks like one
    sent = prepare("train", "bridges.yaml", given, address=url, shared=[str(working_dir)]).parcel.config
    assert sent["track"]["mlflow"] == f"sqlite:///{working_dir}/m.db"
    assert sent["track"]["wandb"] == "team/data"
    served = [given[0], "track.mlflow=http://host:5000"]
    sent = prepare("train", "bridges.yaml", served, address=url).parcel.config
    assert sent["track"]["mlflow"] == "http://host:5000"


def test_a_corpus_that_is_a_folder_travels_whole(dashboard, working_dir):
    for name in (
        "data/c/corpus.jsonl",
        "data/c/queries.jsonl",
        "data/c/qrels/train.tsv",
        "encoder/config.json",
        "data/j.jsonl",
    ):
        (working_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (working_dir / name).write_text("x")
    (working_dir / ".gitignore").write_text("data\nencoder\n")
    changes = ["data.root=data", "data.dev=dev.json", "corpus.train=c", "mining.encoder=encoder", "storage=s3://b/x"]
    changes.append("corpus.judgements=j.jsonl")
    parcel = prepare("train", "bridges.yaml", changes, address=dashboard()).parcel
    travels = {"data/c/corpus.jsonl", "data/c/queries.jsonl", "data/c/qrels/train.tsv", "encoder/config.json", "data/dev.json"}
    assert travels <= parcel.files.keys()
    assert parcel.config["corpus"]["train"]["files"] == ["c"]
    assert "data/j.jsonl" in parcel.files
    assert parcel.config["corpus"]["judgements"] == ["j.jsonl"]


def test_folders_of_documents_travel_and_uris_stay(dashboard, working_dir):
    for name in ("manuals/a.md", "manuals/deep/b.pdf"):
        (working_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (working_dir / name).write_text("x")
    (working_dir / ".gitignore").write_text("manuals\n")
    changes = ["documents.files=[manuals, 's3://lab/notes']", "storage=s3://b/x"]
    parcel = prepare("train", "bridges.yaml", changes, address=dashboard()).parcel
    assert {"manuals/a.md", "manuals/deep/b.pdf"} <= parcel.files.keys()
    assert parcel.config["documents"]["files"] == ["manuals", "s3://lab/notes"]


def test_words_that_happen_to_be_folders_are_not_paths(dashboard, working_dir):
    for name in ("squad", "reader", "auto"):  # rule, task and format of the config
        (working_dir / name).mkdir()
        (working_dir / name / "file.txt").write_text("x")
    (working_dir / ".rayignore").write_text("squad\nreader\nauto\n")
    parcel = prepare("train", "bridges.yaml", ["storage=s3://b/x", "data.dev.rule=squad"], address=dashboard()).parcel
    assert not [name for name in parcel.files if name.endswith("file.txt")]


def test_what_the_config_names_travels_even_if_ignored_and_the_rest_obeys(dashboard, working_dir):
    (working_dir / ".gitignore").write_text("data/\nsecret.txt\n")
    (working_dir / ".rayignore").write_text("notes.md\n")
    for name in (
        "secret.txt",
        "notes.md",
        "kept.txt",
        ".git/config",
        "deep/__pycache__/a.pyc",
        "deep/b.py",
        "results/old.json",
    ):
        (working_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (working_dir / name).write_text("x")
    (working_dir / "model").mkdir()
    (working_dir / "model/config.json").write_text("{}")
    changes = [
        "model.name=./model",
        f"data.root={working_dir}/data",
        f"data.dev={working_dir}/data/dev.json",
        "storage=results",
    ]
    parcel = prepare("train", "bridges.yaml", changes, address=dashboard(), shared=[str(working_dir / "results")]).parcel
    own = {name for name in parcel.files if not name.startswith("raydist/")}
    assert own == {
        *("bridges.yaml", "predictions.json", "kept.txt", "deep/b.py", ".gitignore", ".rayignore"),
        *("data/dev.json", "model/config.json"),
    }
    assert {"raydist/__init__.py", "raydist/cli.py", "raydist/models/tiny_vocabulary.txt"} <= parcel.files.keys()
    assert parcel.config["data"]["root"] == "data"
    assert parcel.config["data"]["dev"]["files"] == ["dev.json"]  # found under data.root, wherever the parcel is unpacked
    assert parcel.config["model"]["name"] == "model"
    assert parcel.config["evaluate"]["predictions"] == {"dev": "predictions.json"}
