"""Reasons for rejecting rows: a few fixed phrases, so that they can be counted."""

from __future__ import annotations

# of a raw row
BROKEN_JSON = "broken JSON"
INVALID_UTF8 = "invalid UTF-8"
WRONG_WIDTH = "wrong number of columns"

# of a value
LONE_SURROGATE = "lone surrogate"
MISSING_KEY = "missing key"
WRONG_TYPE = "wrong type"
DUPLICATE_ID = "duplicate id"

# of a question with its passage and its answers
EMPTY_QUESTION = "empty question"
EMPTY_PASSAGE = "empty passage"
EMPTY_ANSWER = "answer text empty"
NOT_AT_OFFSET = "answer not at its offset"
NOT_IN_PASSAGE = "answer does not occur in the passage"
NO_ANSWER_LEFT = "no valid answer left"
NO_EVIDENCE = "document of evidence is missing"
UNLABELLED = "neither an answer nor is_impossible"
IMPOSSIBLE_ANSWERED = "impossible question with answers"

# of a corpus and its gold answers
EMPTY_SENTENCE = "empty sentence"
EMPTY_DOCUMENT = "empty document"
NO_GOLD = "question with no gold sentence"
UNKNOWN_SENTENCE = "gold sentence not in the corpus"
UNKNOWN_QUESTION = "gold for an unknown question"
OUTSIDE_SENTENCES = "answer outside every sentence"
WRONG_BOUNDARY = "sentence boundaries do not fit the passage"


# of a document
BAD_NAME = "file name with control characters or not UTF-8"
BROKEN_FRONT_MATTER = "broken front matter"
CHANGED = "changed while it was read"
CRASHED = "crashes its parser"
DAMAGED = "damaged"
ENCRYPTED = "encrypted"
LINK_OUTSIDE = "link out of the folder"
NOT_A_FILE = "not a regular file"
SCANNED = "scanned, without text"
TOO_DEEP = "nested too deep"
TOO_LARGE = "too large"
TOO_SLOW = "takes too long"
UNKNOWN_FORMAT = "unknown format"
UNREADABLE = "cannot be opened"
WRONG_CONTENT = "not what its name says"


class Fault(Exception):
    """A problem of a row, or of one of its answers."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail
