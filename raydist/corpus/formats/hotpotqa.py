"""HotpotQA: {"context": [[title, [sentence, ...]], ...]}, a list or JSON Lines; on the hub {"title", "sentences"}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raydist.corpus.checks import ExampleChecks, needed
from raydist.corpus.formats.base import ReaderFormat
from raydist.corpus.formats.flat import answer_pairs
from raydist.corpus.rejected import WRONG_TYPE, Fault


class HotpotQa(ReaderFormat):
    """The passage is all paragraphs in order: title, line end, unchanged sentences, line end."""

    keys: ClassVar[tuple[str, ...]] = ("_id",)
    own_columns: ClassVar[bool] = False

    def recognises(self, row: Mapping[str, Any], names: Mapping[str, str]) -> bool:
        return names["question"] in row and isinstance(row.get(names["context"]), list | dict)

    def add(self, row: dict[str, Any], line: int, checks: ExampleChecks) -> None:
        paragraphs = needed(row, "context")
        try:
            if isinstance(paragraphs, dict):  # the hub's shape
                paragraphs = list(zip(paragraphs["title"], paragraphs["sentences"], strict=True))
            context = "\n".join(f"{title}\n{''.join(sentences).strip()}" for title, sentences in paragraphs)
        except (TypeError, ValueError, KeyError) as error:
            raise Fault(WRONG_TYPE, f"context is no list of [title, [sentence, ...]]: {error}") from None
        id, question, answer = row.get("_id", row.get("id")), needed(row, "question"), row.get("answer")
        is_span = not (isinstance(answer, str) and answer.strip().lower() in ("yes", "no"))
        checks.add(line, id, question, context, answer_pairs(answer, None), is_span=is_span)
