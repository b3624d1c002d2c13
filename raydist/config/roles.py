"""The effects of keys, and what follows from them: the inputs of weights, the settings a sweep must not change, and those that
trials share. Each key declares its role (`config/section.py`); exceptions are here, with their reasons."""

from __future__ import annotations

from typing import Any

from raydist.config.keys import Key, find_key
from raydist.config.load import flatten
from raydist.config.run import Config
from raydist.config.section import Affects, Section

# sections that set up the model a task trains; `cross_encoder` holds those of another run
OF_THE_MODEL = ("seed", "model", "train", "optim")
OF_THE_TASK = {"reader": ("objectives", "predict"), "retriever": ("retriever",), "cross_encoder": (), "documents": ()}
# identities of weights trained before the key existed lack it
NOT_AT_ITS_DEFAULT = ("predict.precision",)
# shared by trials, but not inputs of their cross-encoder: it is trained on gold pairs and negatives, with its own depth
NOT_OF_THE_CROSS_ENCODER = (
    "corpus.test",
    "corpus.dev.",
    "model.",
    "mining.candidates",
    "mining.same_doc",
    "retriever.search_depth",
)


def known_settings(config: Section) -> dict[str, tuple[Key, Any]]:
    """Every setting with its key, except later keys at their defaults, so that names and identities stay the same."""
    settings: dict[str, tuple[Key, Any]] = {}
    for name, value in flatten(config).items():
        key = find_key(name, type(config))
        assert key is not None
        if not (key.is_later and value == key.default):
            settings[name] = key, value
    return settings


def plain_settings(config: Section) -> dict[str, Any]:
    """The config as nested plain values, without later keys at their defaults."""
    plain = config.model_dump(mode="json")
    for name in flatten(config).keys() - known_settings(config).keys():
        *path, last = name.split(".")
        section = plain
        for step in path:
            section = section[step]
        del section[last]
    return plain


def settings_of_weights(config: Config) -> dict[str, Any]:
    """The settings that the trained weights depend on, apart from the training rows."""
    sections = OF_THE_MODEL + OF_THE_TASK[config.task]
    return {
        name: value
        for name, (key, value) in known_settings(config).items()
        if name.split(".")[0] in sections
        and key.affects is Affects.weights
        and not (name in NOT_AT_ITS_DEFAULT and value == key.default)
    }


def settings_with_result(config: Config) -> dict[str, Any]:
    """The settings that change a result and are common to all trials of a sweep."""
    return {
        name: value
        for name, (key, value) in known_settings(config).items()
        if key.affects is not Affects.nothing and name != "seed"  # trials have seeds of their own
    }


def shared_settings(config: Config, *, cross_encoder: bool = False) -> dict[str, Any]:
    """The settings behind the results that trials share: all stages up to the scores, or the cross-encoder alone."""
    left_out = NOT_OF_THE_CROSS_ENCODER if cross_encoder else ()
    return {
        name: value for name, (key, value) in known_settings(config).items() if key.is_shared and not name.startswith(left_out)
    }


def changes_scores(name: str, task: object) -> bool:
    """Whether a setting changes a score of this task; an unknown one may."""
    key = find_key(name)
    if key is None:
        return True
    return key.affects is not Affects.nothing and (key.tasks is None or task is None or task in key.tasks)
