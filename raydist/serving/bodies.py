"""Bodies of requests and responses, as /openapi.json describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class Body(BaseModel):
    """A body without other names: a misspelt one is reported."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchBody(Body):
    question: Text = Field(description="What to look for", examples=["When was the bridge built?"])
    where: Text | None = Field(None, description="Which passages, by their metadata", examples=["year >= 2020"])
    k: int | None = Field(None, ge=1, description="How many passages")
    kind: Literal["hybrid", "bm25", "dense"] | None = Field(None, description="How passages are found")


class AskBody(SearchBody):
    n_best: int = Field(1, ge=1, le=20, description="How many candidates come back")


class LibraryVersion(Body):
    version: int


class PassageBody(Body):
    passage_id: str
    document_id: str
    score: float
    text: str
    title: str
    headings: list[str]
    page: int | None
    line: int | None
    language: str
    metadata: dict[str, Any]
    scores: dict[str, float] = Field(description="By bm25, dense, cross_encoder, as far as they are known")


class CandidateBody(Body):
    text: str
    start: int = Field(description="First character in the text of its source")
    end: int
    score: float
    passages: int = Field(description="How many passages have it")
    source: PassageBody


class ReplyBody(Body):
    question: str
    answered: bool = Field(description="False: not in these documents, as far as the threshold says")
    text: str = Field(description="The best answer, even if it is withheld")
    probability: float
    calibrated: bool
    threshold: float
    start: int
    end: int
    source: PassageBody | None
    candidates: list[CandidateBody]
    seconds: dict[str, float] = Field(description="Of each step, for all questions of the batch")
    library: LibraryVersion


class FoundBody(Body):
    passages: list[PassageBody] = Field(description="Best first")
    seconds: dict[str, float]
    library: LibraryVersion


class LibraryBody(Body):
    name: str
    version: int
    passages: int
    documents: int
    columns: dict[str, str] = Field(description="That a condition may name, with their types")
    kinds: list[str]
    calibrated: bool
    threshold: float
    reader: str | None
    cross_encoder: str | None
    notes: list[str]


class ErrorBody(Body):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        401: "No token, or a wrong one",
        408: "The body came too slowly",
        413: "The body is too large",
        422: "Wrong input",
        429: "Too many requests of this client; Retry-After",
        503: "Too many requests at once, or a replica was lost; Retry-After",
        504: "No answer in time",
    }.items()
}
