"""The table of results in README.md, taken from docs/results.md: `python tests/helpers/readme_table.py` writes it."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- made by tests/helpers/readme_table.py -->\n", "<!-- end -->\n"

# what it says, then where each figure is: a heading of results.md, how the table's row begins, and the column
SQUAD, REQA, SPEED = "A reader on real SQuAD", "Mining and retrieval on real data", "Speed"
ROWS: list[tuple[str, tuple[str, str, str], str, tuple[str, str, str] | None]] = [
    (
        "F1 on SQuAD dev, from 4,000 questions",
        (SQUAD, "`raydist run real_squad`", "F1"),
        "a plain loop of transformers",
        (SQUAD, "plain loop", "F1"),
    ),
    (
        "MRR@100 on ReQA-SQuAD, from 2,000 gold pairs and what was mined",
        (REQA, "gold and silver pairs, weighted", "MRR@100"),
        "gold pairs alone",
        (REQA, "gold pairs", "MRR@100"),
    ),
    (
        "the same, its first ten re-ranked",
        (REQA, "its first ten, re-ranked", "MRR@100"),
        "untrained MiniLM",
        (REQA, "MiniLM, untrained", "MRR@100"),
    ),
    ("the same, untrained, words and vectors as one list", (REQA, "`z`", "MRR@100"), "BM25", (REQA, "BM25", "MRR@100")),
    ("speed of training", (SPEED, "the same", "ratio"), "the Trainer of transformers, grouping by length", None),
    ("speed of n-best lists", (SPEED, "n-best lists", "ratio"), "the procedure of transformers' example", None),
    ("speed of cross-encoder scores", (SPEED, "cross-encoder scores", "ratio"), "`CrossEncoder` at its best batch size", None),
    ("speed of sentence vectors", (SPEED, "sentence vectors", "ratio"), "`SentenceTransformer.encode` at its best", None),
    ("speed of mining", (SPEED, "mining, per scored pair", "ratio"), "`mine_hard_negatives` at its best batch size", None),
]


def table() -> str:
    lines = ["| | raydist | against |", "|---|---|---|"]
    for label, place, other, theirs in ROWS:
        value = figure(place)
        lines.append(f"| {label} | {value if theirs else value + ' ×'} | {other}{': ' + figure(theirs) if theirs else ''} |")
    return "\n".join(lines) + "\n"


def figure(place: tuple[str, str, str]) -> str:
    """The first figure of a cell, with its deviation."""
    heading, row, column = place
    for head, rows in tables(heading):
        for cells in rows:
            if column in head and (cells[0] == row or re.match(re.escape(row) + r"\W", cells[0])):
                found = re.match(r"[\d.]+(?: ± [\d.]+)?", cells[head.index(column)])
                if found:
                    return found[0]
    raise LookupError(f"docs/results.md has no figure under {heading!r}, row {row!r}, column {column!r}: mend ROWS")


def tables(heading: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables below a heading: the names of columns, and rows of cells."""
    text = (CHECKOUT / "docs" / "results.md").read_text(encoding="utf-8")
    part = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if part is None:
        raise LookupError(f"docs/results.md has no heading {heading!r}: mend ROWS")
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", part[1], re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        head = [name.split(" (")[0] for name in cells[0]]
        found.append((head, cells[2:]))
    return found


def with_table(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = CHECKOUT / "README.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
