"""Values and names as shown in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number"}


def kind(value: Any) -> str:
    """The JSON type of a value."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def short(value: Any) -> str:
    """The first characters of a value, in quotes."""
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def some(names: Iterable[Any]) -> str:
    """The first names, and the number of further ones."""
    names = [name if len(name := str(one)) <= 60 else f"{name[:57]}..." for one in names]
    return (", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")) or "nothing"


def nearest(name: str, known: Iterable[Any]) -> str:
    """The known names most like this one."""
    close = difflib.get_close_matches(name, [str(one) for one in known], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(one[:60] for one in close)}?" if close else ""
