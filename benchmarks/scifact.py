"""SciFact as a folder in BEIR layout, for configs/experiments/retrieval/scifact.yaml.

    python benchmarks/scifact.py ../shared/data/scifact/scifact.zip runs/data/scifact

A document is an abstract with the places of its sentences, a question a claim, gold the sentences that support or contradict
it. The claims for validation are the split `test`: those for testing have no published labels.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)  # an abstract is a list of these without commas
SPLITS = {"train": "claims_train.csv", "test": "claims_validation.csv"}


def rows(archive: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    with archive.open(name) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))


def document(row: dict[str, str]) -> dict:
    text, places = "", []
    for quoted in QUOTED.findall(row["abstract"]):
        sentence = ast.literal_eval(quoted).strip()
        start = len(text) + 1 if text else 0
        text = f"{text} {sentence}" if text else sentence
        places.append([start, len(text)])
    return {"_id": row["doc_id"], "title": row["title"], "text": text, "sentences": places}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    (args.out / "qrels").mkdir(parents=True, exist_ok=True)
    claims: dict[str, str] = {}
    with zipfile.ZipFile(args.archive) as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        with (args.out / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for row in rows(archive, names["corpus_train.csv"]):
                file.write(json.dumps(document(row), ensure_ascii=False) + "\n")
        for split, name in SPLITS.items():
            gold: dict[tuple[str, str], None] = {}
            for row in rows(archive, names[name]):
                for place in re.findall(r"\d+", row["evidence_sentences"]):
                    gold[row["id"], f"{row['evidence_doc_id']}#{place}"] = None
                    claims[row["id"]] = row["claim"]
            lines = ["query-id\tcorpus-id\tscore", *(f"{claim}\t{sentence}\t1" for claim, sentence in gold)]
            (args.out / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [json.dumps({"_id": id, "text": text}, ensure_ascii=False) for id, text in claims.items()]
    (args.out / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
