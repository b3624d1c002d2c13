"""Each key says what it is, what it takes and what it affects, once."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from raydist.cli import app, job
from raydist.config import Affects, Config, ConfigError, Section, flatten
from raydist.config.explain import explain_key
from raydist.config.keys import find_key, inner_sections, known_names

OF_NAMES = ["data.test.NAME", "corpus.test.NAME"]  # sections under names of the user's own


def every_key():
    below = [find_key(name) for path in OF_NAMES for name in known_names(Config, asked=path.split(".")) if path in name]
    return [key for name in known_names(Config) if (key := find_key(name))] + below


def test_every_key_has_a_description_and_a_role():
    keys = every_key()
    assert len(keys) > 200
    for key in keys:
        assert key.description, key.name
        assert (key.affects is None) == key.is_always_there, key.name  # of such a section each key says it


def test_descriptions_begin_large_and_end_without_a_period():
    for key in every_key():
        assert not key.description.endswith((".", " ", ";")), key.name
        first = key.description.split()[0]
        assert first[0] == first[0].upper() or first[-1] in ":,", key.name  # but for values such as `w1: ...`
        assert len(key.description) < 120, key.name


def test_numbers_of_things_have_a_unit():
    for key in every_key():
        kinds = str(key.annotation)
        if "int" in kinds.replace("Hint", "") and "float" not in kinds and not key.section and "Literal" not in kinds:
            has_none = key.name.endswith(("seed", "seeds", "leave_out", "only"))
            assert key.unit or has_none, key.name


def test_every_leaf_of_a_config_belongs_to_a_key():
    config = Config.model_validate(
        {
            "data": {"train": "a.json", "test": {"x": "b.json"}},
            "corpus": {"test": {"y": {"files": "c", "format": "documents", "columns": {"text": "body"}}}},
            "objectives": {"infomax": {}, "pfa": {}, "hard_learning": {}, "answer_contrast": {}},
            "sweep": {"space": {"optim.lr": [1e-5]}},
        }
    )
    for name in flatten(config):
        key = find_key(name)
        assert key is not None, name
        assert key.affects is not None, name
    assert find_key("sweep.space.optim.lr").name == "sweep.space"
    assert find_key("data.test.x.rule").affects is Affects.scores
    assert find_key("data.test.x").section is not None
    for wrong in ("optm", "optim.lrr", "optim.lr.x", "data.train.x", "data.test.x.y"):
        assert find_key(wrong) is None


def test_defaults_are_those_of_the_sections():
    assert find_key("optim.betas").default == [0.9, 0.999]
    assert find_key("cross_encoder.optim.lr").default == 3e-5
    assert find_key("objectives.pfa.critic_sees").default == "scaled"
    assert find_key("sweep.space").is_required
    for name, value in flatten(Config()).items():
        assert find_key(name).default == value, name


def test_all_sections_are_reached():
    """A section that no key holds would be dead."""
    reached = {section for key in every_key() for section in inner_sections(key.annotation)}
    assert {section for section in Section.__subclasses__() if section.__module__.startswith("raydist.")} - reached == {Config}


# --- explain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("optim.lr", ["default  3.0e-05", "values   number (above 0)", "affects  weights"]),
        ("train.batch_size", ["default  16", "values   integer (at least 1)", "unit     rows", "affects  weights"]),
        ("data.max_rejected", ["values   number (at least 0, at most 1)", "affects  rows"]),
        ("train.log_every", ["unit     steps", "affects  nothing"]),
        ("evaluate.bootstrap", ["default  1000", "unit     samples", "affects  scores"]),
        ("retriever.loss", ["values   softmax, margin_mse or kl", "task     retriever or cross_encoder"]),
        ("index.pq.m", ["default  null", "values   integer (at least 1); or null", "unit     parts"]),
        ("cluster.workers", ["values   integer (at least 1); or [integer (at least 1), integer (at least 1)]"]),
        ("data.sample.size", ["values   integer (at least 100); or small, medium or large"]),
        ("data.test.mine.columns", ["default  {}", "values   mapping of names to text"]),
        ("sweep.metric", [r"values   text (matching ^[A-Za-z0-9_-]+\..+$)"]),
        ("evaluate.at_k", ["values   list of integer (at least 1)"]),
        ("objectives.infomax", ["default  null", "affects  weights", "objectives.infomax.alpha    Weight of the local"]),
        ("data.test", ["default  {}", "data.test.NAME.files "]),
        ("optim", ["optim.lr               Peak learning rate of the schedule"]),
    ],
)
def test_a_key_is_explained(name, lines):
    text = explain_key(name)
    assert text.startswith(f"{name}\n  {find_key(name).description}\n")
    for line in lines:
        assert f"\n  {line}" in text


def test_the_command_explains_keys_and_sections_and_lists_all_sections():
    done = CliRunner().invoke(app, ["config", "explain", "optim.lr", "objectives"])
    assert done.exit_code == 0
    assert "Peak learning rate" in done.stdout
    assert "objectives.span" in done.stdout
    listed = CliRunner().invoke(app, ["config", "explain"]).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(Config.model_fields)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "optim.lrr"], "optim.lrr: unknown key; did you mean optim.lr?"),
        (["explain", "lr"], "lr: unknown key; did you mean optim.lr, objectives.infomax.lr or cross_encoder.optim.lr?"),
        (["explain", "data.test.x.langauge"], "did you mean data.test.x.language?"),
        (["explain", "zzz"], "zzz: unknown key; `raydist config explain` lists the sections"),
        (["show", "quickstart", "optm"], "optm: unknown key; did you mean optim?"),
    ],
)
def test_an_unknown_key_is_refused_with_those_like_it(capsys, arguments, said):
    assert job("config", arguments) == 2
    assert said in capsys.readouterr().err


def test_an_unknown_key_is_a_config_error():
    with pytest.raises(ConfigError, match="unknown key"):
        explain_key("data.test.x.y")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["data.seed", "train.epochs", "train.epochs=3"], ["data.seed", "train.epochs"]),
        (["objectives.span"], ["objectives.span.reduction", "objectives.span.mask_non_passage"]),
        (["objectives.pfa.delta"], ["objectives.pfa"]),  # which is off
    ],
)
def test_config_show_takes_keys(words, shown):
    done = CliRunner().invoke(app, ["config", "show", "reader", *words])
    assert done.exit_code == 0, done.output
    assert [line.split(" = ")[0] for line in done.stdout.splitlines()] == shown
    assert ("# command line" in done.stdout) == any("=" in word for word in words)


def test_the_schema_carries_descriptions_limits_units_and_roles():
    schema = json.loads(CliRunner().invoke(app, ["config", "schema"]).stdout)
    steps = schema["$defs"]["TrainConfig"]["properties"]["checkpoint_every"]
    assert steps["description"] == "Steps between checkpoints"
    assert (steps["unit"], steps["affects"], steps["minimum"]) == ("steps", "nothing", 1)
    assert schema["properties"]["optim"]["description"] == "Optimizer and schedule"
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        for key, value in section["properties"].items():
            assert value["description"], f"{name}.{key}"


def test_the_config_is_read_without_what_is_heavy():
    code = "import sys, raydist.config; print(*{'torch', 'ray', 'transformers', 'pyarrow', 'numpy'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
