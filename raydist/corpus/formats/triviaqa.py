"""TriviaQA: {"Data": [{"Question", "QuestionId", "Answer", "EntityPages", "SearchResults"}]} beside a folder of evidence.

Each question is asked of each of its documents: their first 800 words, as the official converter takes them. The labels are the
aliases that stand there; all aliases are accepted. The texts are in evidence/wikipedia and evidence/web of the archive; the
hub's rows (configuration rc) have them inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.rejected import NO_EVIDENCE, WRONG_TYPE, Fault
from raydist.errors import InputError

WORDS = 800
_FIRST_WORDS = re.compile(rf"(?:\S+\s+){{0,{WORDS - 1}}}\S+")
_FOLDERS = {"EntityPages": "wikipedia", "SearchResults": "web"}
_HUB = {"entity_pages": "wiki_context", "search_results": "search_context"}


class TriviaQa(ReaderFormat):
    """One JSON object with all questions; or the hub's rows."""

    keys: ClassVar[tuple[str, ...]] = ("question", "question_id", "entity_pages", "search_results", "answer")

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return "question_id" in row and "entity_pages" in row

    def recognises_document(self, document: Mapping[str, Any], as_row: str) -> bool:
        questions = document.get("Data")
        return isinstance(questions, list) and bool(questions) and "QuestionId" in questions[0]

    def check_beside(self, path: Path) -> None:
        evidence_folder(path)

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        answer = needed(row, "answer") or {}
        for kind, texts in _HUB.items():
            pages = row.get(kind) or {}
            for page in zip(pages.get("filename") or (), pages.get("title") or (), pages.get(texts) or ()):
                _add(checks, line, row["question"], row["question_id"], _aliases(answer, "value", "aliases"), *page)

    def add_document(self, document: dict[str, Any], checks: ExampleChecks) -> None:
        evidence = evidence_folder(Path(checks.path))
        for ordinal, question in enumerate(document["Data"], 1):
            try:
                id, asked = question["QuestionId"], question["Question"]
                aliases = _aliases(question.get("Answer") or {}, "Value", "Aliases")
                pages = list(_pages(question))
            except (TypeError, KeyError, AttributeError) as error:
                checks.refuse_row(ordinal, None, Fault(WRONG_TYPE, f"no question as TriviaQA has them: {error!r}"))
                continue
            for folder, name, title in pages:
                try:
                    text = (evidence / folder / name).read_text(encoding="utf-8", errors="replace")
                except OSError:
                    checks.refuse_row(ordinal, f"{id}--{name}", Fault(NO_EVIDENCE, f"{folder}/{name}"))
                    continue
                try:
                    _add(checks, ordinal, asked, id, aliases, name, title, text)
                except Fault as fault:
                    checks.refuse_row(ordinal, f"{id}--{name}", fault)


def evidence_folder(path: Path) -> Path:
    """The folder of evidence beside a file, or beside its folder, as the archive has it."""
    for folder in (path.parent, path.parent.parent):
        if (folder / "evidence").is_dir():
            return folder / "evidence"
    raise InputError(
        f"{path} is TriviaQA, whose documents are files of their own: there is no folder `evidence` beside it or beside "
        f"{path.parent}; unpack the whole archive (triviaqa-rc.tar.gz), and give the file where it lies"
    )


def _pages(question: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Folder, name and title of each document."""
    for key, folder in _FOLDERS.items():
        for page in question.get(key) or ():
            if page.get("Filename"):
                yield folder, page["Filename"], page.get("Title") or ""


def _aliases(answer: Mapping[str, Any], value: str, aliases: str) -> list[str]:
    return [text for text in dict.fromkeys([answer.get(value), *(answer.get(aliases) or ())]) if text and text != "<unk>"]


def _add(
    checks: ExampleChecks, line: int, question: Any, id: Any, aliases: list[str], name: str, title: str, text: str
) -> None:
    match = _FIRST_WORDS.search(text)
    passage = match[0] if match else ""
    answers = _found(passage, aliases)
    if not passage or (checks.labelled and aliases and not answers):
        checks.leave_out()
        return
    checks.add(line, f"{id}--{name}", question, passage, answers, title=title, golds=aliases)


def _found(passage: str, aliases: list[str]) -> list[tuple[Any, Any]]:
    """The first occurrence of each alias as whole words, as the passage spells it; the earliest, and longest, first."""
    found = {}
    for alias in aliases:
        if match := re.search(rf"(?<!\w){re.escape(alias)}(?!\w)", passage, re.IGNORECASE):
            found[match.span()] = (match[0], match.start())
    return [found[span] for span in sorted(found, key=lambda span: (span[0], -span[1]))]
