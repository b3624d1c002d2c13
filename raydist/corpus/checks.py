"""Validity of values, questions and sentences, for files of questions and for corpora alike.

A bad row goes to ``Rejected`` under a fixed phrase, and reading continues. Answers to a question are rejected one by one, the
question only if no valid answer is left: questions read = examples + questions rejected + not extractive + left out. If
questions are ``scored``, one with a gold text stays, since official scripts ignore offsets. In a corpus, a question without any
gold sentence left is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.corpus.ids import KnownIds, passage_id, text_id
from raydist.corpus.languages import language_of_id
from raydist.corpus.messages import kind, short, some
from raydist.corpus.rejected import (
    DUPLICATE_ID,
    EMPTY_ANSWER,
    EMPTY_PASSAGE,
    EMPTY_QUESTION,
    IMPOSSIBLE_ANSWERED,
    LONE_SURROGATE,
    MISSING_KEY,
    NO_ANSWER_LEFT,
    NO_GOLD,
    NOT_AT_OFFSET,
    NOT_IN_PASSAGE,
    UNKNOWN_QUESTION,
    UNKNOWN_SENTENCE,
    UNLABELLED,
    WRONG_TYPE,
    Fault,
)
from raydist.records import Example, GoldAnswer, ReadCounts, Rejected

# --- values ----------------------------------------------------------------------------------------------------------


def is_writable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: it has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def writable(text: str) -> str:
    """The text with question marks in place of lone surrogates."""
    return text if is_writable(text) else text.encode("utf-8", "replace").decode()


def is_blank(text: str) -> bool:
    """Whether a text has no readable character."""
    return not text or text.isspace()


def text_problem(value: Any, *, absent: str, types: tuple[type, ...] = (str,), surrogate: str = LONE_SURROGATE) -> str:
    """The reason why a value is no valid text; empty if it is one."""
    if value is None:
        return absent
    if not isinstance(value, types):
        return WRONG_TYPE
    return "" if is_writable(str(value)) else surrogate


def is_text(value: Any) -> bool:
    """Whether a value is a valid text."""
    return not text_problem(value, absent=MISSING_KEY)


def cell_problem(name: str, value: Any) -> str:
    """The reason why a value is invalid in this column of a corpus file; a number is as good as its text."""
    if name == "relevance" and isinstance(value, str | int) and not _is_int32(str(value)):
        return WRONG_TYPE
    return text_problem(value, absent=MISSING_KEY, types=(str, int))


def _is_int32(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d{1,10}", text)) and -(2**31) <= int(text) < 2**31


def needed(row: Mapping[str, Any], key: str) -> Any:
    """The row's value under a required key."""
    if key not in row:
        raise Fault(MISSING_KEY, f"no {key!r} among {some(row)}")
    return row[key]


