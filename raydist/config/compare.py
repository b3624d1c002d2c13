"""Compares the settings of an earlier run with today's. A key missing on one side takes the behaviour of versions without it,
its default unless the key declares another: so a new key at its default invalidates no finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from raydist.config.keys import find_key
from raydist.config.section import Affects


class State(Enum):
    """Stands in for a missing value."""

    absent = "not set"
    section = "set"

    def __repr__(self) -> str:
        return self.value


class Settings:
    """Flat settings of one version, which may lack keys that another version has."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.sections = {section for name in values for section in sections_above(name)}

    def __getitem__(self, name: str) -> Any:
        """A key's value; if it is missing from a section that is set, the behaviour of versions without the key."""
        if name in self.values:
            return self.values[name]
        key = find_key(name)
        if key and key.name != name:  # below a plain mapping
            key = None
        if name in self.sections or (key and key.is_always_there):
            return State.section
        if key is None or key.is_required or any(self[above] is not State.section for above in sections_above(name)):
            return State.absent
        return key.before


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Differences between two flat mappings, by dotted key: 'optim.lr' -> 'optim.lr: was 3e-05, now 0.001'. Keys that affect
    nothing are ignored; names that are not config keys are compared as they are.
    """
    earlier, today = Settings(before), Settings(now)
    changed: dict[str, str] = {}
    for name in sorted(before.keys() | now.keys() | earlier.sections | today.sections):  # a section before its contents
        was, is_ = earlier[name], today[name]
        if was != is_ and not affects_nothing(name) and not any(above in changed for above in sections_above(name)):
            changed[name] = f"{name}: was {was!r}, now {is_!r}"
    return changed


def affects_nothing(name: str) -> bool:
    key = find_key(name)
    return key is not None and key.affects is Affects.nothing


def sections_above(name: str) -> Iterator[str]:
    """The sections that contain a name, outermost first."""
    steps = name.split(".")
    return (".".join(steps[:end]) for end in range(1, len(steps)))
