"""The public names: one list, lazily imported, documented, and every example of theirs runs."""

import ast
import doctest
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.api_page import page
from helpers.tiny_reader import write_cross_encoder, write_reader

import raydist
from raydist.config import Config, load_config, to_yaml
from raydist.corpus.cutting import cut_passages
from raydist.corpus.schemas import PASSAGE_SCHEMA
from raydist.corpus.sentence_table import build_sentence_table
from raydist.library.building import known_encoder
from raydist.library.settings import LibrarySettings
from raydist.library.writer import LibraryWriter
from raydist.retrieval import bm25
from raydist.retrieval.searcher import publish

CHECKOUT = Path(__file__).resolve().parents[1]
FEW = {"data.train.questions": 20, "data.dev.questions": 10, "data.test": {}}
PASSAGES_OF_A_GUIDE = [
    {
        "passage_id": f"{name}.md#0",
        "document_id": f"{name}.md",
        "headings": [f"The {name}"],
        "line": 3,
        "text": text,
        "language": "en",
        "year": year,
    }
    for name, text, year in (("bridge", "Mina Orlov built the bridge.", 1894), ("fall", "It fell in 1911.", 1911))
]
HEAVY = {"ray", "torch", "transformers", "pyarrow", "numpy", "pydantic", "typer"}


def fresh(code: str, cwd: Path = CHECKOUT) -> str:
    """What a new interpreter prints."""
    path = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_raydist_imports_nothing_heavy():
    assert fresh(f"import raydist; dir(raydist); print({HEAVY!r} & sys.modules.keys() or 'nothing')") == "nothing"


def test_no_name_imports_ray():
    assert fresh("import raydist; [getattr(raydist, name) for name in raydist.PUBLIC]; print('ray' in sys.modules)") == "False"


def test_names_are_listed_and_others_are_refused():
    assert set(raydist.PUBLIC) < set(dir(raydist))
    assert set(raydist.__all__) == {*raydist.PUBLIC, "__version__"}
    assert raydist.Reader is raydist.Reader
    with pytest.raises(AttributeError, match=r"has no attribute 'Raeder'; docs/api\.md lists what it has"):
        raydist.Raeder  # noqa: B018
    namespace: dict = {}
    exec("from raydist import *", namespace)
    assert set(raydist.PUBLIC) < set(namespace)


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse((CHECKOUT / "raydist" / "__init__.py").read_text())
    (block, _) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == raydist.PUBLIC
    assert (CHECKOUT / "raydist" / "py.typed").is_file()


def test_the_page_about_them_is_made_of_their_docstrings():
    written = (CHECKOUT / "docs" / "api.md").read_text()
    assert [line.strip("#` ") for line in written.splitlines() if line.startswith("### ")] == list(raydist.PUBLIC)
    assert written == page(), "python tests/helpers/api_page.py > docs/api.md"


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """What the examples find in the folder that they are run in: a reader's run, an index, a cross-encoder."""
    folder = tmp_path_factory.mktemp("workspace")
    write_reader(folder / "runs" / "bridges" / "model")
    (folder / "runs" / "bridges" / "config.yaml").write_text(to_yaml(load_config("debug_reader", ["name=bridges"]).config))
    write_cross_encoder(folder / "runs" / "library_cross_encoder" / "model")
    text = "Mina Orlov built the bridge in 1894. It fell in 1911."
    row = {"passage_id": "p1", "document_id": "p1", "title": "", "text": text, "language": "en"}
    sentences = cut_passages(pa.Table.from_pylist([row], PASSAGE_SCHEMA))
    bm25.build_index(folder / "built", *(sentences[name].to_pylist() for name in ("sentence_id", "text")))
    build_sentence_table(folder / "table", [sentences])
    publish(folder / "runs" / "library" / "index", folder / "built", folder / "table", {})
    with LibraryWriter(folder / "runs" / "guide" / "index", LibrarySettings(encoder=known_encoder("builtin:tiny"))) as writer:
        writer.add(pa.Table.from_pylist(PASSAGES_OF_A_GUIDE))
    return folder


