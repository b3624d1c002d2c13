"""A finished run against today's settings. `finished/` has what the version wrote that came before roles stood at keys."""

import json
from pathlib import Path

import pytest

from raydist.config import Config, load_config, override
from raydist.config.compare import changed_settings
from raydist.config.roles import settings_of_weights, settings_with_result

FINISHED = Path(__file__).parent / "finished"
IDENTITY = json.loads((FINISHED / "training.json").read_text())["identity"]


def now(*overrides: str) -> dict:
    """The identity that the same run has today; of the rows' part, which no key says, the old one."""
    config = load_config(str(FINISHED / "config.yaml"), overrides).config
    rows = {name: value for name, value in IDENTITY.items() if name.startswith("data.") or name == "model.weights"}
    return json.loads(json.dumps(settings_of_weights(config))) | rows


def without(settings: dict, *names: str) -> dict:
    return {name: value for name, value in settings.items() if name not in names}


def test_a_finished_run_of_the_version_before_is_not_refused():
    assert changed_settings(IDENTITY, now()) == {}
    assert now() == IDENTITY  # and an earlier version takes one of today


@pytest.mark.parametrize("name", ["train.early_stop", "optim.eps", "objectives.pfa.every", "objectives.answer_contrast"])
def test_a_key_that_is_new_and_at_its_default_refuses_no_run(name):
    """For the key it is as if the finished run was trained before there was one."""
    assert name in IDENTITY
    assert changed_settings(without(IDENTITY, name), now()) == {}


def test_a_new_key_that_is_not_at_its_default_is_named():
    before = without(IDENTITY, "optim.eps", "train.early_stop")
    changed = changed_settings(before, now("optim.eps=1e-6", "train.early_stop=3"))
    assert changed == {
        "optim.eps": "optim.eps: was 1e-08, now 1e-06",
        "train.early_stop": "train.early_stop: was None, now 3",
    }


def test_a_key_may_say_what_was_done_before_there_was_one():
    before = without(IDENTITY, "objectives.pfa.critic_sees")
    assert list(changed_settings(before, now()).values()) == ["objectives.pfa.critic_sees: was 'raw', now 'scaled'"]
    assert changed_settings(before, now("objectives.pfa.critic_sees=raw")) == {}


def test_differences_are_named_whether_or_not_the_config_has_such_keys():
    changed = changed_settings({"lr": 1, "seed": 0}, {"lr": 2, "seed": 0, "new": 3})
    assert list(changed.values()) == ["lr: was 1, now 2", "new: was not set, now 3"]


def test_a_key_that_is_gone_is_named():
    changed = changed_settings(IDENTITY | {"optim.momentum": 0.9}, now())
    assert changed == {"optim.momentum": "optim.momentum: was 0.9, now not set"}


def test_a_section_that_is_on_is_no_section_at_its_defaults():
    assert list(changed_settings(IDENTITY, now("objectives.infomax={}")).values()) == ["objectives.infomax: was None, now set"]
    before = without(IDENTITY, "objectives.infomax")  # of a version without it
    assert list(changed_settings(before, now("objectives.infomax={}")).values()) == ["objectives.infomax: was None, now set"]
    assert changed_settings(now("objectives.infomax={}"), now("objectives.infomax={}")) == {}


def test_two_sections_are_compared_key_by_key():
    changed = changed_settings(IDENTITY, now("objectives.pfa.delta=0.25", "objectives.pfa.align=cos"))
    assert list(changed) == ["objectives.pfa.align", "objectives.pfa.delta"]


def test_a_test_set_more_is_a_difference_even_if_all_but_its_files_is_default():
    before = load_config("reader", ["data.test={a: x.json}"]).config
    after = override(before, {"data.test.b": {"files": ["y.json"]}})
    none = override(before, {"data.test": {}})
    settings = settings_with_result(before)
    assert changed_settings(settings, settings_with_result(after)) == {"data.test.b": "data.test.b: was not set, now set"}
    assert changed_settings(settings_with_result(none), settings) == {"data.test": "data.test: was {}, now set"}
    assert changed_settings(settings, settings) == {}


def test_what_affects_nothing_is_no_difference():
    """Also where it stood in what an earlier version wrote."""
    before = settings_with_result(Config()) | {"retriever.cached": True, "cross_encoder.train.log_every": 5}
    assert changed_settings(before, settings_with_result(Config())) == {}


def test_whatever_differs_has_a_line_that_names_its_key():
    """Today's fault was a refusal followed by nothing."""
    for name in IDENTITY:
        if name.startswith(("data.", "model.weights")):
            assert changed_settings(without(IDENTITY, name), IDENTITY).keys() == {name} or IDENTITY[name] is None
        other = IDENTITY | {name: "other"}
        for changed in (changed_settings(other, IDENTITY), changed_settings(IDENTITY, other)):
            assert [line.split(": was ")[0] for line in changed.values()] == [name]
