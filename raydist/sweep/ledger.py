"""The ended trials of a sweep and their outcomes: one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.files.storage import Storage


class Ledger:
    """finished/ID.json of a sweep: an entry for each trial that ended.

    `status` is done, stopped (by the scheduler), failed (a loss that is not finite: a retry would not help) or error (the next
    session tries again).
    """

    def __init__(self, folder: Storage) -> None:
        self.folder = folder

    def entries(self) -> dict[str, dict[str, Any]]:
        """All entries by the trial's id."""
        names = sorted(name for name in self.folder.sizes("finished") if name.endswith(".json"))
        entries = [self.folder.read_json(f"finished/{name}") for name in names]
        return {entry["id"]: entry for entry in entries}

    def get(self, id: str) -> dict[str, Any] | None:
        name = f"finished/{id}.json"
        return self.folder.read_json(name) if self.folder.exists(name) else None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry. An error does not replace an earlier one: a trial that is being stopped may still raise."""
        if entry["status"] != "error" or self.get(entry["id"]) is None:
            self.folder.write_json(f"finished/{entry['id']}.json", dict(entry))

    def forget(self, id: str) -> None:
        self.folder.delete(f"finished/{id}.json")


def is_finished(entry: Mapping[str, Any] | None) -> bool:
    """Whether a trial need not be run again."""
    return entry is not None and entry["status"] != "error"
