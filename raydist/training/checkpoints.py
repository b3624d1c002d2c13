"""Checkpoints, written and restored: model, optimizer, schedule, step.

The data position and the random states are functions of (seed, step), so a resumed run makes the same updates as an
uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from raydist.errors import InputError
from raydist.files.storage import Storage, has_model


@dataclass
class TrainState:
    """The progress of training, without weights and moments."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    waited: int = 0  # evaluations since the best one
    over: bool = False  # stopped early
    log: dict[str, Any] = field(default_factory=dict)  # the run log's state: times, steps not yet logged


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint: its name, which is a date, and access to its files."""

    name: str
    folder: str  # its parent, for messages
    opened: Callable[[], AbstractContextManager[str | Path]]


def write_checkpoint(folder: Path, task: torch.nn.Module, optimizer: Any, schedule: Any, state: TrainState) -> None:
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in task.state_dict().items()}, folder / "task.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    plain = asdict(state)
    plain |= plain.pop("log") | {"schedule": schedule.state_dict()["last_epoch"]}
    (folder / "state.json").write_text(json.dumps(plain))


def restore(
    checkpoints: Sequence[SavedCheckpoint], task: torch.nn.Module, optimizer: Any, schedule: Any, *, needed: bool
) -> tuple[TrainState, list[str]]:
    """Restore the first readable checkpoint; returns its state and the names of the damaged ones.

    Unless one is `needed`, all may be damaged, as after an interrupted first write: then start from scratch.
    """
    damaged: list[str] = []
    for candidate in checkpoints:
        try:
            weights, moments, plain = _read(candidate)
            break
        except (OSError, EOFError, ValueError, RuntimeError, KeyError, SafetensorError, UnpicklingError):
            damaged.append(candidate.name)
    else:
        if not needed:
            return TrainState(), damaged
        raise InputError(
            f"no checkpoint can be read ({', '.join(damaged)} in {checkpoints[0].folder}); start over with --fresh"
        )
    task.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    _restore_schedule(schedule, plain.pop("schedule"))
    return _state(plain), damaged


def _read(checkpoint: SavedCheckpoint) -> tuple[dict, dict, dict]:
    """Weights, the optimizer's state, our own state; all three, or an error."""
    from safetensors.torch import load_file

    with checkpoint.opened() as folder:
        weights = load_file(f"{folder}/task.safetensors")
        moments = torch.load(f"{folder}/optimizer.pt", weights_only=True)
        return weights, moments, json.loads(Path(folder, "state.json").read_text())


def _state(plain: Mapping[str, Any]) -> TrainState:
    own = TrainState.__dataclass_fields__.keys() - {"log"}
    return TrainState(**{key: plain[key] for key in own}, log={key: plain[key] for key in plain.keys() - own})


def _restore_schedule(schedule: Any, position: int) -> None:
    schedule.last_epoch = position
    shares = [share(position) for share in schedule.lr_lambdas]
    schedule._last_lr = [base * share for base, share in zip(schedule.base_lrs, shares)]
    for group, lr in zip(schedule.optimizer.param_groups, schedule._last_lr):
        group["lr"] = lr


def keep_best(run: Storage, state: TrainState) -> None:
    """Delete all best/STEP but the latest checkpoint's: a resumed run may have left others."""
    for name in run.folders("best"):
        if name != str(state.best_step):
            run.delete(f"best/{name}")


def forget_lost_best(run: Storage, state: TrainState) -> None:
    """Reset the best score if its model is gone (later steps were lost): the best will be one of the steps to come."""
    if state.best_step and not has_model(run, f"best/{state.best_step}"):
        state.best, state.best_step = -1.0, 0
