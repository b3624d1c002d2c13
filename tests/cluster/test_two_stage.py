"""Base reader, n-best sets, final reader: one command, resumable between and within its stages."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from raydist.cluster import pipeline
from raydist.errors import InputError

SMALL = (
    "data.train.questions=60",
    "data.dev.questions=10",
    "data.test={}",
    "train.batch_size=20",
    "train.max_steps=3",
    "train.evaluate_every=0",
    "train.choose=last",
    "evaluate.bootstrap=0",
)
BOTH = ("objectives.hard_learning.size=5", "objectives.answer_contrast={}")


def logged(run) -> list[dict]:
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def translated(run, folder: Path, split: str, passages: int) -> list[str]:
    """English and Spanish files of the same passages, whose questions share their ids, as those of translate-train do."""
    world = Path(pipeline.fetch({"folder": pipeline.make_sample(run), "name": ""}))
    paths = []
    for language in ("en", "es"):
        articles = json.loads((world / language / f"{split}.json").read_text())["data"][:passages]
        path = folder / language / f"{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"version": "1.1", "data": articles}).replace('_es"', '"'))
        paths.append(str(path))
    return paths


def test_one_command_trains_the_base_makes_the_sets_and_trains_on_them(make_run, tmp_path, capsys):
    """With all objectives, on two languages, under a name with a slash; from the data to the report."""
    sample = make_run("name=exp/sample")
    files = {split: translated(sample, tmp_path, split, passages) for split, passages in (("train", 6), ("dev", 2))}
    settings = (*SMALL, *(f"data.{split}={json.dumps({'files': paths})}" for split, paths in files.items()))
    settings += (*BOTH, "objectives.infomax={}", "objectives.pfa.bottleneck=8")
    run = make_run("name=exp/two_stage", *settings)
    pipeline.run_all(run)
    ready = run.prepared["train"].examples
    parts = [pipeline.read_parquet(run.storage, f"{ready.stage.folder}/{part['name']}") for part in ready.manifest.parts]
    rows = [row for part in parts for row in part.select(["id", "language"]).to_pylist()]
    assert len(rows) == 2 * len({row["id"] for row in rows}) == 60, "every id in two languages"
    terms = logged(run)[0]
    wanted = ("hard_learning", "answer_contrast", "infomax.local", "infomax.global", "pfa.perturbed_span", "pfa.alignment")
    assert not {f"loss.{part}" for part in wanted} - terms.keys(), terms
    assert "loss.span" not in terms, "hard learning takes the place of the span loss"
    base = run.storage.at("exp/two_stage_base")
    assert base.exists("model/config.json")
    assert run.folder.read_json("base.json") == {"run": "two_stage_base"}
    assert "n-best sets of train" in run.folder.read_json("stages.json")
    assert run.folder.read_json("trace/pfa.json")["step"] == 3
    assert not base.exists("trace"), "it has no objective but the task"
    em_at_k = {f"dev.em@{k}{language}" for k in (1, 3, 5, 10, 20) for language in ("", ".en", ".es")}
    scores = em_at_k | {f"dev.{key}.{of}" for key in ("f1", "em") for of in ("en", "es", "languages")}
    for folder in (base, run.folder):
        assert not scores - folder.read_json("metrics.json").keys(), "before and after are both scored"
    page = Path(run.folder.path("report.html")).read_text()
    headings = ("QAInfomax", "Perturbation for alignment", "Hard learning and contrast", "By language")
    assert [heading for heading in headings if f">{heading}</h2>" in page] == list(headings)
    pictures = ("One passage, clean and perturbed", *(f"EM@k on dev{language}" for language in ("", " en", " es")))
    assert [title for title in pictures if f"{title}</" in page] == list(pictures)
    assert "before: two_stage_base, after: two_stage" in page
    assert all(f"k = {k}</th>" in page for k in (1, 3, 5, 10, 20))

    capsys.readouterr()
    pipeline.run_all(make_run("name=exp/two_stage", *settings))
    again = capsys.readouterr()
    assert (again.out + again.err).count("train: already done (3 steps)") == 2


def test_sets_of_a_file_give_the_same_training_as_sets_made_on_the_way(make_run, storage):
    own = make_run("name=own_sets", *SMALL, "objectives.hard_learning.size=20")
    pipeline.train(own)
    base = make_run("name=own_sets_base", *SMALL, "predict.split=train")
    pipeline.predict(base)
    file = base.folder.path("predictions", "train.parquet")
    given = make_run("name=given_sets", *SMALL, f"objectives.hard_learning.sets=file://{file}")
    pipeline.train(given)
    assert [line["loss"] for line in logged(own)] == [line["loss"] for line in logged(given)]

    other = make_run(
        "name=other_data", *SMALL, "data.train.files=sample:es/train.json", f"objectives.hard_learning.sets={file}"
    )
    with pytest.raises(InputError, match="another data file"):
        pipeline.train(other)
    chosen = make_run("name=more_data", *SMALL, "data.train.questions=80", f"objectives.hard_learning.sets={file}")
    with pytest.raises(InputError, match=r"no list for training question .*or from a choice of it"):
        pipeline.train(chosen)
    with pytest.raises(InputError, match=r"there is no .*nowhere.parquet"):
        pipeline.train(make_run("name=no_sets", *SMALL, "objectives.hard_learning.sets=nowhere.parquet"))
    tokens = make_run("name=other_tokens", *SMALL, "model.name=builtin:minilm", f"objectives.hard_learning.sets={file}")
    with pytest.raises(InputError, match="another tokenizer"):
        pipeline.train(tokens)


def with_base_readers(run) -> list[pipeline.Run]:
    """The runs of base readers as training would leave them; but untrained, each with a head of its own."""
    from raydist.cluster.two_stage import base_runs

    from raydist.reader.model import load_reader

    bases = base_runs(run)
    for fold, base in enumerate(bases):
        base.begin()
        sets = {name: ready.where for name, ready in pipeline.prepare(base, ["train", "dev"]).items()}
        identity = pipeline._training_identity(base, sets)
        base.folder.write_json("training.json", {"identity": identity, "done": True, "fitted": {"steps": 3}})
        load_reader(base.model_folder, seed=fold).save(Path(base.folder.path("model")), base.model_folder)
    return bases


def test_predicting_the_training_questions_is_cross_fitted_where_folds_are_asked_for(no_ray, tmp_path, capsys):
    from raydist.reader.parts import in_fold

    from raydist.config import load_config
    from raydist.reader.nbest_sets import check_sets_file

    def make_run(*overrides):
        small = ("data.sample.size=200", *SMALL, "objectives.hard_learning.nbest_folds=2", "predict.split=train")
        run = pipeline.Run(load_config("debug_reader", [f"storage={tmp_path / 'runs'}", *small, *overrides]).config, no_ray)
        run.begin()
        return run

    run = make_run("name=crossed")
    bases = with_base_readers(run)
    capsys.readouterr()
    table = pipeline.predict(run)["train"]
    assert capsys.readouterr().out.count("train: already done (3 steps)") == 2, "what is not there would be trained"
    lists = dict(zip(table["id"].to_pylist(), table["nbest"].to_pylist()))
    assert len(lists) == table.num_rows == 60
    ready = run.prepared["train"]
    texts = []
    for fold, base in enumerate(bases):
        made = pipeline.make_predictions(base, {"train": ready.where}, pipeline.reader_folder(base), k=20)["train"]
        parts = [pipeline.read_parquet(run.storage, f"{made.stage.folder}/{part['name']}") for part in made.manifest.parts]
        of_all = {row["id"]: row["nbest"] for part in parts for row in part.to_pylist()}
        ids = [id for id, mine in zip(lists, in_fold(list(lists), 0, fold, 2)) if mine]
        assert 10 < len(ids) < 50
        for id in ids:
            assert [span["text"] for span in lists[id]] == [span["text"] for span in of_all[id]]
        texts.append([spans[0]["text"] for spans in of_all.values()])
    assert texts[0] != texts[1], "they are two readers"
    wanted = {"tokenizer": pipeline.tokenizer_digest(run.model_folder), "examples": ready.examples.stage.fingerprint}
    check_sets_file(run.folder.path("predictions", "train.parquet"), wanted, 20)

    with pytest.raises(InputError, match=r"predict\.model names one reader.*nbest_folds"):
        pipeline.predict(make_run("name=both", f"predict.model={bases[0].folder.path('model')}"))


def test_predicting_the_training_questions_asks_the_base_reader_and_not_the_final_one(no_ray, tmp_path):
    from raydist.cluster.two_stage import with_nbest_sets

    from raydist.config import load_config
    from raydist.files.storage import folder_digest
    from raydist.reader.model import load_reader

    def make_run(*overrides):
        small = ("data.sample.size=200", *SMALL, "name=one", "objectives.hard_learning.size=5")
        config = load_config("debug_reader", [f"storage={tmp_path / 'runs'}", *small, *overrides]).config
        run = pipeline.Run(config, no_ray)
        run.begin()
        return run

    never = ("train.epochs=2", "objectives.answer_contrast.schedule=sequential")
    run = make_run(*never)
    with pytest.raises(InputError, match=r"waits for sequential_epochs 1, here \d steps, and training has 3: .*never act"):
        pipeline.train(run)
    assert not run.storage.exists("one_base"), "told before the base reader is trained"

    run = make_run("predict.split=train")
    (base,) = with_base_readers(run)
    own = run.folder.path("model")
    load_reader(run.model_folder, seed=1).save(Path(own), run.model_folder)

    def asked(*overrides):
        run = make_run("predict.split=train", *overrides)
        pipeline.predict(run)
        about = pq.read_schema(run.folder.path("predictions", "train.parquet")).metadata[b"raydist"]
        return json.loads(about)["model"]

    own_digest, base_digest = folder_digest(own), folder_digest(base.folder.path("model"))
    assert own_digest != base_digest
    assert asked() == base_digest
    assert asked("predict.model=builtin:tiny") == folder_digest(run.model_folder), "the reader that is named"
    assert asked("objectives.hard_learning.sets=lists.parquet") == own_digest, "there is no base reader where lists are given"
    assert asked("objectives.hard_learning.mode=ce") == own_digest, "nor where none are taken"
    gold_alone = make_run("objectives.hard_learning.mode=ce")
    where = pipeline.prepare(gold_alone, ["train"])["train"].where
    assert with_nbest_sets(gold_alone, where) == where
    assert not gold_alone.folder.exists("base.json")


def test_a_file_of_lists_is_found_by_its_uri_or_under_the_root_of_the_data(tmp_path):
    from raydist.cluster.two_stage import sets_place

    from raydist.cluster.connect import Cluster
    from raydist.config import ClusterConfig, load_config

    run = pipeline.Run(load_config("debug_reader", [f"data.root={tmp_path}"]).config, Cluster(ClusterConfig()))
    store = "s3://bucket/runs/base/predictions{}?endpoint_override=host"
    assert sets_place(run, store.format("/train.parquet")) == {"folder": store.format(""), "name": "train.parquet"}
    assert sets_place(run, "lists.parquet") == {"folder": "", "name": str(tmp_path / "lists.parquet")}


@pytest.mark.parametrize(
    ("name", "base", "way"),
    [
        ("xmrc", None, "xmrc_base"),
        ("exp/xmrc", None, "xmrc_base"),
        ("swept/trials/a1", "swept/bases/b2", "../bases/b2"),
        ("swept", "swept/bases/b2", "swept/bases/b2"),  # the sweep itself, which makes what its trials share
    ],
)
def test_the_way_to_the_base_reader_starts_in_the_folder_that_the_run_is_in(tmp_path, name, base, way):
    from raydist.cluster.two_stage import base_runs, way_to

    from raydist.cluster.connect import Cluster
    from raydist.config import ClusterConfig, load_config

    settings = [f"storage={tmp_path}", f"name={name}", "objectives.hard_learning.size=5"]
    run = pipeline.Run(load_config("debug_reader", settings).config, Cluster(ClusterConfig()), base=base)
    assert way_to(run, base_runs(run)[0]) == way


def test_base_readers_of_a_sweep_are_shared_by_the_trials_that_want_the_same_ones_alone(tmp_path):
    from raydist.cluster.two_stage import base_runs

    from raydist.cluster.connect import Cluster
    from raydist.config import ClusterConfig, load_config
    from raydist.sweep.trial import base_name

    def bases(*overrides):
        config = load_config("debug_reader", [f"storage={tmp_path}", "objectives.hard_learning.size=5", *overrides]).config
        runs = base_runs(pipeline.Run(config, Cluster(ClusterConfig()), base=base_name("swept", config)))
        return [(base.config.name, base.config.data.train.leave_out) for base in runs]

    by_folds = [bases(f"objectives.hard_learning.nbest_folds={folds}") for folds in (1, 2, 3)]
    assert [len(found) for found in by_folds] == [1, 2, 3]
    names = [name for found in by_folds for name, _ in found]
    assert len(set(names)) == 6, "a reader that leaves out a half has not the name of one that leaves out a third"
    assert by_folds[0] == bases(), "one fold is none"
    assert by_folds[2] == bases("objectives.hard_learning.nbest_folds=3", "objectives.hard_learning.kappa=1")
    assert by_folds[2] != bases("objectives.hard_learning.nbest_folds=3", "optim.lr=1e-4")


@pytest.mark.slow
def test_cross_fitted_lists_come_from_readers_that_never_saw_the_question(make_run):
    from raydist.reader.parts import in_fold

    run = make_run("name=folds", *SMALL, "objectives.hard_learning.nbest_folds=2")
    pipeline.run_all(run)
    assert run.folder.read_json("base.json") == {"run": "folds_base0"}
    assert "dev.em@5" in run.storage.at("folds_base0").read_json("metrics.json"), "before and after are both scored"
    assert "the first of 2 such readers" in Path(run.folder.path("report.html")).read_text()
    seen = []
    for fold in range(2):
        base = run.storage.at(f"folds_base{fold}")
        stages = base.read_json("stages.json")
        folder = stages["predictions for train"]["folder"]
        manifest = run.storage.read_json(f"{folder}/manifest.json")
        tables = [pipeline.read_parquet(run.storage, f"{folder}/{part['name']}") for part in manifest["parts"]]
        ids = [id for table in tables for id in table["id"].to_pylist()]
        assert in_fold(ids, 0, fold, 2).all()
        seen += ids
    assert len(seen) == len(set(seen)) == 60


@pytest.mark.slow
def test_killed_in_each_training_it_ends_at_the_weights_of_an_undisturbed_run(make_run, storage):
    """kill -9 of the driver within the base reader, and within the final one; each time the same command again."""
    settings = (*SMALL, *BOTH, "train.max_steps=24", "train.epochs=20", "train.checkpoint_every=3")
    uncut = make_run("name=uncut", *settings)
    pipeline.run_all(uncut)
    command = [sys.executable, "-m", "raydist", "run", "debug_reader", f"storage={storage}", "name=cut", *settings]
    for folder in ("cut_base", "cut"):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while len(list(Path(storage, folder, "checkpoints").glob("checkpoint_2*"))) < 2:
            assert driver.poll() is None, f"it ended before {folder} had two checkpoints"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        driver.kill()
        driver.wait()
        assert not Path(storage, folder, "fitted.json").exists(), "killed too late: it was already trained"
    subprocess.run(command, check=True, capture_output=True)
    for ending in ("_base", ""):
        ours, theirs = (load_file(Path(storage, f"{name}{ending}", "model/model.safetensors")) for name in ("cut", "uncut"))
        assert all(value.equal(theirs[key]) for key, value in ours.items())
