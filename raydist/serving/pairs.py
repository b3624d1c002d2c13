"""The mined pairs of a run, as somebody judges them: with their texts around them, and with the verdicts so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from raydist.corpus.sentence_table import SentenceTable
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.judgements.journal import Journal
from raydist.judgements.judgement import Judgement
from raydist.runs.stages import read_stages

MINED = "mining/silver.parquet"
Show = Literal["near", "kept", "not kept"]
Verdict = Literal["undecided", "accepted", "rejected", "skipped", "any"]
VERDICTS = {True: "accepted", False: "rejected", None: "skipped"}
AROUND = 2  # sentences before and after
SCORES = ("p", "logit", "weight", "bm25_rank", "bm25_score", "dense_rank", "dense_score")
PLAIN = ("question_id", "sentence_id", "question", "sentence", "kept", "why_not", "sources", "same_doc", *SCORES)


class MinedPairs:
    """All scored pairs of a run's last round of mining, the most doubtful first."""

    def __init__(self, run: Storage, open_journal: Callable[[], Journal], name: str) -> None:
        if not run.exists(MINED):
            raise InputError(
                f"{run.uri} has no {MINED}: wanted a run of retrieval that has mined (raydist mine, or raydist run retrieval)"
            )
        self.journal, self.name = open_journal(), name
        with run.open_input(MINED) as file:
            self._table = pq.read_table(file, columns=list(PLAIN))
        self.threshold = float(run.read_json("mining/yield.json").get("threshold") or 0.0)
        self._sentences, self._gold = _corpus_of(run, self._table)
        self._pairs = list(zip(self._table["question_id"].to_pylist(), self._table["sentence_id"].to_pylist()))
        self._row = {pair: row for row, pair in enumerate(self._pairs)}
        p, kept = self._table["p"].to_numpy(), self._table["kept"].to_numpy(zero_copy_only=False)
        by_doubt = np.argsort(np.abs(p - self.threshold), kind="stable")
        self._order = {"near": by_doubt, "kept": by_doubt[kept[by_doubt]], "not kept": by_doubt[~kept[by_doubt]]}

    # --- what is shown -----------------------------------------------------------------------------------------------

    def page(self, show: Show, verdict: Verdict, after: int, limit: int) -> list[dict[str, Any]]:
        """Pairs of an order with a verdict, from behind a place in it."""
        said, order = self._said(), self._order[show]
        wanted = (
            place
            for place in range(after + 1, len(order))
            if verdict in ("any", said.get(self._pairs[order[place]], "undecided"))
        )
        places = list(islice(wanted, limit))
        return [found | {"place": place} for found, place in zip(self._told([int(order[at]) for at in places], said), places)]

    def progress(self) -> dict[str, int]:
        """How many pairs there are, and how many of each verdict."""
        said = Counter(self._said().values())
        return {"pairs": len(self._row)} | {name: said[name] for name in VERDICTS.values()}

    def _said(self) -> dict[tuple[str, str], str]:
        """The verdict on each judged pair."""
        judged = {(each.question_id or "", each.text_id or ""): each.right for each in self.journal.standing()}
        return {pair: VERDICTS[right] for pair, right in judged.items() if pair in self._row}

    def _told(self, rows: Sequence[int], said: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
        gold = self._gold_texts([self._table["question_id"][row].as_py() for row in rows])
        told = []
        for found in self._table.take(pa.array(rows, pa.int64())).to_pylist():
            pair = found["question_id"], found["sentence_id"]
            told.append(found | self._around(pair[1]) | {"gold": gold.get(pair[0], []), "verdict": said.get(pair, "undecided")})
        return told

    def _around(self, sentence: str) -> dict[str, Any]:
        """The paragraph of a sentence, or else its neighbours in the document."""
        around: dict[str, Any] = {"passage": None, "before": [], "after": []}
        row = int(self._sentences.find([sentence])[0]) if self._sentences else -1
        if self._sentences is None or row < 0:
            return around
        around["passage"] = self._sentences.passage_texts(np.array([row]))[0].as_py()
        document = self._sentences.document_rows(row)
        at = int(np.searchsorted(document, row))
        for name, rows in (("before", document[max(0, at - AROUND) : at]), ("after", document[at + 1 : at + 1 + AROUND])):
            around[name] = self._sentences.texts(rows).to_pylist()
        return around

    def _gold_texts(self, questions: list[str]) -> dict[str, list[str]]:
        texts: dict[str, list[str]] = {}
        if self._gold is None or self._sentences is None:
            return texts
        gold = self._gold.filter(pc.is_in(self._gold["question_id"], value_set=pa.array(questions, pa.string())))
        rows = self._sentences.find(gold["sentence_id"])
        for question, row in zip(gold["question_id"].to_pylist(), rows.tolist()):
            if row >= 0:
                texts.setdefault(question, []).append(self._sentences.texts(np.array([row]))[0].as_py())
        return texts

    # --- what is said ------------------------------------------------------------------------------------------------

    def judge(self, question_id: str, sentence_id: str, right: bool | None) -> Judgement:
        """Write a verdict down."""
        row = self._row.get((question_id, sentence_id))
        if row is None:
            raise InputError(f"question {question_id!r} and sentence {sentence_id!r} are no pair that was mined")
        (pair,) = self._table.slice(row, 1).to_pylist()
        judgement = Judgement(pair["question"], right, pair["sentence"], question_id, sentence_id, source=f"judge {self.name}")
        self.journal.add(judgement)
        return judgement

    def undo(self, id: str) -> dict[str, Any]:
        """Take a verdict back; return its pair."""
        judgement = self.journal.undo(id)
        row = self._row.get((judgement.question_id or "", judgement.text_id or ""))
        if row is None:
            raise InputError(f"judgement {id!r} is of no pair that was mined here")
        return self._told([row], self._said())[0]


def _corpus_of(run: Storage, pairs: pa.Table) -> tuple[SentenceTable | None, pa.Table | None]:
    """The sentences and the gold pairs that were mined, if the run's stages are still there: those that have the pairs' ids,
    since a corpus may be used, and named, as train and as a test set.
    """
    name = (yaml.safe_load(run.read_bytes("config.yaml")) or {}).get("name", "") if run.exists("config.yaml") else ""
    storage = run.at(*[".."] * len(str(name).split("/")))  # a run's name may have slashes
    uses = [use for use in read_stages(run).values() if storage.exists(f"{use.folder}/manifest.json")]
    tables = (SentenceTable(storage.at(use.folder).local_copy("") / "table") for use in uses if use.name == "sentences")
    sentences = next((table for table in tables if (table.find(pairs["sentence_id"]) >= 0).all()), None)
    golds = (_gold_of(storage.at(use.folder)) for use in uses if use.name == "retrieval_set")
    asked = pc.unique(pairs["question_id"])
    return sentences, next((gold for gold in golds if pc.any(pc.is_in(gold["question_id"], value_set=asked)).as_py()), None)


def _gold_of(tables: Storage) -> pa.Table:
    with tables.open_input("gold-00000.parquet") as file:
        return pq.read_table(file, columns=["question_id", "sentence_id"])