def truth(value: Any) -> bool | None:
    """is_impossible in any usual spelling; None if unset."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower(), value)
    if value in (0, 1):
        return bool(value)
    raise Fault(WRONG_TYPE, f"is_impossible is {kind(value)} {short(value)}")


# --- questions with a passage and answers ----------------------------------------------------------------------------


class ExampleChecks:
    """Checks the questions of one source; collects examples, rejected rows and counts."""

    def __init__(
        self,
        file: str,
        names: Mapping[str, str],
        *,
        mapped: Iterable[str] = (),
        language: str | None = None,
        repair_offsets: bool = False,
        labelled: bool = False,
        scored: bool = False,
        unanswered_is_impossible: bool = False,
        unit: str = "row",
        surrogate: str = LONE_SURROGATE,
        path: str = "",
        split: str = "",
    ) -> None:
        self.file, self.unit = file, unit  # unit: the unit of `line`
        self.names, self.mapped = names, tuple(mapped)  # column names; those mapped by hand
        self.language, self.repair_offsets = language, repair_offsets
        self.labelled, self.scored = labelled, scored  # a question needs a label; a gold text suffices
        self.unanswered_is_impossible = unanswered_is_impossible
        self.surrogate = surrogate  # the reason for texts that UTF-8 cannot encode
        self.path, self.split = path, split  # where the file is here, for what lies beside it; of a file of several splits
        self.examples: list[Example] = []
        self.rejected: list[Rejected] = []
        self.counts = ReadCounts()
        self._index_of: dict[tuple[str, str], int] = {}  # (id, language): translations of a question share its id
        self._passage: tuple[Any, str] = (object(), "")  # the last one and its id; at first an object that equals no passage

    def refuse_row(self, line: int, id: Any, fault: Fault) -> None:
        """Reject a row that cannot be parsed; it counts as one question."""
        self.counts.questions += 1
        self._reject(line, id, "question", fault)

    def leave_out(self) -> None:
        """Count a question that the data set's own rules leave out: one without a passage, or a piece of it as answer."""
        self.counts.questions += 1
        self.counts.left_out += 1

    def _reject(self, line: int, id: Any, what: str, fault: Fault) -> None:
        if what == "question":
            self.counts.questions_rejected += 1
        else:
            self.counts.answers_rejected += 1
        self.counts.reasons[fault.reason] = self.counts.reasons.get(fault.reason, 0) + 1
        self._list(line, id, what, fault)

    def _list(self, line: int, id: Any, what: str, fault: Fault) -> None:
        id = "" if id is None else writable(str(id))
        self.rejected.append(Rejected(self.file, line, id, what, fault.reason, writable(fault.detail), self.unit))

    def add(
        self,
        line: int,
        id: Any,
        question: Any,
        context: Any,
        answers: Sequence[tuple[Any, Any]],
        *,
        title: Any = "",
        language: Any = None,
        impossible: Any = None,
        is_span: bool = True,
        golds: Sequence[Any] | None = None,
    ) -> None:
        """Check one question with its (text, offset or None) answers; keep or reject it. A Fault is raised first.

        ``golds``: the accepted texts, if they differ from the answers'. Without `is_span`, the answer is by design no piece of
        the passage.
        """
        self._check_text(question, "question", EMPTY_QUESTION)
        right = self._golds([text for text, _ in answers] if golds is None else golds)
        if self.scored and right and not context:  # scored even without a passage, in which nothing is found
            context = ""
            self._passage = (context, passage_id(context))
        if context is not self._passage[0]:
            self._check_text(context, "passage", EMPTY_PASSAGE)
            self._passage = (context, passage_id(context))
        id = self._id_text(id, question)
        is_impossible = truth(impossible)
        if is_impossible is None:
            is_impossible = self.unanswered_is_impossible and not answers
        if is_impossible and answers:
            raise Fault(IMPOSSIBLE_ANSWERED, f"{len(answers)} answers, the first {short(answers[0][0])}")
        self.counts.questions += 1
        if not is_span:
            self.counts.answers += len(answers)
            self.counts.not_extractive += 1
            if not self.scored:
                return
        try:
            valid = self._labels(line, id, question, context, answers, is_impossible, right) if is_span else []
            stated = self.language or (writable(language) if isinstance(language, str) else "") or language_of_id(id) or ""
            self._check_new(line, id, question, stated or "en")
        except Fault as fault:
            self._reject(line, id, "question", fault)
            return
        self.counts.impossible += is_impossible
        self.counts.language_assumed += not stated
        self.counts.unlabelled += not (right or is_impossible)
        self.examples.append(
            Example(
                id=id,
                question=question,
                context=context,
                answers=valid,
                passage_id=self._passage[1],
                title=writable(title) if isinstance(title, str) else "",
                language=stated or "en",
                is_impossible=is_impossible,
                file=self.file,
                line=line,
                golds=right,
            )
        )

    def _golds(self, texts: Sequence[Any]) -> list[str]:
        """The texts to compare with, each once; empty ones, too, as in the official scripts."""
        return list(dict.fromkeys(text for text in texts if isinstance(text, str) and is_writable(text)))

    def _labels(
        self,
        line: int,
        id: str,
        question: str,
        context: str,
        answers: Sequence[tuple[Any, Any]],
        is_impossible: bool,
        golds: Sequence[str],
    ) -> list[GoldAnswer]:
        """The answers usable as labels; the others are rejected one by one."""
        if self.labelled and not answers and not is_impossible:
            raise Fault(UNLABELLED, short(question))
        valid: list[GoldAnswer] = []
        for text, start in answers:
            if start is None and any(text == answer.text for answer in valid):
                continue
            self.counts.answers += 1
            try:
                valid.append(self._checked_answer(context, text, start))
            except Fault as fault:
                if self.scored and golds and isinstance(text, str):
                    self.counts.answers_unplaced += 1
                    self._list(line, id, "answer", fault)
                else:
                    self._reject(line, id, "answer", fault)
        if answers and not valid and not (self.scored and golds):
            raise Fault(NO_ANSWER_LEFT, f"{len(answers)} given: {short(question)}")
        return valid

    def _check_new(self, line: int, id: str, question: str, language: str) -> None:
        first = self._index_of.setdefault((id, language), len(self.examples))
        if first < len(self.examples):
            raise Fault(DUPLICATE_ID, f"first at {self.unit} {self.examples[first].line}: {short(question)}")

    def _checked_answer(self, context: str, text: Any, start: Any) -> GoldAnswer:
        self._check_text(text, "answer", EMPTY_ANSWER)
        if start is None:
            return self._first_occurrence(context, text.strip())
        if isinstance(start, float) and start.is_integer():  # from a table column with nulls
            start = int(start)
        if type(start) is not int:
            raise Fault(WRONG_TYPE, f"the offset of {short(text)} is {kind(start)}")
        if start == -1:  # unknown, as in DuReader and CMRC
            return self._first_occurrence(context, text.strip())
        if start >= 0 and context.startswith(text, start):
            return GoldAnswer(text, start)
        found = context.find(text)
        if self.repair_offsets and found >= 0 and context.find(text, found + 1) < 0:
            self.counts.answers_repaired += 1
            return GoldAnswer(text, found)
        there = short(context[start : start + len(text)]) if start >= 0 else "nothing"
        raise Fault(NOT_AT_OFFSET, f"{short(text)} at {start}, where there is {there}")

    def _first_occurrence(self, context: str, text: str) -> GoldAnswer:
        start = context.find(text)
        if start < 0:
            raise Fault(NOT_IN_PASSAGE, short(text))
        if context.find(text, start + 1) >= 0:
            self.counts.several_occurrences += 1
        return GoldAnswer(text, start)

    def _check_text(self, text: Any, name: str, empty: str) -> None:
        problem = text_problem(text, absent=empty, surrogate=self.surrogate)
        if problem == WRONG_TYPE:
            raise Fault(WRONG_TYPE, f"{name} is {kind(text)}")
        if problem == self.surrogate:
            raise Fault(problem, f"in the {name}: {short(text)}")
        if problem or is_blank(text):
            raise Fault(empty, "null" if text is None else repr(text[:20]))

    def _id_text(self, id: Any, question: str) -> str:
        """The id as text; a missing one is made from question and passage."""
        if id is None or id == "":
            return text_id(f"{question}\0{self._passage[1]}")
        if type(id) is int:
            return str(id)
        self._check_text(id, "id", WRONG_TYPE)
        return id


