"""The two-stage reader (docs/methods.md 6): base reader -> n-best sets of the training questions -> final reader.

A base reader is a run of its own beside the final one (`NAME_base`; one for each fold where sets are cross-fitted), made by the
same functions, and resumed by them.
"""

from __future__ import annotations

import posixpath
from typing import Any

from raydist.cluster.pipeline import (
    Made,
    Run,
    evaluate,
    locate,
    make_predictions,
    reader_folder,
    run_stages,
    tokenizer_digest,
    train,
)
from raydist.cluster.stages import Work
from raydist.config import ObjectivesConfig, override
from raydist.files.stage import Stage
from raydist.files.storage import fetch, file_digest
from raydist.terminal import say

SETS_VERSION = 1


def base_runs(run: Run) -> list[Run]:
    """The plain readers whose n-best lists make the sets: the same data and settings, and no objective but the task."""
    wanted = run.config.objectives.hard_learning
    assert wanted is not None
    off: dict[str, Any] = {f"objectives.{name}": None for name in ObjectivesConfig.model_fields if name != "span"}
    off |= {"predict.model": None, "predict.split": [], "evaluate.predictions": {}}
    folds = wanted.nbest_folds
    bases = []
    for fold in range(folds):
        own = {"name": (run.base or f"{run.config.name}_base") + (f"{fold}" if folds > 1 else "")}
        left_out = {"data.train.leave_out": [fold, folds]} if folds > 1 else {}
        bases.append(Run(override(run.config, off | own | left_out), run.cluster))
    return bases


def with_nbest_sets(run: Run, where: dict, *, fresh: bool = False) -> dict:
    """The training windows (`where`, as workers take it) with their n-best sets; base readers are trained where needed.
    A mode that takes no sets gets none.
    """
    wanted = run.config.objectives.hard_learning
    assert wanted is not None
    predictions: list[dict] = []
    run.folder.delete("base.json")
    if not wanted.needs_sets:
        return where
    if wanted.sets:
        place = sets_place(run, wanted.sets)
        file = _fetched(place, wanted.sets)
        _check_file(run, file)
        source: dict = {"file": file_digest(file)}
        predictions = [{"file": place} for _ in where["windows"]]
    else:
        made = base_lists(run, where, k=wanted.size, fresh=fresh)
        run.folder.write_json("base.json", {"run": way_to(run, base_runs(run)[0])})
        source = {"predictions": [lists.stage.fingerprint for lists in made]}
        predictions = [
            {"predictions": [[lists.stage.uri, lists.manifest.parts[number]["name"]] for lists in made]}
            for number in range(len(where["windows"]))
        ]
    from raydist.reader.nbest_sets import set_part_maker

    identity = {"version": SETS_VERSION, "windows": where["fingerprint"], "size": wanted.size} | source
    same = {"windows_folder": where["windows_folder"], "folder": where["folder"]}
    specs = [
        same | {"windows": windows, "part": part, "row_group": group} | lists
        for windows, (part, group), lists in zip(where["windows"], where["examples"], predictions)
    ]
    work = Work(Stage(run.storage, "nbest_sets", identity, kind="arrow"), specs, "n-best sets of train")
    (manifest,) = run_stages(
        run, [work], set_part_maker, {"size": wanted.size}, label="n-best sets", actors=run.config.cluster.actors
    )
    return where | {
        "sets_folder": work.stage.uri,
        "sets": [part["name"] for part in manifest.parts],
        "identity": where["identity"] | {"nbest_sets": identity},
    }


def base_lists(run: Run, where: dict, *, k: int, fresh: bool = False) -> list[Made]:
    """Train the base readers and let each make the lists of the final run's training windows (of its own fold, with folds)."""
    bases = base_runs(run)
    made = []
    for fold, base in enumerate(bases):
        say(f"base reader: run {base.config.name}")
        base.begin()
        train(base, fresh=fresh)
        part = (fold, len(bases)) if len(bases) > 1 else None
        lists = make_predictions(base, {"train": where}, reader_folder(base), k=k, fold=part)
        made.append(lists["train"])
    return made


def sets_place(run: Run, sets: str) -> dict[str, str]:
    """Where any node finds the file of lists, as `fetch` takes it: in the folder of a URI, else as other files are found."""
    if "://" not in sets:
        return locate(run, sets)
    path, mark, query = sets.partition("?")
    folder, _, name = path.rpartition("/")
    return {"folder": f"{folder}{mark}{query}", "name": name}


def _fetched(place: dict[str, str], sets: str) -> str:
    try:
        return str(fetch(place))
    except FileNotFoundError:  # no such folder in a store
        return sets  # told by its name


def way_to(run: Run, base: Run) -> str:
    """The way to the base reader's run from the folder that this run is in: both may be moved together."""
    return posixpath.relpath(base.config.name, posixpath.dirname(run.config.name) or ".")


def _check_file(run: Run, file: str) -> None:
    from raydist.reader.nbest_sets import check_sets_file

    wanted = {
        "tokenizer": tokenizer_digest(run.model_folder),
        "examples": run.prepared["train"].examples.stage.fingerprint,
        "max_answer_length": run.config.predict.max_answer_length,
    }
    assert run.config.objectives.hard_learning is not None
    check_sets_file(file, wanted, run.config.objectives.hard_learning.size)


def evaluate_base(run: Run) -> None:
    """Scores of the base reader (the first of several), so that the report can show before and after."""
    if not run.folder.exists("base.json"):
        return
    base = base_runs(run)[0]
    base.begin()
    say(f"base reader {base.config.name}:")
    evaluate(base)
