"""Ranked lists of another tool, as a TREC run over the ids of a test set's corpus, scored like our own.

Ties are settled as in trec_eval: scores in float32, the larger id first among equals; ranks and order in the file are
ignored. Ids that the corpus lacks keep their places and count as wrong, and means go over all questions that have gold
(trec_eval's option -c).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raydist.errors import InputError
from raydist.retrieval.candidates import Ranked
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.evaluate import Scores, write_scores
from raydist.retrieval.metrics import read_trec_run
from raydist.runs.locate import locate
from raydist.runs.run import Run
from raydist.terminal import say

FOREIGN = "foreign"  # the method, in metrics.json and ranked/


def score_foreign(run: Run, corpora: dict[str, Corpus]) -> Scores:
    """Score each run named in evaluate.predictions on its test set."""
    scores: Scores = {}
    for name, corpus in corpora.items():
        _refuse_beside_own(run, name)
        path = locate(run, run.config.evaluate.predictions[name]).fetch()
        lists = read_trec_run(path)
        _say_unknown(name, path, corpus, lists)
        scores[name] = write_scores(run, corpus, {FOREIGN: _blocks(corpus, lists)}, ties="trec")
    return scores


def _refuse_beside_own(run: Run, name: str) -> None:
    metrics = run.folder.read_json("metrics.json") if run.folder.exists("metrics.json") else {}
    own = {key.split(".")[2] for key in metrics if key.startswith(f"retrieval.{name}.")} - {FOREIGN}
    if own or run.folder.exists("training.json"):
        raise InputError(
            f"run {run.config.name!r} has scores or a model of its own, and evaluate.predictions are another tool's ranked "
            f"lists: score them under another name (name=...)"
        )


def _say_unknown(name: str, path: Path, corpus: Corpus, lists: Ranked) -> None:
    asked = set(corpus.read("questions")["question_id"].to_pylist())
    known = lists.keys() & asked
    if not known:
        raise InputError(
            f"{path} has no list for any question of {name}; its ids look like {next(iter(lists), None)!r}, those of the set "
            f"like {min(asked)!r}"
        )
    if strangers := len(lists) - len(known):
        say(f"{name}: {strangers:,} of {len(lists):,} questions of {path} are not in the set: left out")
    if silent := len(asked) - len(known):
        say(f"{name}: {silent:,} of {len(asked):,} questions have no list and score 0")
    named = list(dict.fromkeys(sentence for question in sorted(known) for sentence, _ in lists[question]))
    rows = corpus.sentence_table().find(named)
    if unknown := int((rows < 0).sum()):
        first = named[int((rows < 0).argmax())]
        say(f"{name}: {unknown:,} of {len(named):,} ids are not in the corpus, {first!r} for one: they count as wrong")


def _blocks(corpus: Corpus, lists: Ranked) -> Iterator[Ranked]:
    for number in range(corpus.num_blocks):
        ids = corpus.questions(number)["question_id"].to_pylist()
        yield {id: lists[id] for id in ids if id in lists}
