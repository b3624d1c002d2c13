"""A run directory made by hand: texts are given, predictions and steps are made up, everything from a seed."""

import json
import math
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from raydist.records import EVALUATION_SCHEMA, Rejected, rejected_table

CONTEXT = "The Orla bridge was opened in 1931. Before 1931, people of Tarn crossed the river by ferry. It is 310 metres long."
ROWS = [
    ("q1", "When was the bridge opened?", ["1931"]),
    ("q2", "How long is the bridge?", ["310 metres", "310 metres long"]),
    ("q3", "How did people cross the river before?", ["by ferry"]),
    ("q4", "Who crossed the river by ferry?", ["people of Tarn"]),
]


def example(
    id="q", question="Who?", answers=("Tarn",), context=CONTEXT, language="en", prediction=None, probability=0.9, **other
):
    """One row of an evaluation; right unless another prediction is given."""
    prediction = answers[0] if prediction is None else prediction
    right = prediction in answers
    row = {"id": id, "question": question, "context": context, "language": language, "answers": list(answers)}
    row |= {"prediction": prediction, "start": context.find(prediction) if prediction else -1, "probability": probability}
    return row | {"em": 100.0 * right, "f1": 100.0 * right} | other


def write_run(
    folder: Path, evaluations: dict[str, list[dict]], *, seed: int = 0, steps: int = 0, config: str = "", metrics=None
) -> Path:
    """Write every part of a run."""
    draw = random.Random(seed)
    for part in ("evaluation", "rejected"):
        (folder / part).mkdir(parents=True)
    plain = {"name": folder.name, "task": "reader", "seed": seed, "model": {"name": "builtin:minilm"}, "optim": {"lr": 1e-4}}
    (folder / "config.yaml").write_text(config or yaml.safe_dump(plain, sort_keys=False))
    lines = []
    for step in range(10, 10 * steps + 1, 10):
        losses = {"span": 4 * math.exp(-step / 300) + 0.5 + 0.2 * draw.random(), "infomax": 1.4 + 0.1 * draw.random()}
        weighted = {"span": losses["span"], "infomax": 0.3 * losses["infomax"]}
        line = {"step": step, "epoch": step / 500, "loss": sum(weighted.values()), "lr": 1e-4 * (1 - step / (10 * steps))}
        line |= {f"loss.{name}": value for name, value in losses.items()} | {
            f"weighted.{name}": value for name, value in weighted.items()
        }
        line |= {f"rows.{name}": 16 for name in losses} | {
            "grad_norm": 2 + draw.random(),
            "examples_per_s": 30 + 5 * draw.random(),
        }
        lines.append(line)
        if step % 100 == 0:
            score = 88 * (1 - math.exp(-step / 250)) + draw.random()
            lines.append({"step": step, "dev.f1": score, "dev.em": score - 8})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores = {"train.steps": 10 * steps, "train.seconds": 200.1, "train.examples_per_s": 33.0}
    for name, rows in evaluations.items():
        pq.write_table(pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA), folder / "evaluation" / f"{name}.parquet")
        for measure in ("f1", "em"):
            mean = sum(row[measure] for row in rows) / len(rows)
            margin = 100 / len(rows) ** 0.5
            scores |= {f"{name}.{measure}": mean, f"{name}.{measure}.low": max(0, mean - margin)}
            scores |= {f"{name}.{measure}.high": min(100, mean + margin)}
        scores |= {f"{name}.questions": len(rows), f"{name}.rule": "squad"}
    (folder / "metrics.json").write_text(json.dumps(scores | (metrics or {})))
    stages = {"features": {"folder": "features-ab12cd34", "rows": 4211, "seconds": 12.5, "reused": False}}
    stages["windows of dev"] = {"folder": "features-99aa00ff", "rows": 700, "seconds": 71.0, "reused": True}
    (folder / "stages.json").write_text(json.dumps(stages))
    bad = [Rejected("train.json", 7, "q7", "answer", "answer not at its offset", "'1931' at 4, passage has 'Orla'")]
    bad += [Rejected("train.json", line, f"q{line}", "question", "empty question", "''") for line in range(20, 32)]
    pq.write_table(rejected_table(bad), folder / "rejected" / "part-0.parquet")
    os.utime(folder / "metrics.jsonl", (1.7e9, 1.7e9))
    return folder
