"""The folder of a run that has mined, without the mining: pairs with texts, their documents, gold answers."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.schemas import GOLD_SCHEMA
from raydist.corpus.sentence_table import build_sentence_table
from raydist.files.storage import Storage
from raydist.records import MINED_SCHEMA
from raydist.runs.stages import StageUse, write_stages

MARKUP = "<img src=x onerror=\"document.title='run'\"> spans the <b>Oder</b> since 1802."
SENTENCES = {
    "orla#0": "The Orla bridge was drawn by Mina Orlov.",
    "orla#1": "It was built in 1894, of iron.",
    "orla#2": "It fell in 1911.",
    "veld#0": "The tower of Veld was built in 1790.",
    "veld#2": "Its stones are counted every year. " * 40 + "That is all.",
    "veld#1": "Nobody lives in it.",
    "oder#0": MARKUP,
    "oder#1": "The mill beside it burned.",
    "kinneret#0": "הגשר נבנה בשנת 1932 על ידי מהנדסים מקומיים.",
    "kinneret#1": "הוא עדיין עומד.",
}
PASSAGES = {"orla": ("orla#0", "orla#1", "orla#2"), "veld": ("veld#0", "veld#1", "veld#2")}
QUESTIONS = {
    "q1": "When was the Orla bridge built?",
    "q2": "What spans the <i>Oder</i>?",
    "q3": "מתי נבנה הגשר?",
    "q4": "When was the tower of Veld built?",
}
# question, sentence, p, kept, why not
PAIRS = (
    ("q1", "orla#2", 0.52, True, None),
    ("q2", "oder#0", 0.55, True, None),
    ("q3", "kinneret#0", 0.9, True, None),
    ("q4", "veld#0", 0.97, True, None),
    ("q1", "veld#0", 0.43, False, "p below the threshold"),
    ("q2", "oder#1", 0.2, False, "p below the threshold"),
    ("q4", "veld#1", 0.05, False, "p below the threshold"),
)
GOLD = (("q1", "orla#1"), ("q2", "oder#0"), ("q3", "kinneret#1"), ("q4", "veld#0"))


def write_mined_run(storage: Path, name: str = "mined") -> Path:
    """A run's folder; the most doubtful pairs are (q1, orla#2), (q2, oder#0), (q1, veld#0)."""
    run = Storage(str(storage / name))
    rows = [
        {
            "question_id": question, "sentence_id": sentence, "p": p, "kept": kept, "why_not": why, "logit": 10 * p - 5,
            "bm25_rank": 1, "bm25_score": 7.25, "dense_rank": 2, "dense_score": 0.5, "same_doc": False, "sources": ["bm25"],
            "cross_encoder": "c", "weight": p * p * kept, "question": QUESTIONS[question], "sentence": SENTENCES[sentence],
        }
        for question, sentence, p, kept, why in PAIRS
    ]  # fmt: skip
    (storage / name / "mining").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, MINED_SCHEMA), storage / name / "mining/silver.parquet")
    run.write_json("mining/yield.json", {"gold": len(GOLD), "candidates": len(rows), "threshold": 0.5, "points": []})
    run.write_bytes("config.yaml", f"name: {name}\n".encode())
    write_stages(run, {folder: StageUse(folder, title) for folder, title in _write_stages(storage).items()})
    return storage / name


def _write_stages(storage: Path) -> dict[str, str]:
    """Folders with titles: of another corpus, and of the one that was mined, which was named as a test set afterwards."""
    _write_corpus(storage, "other", {"orla#0": "Another corpus.", "x": "Nothing else."}, {}, [("q9", "x")])
    _write_corpus(storage, "mined", SENTENCES, PASSAGES, GOLD)
    titles = {"sentences": "sentences of sample", "retrieval_set": "corpus sample"}
    return {f"stages/{stage}-{corpus}": title for corpus in ("other", "mined") for stage, title in titles.items()}


def _write_corpus(storage: Path, name: str, texts: dict, passages: dict, gold: Sequence[tuple[str, str]]) -> None:
    in_passage = {sentence: passage for passage, sentences in passages.items() for sentence in sentences}
    rows = [
        {"sentence_id": id, "text": text, "passage_id": in_passage.get(id, ""), "document_id": id.partition("#")[0]}
        | dict(zip(("text_key", "bag_key"), duplicate_keys(text)))
        for id, text in texts.items()
    ]
    around = [{"passage_id": id, "text": " ".join(texts[each] for each in of)} for id, of in passages.items()]
    sentences, tables = (storage / f"stages/{stage}-{name}" for stage in ("sentences", "retrieval_set"))
    build_sentence_table(sentences / "table", [pa.Table.from_pylist(rows)], [pa.Table.from_pylist(around)] if around else [])
    tables.mkdir(parents=True)
    judged = [{"question_id": question, "sentence_id": sentence, "relevance": 1} for question, sentence in gold]
    pq.write_table(pa.Table.from_pylist(judged, GOLD_SCHEMA), tables / "gold-00000.parquet")
    for folder in (sentences, tables):
        (folder / "manifest.json").write_text("{}")
