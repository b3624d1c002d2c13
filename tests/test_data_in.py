"""Bad input, from files to the message and the exit status."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.config import CorpusSource, load_config
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.here import Here
from raydist.reader import flow
from raydist.reader.prepare import make_examples, prepare
from raydist.retrieval.prepare import corpus_stage, open_corpora
from raydist.runs.run import Run
from raydist.runs.training import training_identity

SQUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The bridge was built in 1894.",
                    "qas": [{"id": "q", "question": "When?", "answers": [{"text": "1894", "answer_start": 24}]}],
                }
            ],
        }
    ]
}


@pytest.fixture(scope="module")
def storage(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("storage"))


@pytest.fixture
def make_run(storage):
    """A run in this process, with some keys changed."""

    def make_run(*overrides: str, config: str = "debug_reader") -> Run:
        run = Run(load_config(config, [f"storage={storage}", *overrides]).config, Here())
        run.begin()
        return run

    return make_run


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cut.json.gz", gzip.compress(json.dumps(SQUAD).encode(), mtime=0)[:-20], "gzip"),
        ("empty.json", b"", "empty"),
        ("image.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "image.png"),
        ("nokey.json", json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "x"}]}]}).encode(), "qas"),
        ("text.txt", b"just some words\n", "text.txt"),
    ],
)
def test_a_bad_file_is_one_message_and_status_2(raydist, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    code, out, err = raydist("train", "debug_reader", f"data.train={name}", "data.dev=null", "data.test=null")
    assert code == 2, out + err
    assert said in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "runs" / "debug_reader" / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("data.train=.",), "director"),
        (("data.train=nowhere.json",), "nowhere.json"),
        (("data.train=null",), "set data.train"),
        (("model.name=no/such-model", "data.train=good.json"), "builtin:minilm"),
        (("model.name=./nowhere", "data.train=good.json"), "no such folder"),
        (("optim.lr=-1", "train.epochs=0", "trian.seed=1"), "3 problems"),
        (("cluster.address=127.0.0.1:1", "data.train=good.json"), "no Ray cluster answers"),
    ],
)
def test_a_wrong_setting_is_one_message_and_status_2(raydist, tmp_path, arguments, said):
    (tmp_path / "good.json").write_text(json.dumps(SQUAD))
    code, out, err = raydist("train", "debug_reader", "data.dev=null", "data.test=null", *arguments)
    assert code == 2, out + err
    assert said in err
    assert "Traceback" not in out + err


def test_predicting_without_a_model_says_what_to_do(raydist):
    code, _, err = raydist("predict", "debug_reader", "name=untrained")
    assert code == 2
    assert "raydist train" in err


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("file", "repaired", "left"),
    [("squad_it/test-it.A.json.gz", 31, 20), ("arcd/arcd-train.json.gz", 0, 3), ("covid_qa/200423_covidQA.json.gz", 227, 7)],
)
def test_real_defects_are_rejected_or_repaired(make_run, data_dir, file, repaired, left, capsys):
    reason = "answer not at its offset"
    name = file.split("/")[0]
    run = make_run(f"name=strict_{name}", f"data.train={data_dir / file}")
    if name == "covid_qa":
        with pytest.raises(InputError, match=r"17\.0% of the rows are bad.*data\.max_rejected.*repair_offsets"):
            make_examples(run, ["train"])
    else:
        make_examples(run, ["train"])
    rows = pq.read_table(run.folder.path("rejected", "train.parquet")).to_pylist()
    assert sum(row["reason"] == reason for row in rows) == repaired + left
    assert all(row["file"].endswith(file.split("/")[1]) and row["detail"] for row in rows)
    run = make_run(f"name=repaired_{name}", f"data.train={data_dir / file}", "data.repair_offsets=true")
    capsys.readouterr()
    make_examples(run, ["train"])
    if repaired:
        assert f"{repaired} answers moved to where their text is" in capsys.readouterr().out
    rows = pq.read_table(run.folder.path("rejected", "train.parquet")).to_pylist()
    assert sum(row["reason"] == reason for row in rows) == left


def test_a_question_twice_in_two_files_is_rejected_once(make_run, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(SQUAD))
    run = make_run("name=doubled", f"data.train=[{tmp_path}/a.json, {tmp_path}/b.json]", "data.max_rejected=0.6")
    made = make_examples(run, ["train"])["train"]
    assert made.rows == 1
    (row,) = pq.read_table(run.folder.path("rejected", "train.parquet")).to_pylist()
    assert (row["id"], row["reason"], row["what"]) == ("q", "duplicate id", "question")
    assert row["file"].endswith("b.json")


def test_what_was_rejected_is_gone_when_the_data_are_mended(tmp_path):
    squad, corpus = tmp_path / "squad.json", tmp_path / "corpus.jsonl"
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "When did it fall?"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")

    def rejected(config: str, *overrides: str) -> set[str]:
        settings = [f"storage={tmp_path / 'runs'}", "data.max_rejected=0.6", *overrides]
        run = Run(load_config(config, settings).config, Here())
        run.begin()
        if config == "debug_reader":
            make_examples(run, ["train"])
        else:
            open_corpora(run)
        return set(run.folder.sizes("rejected"))

    for times, more, found in ((2, "{\n", {"train.parquet", "corpus_train.parquet"}), (1, "", set())):
        squad.write_text(json.dumps({"data": SQUAD["data"] * times}))
        corpus.write_text('{"_id": "d", "text": "It fell in 1911."}\n' + more)
        reader = rejected("debug_reader", f"data.train={squad}")
        assert reader | rejected("debug_retrieval", f"corpus.train={tmp_path}", "corpus.test={}") == found


def test_hub_data_comes_through_the_same_checks(make_run, tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    shared = {"title": "t", "context": "Built in 1894.", "question": "When?"}
    rows = [shared | {"id": str(at), "answers": {"text": ["1894"], "answer_start": [at]}} for at in (9, 3)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = make_run("name=hub", f"data.train={{hub: {folder}, split: train}}", "data.max_rejected=1")
    made = make_examples(run, ["train"])["train"]
    assert made.rows == 1
    (row,) = [row for row in pq.read_table(run.folder.path("rejected", "train.parquet")).to_pylist() if row["what"] == "answer"]
    assert row["id"] == "3"
    identity = training_identity(run, prepare(run, ["train"]))
    assert json.loads(json.dumps(identity)) == identity, "a run on hub data could not be resumed"


@pytest.fixture
def read_here(storage):
    """The train set of a config, read in this process: its stage and its rows."""

    def read_here(source: str) -> tuple[Made, list[dict]]:
        run = Run(load_config("debug_reader", [f"storage={storage}", f"data.train={source}"]).config, Here())
        run.begin()
        made = make_examples(run, ["train"])["train"]
        return made, pa.concat_tables(made.tables()).to_pylist()

    return read_here


def test_hub_data_have_the_language_that_their_config_tells(read_here, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "xquad"
    folder.mkdir()
    answers = {"text": ["1894"], "answer_start": [14]}
    (folder / "es.jsonl").write_text(json.dumps({"context": "Se hizo en el 1894.", "question": "?", "answers": answers}) + "\n")
    (folder / "README.md").write_text("---\nconfigs:\n- {config_name: xquad.es, data_files: es.jsonl}\n---\n")
    assert read_here(f"{{hub: {folder}, hub_config: xquad.es}}")[1][0]["language"] == "es"
    assert read_here(f"{{hub: {folder}, hub_config: xquad.es, language: de}}")[1][0]["language"] == "de"


def test_a_file_moved_out_of_a_folder_that_tells_its_language_is_read_anew(read_here, tmp_path):
    (tmp_path / "es").mkdir()
    (tmp_path / "es" / "train.json").write_text(json.dumps(SQUAD))
    (tmp_path / "train.json").write_text(json.dumps(SQUAD))
    (spanish, [first]), (plain, [second]) = read_here(str(tmp_path / "es" / "train.json")), read_here(f"{tmp_path}/train.json")
    assert (first["language"], second["language"]) == ("es", "en")
    assert spanish.fingerprint != plain.fingerprint


def test_a_corpus_moved_out_of_a_folder_that_tells_its_language_is_read_anew(storage, tmp_path):
    (tmp_path / "es").mkdir()
    for folder in (tmp_path, tmp_path / "es"):
        (folder / "a.json").write_text(json.dumps(SQUAD))
    run = Run(load_config("debug_retrieval", [f"storage={storage}"]).config, Here())

    def name_of_stage(file: str, format: str) -> str:
        return corpus_stage(run, "x", CorpusSource(files=[f"{tmp_path}/{file}"], format=format)).fingerprint

    assert name_of_stage("es/a.json", "squad") != name_of_stage("a.json", "squad")
    assert name_of_stage("es/a.json", "reqa") == name_of_stage("a.json", "reqa")  # has no language


def test_another_tools_predictions_are_scored(make_run, tmp_path):
    (tmp_path / "gold.json").write_text(json.dumps(SQUAD))
    (tmp_path / "theirs.json").write_text(json.dumps({"q": "in 1894"}))
    run = make_run("name=theirs", f"data.dev={tmp_path}/gold.json", f"evaluate.predictions.dev={tmp_path}/theirs.json")
    scores = flow.evaluate(run)["dev"]
    # one of two words is right: precision 1/2, recall 1
    assert (scores["em"], scores["f1"]) == (0.0, pytest.approx(200 / 3))


def test_the_rule_of_the_scores_is_that_of_the_data_and_is_told(storage, tmp_path, capsys):
    from raydist.training.trainable import DevEvaluation

    german = json.loads(json.dumps(SQUAD).replace("The bridge was built", "Ein Turm kam").replace("1894", "die Wende"))
    german["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 16
    (tmp_path / "dev-context-de-question-de.json").write_text(json.dumps(german))
    (tmp_path / "theirs.json").write_text(json.dumps({"q": "Wende"}))
    given = [f"storage={storage}", f"data.dev={tmp_path}/dev-context-de-question-de.json"]
    given.append(f"evaluate.predictions.dev={tmp_path}/theirs.json")
    for rule, em in (("mlqa", 100.0), ("squad", 0.0)):  # the article counts by the squad rule alone
        config = load_config("debug_reader", given + ["data.dev.rule=squad"] * (rule == "squad")).config
        run = Run(config, Here())
        run.begin()
        scores = flow.evaluate(run)["dev"]
        assert (scores["rule"], scores["em"]) == (rule, em)
        assert capsys.readouterr().out.splitlines()[-1].split()[-1] == rule
        sets = prepare(run, ["dev"])
        assert DevEvaluation(config, sets["dev"], 0, 0, 1).rule == rule  # chooses among checkpoints
        assert training_identity(run, sets)["data.dev.rule"] == rule


@pytest.mark.parametrize("own", ["training.json", "predictions/dev.parquet"])
def test_another_tools_predictions_take_no_place_of_a_runs_own(tmp_path, own):
    (tmp_path / "gold.json").write_text(json.dumps(SQUAD))
    (tmp_path / "theirs.json").write_text(json.dumps({"q": "1894"}))
    storage = tmp_path / "runs"
    (storage / "mine" / own).parent.mkdir(parents=True)
    for name in ("metrics.json", "config.yaml", own):
        (storage / "mine" / name).write_text("mine")

    def evaluate(name: str) -> dict:
        overrides = [f"storage={storage}", f"name={name}", f"data.dev={tmp_path}/gold.json", "data.test={}"]
        overrides.append(f"evaluate.predictions.dev={tmp_path}/theirs.json")
        run = Run(load_config("debug_reader", overrides).config, Here())
        run.begin()
        with pytest.raises(InputError, match=r"`run` trains its own reader"):
            flow.run_all(run)
        return flow.evaluate(run)["dev"]

    with pytest.raises(InputError, match=r"run 'mine' .* has answers of its own.*\(name=\.\.\.\)"):
        evaluate("mine")
    assert {file.read_text() for file in (storage / "mine").rglob("*") if file.is_file()} == {"mine"}
    assert evaluate("theirs")["f1"] == 100.0
    assert "theirs.json" in (storage / "theirs" / "config.yaml").read_text()
    assert evaluate("theirs")["f1"] == 100.0, "again"


def test_translations_that_share_ids_are_scored_apart(make_run, tmp_path):
    for language, answer in (("en", "1894"), ("es", "1911")):
        text = f"It was {answer}."
        question = {"id": "q", "question": "When?", "answers": [{"text": answer, "answer_start": 7}]}
        (tmp_path / f"xquad.{language}.json").write_text(
            json.dumps({"data": [{"title": "t", "paragraphs": [{"context": text, "qas": [question]}]}]})
        )
    (tmp_path / "theirs.json").write_text(json.dumps({"en:q": "1894", "es:q": "wrong"}))
    run = make_run("name=xquad", f"data.dev={tmp_path}/xquad.*.json", f"evaluate.predictions.dev={tmp_path}/theirs.json")
    scores = flow.evaluate(run)["dev"]
    assert (scores["questions"], scores["f1.en"], scores["f1.es"], scores["f1.languages"]) == (2, 100.0, 0.0, 50.0)


@pytest.fixture
def half_labelled(tmp_path) -> str:
    """Four questions: two with answers, one that is said to have none, and one without a word."""
    labelled, (paragraph,) = json.loads(json.dumps(SQUAD)), SQUAD["data"][0]["paragraphs"]
    question = paragraph["qas"][0] | {"is_impossible": False}
    silent = {"id": "silent", "question": "Who?", "answers": []}
    qas = [question, question | {"id": "r"}, silent | {"id": "none", "is_impossible": True}, silent]
    labelled["data"][0]["paragraphs"] = [paragraph | {"qas": qas}]
    (tmp_path / "half.json").write_text(json.dumps(labelled))
    return str(tmp_path / "half.json")


def test_training_questions_without_an_answer_are_rejected_by_name_and_held_against_the_limit(tmp_path, half_labelled, capsys):
    def run(*overrides: str) -> Run:
        settings = [f"storage={tmp_path}/runs", f"data.train={half_labelled}", "data.dev=null", "data.test={}", *overrides]
        run = Run(load_config("debug_reader", settings).config, Here())
        run.begin()
        return run

    with pytest.raises(InputError, match=r"25\.0% of the rows are bad.*1 neither an answer nor is_impossible.*format=squad_v2"):
        make_examples(run(), ["train"])
    taken = run("data.max_rejected=0.3")
    assert make_examples(taken, ["train"])["train"].rows == 3
    (row,) = pq.read_table(taken.folder.path("rejected", "train.parquet")).to_pylist()
    assert (row["id"], row["unit"], row["line"], row["reason"]) == (
        "silent",
        "question",
        4,
        "neither an answer nor is_impossible",
    )
    capsys.readouterr()
    taken.report_rejected()
    assert capsys.readouterr().out == f"rejected rows: 1 of train; see {taken.folder.path('rejected')}\n"
    told = run("data.train.format=squad_v2")
    assert make_examples(told, ["train"])["train"].rows == 4
    assert not told.rejected


def test_questions_without_labels_are_counted_beside_the_scores_and_rejected_rows_told_after_them(tmp_path, half_labelled):
    from typer.testing import CliRunner

    from raydist.cli import app

    (tmp_path / "theirs.json").write_text(json.dumps({"q": "1894", "r": "1894", "none": "", "silent": "1894"}))
    settings = [f"storage={tmp_path}/runs", "data.train=null", "data.test={}", "data.max_rejected=1"]
    settings += [f"data.dev=[{half_labelled}, {tmp_path}/again.json]", f"evaluate.predictions.dev={tmp_path}/theirs.json"]
    (tmp_path / "again.json").write_text(json.dumps(SQUAD))
    done = CliRunner().invoke(app, ["evaluate", "debug_reader", *settings])
    assert done.exit_code == 0, done.output
    said = "dev: 1 of 5 questions have neither an answer nor is_impossible: they are answered and not scored; 1 others are"
    assert said in done.output
    assert "set data.dev.format=squad_v2" in done.output
    assert done.output.splitlines()[-1].startswith("rejected rows: 1 of dev; see ")
    metrics = json.loads((tmp_path / "runs/debug_reader/metrics.json").read_text())
    assert (metrics["dev.questions"], metrics["dev.unlabelled"], metrics["dev.f1"]) == (3, 1, 100.0)


def test_a_language_that_the_rule_does_not_know_is_told_when_it_is_read(tmp_path):
    (tmp_path / "fr").mkdir()
    (tmp_path / "fr" / "mlqa.json").write_text(json.dumps(SQUAD))

    def read(name: str, rule: str) -> None:
        given = f"data.test={{french: {{files: {tmp_path}/fr/mlqa.json, rule: {rule}}}}}"
        run = Run(load_config("debug_reader", [f"storage={tmp_path}/runs", given]).config, Here())
        run.begin()
        make_examples(run, ["french"])

    for rule in ("auto", "mlqa"):
        with pytest.raises(InputError, match=r"french: the mlqa rule has no language 'fr'.*data\.test\.french\.rule=squad"):
            read("french", rule)
    read("french", "squad")


@pytest.mark.parametrize(("kind", "said"), [("bare", "has no tokenizer"), ("splinter", "has no span head")])
def test_a_model_that_cannot_be_a_reader_is_told_before_anything_is_read(tmp_path, kind, said):
    import shutil

    from raydist.models.folders import model_folder

    folder = tmp_path / "model"
    shutil.copytree(model_folder("builtin:tiny"), folder)
    if kind == "bare":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    settings = [f"storage={tmp_path}/runs", f"model.name={folder}", "data.train=nowhere.json"]
    run = Run(load_config("debug_reader", settings).config, Here())
    run.begin()
    with pytest.raises(InputError, match=said):
        prepare(run, ["train"])
