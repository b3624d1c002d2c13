"""CONTRIBUTING's recipe for a stage, performed: a stage from this folder, made by a run, resumed and read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from raydist.config import load_config
from raydist.files.stage import Part, Worker
from raydist.here import Here
from raydist.retrieval.corpus_stages import BlockStage
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run


@dataclass(frozen=True)
class Lengths(BlockStage):
    """Questions -> how many words each has."""

    name: ClassVar[str] = "lengths"

    least: int

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            words = [len(text.split()) for text in self.corpus.questions(number)["text"].to_pylist()]
            return Part(pa.table({"words": [count for count in words if count >= self.least]}))

        return make


@pytest.fixture
def run(tmp_path):
    changes = [f"storage={tmp_path}", "corpus.train.questions=30", "mining.part_questions=8"]
    with Run(load_config("debug_retrieval", changes).config, Here()) as run:
        yield run


def test_a_stage_is_a_class_and_a_line_of_a_flow(run, capsys):
    corpus = open_corpora(run, ["train"])["train"]
    asked = [len(text.split()) for text in corpus.read("questions")["text"].to_pylist()]
    made = run.make(Lengths(corpus, 0), "lengths of train")
    assert [count for table in made.tables() for count in table["words"].to_pylist()] == asked
    assert len(made.manifest.parts) == 4

    folder = Path(made.folder.path())  # interrupted: no manifest, a part missing
    before = {file.name: file.read_bytes() for file in folder.glob("part-*")}
    (folder / "manifest.json").unlink()
    (folder / "part-00002.parquet").unlink()
    capsys.readouterr()
    run.make(Lengths(corpus, 0), "lengths of train")
    assert "lengths: resuming after 3 finished parts" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in folder.glob("part-*")} == before

    run.make(Lengths(corpus, 0), "lengths of train")
    assert "lengths of train: already done (30 rows)" in capsys.readouterr().out
    assert run.make(Lengths(corpus, 6), "long questions of train").folder != made.folder, "another field, another stage"
