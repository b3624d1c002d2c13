"""What several annotators of a page chose, as one passage with its answers (Natural Questions, TyDi QA)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # of the page: [start, end), in the data set's own unit


@dataclass(frozen=True)
class Choice:
    """One annotator's passage, the answers within it, and the answer yes or no."""

    passage: Span
    answers: Sequence[Span] = ()
    yes_no: str = ""


def agreed(choices: Sequence[Choice]) -> list[Choice]:
    """The choices of the passage that most annotators took: of those with answers; without any, of those that say yes or no.

    Of equally frequent passages, the first. Answers outside their passage are left out.
    """
    within = [
        Choice(one.passage, [a for a in one.answers if one.passage[0] <= a[0] < a[1] <= one.passage[1]], one.yes_no)
        for one in choices
    ]
    useful = [one for one in within if one.answers] or [one for one in within if one.yes_no]
    if not useful:
        return []
    passage = Counter(one.passage for one in useful).most_common(1)[0][0]
    return [one for one in useful if one.passage == passage]
