"""The two-stage reader (docs/methods.md 6): base reader -> n-best sets of the training questions -> final reader.

A base reader is a separate run beside the final one (`NAME_base`; one per fold if sets are cross-fitted), made and resumed by
the same functions.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any

from raydist.config import HardLearningConfig, ObjectivesConfig
from raydist.draws import Fold
from raydist.files.stage import Made
from raydist.files.storage import Place, file_digest
from raydist.models.located import tokenizer_digest
from raydist.reader import flow
from raydist.reader.nbest_sets import check_sets_file
from raydist.reader.stages import NbestSets, WindowSet
from raydist.runs.locate import locate
from raydist.runs.run import Run
from raydist.terminal import say


def base_runs(run: Run) -> list[Run]:
    """The plain readers whose n-best lists make the sets: same data and settings, task objective only."""
    off: dict[str, Any] = {f"objectives.{name}": None for name in ObjectivesConfig.model_fields if name != "span"}
    off |= {"predict.model": None, "predict.split": [], "evaluate.predictions": {}}
    folds, name = _wanted(run).nbest_folds, run.base or f"{run.config.name}_base"
    if folds == 1:
        return [run.beside(name, off)]
    return [run.beside(f"{name}{fold}", off | {"data.train.leave_out": [fold, folds]}) for fold in range(folds)]


def _wanted(run: Run) -> HardLearningConfig:
    assert run.config.objectives.hard_learning is not None
    return run.config.objectives.hard_learning


def with_nbest_sets(run: Run, windows: WindowSet, *, fresh: bool = False) -> WindowSet:
    """The training windows with their n-best sets, if the mode uses any; trains base readers as needed."""
    wanted = _wanted(run)
    run.folder.delete("base.json")
    if not wanted.needs_sets:
        return windows
    if wanted.sets:
        place = sets_place(run, wanted.sets)
        file = _fetched(place, wanted.sets)
        _check_file(run, file)
        stage = NbestSets(windows, wanted.size, file=file_digest(file), place=place)
    else:
        lists = base_lists(run, windows, k=wanted.size, fresh=fresh)
        run.folder.write_json("base.json", {"run": way_to(run, base_runs(run)[0])})
        stage = NbestSets(windows, wanted.size, tuple(lists))
    return replace(windows, nbest_sets=run.make(stage, "n-best sets of train", "n-best sets"))


def base_lists(run: Run, windows: WindowSet, *, k: int, fresh: bool = False) -> list[Made]:
    """Train the base readers; each makes the lists of the final run's training windows (with folds, of its own fold)."""
    bases, seed = base_runs(run), run.config.data.seed
    made = []
    for number, base in enumerate(bases):
        say(f"base reader: run {base.config.name}")
        base.begin()
        flow.train_reader(base, fresh=fresh)
        fold = Fold(seed, number, len(bases)) if len(bases) > 1 else None
        made.append(flow.make_predictions(base, {"train": windows}, k=k, fold=fold)["train"])
    return made


def evaluate_base(run: Run) -> None:
    """Scores of the base reader (the first of several), so that the report can show before and after."""
    if not run.folder.exists("base.json"):
        return
    base = base_runs(run)[0]
    base.begin()
    say(f"base reader {base.config.name}:")
    flow.score_sets(base)


def way_to(run: Run, base: Run) -> str:
    """The base run's path relative to this run's parent folder: both may be moved together."""
    return posixpath.relpath(base.config.name, posixpath.dirname(run.config.name) or ".")


# --- lists from a file -----------------------------------------------------------------------------------------------


def sets_place(run: Run, sets: str) -> Place:
    """The location of the file of lists for any node: in the folder of a URI, else resolved like other files."""
    if "://" not in sets:
        return locate(run, sets)
    path, mark, query = sets.partition("?")
    folder, _, name = path.rpartition("/")
    return Place(name, f"{folder}{mark}{query}")


def _fetched(place: Place, sets: str) -> str:
    try:
        return str(place.fetch())
    except FileNotFoundError:  # no such folder in a store
        return sets  # report it by name


def _check_file(run: Run, file: str) -> None:
    wanted = {
        "tokenizer": tokenizer_digest(run.model_folder),
        "examples": run.prepared["train"].examples.fingerprint,
        "max_answer_length": run.config.predict.max_answer_length,
    }
    check_sets_file(file, wanted, _wanted(run).size)
