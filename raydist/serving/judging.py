"""What is said of answers and of mined pairs, over HTTP: each verdict is on disk before the response."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from raydist.judgements.journal import Journal
from raydist.judgements.judgement import Judgement
from raydist.serving.bodies import Body
from raydist.serving.pairs import MinedPairs, Show, Verdict
from raydist.serving.responses import as_json


class Span(Body):
    text: str
    start: int = Field(ge=0)
    end: int = Field(ge=1)


class AnswerVerdict(Body):
    """Whether an answer is right; without a text, whether it is right that there is none."""

    question: str
    right: bool
    text: str | None = None
    text_id: str | None = None
    document: str | None = None
    answer: Span | None = None


class PairVerdict(Body):
    question_id: str
    sentence_id: str
    right: bool | None = Field(description="null: skipped")


def answers_router(journal: Journal, source: str) -> APIRouter:
    """Verdicts on answers."""
    router = APIRouter()

    @router.post("/v1/judgements")
    def judge(verdict: AnswerVerdict) -> Response:
        """Say whether an answer is right."""
        judgement = Judgement.of(verdict.model_dump() | {"source": source})
        journal.add(judgement)
        return as_json({"id": judgement.id}, 201)

    @router.delete("/v1/judgements/{id}")
    def undo(id: str) -> Response:
        """Take a verdict back."""
        journal.undo(id)
        return as_json({"undone": id})

    return router


def pairs_router(pairs: MinedPairs) -> APIRouter:
    """Mined pairs, and verdicts on them."""
    router = APIRouter()

    def with_progress(told: dict[str, Any], status: int = 200) -> Response:
        return as_json(told | {"progress": pairs.progress()}, status)

    @router.get("/v1/pairs")
    def page(
        show: Show = "near",
        verdict: Verdict = "undecided",
        after: Annotated[int, Query(ge=-1)] = -1,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        """Pairs, the most doubtful first."""
        found = pairs.page(show, verdict, after, limit)
        return with_progress({"pairs": found, "threshold": pairs.threshold, "run": pairs.name})

    @router.post("/v1/pairs/verdicts")
    def judge(verdict: PairVerdict) -> Response:
        """Accept, reject or skip a pair."""
        judgement = pairs.judge(verdict.question_id, verdict.sentence_id, verdict.right)
        return with_progress({"id": judgement.id}, 201)

    @router.delete("/v1/pairs/verdicts/{id}")
    def undo(id: str) -> Response:
        """Take a verdict on a pair back."""
        return with_progress({"pair": pairs.undo(id)})

    return router
