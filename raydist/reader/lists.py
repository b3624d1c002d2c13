"""Predictions as files for others: answers in the SQuAD layout, n-best lists, and lines with texts and the user's own ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from raydist.corpus.ids import text_id
from raydist.files.stage import Made
from raydist.reader.evaluate import with_unique_ids
from raydist.reader.prepare import choose_questions
from raydist.runs.run import Run

_ASKED = ["id", "question", "title", "language", "passage_id", "file", "line"]


def write_answers(
    run: Run, name: str, examples: Made, nbest: Mapping[str, Sequence[Mapping]], unanswered: Set[str] = frozenset()
) -> None:
    """predictions/NAME.json: the best text of every question, in the SQuAD layout; predictions/NAME.jsonl: a line for each,
    with its text, where it stands in the user's files, and its n-best answers.
    """
    best = {id: spans[0]["text"] if spans and id not in unanswered else "" for id, spans in nbest.items()}
    run.folder.write_bytes(f"predictions/{name}.json", (json.dumps(best, ensure_ascii=False, indent=1) + "\n").encode())
    with run.folder.writing(f"predictions/{name}.jsonl") as file:
        for line in _lines(asked_examples(run, name, examples), nbest, best):
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


def asked_examples(run: Run, name: str, examples: Made) -> pa.Table:
    """The questions of a data set that its predictions are of."""
    asked, choice = pa.concat_tables(examples.tables(_ASKED)), choose_questions(run, name, examples)
    return asked.filter(pa.array(choice.takes(asked["id"].to_pylist()))) if choice else asked


def _lines(asked: pa.Table, nbest: Mapping[str, Sequence[Mapping]], best: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for key, row in zip(with_unique_ids(asked)["id"].to_pylist(), asked.to_pylist()):
        if key not in nbest:
            continue
        spans = [{name: span[name] for name in ("text", "start", "end", "score", "probability")} for span in nbest[key]]
        yield {**named_place(row), "question": row["question"], "title": row["title"], "answer": best[key], "nbest": spans}


def named_place(row: Mapping[str, Any]) -> dict[str, Any]:
    """File, line and id of a question; the id is null where the file has none, since the one it got is a hash."""
    made_up = text_id(f"{row['question']}\0{row['passage_id']}")
    return {"file": row["file"], "line": row["line"], "id": None if row["id"] == made_up else row["id"]}
