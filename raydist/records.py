"""Rows passed between stages, as plain classes and as Arrow schemas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(slots=True)
class GoldAnswer:
    """A piece of the passage: ``context[start : start + len(text)] == text``."""

    text: str
    start: int  # in characters (code points)


@dataclass(slots=True)
class Example:
    """One question about one passage. The first answer is the training label; scores compare with the golds."""

    id: str
    question: str
    context: str
    answers: list[GoldAnswer]
    passage_id: str = ""  # equal for questions about the same text, whatever file they come from
    title: str = ""
    language: str = "en"
    is_impossible: bool = False  # SQuAD v2: the passage does not answer the question
    file: str = ""
    line: int = 0  # 1-based; for a JSON document, the ordinal of the question in it
    golds: list[str] = field(default_factory=list)  # accepted texts, as in the file; default: the answers' texts

    def __post_init__(self) -> None:
        self.golds = self.golds or [answer.text for answer in self.answers]


@dataclass(slots=True)
class Rejected:
    """A rejected row, or rejected answer of a row, and the reason."""

    file: str
    line: int
    id: str
    what: str  # "question" or "answer"
    reason: str  # one of a few fixed phrases, for counting
    detail: str  # the value found
    unit: str = "line"  # the unit of `line`: lines, questions of a JSON document, or rows of a table


@dataclass(slots=True)
class ReadCounts:
    """Numbers of questions and answers read and rejected."""

    questions: int = 0
    answers: int = 0
    questions_rejected: int = 0
    answers_rejected: int = 0
    answers_repaired: int = 0
    answers_unplaced: int = 0  # gold texts not at their offset: no label, but scored
    several_occurrences: int = 0  # answers given without offset whose text occurs more than once
    not_extractive: int = 0  # yes/no and other answers that are by design no piece of the passage
    unlabelled: int = 0  # questions accepted without answers, but not marked as impossible
    impossible: int = 0  # questions marked as having no answer
    left_out: int = 0  # questions without a passage or a short answer of their own, by the rules of their data set
    language_assumed: int = 0  # questions without a stated language: treated as English
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def rejected_share(self) -> float:
        """The larger of the two shares, of questions and of answers."""
        return max(
            self.questions_rejected / max(1, self.questions),
            self.answers_rejected / max(1, self.answers),
        )


ANSWER_TYPE = pa.struct([("text", pa.string()), ("start", pa.int32())])

EXAMPLE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("context", pa.string()),
        ("answers", pa.list_(ANSWER_TYPE)),
        ("passage_id", pa.string()),
        ("title", pa.string()),
        ("language", pa.string()),
        ("is_impossible", pa.bool_()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("golds", pa.list_(pa.string())),
    ]
)

REJECTED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("id", pa.string()),
        ("what", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("unit", pa.string()),
    ]
)

SPAN_TYPE = pa.struct(
    [
        ("text", pa.string()),
        ("start", pa.int32()),  # characters of the passage, [start, end)
        ("end", pa.int32()),
        ("score", pa.float32()),  # start logit + end logit
        ("probability", pa.float32()),  # softmax over the kept scores
    ]
)

PREDICTION_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("passage_id", pa.string()),
        ("language", pa.string()),
        ("nbest", pa.list_(SPAN_TYPE)),  # best first; order fully determined (docs/methods.md 2.4)
        ("null_score", pa.float32()),  # score of the CLS span, lowest over the windows
    ]
)

# One row per question of a test set, written to <run>/evaluation/<test set>.parquet, for inspection.
EVALUATION_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("context", pa.string()),
        ("language", pa.string()),
        ("answers", pa.list_(pa.string())),  # gold texts
        ("prediction", pa.string()),  # null: missing; "": left unanswered
        ("start", pa.int32()),  # of the prediction, in characters; -1 if unknown or empty
        ("probability", pa.float32()),
        ("em", pa.float32()),  # 0 or 100
        ("f1", pa.float32()),  # 0 to 100
    ]
)

ASKED_SCHEMA = pa.schema(  # the outcome of a question to documents; places count from 0, -1: none
    [
        ("id", pa.string()),
        ("cause", pa.string()),  # right, misread, lost in ranking, not retrieved, not in the documents
        ("answered", pa.bool_()),  # false: withheld
        ("probability", pa.float32()),
        ("document_id", pa.string()),
        ("passage_id", pa.string()),
        ("held_at", pa.int32()),  # the first retrieved passage with an answer
        ("gold_at", pa.int32()),  # the first gold passage
        ("ranked_at", pa.int32()),  # the first with an answer, after reranking
    ]
)

# --- mining (docs/methods.md 5). Ids and numbers only: texts are looked up when a model or a person reads them.

HIT_SCHEMA = pa.schema(  # the hits of one retriever
    [
        ("question_id", pa.string()),
        ("sentence_id", pa.string()),
        ("rank", pa.int32()),  # from 1
        ("score", pa.float32()),
    ]
)

# Training pairs of the cross-encoder: a gold answer, or a negative with its source.
LABELLED_PAIR_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sentence_id", pa.string()),
        ("label", pa.int8()),  # 1: gold
        ("asked", pa.string()),  # gold, judged (wrong, by somebody), or the requested source: bm25, dense, same_doc
        ("source", pa.string()),  # the actual source: the requested one, or if that was exhausted, bm25 or pool
        ("number", pa.int32()),  # of the gold answer, or of the draw, within question and source
        ("rank", pa.int32()),  # of a negative in its source; null if that has no ranks
        ("is_dev", pa.bool_()),
    ]
)

CANDIDATE_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sentence_id", pa.string()),
        ("bm25_rank", pa.int32()),  # from 1; null if BM25 did not find it
        ("bm25_score", pa.float32()),
        ("dense_rank", pa.int32()),
        ("dense_score", pa.float32()),
        ("same_doc", pa.bool_()),  # a candidate for being in the document of a gold answer
    ]
)

SCORED_SCHEMA = pa.schema(
    [
        *CANDIDATE_SCHEMA,
        ("logit", pa.float32()),
        ("p", pa.float32()),  # probability that the sentence answers the question
        ("cross_encoder", pa.string()),  # fingerprint of the model behind `p`
    ]
)

SILVER_SCHEMA = pa.schema(
    [
        *SCORED_SCHEMA,
        ("sources", pa.list_(pa.string())),
        ("kept", pa.bool_()),
        ("why_not", pa.string()),  # null if kept
        ("weight", pa.float32()),  # 0 if rejected
    ]
)

# Training rows of the dual encoder.
TRAINING_PAIR_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sentence_id", pa.string()),
        ("weight", pa.float32()),
        ("is_gold", pa.bool_()),
        ("logit", pa.float32()),  # the cross-encoder's; null if it did not score the pair
        ("negatives", pa.list_(pa.string())),  # mined hard negatives of the question, hardest first
        ("negative_logits", pa.list_(pa.float32())),
    ]
)

# Scores of every question of a test set under each method: <run>/ranked/<test set>.parquet, for paired tests.
RANKED_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("method", pa.string()),
        ("P@1", pa.float32()),  # 0 to 1, as in metrics.json
        ("MRR@100", pa.float32()),
        ("recall@10", pa.float32()),
        ("nDCG@10", pa.float32()),
    ]
)

# Silver rows in readable form: <run>/mining/silver.parquet.
MINED_SCHEMA = pa.schema(
    [
        *SILVER_SCHEMA,
        ("question", pa.string()),
        ("sentence", pa.string()),
        ("right", pa.bool_()),  # whether it answers the question; null if unknown, as for all data but the sample
    ]
)

# Some kept and some rejected rows, for the report: <run>/mining/examples.parquet.
MINED_EXAMPLE_SCHEMA = pa.schema([*MINED_SCHEMA, ("gold", pa.list_(pa.string()))])


def examples_table(examples: Iterable[Example]) -> pa.Table:
    return pa.Table.from_pylist([asdict(example) for example in examples], schema=EXAMPLE_SCHEMA)


def name_rejected(rows: Iterable[Rejected]) -> str:
    """The reasons for rejection with counts and first rows, for a message if no row is left. Empty if none was rejected."""
    by_reason: dict[str, list[Rejected]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    named = []
    for reason, found in by_reason.items():
        first = found[0]
        where = f"{first.file}, {first.unit} {first.line}, id {first.id!r} ({first.detail[:80]})"
        named.append(f"{len(found):,} {reason}, the first in {where}")
    return f". Rejected: {'; '.join(named)}" if named else ""


def rejected_table(rows: Iterable[Rejected]) -> pa.Table:
    """Rejected rows as a table; halves of characters, which UTF-8 cannot encode, become question marks."""
    plain = [{name: _encodable(value) for name, value in asdict(row).items()} for row in rows]
    return pa.Table.from_pylist(plain, schema=REJECTED_SCHEMA)


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one question."""

    id: str
    language: str
    prediction: str | None  # None: missing
    em: float  # 0 or 100
    f1: float
    has_answer: bool
