"""Gold judgements in TREC's layout, which raydist writes for other tools and does not read."""

from pathlib import Path
from urllib.parse import unquote


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Relevance by question and sentence."""
    gold: dict[str, dict[str, int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        question, _, sentence, relevance = line.split(" ")
        gold.setdefault(unquote(question), {})[unquote(sentence)] = int(relevance)
    return gold
