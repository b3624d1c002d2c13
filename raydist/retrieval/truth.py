"""What the sample world knows of mined pairs: it has a list of all sentences that answer a question beside the marked one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Set

import pyarrow as pa
import pyarrow.compute as pc

from raydist.retrieval.corpus_stages import Corpus
from raydist.runs.locate import SAMPLE, locate
from raydist.runs.run import Run

Pairs = Set[tuple[str, str]]  # (question, sentence)


def known_answers(run: Run, corpus: Corpus) -> Pairs | None:
    """The unmarked answers of a training corpus's questions; None for a corpus of which nobody knows them."""
    source = run.config.corpus.train
    if source is None or not source.files[0].startswith(SAMPLE):
        return None
    asked = {id for batch in corpus.batches("questions", ["question_id"]) for id in batch["question_id"].to_pylist()}
    with open(locate(run, f"{SAMPLE}restated.jsonl").fetch(), encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        return {(row["query-id"], row["corpus-id"]) for row in rows if row["query-id"] in asked}


def count_right(silver: Iterable[pa.Table], answers: Pairs) -> int:
    """How many of the kept pairs are answers."""
    right = 0
    for block in silver:
        kept = block.filter(pc.field("kept"))
        right += sum(pair in answers for pair in zip(kept["question_id"].to_pylist(), kept["sentence_id"].to_pylist()))
    return right
