"""The scoring rule of a data set, by its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_FORMATS = ("mrqa", "hotpotqa")
_MLQA_NAME = re.compile(r"mlqa|context-[a-z]{2}-question-[a-z]{2}\b", re.IGNORECASE)


def choose_rule(given: str, source: Mapping[str, Any]) -> str:
    """The given rule, or under ``auto`` the rule for a data set read from ``source`` (an examples stage's identity):

    ``mlqa`` if every file, or hub data set or config, is named like MLQA's; ``mrqa`` or ``hotpotqa`` if every file has that
    format, or a hub data set that name; else ``squad``.
    """
    if given != "auto":
        return given
    if "hub" in source:
        name, _, config = source["hub"]
        called = f"{Path(name).name} {config or ''}".lower().replace("_", "")  # the hub has a hotpot_qa
        return "mlqa" if _MLQA_NAME.search(called) else next((rule for rule in _OF_FORMATS if rule in called), "squad")
    if all(_MLQA_NAME.search(file["name"]) for file in source["files"]):
        return "mlqa"
    formats = {file["format"] for file in source["files"]}
    return next((rule for rule in _OF_FORMATS if formats == {rule}), "squad")
