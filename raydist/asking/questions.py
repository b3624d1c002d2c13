"""Questions about documents, with their known answers, from SQuAD-shaped files or JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydist.asking.retriever import Passage
from raydist.corpus.examples import read_files
from raydist.corpus.paths import expand_paths
from raydist.corpus.rows import json_lines, read_bytes
from raydist.errors import InputError
from raydist.files.given import parse_json
from raydist.judgements.questions import Known, known_questions
from raydist.judgements.reading import read_judgements
from raydist.reader.metrics import normaliser
from raydist.records import Example

WANTED = 'wanted {"question": text, "answers": [texts], "document": maybe its id}, or a SQuAD-shaped file'
HEAD = 1 << 16  # bytes for recognising a file's layout


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an evaluation. Without answers, the documents do not answer it."""

    id: str
    text: str
    answers: tuple[str, ...]
    document: str | None = None  # that answers it, if known
    context: str | None = None  # the paragraph that answers it, if known
    language: str = "en"

    def is_held_by(self, passage: Passage) -> bool:
        """Whether a passage has an answer, as whole words."""
        same = normaliser("squad")
        text = f" {same(passage.text)} "
        return any(f" {answer} " in text for answer in map(same, self.answers) if answer)

    @property
    def knows_its_place(self) -> bool:
        return self.document is not None or self.context is not None

    def is_answered_by(self, passage: Passage) -> bool:
        """Whether a passage has an answer and belongs to the document or paragraph that is known to have it."""
        if self.document is not None and self.document not in (passage.document_id, passage.passage_id):
            return False
        if self.context is not None and self.document is None:
            whole, part = (" ".join(text.split()) for text in (self.context, passage.text))
            if part not in whole and whole not in part:
                return False
        return self.is_held_by(passage)


def read_questions(patterns: Sequence[str]) -> list[Question]:
    """The questions of files (globs too)."""
    questions = [question for path in expand_paths(patterns) for question in _of_file(path)]
    ids = [question.id for question in questions]
    if len(set(ids)) == len(ids):
        return questions
    raise InputError(f"{', '.join(patterns)}: the id {next(id for id in ids if ids.count(id) > 1)!r} is there twice")


def _of_file(path: str) -> Iterator[Question]:
    first = _first_row(path)
    if "question" in first and "right" in first and "context" not in first:
        yield from map(_of_judged, known_questions(read_judgements([path]).verdicts))
        return
    if "question" in first and "context" not in first:
        yield from _of_lines(path)
        return
    examples, rejected = read_files([path])
    if rejected and not examples:
        raise InputError(f"{path}: {rejected[0].reason} ({rejected[0].detail}); {WANTED}")
    yield from map(_of_example, examples)


def _of_example(example: Example) -> Question:
    answers = () if example.is_impossible else tuple(dict.fromkeys(answer.text for answer in example.answers))
    context = None if example.is_impossible else example.context
    return Question(example.id, example.question, answers, None, context, example.language)


def _of_judged(known: Known) -> Question:
    document = next(iter(known.documents)) if len(known.documents) == 1 else None
    return Question(known.id, known.question, tuple(known.answers), document)


def _first_row(path: str) -> dict[str, Any]:
    """The first line, if it is a JSON object."""
    first = next(iter(read_bytes(path, HEAD).decode("utf-8-sig", "replace").lstrip().splitlines()), "")
    try:
        row = parse_json(first)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _of_lines(path: str) -> Iterator[Question]:
    for row in json_lines(path):
        if row.fault:
            raise InputError(f"{path}, line {row.line}: {row.fault.reason} ({row.fault.detail}); {WANTED}")
        yield _of_row(f"{path}, line {row.line}", Path(path).name, row.line, row.value)


def _of_row(place: str, file: str, line: int, row: Any) -> Question:
    if not isinstance(row, dict) or not isinstance(row.get("question"), str) or not row["question"].strip():
        raise InputError(f"{place}: there is no question; {WANTED}")
    answers = row.get("answers", row.get("answer"))
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise InputError(f"{place}: answers is not a list of texts; {WANTED}, and [] where no document answers")
    document = row.get("document")
    if not isinstance(document, str | None):
        raise InputError(f"{place}: document is no text; {WANTED}")
    id, language = row.get("id", f"{file}:{line}"), row.get("language", "en")
    return Question(str(id), row["question"], tuple(dict.fromkeys(answers)), document, None, str(language))
