"""The progress and results of a run, from the files in its folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from raydist.errors import InputError
from raydist.files.stage import read_manifest
from raydist.files.storage import Storage
from raydist.files.yaml_text import load_yaml
from raydist.runs.owners import run_owner
from raydist.runs.stages import StageUse, read_stages
from raydist.sweep.ledger import Ledger, is_finished
from raydist.terminal import duration


def describe_run(folder: str) -> str:
    """A text about a run's progress and results."""
    run = Storage(folder)
    run.check_reachable()
    if not run.exists("config.yaml"):
        raise InputError(
            f"{folder} is not a run: it has no config.yaml; runs are folders in `storage`, such as runs/quickstart"
        )
    unfinished: list[Storage] = []  # with files still to be written
    lines = [f"run {Path(folder).name}", *_stage_lines(run, unfinished), *_trial_lines(run, unfinished)]
    training = run.read_json("training.json") if run.exists("training.json") else None
    lines += _training_lines(run, training)
    if owner := run_owner(run):
        lines.append(f"  at work: {owner}")
    if (training and not training["done"]) or unfinished:
        silent = time.time() - max(place.newest() for place in [run, *unfinished])
        lines.append(f"  last written to {duration(silent)} ago; if its command has ended, the same command goes on")
    if run.exists("failure.json"):
        lines.append(f"  failed: {run.read_json('failure.json')['message']}")
    return "\n".join([*lines, *_score_lines(run)])


def _stage_lines(run: Storage, unfinished: list[Storage]) -> list[str]:
    config = load_yaml(run.read_bytes("config.yaml"))
    above = Path(run.path()).parents[config["name"].count("/")]
    storage = Storage(config["storage"] if "://" in config["storage"] else str(above))
    return [f"  {use.title}: {_how_far(storage, use, unfinished)}({use.folder})" for use in read_stages(run).values()]


def _how_far(storage: Storage, use: StageUse, unfinished: list[Storage]) -> str:
    if not use.parts:
        return f"{use.rows:,} rows " if use.rows else ""
    folder = storage.at(use.folder)  # it was unfinished when this was recorded
    if folder.exists("manifest.json"):
        return f"{read_manifest(folder).rows:,} rows "
    unfinished.append(folder)
    done = sum(name.startswith("part-") for name in folder.sizes())
    return f"{done} of {use.parts} parts "


def _trial_lines(run: Storage, unfinished: list[Storage]) -> list[str]:
    if not run.exists("begun.json"):
        return []
    entries, begun = Ledger(run).entries(), run.folders("trials")
    finished = [id for id in entries if is_finished(entries[id])]
    failed = f", {len(entries) - len(finished)} with an error" if len(entries) > len(finished) else ""
    unfinished += [run.at("trials", id) for id in begun if id not in entries]
    return [f"  trials: {len(finished)} finished{failed}, {len(begun)} begun"]


def _training_lines(run: Storage, training: dict[str, Any] | None) -> list[str]:
    if training and training["done"]:
        fitted = training["fitted"]
        rate = f"{fitted['steps']:,} steps in {fitted['seconds']:.0f} s ({fitted['examples_per_s']:.1f} examples/s)"
        return [f"  train: done, {rate}"]
    if run.exists("progress.json"):
        seen = run.read_json("progress.json")
        return [f"  train: step {seen['step']:,} of {seen['total']:,} {seen['note']}"]
    return []


def _score_lines(run: Storage) -> list[str]:
    metrics = run.read_json("metrics.json") if run.exists("metrics.json") else {}
    ends = (".f1", ".em", ".addsent_f1", "dev.mrr")
    lines = [
        f"  {key}: {value:.2f}"
        for key, value in metrics.items()
        if key.endswith(ends) and not key.startswith(("cross_encoder.", "train."))
    ]
    ranked = {key: value for key, value in metrics.items() if key.startswith("retrieval.") and key.endswith(("P@1", "MRR@100"))}
    return lines + [f"  {key}: {100 * value:.2f}" for key, value in ranked.items()]
