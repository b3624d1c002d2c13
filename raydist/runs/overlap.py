"""Questions and passages that dev or train share with a test set: it cannot test a model chosen by or trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.runs.run import Run
from raydist.terminal import say

FILE = "overlap.json"


@dataclass(frozen=True)
class Overlap:
    """How much of a test set is also in another set. Memory: 8 bytes for each question and passage of one set."""

    other: str  # dev or train
    test: str
    questions: int  # of the test set, whose text is in the other set
    of_questions: int
    passages: int
    of_passages: int

    @property
    def text(self) -> str:
        shared = [
            f"{number:,} of {of:,} {kind}"
            for number, of, kind in (
                (self.questions, self.of_questions, "questions"),
                (self.passages, self.of_passages, "passages"),
            )
            if number
        ]
        has = f"{self.other} has {' and '.join(shared)} of"
        if self.test == "dev":
            return f"{has} dev: the model is chosen by what it was trained on"
        why = {"dev": "the model is chosen by what it is tested on", "train": "it is tested on what it was trained on"}
        return f"{has} test set {self.test}: {why[self.other]}"


def check_overlap(run: Run, keys: Mapping[str, Made], tests: Sequence[str], *, chosen: bool) -> None:
    """Report or refuse overlap of test sets with dev (if it chooses anything) and train; overlap.json records it.

    `keys`: for each set, hashes of its normalised questions and passages, in columns `question` and `passage`.
    """
    others = ["dev"] * (chosen and "dev" in keys) + ["train"] * ("train" in keys)
    found = [overlap for other in others for overlap in _overlaps(other, keys, [test for test in tests if test != other])]
    for overlap in found:
        say(overlap.text)
    before = run.folder.read_json(FILE) if run.folder.exists(FILE) else []
    kept = [line for line in before if line["other"] not in keys]  # an evaluation does not check train
    run.folder.write_json(FILE, kept + [asdict(overlap) | {"text": overlap.text} for overlap in found])
    if found and run.config.data.overlap == "refuse":
        raise InputError(
            f"{'; '.join(overlap.text for overlap in found)}. Take other data for {' and '.join({o.other: 0 for o in found})}, "
            f"or set data.overlap: warn"
        )


def _overlaps(other: str, keys: Mapping[str, Made], tests: Sequence[str]) -> list[Overlap]:
    questions, passages = (_distinct(keys[other], name) for name in ("question", "passage"))
    found = []
    for test in tests:
        asked = [table["question"].to_numpy() for table in keys[test].tables(["question"])]
        around = _distinct(keys[test], "passage")
        overlap = Overlap(
            other,
            test,
            sum(int(np.isin(part, questions).sum()) for part in asked),
            sum(map(len, asked)),
            int(np.isin(around, passages).sum()),
            len(around),
        )
        found += [overlap] * bool(overlap.questions or overlap.passages)
    return found


def _distinct(keys: Made, column: str) -> np.ndarray:
    """The distinct hashes of a column."""
    distinct = np.zeros(0, np.int64)
    for table in keys.tables([column]):
        distinct = np.union1d(distinct, table[column].drop_null().to_numpy())
    return distinct
