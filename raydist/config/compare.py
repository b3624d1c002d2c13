"""Settings of an earlier run against today's. A key that one side lacks counts as what versions without it did, which is its
default unless the key says otherwise: so a new key at its default refuses no finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from raydist.config.keys import find_key
from raydist.config.section import Affects


class State(Enum):
    """What stands for a value where there is none."""

    absent = "not set"
    section = "set"

    def __repr__(self) -> str:
        return self.value


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What differs between two flat mappings, by dotted key: 'optim.lr' -> 'optim.lr: was 3e-05, now 0.001'. A key that affects
    nothing makes no difference. Names that are no keys of the config are compared as they are."""
    changed: dict[str, str] = {}
    for name in sorted(before.keys() | now.keys()):
        was, is_ = _value(before, name), _value(now, name)
        if was != is_ and not _affects_nothing(name) and not any(above in changed for above in _above(name)):
            changed[name] = f"{name}: was {was!r}, now {is_!r}"
    return changed


def _affects_nothing(name: str) -> bool:
    key = find_key(name)
    return key is not None and key.affects is Affects.nothing


def _value(settings: Mapping[str, Any], name: str) -> Any:
    if name in settings:
        return settings[name]
    if any(other.startswith(f"{name}.") for other in settings):
        return State.section
    key = find_key(name)
    if key is None or key.name != name or key.is_required or not all(_is_there(settings, above) for above in _above(name)):
        return State.absent
    return key.before


def _is_there(settings: Mapping[str, Any], name: str) -> bool:
    """Whether a section is: by its keys, or because it always is."""
    key = find_key(name)
    always = key is not None and isinstance(key.default, dict) and not key.is_mapping and not key.is_required
    return always or any(other.startswith(f"{name}.") for other in settings)


def _above(name: str) -> Iterator[str]:
    """The sections that a name stands in."""
    steps = name.split(".")
    return (".".join(steps[:end]) for end in range(1, len(steps)))
