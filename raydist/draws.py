"""Keyed draws: choices that depend on a seed and a row's own key, never on workers, order or other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

VERSION = 2  # of the draws: invalidates results of older draws


def keyed_uniform(seed: int, step: int, stream: str, keys: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per key, a pure function of (seed, step, stream, key): the same on every rank and after a resume.

    Seed, step and stream make one cryptographic hash, so that near seeds are unrelated; each key is mixed before and after
    adding it, so that no other seed draws the same numbers for other keys.
    """
    digest = blake2b(f"{int(seed)} {int(step)} {stream}".encode(), digest_size=16).digest()
    first, second = np.frombuffer(digest, "<u8")
    with np.errstate(over="ignore"):
        x = _mixed(_mixed(keys.astype(np.uint64) + first) ^ second)
    return (x >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mixed(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words where every bit depends on every bit (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def text_hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def text_hashes(texts: Sequence[str]) -> np.ndarray:
    return np.array([text_hash(text) for text in texts], np.int64)


def choose_rows(keys: np.ndarray, count: int | None, seed: int, stream: str) -> np.ndarray:
    """Row numbers of a seeded choice by key, in their order, independent of the set's other rows. None: all rows."""
    if count is None or count >= len(keys):
        return np.arange(len(keys))
    return np.sort(np.argsort(keyed_uniform(seed, 0, stream, keys), kind="stable")[:count])


# --- questions -------------------------------------------------------------------------------------------------------


def draw_questions(ids: Sequence[str], seed: int, adversarial: bool = False) -> np.ndarray:
    """A number in [0, 1) for each question; the copies of an adversarial set draw with their original."""
    return keyed_uniform(seed, 0, "choose", text_hashes([id.split("-", 1)[0] if adversarial else id for id in ids]))


@dataclass(frozen=True)
class Fold:
    """The questions drawn for one of several folds."""

    seed: int
    fold: int
    folds: int

    @property
    def known_by(self) -> list[int]:
        return [self.seed, self.fold, self.folds, VERSION]

    def holds(self, ids: Sequence[str]) -> np.ndarray:
        return (keyed_uniform(self.seed, 0, "fold", text_hashes(ids)) * self.folds).astype(np.int64) == self.fold


@dataclass(frozen=True)
class Choice:
    """A seeded choice of questions, as the highest accepted draw: a worker needs only its own rows."""

    seed: int
    adversarial: bool
    highest: float
    leave_out: tuple[int, int] | None  # fold and folds: rejects its questions
    only: tuple[int, int] | None = field(default=None, metadata={"later": True})  # fold and folds: accepts only its questions

    @property
    def known_by(self) -> dict[str, Any]:
        fields = asdict(self) | {"draws": VERSION}
        return {name: value for name, value in fields.items() if name != "only" or value is not None}

    def takes(self, ids: Sequence[str]) -> np.ndarray:
        taken = draw_questions(ids, self.seed, self.adversarial) <= self.highest
        if self.leave_out:
            taken &= ~Fold(self.seed, *self.leave_out).holds(ids)
        return taken & Fold(self.seed, *self.only).holds(ids) if self.only else taken
