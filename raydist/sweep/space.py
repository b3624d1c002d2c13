"""The search space of a sweep: a space over dotted keys -> axes -> settings. A setting has one value for each key."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydist.config import Config, override
from raydist.files.storage import fingerprint

RANGES = ("uniform", "loguniform", "int")
KINDS = ("choice", *RANGES)
NOT_SWEPT = {
    **{"name": "", "storage": "", "task": "", "sweep": "", "seed": "use sweep.seeds"},
    **{"cluster": "it changes no result", "track": "it changes no result"},
}
TRIES = 100  # repeated draws in a row before a finite space counts as exhausted


@dataclass(frozen=True)
class Axis:
    """A dotted key and the values it may take: a list (`choice`), or the ends of a range, both included."""

    key: str
    kind: str
    values: tuple

    def draw(self, rng: np.random.Generator) -> Any:
        if self.kind == "choice":
            return self.values[rng.integers(len(self.values))]
        low, high = self.values
        if self.kind == "int":
            return int(rng.integers(low, high + 1))
        if self.kind == "loguniform":
            return self.tidy(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.tidy(rng.uniform(low, high))

    def tidy(self, value: float) -> float:
        """Round to six digits, enough to read and retype."""
        return min(max(float(f"{value:.6g}"), self.values[0]), self.values[1])


def read_space(space: Mapping[str, Any]) -> tuple[list[Axis], list[str]]:
    """The axes and the problems of a space. Keys may be nested, as command-line overrides leave them."""
    axes, problems = [], []
    for key, value in _leaves(space):
        kind, values = "choice", value
        if isinstance(value, dict):
            ((kind, values),) = value.items()
        wrong = _wrong_values(kind, values)
        first = key.split(".")[0]
        if key in NOT_SWEPT or first in NOT_SWEPT:
            wrong = f"cannot be swept over; {NOT_SWEPT.get(key) or NOT_SWEPT[first]}".rstrip("; ")
        if wrong:
            problems.append(f"sweep.space.{key}: {wrong}")
        else:
            ends = [int(end) if kind == "int" else float(end) for end in values] if kind in RANGES else values
            axes.append(Axis(key, kind, tuple(ends)))
    if not axes and not problems:
        problems.append("sweep.space: no key is given")
    return axes, problems


def _leaves(space: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """(dotted key, list or {kind: list}). A key may occur twice, dotted and nested: the later one counts."""
    leaves: dict[str, Any] = {}
    for name, value in space.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict) and not (len(value) == 1 and next(iter(value)) in KINDS and _is_list(*value.values())):
            leaves.pop(key, None)
            leaves |= dict(_leaves(value, key)) if value else {key: []}
        else:
            leaves[key] = value
    return list(leaves.items())


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _wrong_values(kind: str, values: Any) -> str | None:
    if not _is_list(values):
        return f"should be a list of values, or one of {', '.join(KINDS)} with a list, got {values!r}"
    if not values:
        return "the list is empty"
    if kind == "choice":
        return None
    if len(values) != 2:
        return f"{kind} takes [low, high], got {list(values)}"
    try:
        low, high = (float(value) for value in values)  # YAML reads 3e-5 as a string
    except (TypeError, ValueError):
        return f"{kind} takes two numbers, got {list(values)}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{kind} takes two finite numbers, got {list(values)}"
    if low > high:
        return f"low is more than high: {list(values)}"
    if kind == "loguniform" and low <= 0:
        return f"loguniform needs a low above 0, got {list(values)}"
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        return f"int takes two whole numbers, got {list(values)}"
    return None


# --- settings --------------------------------------------------------------------------------------------------------


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination; the last key changes fastest."""
    return [dict(zip([axis.key for axis in axes], values)) for values in itertools.product(*(axis.values for axis in axes))]


def draw(axes: Sequence[Axis], number: int, seed: int) -> list[dict[str, Any]]:
    """`number` different settings, the n-th a function of (seed, n): a longer draw begins with the same ones."""
    settings: dict[str, dict[str, Any]] = {}
    tried = since = 0
    while len(settings) < number and since < TRIES:
        rng = np.random.default_rng([seed, tried])
        choice = {axis.key: axis.draw(rng) for axis in axes}
        since = since + 1 if fingerprint(choice) in settings else 0
        settings.setdefault(fingerprint(choice), choice)
        tried += 1
    return list(settings.values())


def applied(base: Config, choice: Mapping[str, Any]) -> Config:
    """The config of a setting. Values are copied: one may be a section that another key changes in part."""
    return override(base, copy.deepcopy(dict(choice)))


def typed(base: Config, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with its values as the config holds them (3e-5 for "3e-5"), checked as a whole."""
    values = applied(base, choice).model_dump(mode="json")

    def at(key: str) -> Any:
        value: Any = values
        for step in key.split("."):
            value = value[step]
        return value

    return {key: value if isinstance(at(key), dict) else at(key) for key, value in choice.items()}
