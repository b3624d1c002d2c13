"""stages.json of a run: which stages it used. They live in <storage>/stages/, shared by runs and trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from raydist.files.storage import Storage

FILE = "stages.json"


@dataclass(frozen=True)
class StageUse:
    """A stage used by a run."""

    folder: str
    title: str  # readable name
    rows: int = 0
    seconds: float = 0.0
    reused: bool = False
    parts: int = 0  # total number, while the stage is being made

    @property
    def name(self) -> str:
        """The stage's own name, independent of its use."""
        return self.folder.rpartition("/")[2].rpartition("-")[0]


def read_stages(run: Storage) -> dict[str, StageUse]:
    """The stages of a run by folder; empty if it used none."""
    if not run.exists(FILE):
        return {}
    uses = [StageUse(**{"title": key} | use) for key, use in run.read_json(FILE).items()]  # in earlier versions by title
    return {use.folder: use for use in uses}


def write_stages(run: Storage, stages: Mapping[str, StageUse]) -> None:
    run.write_json(FILE, {use.folder.rpartition("/")[2]: _plain(use) for use in stages.values()})


def _plain(use: StageUse) -> dict:
    return {key: value for key, value in asdict(use).items() if key != "parts" or value}
