"""`raydist new`: what it sees of one's files, and that the config it writes is right."""

import json

import pytest
from typer.testing import CliRunner

from raydist.cli import app
from raydist.config import load_config
from raydist.errors import InputError
from raydist.new import write_new

SPANISH = "La ciudad de Sevilla se encuentra en el sur de España, a orillas del río Guadalquivir, y es muy antigua."


def write_squad(path, *contexts: str, answer="Lund", **more):
    paragraphs = []
    for number, context in enumerate(contexts):
        found = {"answers": [{"text": answer, "answer_start": max(0, context.find(answer))}]}
        paragraphs.append({"context": context, "qas": [{"id": f"{path.stem}{number}", "question": "Where?", **found, **more}]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_questions_make_a_reader_with_a_tenth_held_out(here):
    file = write_squad(here / "train.json", *(f"Person {number} was born in Lund." for number in range(20)))
    seen = write_new([file], here / "mine.yaml")
    config = load_config(str(here / "mine.yaml")).config
    assert (config.task, config.name, config.model.name) == ("reader", "mine", "builtin:minilm")
    assert (config.data.train.leave_out, config.data.dev.only) == ((0, 10), (0, 10))
    assert config.data.train.files == config.data.dev.files == [file]
    assert config.data.max_length == 128, "short passages need no long windows"
    assert seen[0] == "20 questions about 20 passages (squad), in en 20"
    text = (here / "mine.yaml").read_text()
    assert "20 questions are few: start from a reader" in text
    assert "the best model is chosen by it" in text


def test_what_the_files_are_like_decides(here):
    long = "Bo was born in Lund. " + "He read and wrote a great deal, year after year. " * 60
    bad = "Ada was born in Oslo."
    file = write_squad(here / "train.json", *[f"{number} {long}" for number in range(9)], bad)
    dev, test = (write_squad(here / name, "Cy was born in Lund.") for name in ("dev.json", "test one.json"))
    seen = write_new([file], here / "mine.yaml", dev=[dev], test=[test])
    data = load_config(str(here / "mine.yaml")).config.data
    assert (data.max_length, data.dev.files, data.train.leave_out) == (512, [dev], None)
    assert data.test["test-one"].files == [test]
    assert data.max_rejected == 0.11, "one of ten cannot be trained on"
    assert seen[2].startswith("1 of 10 questions cannot be trained on (1 answer not at its offset")


def test_a_language_that_nobody_states_is_told_by_the_words_or_said_to_be_unknown(here):
    file = write_squad(here / "spanish.json", *(f"{number}. {SPANISH}" for number in range(5)), answer="Sevilla")
    seen = write_new([file], here / "mine.yaml")
    config = load_config(str(here / "mine.yaml")).config
    assert seen[-1] == "neither rows nor file names state a language: by the words it is es"
    assert {config.data.train.language, config.data.dev.language} == {"es"}
    assert config.model.name == "xlm-roberta-base", "an English encoder would not do"
    few = write_squad(here / "few.json", "In Lund.")
    assert write_new([few], here / "few.yaml")[-1].endswith("taken for English")


def test_a_folder_in_beir_layout_makes_a_retriever(here):
    (here / "mine/qrels").mkdir(parents=True)
    texts = {f"s{number}": f"Person {number} lives in house {number}." for number in range(12)}
    rows = "".join(json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in texts.items())
    (here / "mine/corpus.jsonl").write_text(rows)
    asked = [{"_id": f"q{number}", "text": f"Where does person {number} live?"} for number in range(12)]
    (here / "mine/queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    for split, numbers in (("train", range(8)), ("test", range(8, 12))):
        lines = "".join(f"q{number}\ts{number}\t1\n" for number in numbers)
        (here / f"mine/qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    seen = write_new(["mine"], here / "found.yaml")
    config = load_config(str(here / "found.yaml")).config
    assert seen[0] == "12 sentences or passages, 8 questions, 8 gold pairs (beir)"
    assert (config.task, config.corpus.train.split, config.corpus.dev_share) == ("retriever", "train", 0.1)
    assert [(source.format, source.split) for source in config.corpus.test.values()] == [("beir", "test")]
    assert (config.retriever.max_answer_length, config.retriever.max_question_length) == (64, 32)


def test_documents_make_an_index_and_the_command_says_what_next(here):
    (here / "docs").mkdir()
    (here / "docs/a.md").write_text("# A\n\nText.\n")
    (here / "docs/b.md").write_text("Text.\n")
    (here / "docs/c.xyz").write_text("?")
    done = CliRunner().invoke(app, ["new", "docs", "--out", "house.yaml"])
    assert done.exit_code == 0, done.output
    assert "3 files: 2 markdown, 1 of no known format" in done.output
    assert "raydist index house.yaml" in done.output
    assert load_config("house.yaml").config.documents.files == ["docs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["nowhere.json"], "a.yaml"), "there is no nowhere.json"),
        ((["there.json"], "there.json"), "there.json is there already"),
        ((["there.json"], "a.yaml"), "no question has a usable answer"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(here, arguments, said):
    write_squad(here / "there.json", "Nobody was born.")
    files, out = arguments
    with pytest.raises(InputError, match=said):
        write_new(files, here / out)
    assert not (here / "a.yaml").exists()
