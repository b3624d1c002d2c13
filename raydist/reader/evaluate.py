"""Predictions and gold answers of one test set -> its scores, and one row per question for inspection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.reader.metrics import (
    aggregate,
    apply_threshold,
    best_threshold,
    by_language,
    score_nbest,
    score_predictions,
)
from raydist.records import EVALUATION_SCHEMA, Example, GoldAnswer
from raydist.statistics import adversarial_scores, bootstrap_interval

Nbest = Mapping[str, Sequence[Mapping[str, Any]]]  # question id -> spans, best first; only "text" is guaranteed


def with_unique_ids(table: pa.Table) -> pa.Table:
    """Prefix repeated ids with their language, as in `es:q1`: translations share the ids of their source."""
    ids = table["id"].to_pylist()
    times = Counter(ids)
    if len(times) == len(ids):
        return table
    keys = [f"{language}:{id}" if times[id] > 1 else id for id, language in zip(ids, table["language"].to_pylist())]
    return table.set_column(table.schema.get_field_index("id"), "id", pa.array(keys, pa.string()))


def examples_of(table: pa.Table) -> list[Example]:
    """The scorable examples of a table: with a gold text, whatever its offset, or marked as impossible."""
    rows = [row | {"answers": [GoldAnswer(**answer) for answer in row["answers"]]} for row in table.to_pylist()]
    return [Example(**row) for row in rows if row["golds"] or row["is_impossible"]]


def evaluate_set(
    examples: Sequence[Example],
    nbest: Nbest,
    *,
    rule: str,
    adversarial: bool = False,
    at_k: Sequence[int] = (),
    bootstrap: int = 1000,
    null_differences: Mapping[str, float] | None = None,
    null_threshold: float | None = None,
) -> tuple[dict[str, Any], pa.Table]:
    """Scores (flat, without the set's name) and the EVALUATION_SCHEMA table of a test set.

    A set with unanswerable questions (SQuAD v2) is scored with a threshold on null score less best score: the given one, tuned
    elsewhere, or the best for this very set. The scores name the source of the threshold.
    """
    best = {id: spans[0]["text"] if spans else "" for id, spans in nbest.items()}
    scores = score_predictions(best, examples, rule)
    found: dict[str, Any] = {"rule": rule}
    if any(example.is_impossible for example in examples) and null_differences is not None:
        found["null_threshold_from"] = "dev" if null_threshold is not None else "this set"
        null_threshold = best_threshold(scores, null_differences)[0] if null_threshold is None else null_threshold
        found["null_threshold"] = null_threshold
        scores = apply_threshold(scores, null_differences, null_threshold)
    found |= aggregate(scores)
    languages = by_language(scores)
    if len(languages) > 1:
        found |= {f"{key}.{language}": table[key] for language, table in languages.items() for key in ("f1", "em")}
        found |= {f"{key}.languages": float(np.mean([table[key] for table in languages.values()])) for key in ("f1", "em")}
    if at_k:
        texts = {id: [span["text"] for span in spans] for id, spans in nbest.items()}
        depth = max((len(spans) for spans in texts.values()), default=0)
        kept = [k for k in at_k if k <= max(1, depth)]
        spoken = np.array([example.language for example in examples])
        for name, values in score_nbest(texts, examples, rule, kept).items() if kept else ():
            found[name] = float(values.mean())
            if len(languages) > 1:
                found |= {f"{name}.{language}": float(values[spoken == language].mean()) for language in languages}
    worst = adversarial_scores(scores) if adversarial else None
    if worst is not None:
        found |= {"addsent_f1": float(np.mean([s.f1 for s in worst])), "addsent_em": float(np.mean([s.em for s in worst]))}
        originals = [score for score in scores if "-" not in score.id]
        found |= {"original_f1": float(np.mean([s.f1 for s in originals])) if originals else 0.0, "originals": len(worst)}
    if bootstrap and scores:
        for key in ("f1", "em"):
            interval = bootstrap_interval([getattr(score, key) for score in scores], samples=bootstrap)
            found |= {f"{key}.low": interval.low, f"{key}.high": interval.high}
            if worst is not None:
                kind = "original questions"
                interval = bootstrap_interval([getattr(s, key) for s in worst], samples=bootstrap, resampled=kind)
                found |= {f"addsent_{key}.low": interval.low, f"addsent_{key}.high": interval.high}
    rows = []
    for example, score in zip(examples, scores):
        spans = nbest.get(example.id, ())
        chosen = spans[0] if spans and score.prediction else {}
        rows.append(
            {
                "id": example.id,
                "question": example.question,
                "context": example.context,
                "language": example.language,
                "answers": example.golds,
                "prediction": score.prediction,
                "start": chosen.get("start", -1),
                "probability": chosen.get("probability"),
                "em": score.em,
                "f1": score.f1,
            }
        )
    return found, pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA)
