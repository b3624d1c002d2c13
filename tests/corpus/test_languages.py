"""Translations share their ids: their languages come from names of files, and are not guessed where a score depends on them."""

import json

import pytest

from raydist.config import load_config
from raydist.corpus.formats.base import CorpusFiles
from raydist.corpus.formats.reader_files import ReaderFiles
from raydist.corpus.recognise import language_of
from raydist.errors import InputError
from raydist.here import Here
from raydist.reader.prepare import make_examples
from raydist.runs.run import Run

PASSAGES = {"en": "Ada was born in Lund.", "es": "Ada nació en Lund.", "de": "Ada wurde in Lund geboren."}


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("dev-context-ar-question-de.json", "ar"),
        ("test-context-hi-question-hi.json", "hi"),
        ("es_squad-translate-train-train-v1.1.json", "es"),
        ("vi_squad-translate-train-dev-v1.1.json", "vi"),
        ("translate-test-context-de-question-de.json", "en"),  # put into English
        ("mlqa-translate-test.de", "en"),
        ("squad.translate.train.en-es.json", "es"),
        ("squad.translate.train.en-zh.json.gz", "zh"),
        ("xquad.translate.test.ar-en.json", "en"),
        ("xquad.ar.json", "ar"),
        ("mlqa-translate-train.de", "de"),
        ("squad-es-v1.1.json", "es"),
        ("train-v1.1.json", None),
        ("squad.translate.json", None),
    ],
)
def test_the_language_of_the_passages_is_read_from_published_names(name, language):
    assert language_of(f"data/{name}") == language
    assert language_of(f"es/{name}") == (language or "es")


def write(folder, pattern: str) -> list[str]:
    """The same three questions in three languages."""
    for language, context in PASSAGES.items():
        answers = [{"text": "Lund", "answer_start": context.index("Lund")}]
        qas = [{"id": f"q{number}", "question": f"{number}?", "answers": answers} for number in range(3)]
        (folder / pattern.format(language)).write_text(
            json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
        )
    return [str(folder / pattern.format(language)) for language in PASSAGES]


def examples(tmp_path, *settings: str):
    config = load_config("debug_reader", [f"storage={tmp_path}/runs", *settings]).config
    run = Run(config, Here())
    run.begin()
    return make_examples(run, ["dev"])["dev"]


@pytest.mark.parametrize("pattern", ["squad.translate.train.en-{}.json", "{}_squad-translate-train-train-v1.1.json"])
def test_no_row_of_translated_training_sets_is_lost_as_a_duplicate(tmp_path, pattern):
    made = examples(tmp_path, f"data.dev={json.dumps(write(tmp_path, pattern))}", "data.max_rejected=0")
    assert made.rows == 9
    assert {language for table in made.tables() for language in table["language"].to_pylist()} == set(PASSAGES)


def test_a_corpus_of_translations_keeps_the_questions_of_every_language(tmp_path):
    found = ReaderFiles().open(CorpusFiles(write(tmp_path, "xquad.{}.json")))
    assert not found.rejected
    assert len(set(found.questions["question_id"].to_pylist())) == found.questions.num_rows == 9
    assert {"de:q0", "en:q0", "es:q0"} <= set(found.questions["question_id"].to_pylist())
    assert len(found.gold) == 9


def test_a_rule_that_depends_on_the_language_does_not_guess_it(tmp_path):
    write(tmp_path, "mlqa-{}.json")
    source = f"files: {tmp_path}/mlqa-de.json"
    said = r"dev: the rule mlqa depends on the language .* for 3 of 3 questions: set data.dev.language .*or data.dev.rule=squad"
    with pytest.raises(InputError, match=said):
        examples(tmp_path, f"data.dev={{{source}}}")
    assert examples(tmp_path, f"data.dev={{{source}, language: de}}").rows == 3
    assert examples(tmp_path, f"data.dev={{{source}, rule: squad}}").rows == 3
