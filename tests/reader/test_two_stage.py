"""Base reader, n-best sets, final reader: one command, resumable between and within its stages."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raydist import flows
from raydist.config import load_config
from raydist.draws import Fold
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.files.storage import Place, Storage, folder_digest
from raydist.here import Here
from raydist.models.located import tokenizer_digest
from raydist.reader import flow
from raydist.reader.model import load_reader
from raydist.reader.nbest_sets import check_sets_file
from raydist.reader.prepare import prepare
from raydist.reader.two_stage import base_runs, sets_place, way_to, with_nbest_sets
from raydist.runs.locate import make_sample
from raydist.runs.run import Run
from raydist.runs.stages import read_stages
from raydist.runs.training import training_identity
from raydist.sweep.trial import base_name

SMALL = (
    "data.sample.size=200",
    "cluster.threads_per_worker=1",
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


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> str:
    """One storage for all tests: examples and windows are made once."""
    return str(tmp_path_factory.mktemp("storage"))


@pytest.fixture
def make_run(storage):
    """A run in this process, with some keys changed."""

    def make_run(*overrides: str) -> Run:
        run = Run(load_config("debug_reader", [f"storage={storage}", *overrides]).config, Here())
        run.begin()
        return run

    return make_run


def titles(run: Run) -> dict:
    """The stages that a run used, by title."""
    return {use.title: use for use in read_stages(run.folder).values()}


def logged(run) -> list[dict]:
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def translated(run, folder: Path, split: str, passages: int) -> list[str]:
    """English and Spanish files of the same passages, whose questions share their ids, as those of translate-train do."""
    world = Storage(make_sample(run)).local_copy("")
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
    sample = make_run("name=exp/sample", "data.sample.size=200")
    files = {split: translated(sample, tmp_path, split, passages) for split, passages in (("train", 6), ("dev", 2))}
    settings = (*SMALL, *(f"data.{split}={json.dumps({'files': paths})}" for split, paths in files.items()))
    settings += (*BOTH, "objectives.infomax={}", "objectives.pfa.bottleneck=8")
    run = make_run("name=exp/two_stage", *settings)
    flows.run_all(run)
    tables = run.prepared["train"].examples.tables(["id", "language"])
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == 2 * len({row["id"] for row in rows}) == 60, "every id in two languages"
    terms = logged(run)[0]
    wanted = ("hard_learning", "answer_contrast", "infomax.local", "infomax.global", "pfa.perturbed_span", "pfa.alignment")
    assert not {f"loss.{part}" for part in wanted} - terms.keys(), terms
    assert "loss.span" not in terms, "hard learning takes the place of the span loss"
    base = run.storage.at("exp/two_stage_base")
    assert base.exists("model/config.json")
    assert run.folder.read_json("base.json") == {"run": "two_stage_base"}
    assert "n-best sets of train" in titles(run)
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
    flows.run_all(make_run("name=exp/two_stage", *settings))
    again = capsys.readouterr()
    assert (again.out + again.err).count("train: already done (3 steps)") == 2


def test_sets_of_a_file_give_the_same_training_as_sets_made_on_the_way(make_run, storage):
    own = make_run("name=own_sets", *SMALL, "objectives.hard_learning.size=20")
    flow.train(own)
    base = make_run("name=own_sets_base", *SMALL, "predict.split=train")
    flow.predict(base)
    file = base.folder.path("predictions", "train.parquet")
    given = make_run("name=given_sets", *SMALL, f"objectives.hard_learning.sets=file://{file}")
    flow.train(given)
    assert [line["loss"] for line in logged(own)] == [line["loss"] for line in logged(given)]

    other = make_run(
        "name=other_data", *SMALL, "data.train.files=sample:es/train.json", f"objectives.hard_learning.sets={file}"
    )
    with pytest.raises(InputError, match="another data file"):
        flow.train(other)
    chosen = make_run("name=more_data", *SMALL, "data.train.questions=80", f"objectives.hard_learning.sets={file}")
    with pytest.raises(InputError, match=r"no list for training question .*or from a choice of it"):
        flow.train(chosen)
    with pytest.raises(InputError, match=r"there is no .*nowhere.parquet"):
        flow.train(make_run("name=no_sets", *SMALL, "objectives.hard_learning.sets=nowhere.parquet"))
    tokens = make_run("name=other_tokens", *SMALL, "model.name=builtin:minilm", f"objectives.hard_learning.sets={file}")
    with pytest.raises(InputError, match="another tokenizer"):
        flow.train(tokens)


def with_base_readers(run) -> list[Run]:
    """The runs of base readers as training would leave them; but untrained, each with a head of its own."""
    bases = base_runs(run)
    for fold, base in enumerate(bases):
        base.begin()
        identity = training_identity(base, prepare(base, ["train", "dev"]))
        base.folder.write_json("training.json", {"identity": identity, "done": True, "fitted": {"steps": 3}})
        load_reader(base.model_folder, seed=fold).save(Path(base.folder.path("model")), base.model_folder)
    return bases


def test_predicting_the_training_questions_is_cross_fitted_where_folds_are_asked_for(make_run, capsys):
    small = (*SMALL, "objectives.hard_learning.nbest_folds=2", "predict.split=train")
    run = make_run("name=crossed", *small)
    bases = with_base_readers(run)
    capsys.readouterr()
    table = flow.predict(run)["train"]
    assert capsys.readouterr().out.count("train: already done (3 steps)") == 2, "what is not there would be trained"
    lists = dict(zip(table["id"].to_pylist(), table["nbest"].to_pylist()))
    assert len(lists) == table.num_rows == 60
    ready = run.prepared["train"]
    texts = []
    for fold, base in enumerate(bases):
        made = flow.make_predictions(base, {"train": ready}, k=20)["train"]
        of_all = {row["id"]: row["nbest"] for part in made.tables() for row in part.to_pylist()}
        ids = [id for id, mine in zip(lists, Fold(0, fold, 2).holds(list(lists))) if mine]
        assert 10 < len(ids) < 50
        for id in ids:
            assert [span["text"] for span in lists[id]] == [span["text"] for span in of_all[id]]
        texts.append([spans[0]["text"] for spans in of_all.values()])
    assert texts[0] != texts[1], "they are two readers"
    wanted = {"tokenizer": tokenizer_digest(run.model_folder), "examples": ready.examples.fingerprint}
    check_sets_file(run.folder.path("predictions", "train.parquet"), wanted, 20)

    with pytest.raises(InputError, match=r"predict\.model names one reader.*nbest_folds"):
        flow.predict(make_run("name=both", *small, f"predict.model={bases[0].folder.path('model')}"))


def test_predicting_the_training_questions_asks_the_base_reader_and_not_the_final_one(make_run):
    small = (*SMALL, "name=one", "objectives.hard_learning.size=5")
    never = ("train.epochs=2", "objectives.answer_contrast.schedule=sequential")
    run = make_run(*small, *never)
    with pytest.raises(InputError, match=r"waits for sequential_epochs 1, here \d steps, and training has 3: .*never act"):
        flow.train(run)
    assert not run.storage.exists("one_base"), "told before the base reader is trained"

    run = make_run(*small, "predict.split=train")
    (base,) = with_base_readers(run)
    own = run.folder.path("model")
    load_reader(run.model_folder, seed=1).save(Path(own), run.model_folder)

    def asked(*overrides):
        run = make_run(*small, "predict.split=train", *overrides)
        flow.predict(run)
        about = pq.read_schema(run.folder.path("predictions", "train.parquet")).metadata[b"raydist"]
        return json.loads(about)["model"]

    own_digest, base_digest = folder_digest(own), folder_digest(base.folder.path("model"))
    assert own_digest != base_digest
    assert asked() == base_digest
    named = Path(run.folder.path("named"))
    load_reader(run.model_folder, seed=2).save(named, run.model_folder)
    for file in run.model_folder.glob("token*"):  # as it is, with the same digest
        shutil.copy(file, named)
    assert asked(f"predict.model={named}") == folder_digest(named), "the reader that is named"
    assert asked("objectives.hard_learning.sets=lists.parquet") == own_digest, "there is no base reader where lists are given"
    assert asked("objectives.hard_learning.mode=ce") == own_digest, "nor where none are taken"
    gold_alone = make_run(*small, "objectives.hard_learning.mode=ce")
    windows = prepare(gold_alone, ["train"])["train"]
    assert with_nbest_sets(gold_alone, windows) == windows
    assert not gold_alone.folder.exists("base.json")


def test_a_file_of_lists_is_found_by_its_uri_or_under_the_root_of_the_data(tmp_path):
    run = Run(load_config("debug_reader", [f"data.root={tmp_path}"]).config, Here())
    store = "s3://bucket/runs/base/predictions{}?endpoint_override=host"
    assert sets_place(run, store.format("/train.parquet")) == Place("train.parquet", store.format(""))
    assert sets_place(run, "lists.parquet") == Place(str(tmp_path / "lists.parquet"))


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
    settings = [f"storage={tmp_path}", f"name={name}", "objectives.hard_learning.size=5"]
    run = Run(load_config("debug_reader", settings).config, Here(), base=base)
    assert way_to(run, base_runs(run)[0]) == way


def test_base_readers_of_a_sweep_are_shared_by_the_trials_that_want_the_same_ones_alone(tmp_path):
    def bases(*overrides):
        config = load_config("debug_reader", [f"storage={tmp_path}", "objectives.hard_learning.size=5", *overrides]).config
        runs = base_runs(Run(config, Here(), base=base_name("swept", config)))
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
    run = make_run("name=folds", *SMALL, "objectives.hard_learning.nbest_folds=2")
    flows.run_all(run)
    assert run.folder.read_json("base.json") == {"run": "folds_base0"}
    assert "dev.em@5" in run.storage.at("folds_base0").read_json("metrics.json"), "before and after are both scored"
    assert "the first of 2 such readers" in Path(run.folder.path("report.html")).read_text()
    seen = []
    for fold in range(2):
        base = run.storage.at(f"folds_base{fold}")
        (use,) = [use for use in read_stages(base).values() if use.title == "predictions for train"]
        made = Made(run.storage.at(use.folder), use.name, use.folder)
        ids = [id for table in made.tables() for id in table["id"].to_pylist()]
        assert Fold(0, fold, 2).holds(ids).all()
        seen += ids
    assert len(seen) == len(set(seen)) == 60