@pytest.mark.parametrize("name", raydist.PUBLIC)
def test_every_name_has_examples_and_they_run(name, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    value, shown = getattr(raydist, name), []
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    (test,) = finder.find(value, name, globs={})
    assert test.examples
    assert runner.run(test, out=shown.append).failed == 0, "".join(shown)


# --- the commands as functions ---------------------------------------------------------------------------------------


@pytest.fixture
def here(workspace, monkeypatch):
    """Sets of the sample world are made once for all tests."""
    monkeypatch.chdir(workspace)
    return workspace


def test_a_run_in_this_process_needs_no_ray_and_leaves_stdout_alone(here):
    code = f"import raydist; raydist.run('debug_reader', {FEW | {'name': 'fresh'}!r}); print('ray' in sys.modules)"
    assert fresh(code, here) == "False"
    assert (here / "runs" / "fresh" / "report.html").is_file()


def test_functions_return_what_the_run_holds(here):
    settings = {**FEW, "name": "functions"}
    outcome = raydist.run("debug_reader", settings)
    assert raydist.train("debug_reader", settings) == outcome, "done already"
    assert Path(outcome.model, "config.json").is_file()
    table = raydist.predict("debug_reader", settings)["dev"]
    assert table.equals(pq.read_table(here / outcome.folder / "predictions" / "dev.parquet").replace_schema_metadata(None))
    scores = raydist.evaluate("debug_reader", settings)
    assert scores["dev"]["f1"] == pytest.approx(outcome.metrics["dev.f1"], abs=1e-6)


def test_a_reader_answers_as_predict_does(here):
    settings = {**FEW, "name": "functions"}
    outcome = raydist.run("debug_reader", settings)
    rows = {row["id"]: row["nbest"] for row in raydist.predict("debug_reader", settings)["dev"].to_pylist()}
    asked = pq.read_table(here / outcome.folder / "evaluation" / "dev.parquet").to_pylist()
    answers = raydist.Reader.load(outcome.folder).ask_all([(row["question"], row["context"]) for row in asked], n_best=3)
    for row, answer in zip(asked, answers):
        assert [span.text for span in answer.nbest] == [span["text"] for span in rows[row["id"]][:3]]


def test_retrieval_is_run_scored_and_searched_in_this_process(here):
    settings = {"name": "retrieval", "retriever.rerank": 0}
    outcome = raydist.run("debug_retrieval", settings)
    scores = raydist.evaluate("debug_retrieval", settings)
    assert scores["sample"]["bm25.MRR@100"] == outcome.metrics["retrieval.sample.bm25.MRR@100"]
    assert scores["sample"].keys() >= {"untrained.P@1", "gold_silver_weighted.P@1"}
    dense = raydist.index("debug_retrieval", {**settings, "index.kind": "dense"})
    assert len(raydist.Searcher.open(dense).search(["Who built the bridge?"] * 2, k=4)[1]) == 4
    assert len(raydist.TextEncoder(outcome.model).encode(["a bridge"])) == 1
    cross_encoder = raydist.train("debug_retrieval", {**settings, "task": "cross_encoder"})
    assert cross_encoder.folder == "runs/retrieval_cross_encoder"
    p = raydist.CrossScorer(cross_encoder.model).probabilities([("Who built it?", "Mina Orlov built it.")])
    assert 0 < p[0] < 1


def test_fresh_starts_over(here):
    settings = {**FEW, "name": "over"}
    raydist.train("debug_reader", settings)
    with pytest.raises(raydist.InputError, match="was trained with other settings"):
        raydist.train("debug_reader", {**settings, "seed": 1})
    assert raydist.train("debug_reader", {**settings, "seed": 1}, fresh=True).metrics["train.steps"] == 2


@pytest.mark.ray
def test_on_ray_a_reader_predicts_the_same(here):
    settings = {**FEW, "name": "on_ray", "predict.model": "runs/bridges/model", "model.name": "runs/bridges/model"}
    in_this_process = raydist.predict("debug_reader", settings)["dev"]
    on_ray = raydist.predict("debug_reader", {**settings, "storage": "elsewhere"}, ray=True)["dev"]
    assert on_ray["id"].equals(in_this_process["id"])
    for one, other in zip(on_ray["nbest"].to_pylist(), in_this_process["nbest"].to_pylist()):
        assert [span["text"] for span in one] == [span["text"] for span in other]


# --- configs ---------------------------------------------------------------------------------------------------------


def test_overrides_are_lines_or_a_mapping_and_mean_the_same(tmp_path):
    lines = ["optim.lr=2e-5", "name=x y: z", "data.dev=null", "data.test={a: {files: b.json}}", "storage=/tmp/ü\U0001f642"]
    mapping = {
        "optim.lr": 2e-5,
        "name": "x y: z",
        "data.dev": None,
        "data.test": {"a": {"files": "b.json"}},
        "storage": Path("/tmp/ü\U0001f642"),
    }
    by_lines = raydist.load_config("debug_reader", lines[:1] + lines[2:])
    mapping.pop("name")
    assert raydist.load_config("debug_reader", mapping) == by_lines
    base = raydist.load_config("debug_reader")
    assert isinstance(base, Config)
    assert raydist.load_config(base) is base
    assert raydist.load_config(base, mapping) == raydist.load_config(base, lines[:1] + lines[2:]) == by_lines
    assert raydist.load_config("debug_reader", "seed=3").seed == 3
    assert raydist.load_config(CHECKOUT / "configs" / "debug_reader.yaml").name == "debug_reader"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: raydist.load_config("no_such"), "no such config"),
        (lambda: raydist.load_config("debug_reader", {"optim.lrr": 1}), "unknown key; did you mean optim.lr"),
        (lambda: raydist.load_config(raydist.load_config("debug_reader"), ["lr"]), "lr: an override is key=value"),
        (lambda: raydist.load_config(raydist.load_config("debug_reader"), ["data.test={"]), "data.test: not YAML"),
        (lambda: raydist.mine("debug_reader"), "this needs task: retriever, but the config has task: reader"),
        (lambda: raydist.predict("debug_retrieval"), "this needs task: reader, but the config has task: retriever"),
    ],
)
def test_wrong_input_is_one_message(call, message):
    with pytest.raises(raydist.InputError, match=message):
        call()
