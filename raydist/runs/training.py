"""Training within a run: the inputs of its weights, finished work, and combinations that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from raydist.config import Config
from raydist.config.compare import changed_settings
from raydist.config.roles import settings_of_weights
from raydist.corpus.rules import choose_rule
from raydist.errors import InputError
from raydist.files.storage import folder_digest, has_model
from raydist.models.folders import is_folder
from raydist.runs import trackers
from raydist.runs.card import write_card
from raydist.runs.idle import say_idle
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say

OF_THE_OLD_MODEL = (  # deleted when training starts over
    *("checkpoints", "best", "model", "fitted.json", "metrics.jsonl", "tensorboard", "workers.json", "progress.json"),
    *("predictions", "evaluation", "ranked", "trace", "report.html"),
    *("mlflow.json", "wandb.json", "wandb"),  # a new training is a new run there, too
)


class TrainingSet(Protocol):
    """Prepared rows."""

    @property
    def rows(self) -> int: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """All their inputs, by name."""
        ...


def train_rows(run: Run, sets: Mapping[str, TrainingSet], *, fresh: bool = False, callbacks: Sequence[Any] = ()) -> None:
    """Start or resume training on prepared rows; keep a finished training, and refuse to mix it with another."""
    _check_batches(run, sets["train"].rows)
    identity = training_identity(run, sets)
    if fresh:
        _start_over(run)
    if run.folder.exists("training.json"):
        before = run.folder.read_json("training.json")
        if changed := changed_settings(before["identity"], identity):
            listed = "\n  ".join(_in_words_of_the_config(run.config, changed, before["identity"], identity))
            raise InputError(
                f"run {run.config.name!r} in {run.folder.path()} was trained with other settings:\n  {listed}\n"
                f"give this one another name (name=...), or start it over with --fresh"
            )
        if before["done"] and has_model(run.folder):
            say(f"train: already done ({before['fitted']['steps']:,} steps)")
            finish(run)
            return
    say_idle(run.config, sets["train"].rows)
    run.save_config()
    run.folder.write_json("training.json", {"identity": identity, "done": False})
    try:
        fitted = run.machine.fit(run.config, run.folder, sets, callbacks)
    except Exception:
        trackers.tell_end(run.config, run.folder, "FAILED")
        raise
    run.add_metrics({f"train.{key}": value for key, value in fitted.items()})
    run.folder.write_json("training.json", {"identity": identity, "done": True, "fitted": fitted})
    finish(run)


def finish(run: Run) -> None:
    """What a whole model leaves to be done: its card, and no checkpoints, from which nobody would resume."""
    write_card(run)
    if not run.config.train.keep_finished:
        run.folder.delete("checkpoints")
        run.folder.delete("best")


def is_trained(run: Run) -> bool:
    """Whether the run's training is done."""
    return run.folder.exists("training.json") and run.folder.read_json("training.json")["done"]


def _in_words_of_the_config(
    config: Config, changed: Mapping[str, str], before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """The changed settings, a line each. A dev set that came or went is one line, and not all its properties."""
    had, has = (any(key.startswith("data.dev.") for key in identity) for identity in (before, now))
    if had == has:
        yield from changed.values()
        return
    yield from (line for key, line in changed.items() if not f"{key}.".startswith("data.dev.") and key != "data.seed")
    name, test = ("data.dev", "data.test.NAME") if config.task == "reader" else ("corpus.dev", "corpus.test.NAME")
    if has:
        yield f"{name}: was not set; it chooses among models while they train: to score the trained one, use {test} instead"
    else:
        yield f"{name}: was set, and has chosen the model"


def _check_batches(run: Run, rows: int) -> None:
    """Reject batches too small to give every worker a row."""
    train, workers = run.config.train, run.config.cluster.max_workers
    smallest = rows // max(1, -(-rows // train.batch_size)) // train.accumulate
    if smallest < workers:
        raise InputError(
            f"{rows} training rows in batches of {train.batch_size}, cut into {train.accumulate}, leave {smallest} rows for "
            f"{workers} workers: raise train.batch_size, or lower train.accumulate or cluster.workers"
        )


def _start_over(run: Run) -> None:
    for name in OF_THE_OLD_MODEL:
        run.folder.delete(name)
    if run.config.task == "reader":
        run.folder.delete("metrics.json")
    elif run.folder.exists("metrics.json"):  # to which mining has written before
        run.add_metrics({}, instead_of="retrieval.")
    run.folder.delete("training.json")  # last: until then it identifies the old checkpoints


def training_identity(run: Run, sets: Mapping[str, TrainingSet]) -> dict[str, Any]:
    """All inputs of the trained weights, flat, so that a difference can be named."""
    config = run.config
    flat = settings_of_weights(config)
    with said_if_long(f"train: looking whether {run.config.model.name} has changed"):
        flat["model.weights"] = folder_digest(run.model_folder)
    if is_folder(config.model.name):  # its path differs in every job: its content identifies it
        del flat["model.name"]
    for name, rows in sets.items():
        flat |= dict(_flat(rows.identity, f"data.{name}"))
    if "dev" in sets and config.task == "reader":  # decides which model is the best one
        assert config.data.dev is not None
        flat["data.dev.rule"] = choose_rule(config.data.dev.rule, sets["dev"].identity["examples"])
        if config.train.dev_questions:
            flat["data.seed"] = config.data.seed
    return json.loads(json.dumps(flat))  # as it comes back from the file


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value