# --- a corpus, its questions and gold answers ------------------------------------------------------------------------


def whole_and_new(
    rows: pa.Table, what: str, empty: str, file: str, lines: Sequence[int], known: KnownIds, rejected: list[Rejected]
) -> pa.Table:
    """Rows with text and a new id; the others are rejected with a reason."""
    ids, texts = rows[f"{what}_id"].to_pylist(), rows["text"].to_pylist()
    is_kept = np.array([not is_blank(text) for text in texts], bool)
    with_text = np.flatnonzero(is_kept)
    is_kept[with_text] = known.add([ids[at] for at in with_text])
    for at in np.flatnonzero(~is_kept).tolist():
        reason = empty if is_blank(texts[at]) else DUPLICATE_ID
        rejected.append(Rejected(file, lines[at], ids[at], what, reason, repr(texts[at])[:200]))
    return rows if is_kept.all() else rows.filter(pa.array(is_kept))


def asked_once(questions: Iterable[dict[str, Any]], rejected: list[Rejected]) -> dict[str, dict[str, Any]]:
    """The questions with a text and a new id, by id."""
    asked: dict[str, dict[str, Any]] = {}
    for row in questions:
        id = row["question_id"]
        if is_blank(row["text"]):
            rejected.append(Rejected(row["file"], row["line"], id, "question", EMPTY_QUESTION, repr(row["text"])))
        elif id in asked:
            rejected.append(Rejected(row["file"], row["line"], id, "question", DUPLICATE_ID, repr(row["text"])[:200]))
        else:
            asked[id] = row
    return asked


def gold_of(
    gold: Iterable[dict[str, Any]], asked: Container[str], known: KnownIds, rejected: list[Rejected]
) -> list[dict[str, Any]]:
    """The gold answers, each once, whose question and sentence exist."""
    refused = {row.id for row in rejected if row.what == "question"}
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    gold = list(gold)
    for row, is_there in zip(gold, known.find([row["sentence_id"] for row in gold])):
        question, sentence = pair = (row["question_id"], row["sentence_id"])
        if not is_there:
            rejected.append(Rejected(row["file"], row["line"], question, "gold", UNKNOWN_SENTENCE, sentence))
        elif question in asked:
            pairs[pair] = row
        elif question not in refused:
            rejected.append(Rejected(row["file"], row["line"], question, "gold", UNKNOWN_QUESTION, sentence))
    return list(pairs.values())


def answered(
    asked: Mapping[str, dict[str, Any]], gold: Iterable[dict[str, Any]], rejected: list[Rejected]
) -> list[dict[str, Any]]:
    """The questions with a gold answer left."""
    with_gold = {row["question_id"] for row in gold}
    for id, row in asked.items():
        if id not in with_gold:
            rejected.append(Rejected(row["file"], row["line"], id, "question", NO_GOLD, row["text"][:200]))
    return [row for id, row in asked.items() if id in with_gold]
