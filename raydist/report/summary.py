"""What runs come to, on one screen: the scores of readers, the methods of retrieval in their order, and what mining found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raydist.report.markup import is_number
from raydist.report.mining import METHODS, ordered, scores_by_set
from raydist.report.runs import ReportedRun, load_runs
from raydist.terminal import say, say_table

GOLD, OWN, CHANCE = "gold", "gold_silver_weighted", 0.01


def say_summary(folders: Sequence[Path]) -> None:
    """Tables of all runs, and a line on what mining did."""
    for run in load_runs([Path(folder) for folder in folders]):
        if rows := list(_reader_rows(run)):
            say("")
            say_table((run.name, "F1", "EM"), rows)
        for test_set in scores_by_set(run):
            say("")
            say_table((f"{run.name}, {test_set}", "MRR@100", "P@1", "to gold pairs", "p"), list(_method_rows(run, test_set)))
            for line in filter(None, (_silver(run), _verdict(run, test_set))):
                say(line)


def _reader_rows(run: ReportedRun) -> Iterator[tuple[str, ...]]:
    for test_set, scores in run.scores().items():
        if is_number(scores.get("addsent_f1")):
            yield f"{test_set}, originals", _score(scores.get("original_f1")), _score(scores.get("original_em"))
            yield f"{test_set}, worst copy", _score(scores.get("addsent_f1")), _score(scores.get("addsent_em"))
        elif is_number(scores.get("em")) and is_number(scores.get("f1")):
            yield test_set, _score(scores["f1"]), _score(scores["em"])


def _method_rows(run: ReportedRun, test_set: str) -> Iterator[tuple[str, ...]]:
    found = scores_by_set(run)[test_set]
    for method in ordered(found):
        scores = [_score(found[method].get(metric)) for metric in ("MRR@100", "P@1")]
        difference, p = _difference(run, test_set, method)
        yield METHODS.get(method, method), *scores, "" if difference is None else f"{100 * difference:+.1f}", _chance(p)


def _difference(run: ReportedRun, test_set: str, method: str) -> tuple[float | None, float | None]:
    """To gold pairs alone, and its p."""
    key = f"retrieval.{test_set}.{method}.MRR@100.minus_{GOLD}"
    return run.metrics.get(key), run.metrics.get(f"{key}.p")


def _silver(run: ReportedRun) -> str | None:
    """How many mined pairs are right, where that is known."""
    silver, right, answers = (run.metrics.get(f"mining.{name}") for name in ("silver", "right", "answers"))
    if right is None or answers is None or not silver:
        return None
    precision, recall = right / silver, right / max(1, answers)
    return f"{silver:,} silver pairs: {right:,} answer their question ({precision:.0%}), {recall:.0%} of all answers there are"


def _verdict(run: ReportedRun, test_set: str) -> str | None:
    """Whether mined pairs helped, by the difference and its p alone."""
    difference, p = _difference(run, test_set, OWN)
    if difference is None or p is None:
        return None
    if p >= CHANCE:
        return "Mined pairs: no difference to gold pairs alone that these questions could show."
    said = "more" if difference > 0 else "less"
    return f"Mined pairs: {100 * abs(difference):.1f} points {said} than gold pairs alone, beyond chance over these questions."


def _score(value: Any) -> str:
    return f"{value:.1f}" if is_number(value) else ""


def _chance(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
