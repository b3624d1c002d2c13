"""Small sweeps: configs, ends of trials, the stages that trials used."""

from pathlib import Path

from raydist.config import load_config
from raydist.files.storage import Storage
from raydist.runs.stages import StageUse, read_stages
from raydist.sweep.driver import Sweep


def sweep_config(storage: object, *overrides: str):
    """Two settings of a reader with two seeds."""
    return load_config("debug_sweep", [f"storage={storage}", "sweep.at_once=1", *overrides]).config


def mined_config(storage: object, *overrides: str):
    """Two settings of a retriever."""
    dev = ["corpus.dev_share=0.2", "train.evaluate_every=null", "sweep.metric=dev.mrr"]
    given = [f"storage={storage}", "name=mined_sweep", "retriever.rerank=0", "sweep.space.mining.threshold=[0,1]"]
    return load_config("debug_retrieval", [*given, *dev, "sweep.at_once=1", *overrides]).config


def stages_of(run: Path) -> dict[str, StageUse]:
    """The stages that a run used, by title."""
    return {use.title: use for use in read_stages(Storage(str(run))).values()}


def end_trials(sweep: Sweep, scores: list[float]) -> dict[str, dict]:
    """The first trials of a sweep come to their end with these scores."""
    for trial, score in zip(sweep.trials.values(), scores):
        sweep.ledger.add({"id": trial.id, "status": "done", "metrics": {sweep.settings.metric: score}})
    return sweep.ledger.entries()
