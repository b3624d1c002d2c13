"""Which settings matter for what. The lists follow from the keys, and are pinned here."""

from pathlib import Path
from typing import Any

import pytest

from raydist.config import Config, Section, load_config, override, shipped_configs
from raydist.config.keys import find_key
from raydist.config.roles import (
    changes_scores,
    known_settings,
    plain_settings,
    settings_of_weights,
    settings_with_result,
    shared_settings,
)
from raydist.config.section import ROWS, WEIGHTS, key
from raydist.files.storage import fingerprint

CONFIGS = [path for path in sorted(shipped_configs().rglob("*.yaml")) if "cluster" not in path.parts]


def of_sections(settings: dict[str, Any], *sections: str) -> set[str]:
    return {name for name in settings if name.startswith(tuple(f"{section}." for section in sections))}


def test_weights_depend_on_the_whole_of_model_and_optimizer_and_on_most_of_training():
    settings = settings_of_weights(Config())
    assert settings["seed"] == 0
    assert of_sections(settings, "model", "optim") == {
        *("model.name", "model.revision", "model.attention", "model.dropout"),
        *(f"optim.{name}" for name in ("lr", "weight_decay", "betas", "eps", "clip_norm", "schedule", "final_lr_share")),
        *("optim.warmup_share", "optim.warmup_steps", "optim.warmup_examples"),
    }
    left_out = {"train.keep_checkpoints", "train.keep_finished", "train.checkpoint_every", "train.log_every"}
    assert of_sections(settings, "train") == {f"train.{name}" for name in type(Config().train).model_fields} - left_out


def test_weights_of_a_retriever_depend_on_its_loss_and_not_on_its_rows():
    settings = settings_of_weights(Config(task="retriever"))
    assert of_sections(settings, "retriever", "objectives", "predict") == {
        *("retriever.pooling", "retriever.towers", "retriever.loss", "retriever.objective", "retriever.normalise"),
        *("retriever.scale", "retriever.temperature", "retriever.mask_known_positives", "retriever.bucket_by_length"),
    }


def test_weights_of_a_reader_depend_on_its_objectives_and_on_how_dev_is_scored():
    settings = settings_of_weights(override(Config(), {"objectives.infomax": {}}))
    assert settings["objectives.pfa"] is None
    assert settings["objectives.infomax.alpha"] == 1.0
    assert of_sections(settings, "predict") == {"predict.max_answer_length"}
    bf16 = settings_of_weights(override(Config(), {"predict.precision": "bf16"}))
    assert of_sections(bf16, "predict") == {"predict.max_answer_length", "predict.precision"}


def test_weights_of_a_cross_encoder_depend_on_no_other_section():
    sections = {name.split(".")[0] for name in settings_of_weights(Config(task="cross_encoder"))}
    assert sections == {"seed", "model", "train", "optim"}


OF_A_TRIAL = (  # what trials have of their own
    *("name", "storage", "cluster.", "sweep", "train.", "optim.", "objectives.", "predict.", "evaluate.", "track.", "asking."),
    *("mining.threshold", "mining.power", "mining.weighting", "mining.calibrate", "mining.rounds"),
    *("mining.hard_negatives", "mining.negative_p"),
    *("retriever.towers", "retriever.loss", "retriever.objective", "retriever.normalise", "retriever.scale"),
    "retriever.temperature",
    *("retriever.mask_known_positives", "retriever.bucket_by_length", "retriever.chunk_rows", "retriever.cached"),
    *("retriever.variants", "retriever.rerank", "retriever.dev_sentences", "retriever.fusion."),
    *("documents.", "library."),  # of no task that has trials
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_trials_share_what_is_made_before_pairs_are_chosen(path: Path):
    config = load_config(str(path)).config

    assert shared_settings(config) == {
        name: value for name, (_, value) in known_settings(config).items() if not name.startswith(OF_A_TRIAL)
    }


def test_a_cross_encoder_depends_on_less_than_trials_share():
    config = load_config("retrieval").config
    less = shared_settings(config).keys() - shared_settings(config, cross_encoder=True).keys()
    assert {name for name in less if not name.startswith(("corpus.test.", "model."))} == {
        *("mining.candidates", "mining.same_doc", "retriever.search_depth"),
    }
    assert {"model.name", "corpus.test.other_domain.files"} & less


def test_names_of_shared_runs_stay():
    """A key that is new and without `later` would change them: shared runs of earlier sweeps would be trained anew."""
    config = Config()
    used = {name: plain_settings(config)[name] for name in ("data", "model", "seed", "train", "optim", "predict", "objectives")}
    assert fingerprint(used) == "93f93251faad8fde"
    assert fingerprint(shared_settings(Config(task="retriever"), cross_encoder=True)) == "ca61c9b7f534e9e8"
    assert fingerprint(shared_settings(Config(task="retriever"))) == "a18572909d823641"


def test_trials_take_over_what_has_a_result():
    settings = settings_with_result(Config())
    for name in (
        *("name", "storage", "seed", "sweep", "cluster.workers", "track.mlflow"),
        *("train.keep_checkpoints", "train.checkpoint_every", "train.log_every"),
    ):
        assert name not in settings
    assert {"task", "train.epochs", "data.max_length", "mining.threshold", "evaluate.bootstrap"} <= settings.keys()


@pytest.mark.parametrize(
    ("name", "task", "changes"),
    [
        ("optim.lr", "reader", True),
        ("name", "reader", False),
        ("cluster.workers", None, False),
        ("train.log_every", "retriever", False),
        ("mining.threshold", "reader", False),
        ("mining.threshold", "retriever", True),
        ("mining.threshold", None, True),
        ("objectives.infomax.alpha", "reader", True),
        ("of.an.older.version", "reader", True),
    ],
)
def test_which_settings_change_scores_of_a_task(name, task, changes):
    assert changes_scores(name, task) is changes


class Inner(Section):
    old: int = key(1, "Old", WEIGHTS)
    new: int = key(2, "New", WEIGHTS, later=True)


class Whole(Section):
    name: str = key("a", "Name", ROWS)
    inner: Inner = key(Inner(), "Inner", ROWS)


def test_a_later_key_at_its_default_changes_no_name():
    assert plain_settings(Whole()) == {"name": "a", "inner": {"old": 1}}
    assert plain_settings(Whole(inner=Inner(new=3))) == {"name": "a", "inner": {"old": 1, "new": 3}}
    assert find_key("inner.new", Whole).is_later
