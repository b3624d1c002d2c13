"""What the README shows is run as it stands there."""

import re
from pathlib import Path

import pytest
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from raydist.config import ConfigError, load_config, shipped_configs
from raydist.models.folders import model_folder

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_mistakes_are_reported_as_shown():
    command, shown = re.search(r"\$ raydist run (reader .*)\nerror: \.\.\./(.*?)\n```", README, re.DOTALL).groups()
    name, *overrides = command.split()
    with pytest.raises(ConfigError) as error:
        load_config(name, overrides)
    assert str(error.value) == f"{shipped_configs().parent}/{shown}"


def test_the_snippet_answers_with_a_span_of_the_passage(tmp_path, capsys):
    folder = model_folder("builtin:tiny")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    AutoModelForQuestionAnswering.from_pretrained(folder).save_pretrained(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    values: dict = {}
    exec(snippet.replace('"runs/bridges/model"', repr(str(tmp_path))), values)
    answer = capsys.readouterr().out.strip()
    assert answer
    assert answer in values["passage"]
    assert len(answer) < len(values["passage"])
