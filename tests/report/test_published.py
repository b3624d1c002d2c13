"""The files of published numbers and the code that reads them agree."""

from importlib.resources import files
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from raydist.config import Config
from raydist.report.mining import METHODS
from raydist.report.published import tables
from raydist.report.published.tables import AVERAGE, LANGUAGES, PAPERS, WARMUP, Key, mining_paper, papers

FOLDER = files("raydist.report.published")


def sections_of(annotation) -> list[type[BaseModel]]:
    """The config sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for one in get_args(annotation) for section in sections_of(one)]


def is_key(dotted: str) -> bool:
    """Whether a config has this dotted key."""
    sections: list[type[BaseModel]] = [Config]
    for word in dotted.split("."):
        fields = [section.model_fields[word] for section in sections if word in section.model_fields]
        if not fields:
            return False
        sections = [section for field in fields for section in sections_of(field.annotation)]
    return True


def test_every_file_is_read():
    there = {path.name for path in FOLDER.iterdir() if path.name.endswith(".yaml")}
    assert there == {f"{name}.yaml" for name in (*PAPERS, "mining")}


@pytest.mark.parametrize("table", [table for paper in papers() for table in paper], ids=lambda table: table.title)
def test_settings_and_objectives_are_keys_of_a_config(table):
    rows = [f"objectives.{name}.{key}" for row in table.rows for name, by in (row.objectives or {}).items() for key in by]
    keys = [*table.settings, *(key for row in table.rows for key in row.settings), *rows]
    assert [key for key in keys if key != WARMUP and not is_key(key)] == []
    assert all(is_key(f"objectives.{name}") for row in table.rows for name in row.objectives or {})


@pytest.mark.parametrize("table", [table for paper in papers() for table in paper], ids=lambda table: table.title)
def test_every_number_is_of_a_test_set_whose_size_and_rule_are_there(table):
    for key in (key for row in table.rows for key in row.scores if key.test_set != "out_of_domain"):
        sizes = [Key(key.test_set, language=code) for code in (LANGUAGES if key.language == AVERAGE else [key.language])]
        assert all(size in table.questions for size in sizes), key
        assert key.test_set in table.rules


def test_mining_settings_are_keys_of_a_config_and_its_methods_those_of_a_report():
    paper = mining_paper()
    assert [key for key in paper.settings if not is_key(key)] == []
    methods = {name for found in paper.sets.values() for number in found.numbers for name in (number.method, number.above)}
    assert methods - {""} <= METHODS.keys()


def a_table(**changes) -> dict:
    return {
        "title": "A paper",
        "model": "bert",
        "trained_on": "squad",
        "train_questions": {},
        "settings": {},
        "questions": {"mlqa": {"en": 10}},
        "rules": {},
        "runs": "not stated",
        "rows": [{"method": "reader", "scores": {"squad": 80.5}}],
    } | changes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"modle": "bert"}, "modle"),
        ({"rows": [{"method": "reader", "score": {"squad": 80.5}, "scores": {}}]}, "rows.0.score"),
        ({"rows": [{"method": "reader", "scores": {"squad": "80.5"}}]}, "rows.0.scores.squad"),
        ({"rows": []}, "rows"),
        ({"questions": {"squad": "many"}}, "questions.squad"),
        ({"languages": "two"}, "languages"),
    ],
)
def test_a_misspelt_file_is_refused(monkeypatch, changes, problem):
    monkeypatch.setattr(tables, "_read", lambda name: yaml.safe_load(yaml.safe_dump({"tables": [a_table(**changes)]})))
    with pytest.raises(ValidationError) as caught:
        papers.__wrapped__()
    assert problem in {".".join(map(str, error["loc"][: problem.count(".") + 1])) for error in caught.value.errors()}


def test_scores_are_shown_language_by_language_and_all_six_make_an_average(monkeypatch):
    six = {code: float(10 * place) for place, code in enumerate(LANGUAGES, 1)}
    scores = {"mlqa": {"f1": six, "em@3": {"en": 1.0, "es": 2.0}, "em@5": {"en": 3.0, "es": 4.0}}, "addsent": 5.0}
    rows = [{"method": "reader", "scores": scores}]
    shared = {"common": {"settings": {"seed": 1, "train.epochs": 2}}, "tables": [a_table(rows=rows, settings={"seed": 3})]}
    monkeypatch.setattr(tables, "_read", lambda name: shared)
    table = papers.__wrapped__()[0][0]
    assert table.settings == {"seed": 3, "train.epochs": 2}
    assert list(table.rows[0].scores.items()) == [
        *((Key("mlqa", "f1", code), value) for code, value in six.items()),
        (Key("mlqa", "f1", AVERAGE), 35.0),
        (Key("addsent", "addsent_f1"), 5.0),
        (Key("mlqa", "em@3", "en"), 1.0),
        (Key("mlqa", "em@5", "en"), 3.0),
        (Key("mlqa", "em@3", "es"), 2.0),
        (Key("mlqa", "em@5", "es"), 4.0),
    ]
