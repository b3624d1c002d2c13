"""Deletes models, checkpoints and stages of trials that are not among the best. Their numbers stay."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from raydist.files.storage import Storage
from raydist.runs.clean import used_stages
from raydist.runs.stages import StageUse, read_stages, write_stages

HEAVY = ("checkpoints", "best", "model", "predictions")
OF_ITS_MODEL = {"predictions", "vectors", "dense_hits", "top_hits", "rerank_scores"}  # stages unique to a trial


def prune_runs(storage: Storage, runs: Sequence[str], *, is_over: bool) -> None:
    """Delete the large files of these runs. A deletion blocked by a run that still writes is left to the next call."""
    for name in [f"{run}/{heavy}" for run in runs for heavy in HEAVY]:
        with contextlib.suppress(OSError):
            storage.delete(name)
    with contextlib.suppress(OSError):
        _drop_stages(storage, runs, is_over=is_over)


def _drop_stages(storage: Storage, runs: Sequence[str], *, is_over: bool) -> None:
    """Delete stages that only these runs use: those made with their models and, once no trial is left, the others, too; until
    then a later trial may take its silver pairs from them.
    """

    def may_go(use: StageUse) -> bool:
        return is_over or use.name in OF_ITS_MODEL

    stages = {run: read_stages(storage.at(run)) for run in runs}
    if not any(may_go(use) for uses in stages.values() for use in uses.values()):
        return
    used = used_stages(storage, but=runs)
    for run, uses in stages.items():
        gone = [folder for folder, use in uses.items() if folder not in used and may_go(use)]
        for folder in gone:
            storage.delete(folder)
        if gone:
            write_stages(storage.at(run), {folder: use for folder, use in uses.items() if folder not in gone})
