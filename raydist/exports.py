"""What a run made, in the shape that others take: `raydist export RUN --to KIND`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from raydist.config import load_config
from raydist.errors import InputError
from raydist.files.storage import MODEL_SETTINGS, has_model
from raydist.here import Here
from raydist.runs.card import card, metrics_of, write_card
from raydist.runs.run import Run

CARD = "README.md"


def export(folder: Path | str, kind: str, out: Path | str | None = None) -> Path:
    """Write a run's model or pairs for other tools; returns where.

    hub-folder: the model with its card, to be pushed as it is. sentence-transformers: a retriever or cross-encoder, opened by
    that library. triplets: gold and silver pairs with a wrong candidate each, as JSON Lines. onnx: model.onnx and tokenizer.
    """
    if kind not in KINDS:
        raise InputError(f"there is no export {kind!r}; there are {', '.join(KINDS)}")
    run = open_run(Path(folder))
    ending = ".jsonl" if kind == "triplets" else ""
    target = Path(out) if out else Path(run.folder.path("exported", f"{kind}{ending}"))
    if out and target.exists():
        raise InputError(f"{target} is there already; give another place, or delete it")
    target.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](run, target)
    return target


def open_run(folder: Path) -> Run:
    """A run from its folder, wherever it is now, in this process."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is no run: it has no config.yaml; runs are folders in `storage`, such as runs/quickstart")
    place = folder.expanduser().absolute()
    settings = [f"storage={place.parent}", f"name={place.name}"]
    return Run(load_config(str(place / "config.yaml"), settings).config, Here())


def _hub_folder(run: Run, target: Path) -> None:
    if not has_model(run.folder):
        raise InputError(f"run {run.config.name!r} has no model yet: train it first (raydist train)")
    write_card(run)
    shutil.copytree(run.folder.path("model"), target, dirs_exist_ok=True)
    if not (target / CARD).exists():
        (target / CARD).write_text(card(run, metrics_of(run)), encoding="utf-8")


def _sentence_transformers(run: Run, target: Path) -> None:
    if run.config.task == "reader":
        raise InputError(
            "a reader is no model of sentence-transformers: it finds spans; take --to hub-folder, which transformers opens"
        )
    _hub_folder(run, target)
    for settings in target.rglob(MODEL_SETTINGS):
        settings.unlink()


def _triplets(run: Run, target: Path) -> None:
    from raydist.retrieval.triplets import write_triplets

    if run.config.task == "reader":
        raise InputError("triplets are of runs that mined (raydist mine, or run of a retriever); this one trained a reader")
    if not write_triplets(run, target):
        target.unlink()
        raise InputError(
            f"no question of run {run.config.name!r} has a candidate that is no answer by mining.negative_p "
            f"{run.config.mining.negative_p:g}: there is no triplet; raise it"
        )


def _onnx(run: Run, target: Path) -> None:
    from raydist.onnx_export import write_onnx

    if not has_model(run.folder):
        raise InputError(f"run {run.config.name!r} has no model yet: train it first (raydist train)")
    write_card(run)
    write_onnx(run.config.task, Path(run.folder.path("model")), target)


KINDS: dict[str, Callable[[Run, Path], None]] = {
    "hub-folder": _hub_folder,
    "sentence-transformers": _sentence_transformers,
    "triplets": _triplets,
    "onnx": _onnx,
}
