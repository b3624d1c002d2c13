"""Silver pairs of a run on the sample world against the truth: which candidates restate a fact that was asked for.

    python benchmarks/silver_truth.py runs/retrieval

The sample world knows which sentences of other documents answer a training question in other words (`restated.jsonl`; they are
not in its gold). So every candidate is right or wrong, and what a threshold keeps has a precision and a recall, of pairs and of
their weights. No model runs. Answers that are no candidates are missed: the recall at threshold 0 is the most there can be.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

THRESHOLDS = (0.0, 0.5, 0.7, 0.9, 0.95)


def truth(run: Path) -> set[tuple[str, str]]:
    """(question, sentence) of all restatements in the run's sample world."""
    used = json.loads((run / "stages.json").read_text()).items()
    worlds = [stage["folder"] for key, stage in used if stage.get("title", key) == "sample world"]
    if not worlds:
        sys.exit(f"{run} was not made of the sample world: nothing is known of its answers but gold")
    lines = (run.parent / worlds[0] / "restated.jsonl").read_text(encoding="utf-8").splitlines()
    rows = map(json.loads, lines)
    return {(row["query-id"], row["corpus-id"]) for row in rows}


def selection(right: np.ndarray, p: np.ndarray, weight: np.ndarray, total: int, threshold: float) -> dict[str, float]:
    """Precision and recall of what a threshold keeps, of pairs and of weights; ``total`` answers are there to be found."""
    kept = p >= threshold
    hits, mass = int((right & kept).sum()), float(weight[kept].sum())
    return {
        "pairs": int(kept.sum()),
        "precision": hits / max(1, int(kept.sum())),
        "recall": hits / max(1, total),
        "weight": mass,
        "weighted precision": float(weight[kept & right].sum()) / mass if mass else 0.0,
        "weighted recall": float(weight[kept & right].sum()) / max(1, total),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, such as runs/retrieval")
    run = parser.parse_args().run.resolve()
    table = pq.read_table(run / "mining" / "silver.parquet", columns=["question_id", "sentence_id", "p"])
    pairs = list(zip(table["question_id"].to_pylist(), table["sentence_id"].to_pylist()))
    asked = {question for question, _ in pairs}
    answers = {pair for pair in truth(run) if pair[0] in asked}
    right = np.array([pair in answers for pair in pairs], bool)
    p = table["p"].to_numpy().astype(float)
    power = yaml.safe_load((run / "config.yaml").read_text())["mining"]["power"]
    rows = {at: selection(right, p, p**power, len(answers), at) for at in THRESHOLDS}
    share = right.mean()
    found = f"{int(right.sum()):,} of {len(answers):,} restatements among them"
    print(f"{len(asked):,} questions, {len(pairs):,} candidates, {found}")
    print(f"{share:.1%} of the candidates are right: corrected from 1:3 to that (docs/methods.md 5.3), p of 0.5 would be")
    print(f"{(1 - share) / (1 + 2 * share):.3f} before the correction")
    print(f"{'threshold':>9}" + "".join(f"{name:>20}" for name in rows[0.0]) + f"   weights p^{power:g}")
    for at, row in rows.items():
        cells = (f"{value:20,.0f}" if name in ("pairs", "weight") else f"{value:20.3f}" for name, value in row.items())
        print(f"{at:9.2f}" + "".join(cells))


if __name__ == "__main__":
    main()
