"""The whole chain on real questions: paragraphs of SQuAD's dev set as documents, its questions asked without their paragraph.

    raydist run real_squad data.root=../shared/data                                         # a reader
    python benchmarks/asking.py --data-dir ../shared/data --pairs runs/pairs                # tables for a cross-encoder
    raydist train retriever task=cross_encoder name=passages corpus.train.format=tables \
        'corpus.train.files=[runs/pairs/corpus.jsonl,runs/pairs/questions.jsonl,runs/pairs/gold.jsonl]' ...
    python benchmarks/asking.py --data-dir ../shared/data --reader runs/real_squad \
        --cross-encoder runs/passages_cross_encoder/model --out runs/asking

BM25, vectors, both (by reciprocal ranks) and both ranked anew by a cross-encoder: passage recall, EM and F1 of the chain,
beside the reader that is given the gold paragraph. Then the same with half of the paragraphs that answer removed: is what is
not there left unanswered? Calibrations are fitted on articles of the training set that neither the reader nor the
cross-encoder has seen, never on the dev set; with half of their paragraphs removed, too, where the documents' are.

What the models say of a pair is kept in OUT, and so is each row of the table: interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import raydist
from raydist.asking.asker import Asker, Gathered
from raydist.asking.calibration import fit_calibration
from raydist.asking.evaluate import chain_scores, judge, right_candidates
from raydist.asking.questions import Question
from raydist.reader.answers import AnswerSpan
from raydist.reader.metrics import squad_scores

DEPTH = 20  # passages that are found
AT_K = (1, 5, 10, 20)
METHODS = {"hybrid": False, "hybrid, re-ranked": True, "bm25": False, "dense": False}  # and whether ranked anew
PRECISIONS = (0.6, 0.7, 0.8)
RRF = 60
BLOCK = 32


def hashed(text: str, salt: str = "") -> float:
    """A number from 0 to 1 that a text always has."""
    return int.from_bytes(blake2b((salt + text).encode(), digest_size=6).digest(), "big") / 2**48


# --- data ------------------------------------------------------------------------------------------------------------


class Articles(NamedTuple):
    paragraphs: list[str]
    questions: list[Question]


def articles_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["data"]


def opened(articles: Sequence[dict[str, Any]], most: int | None) -> Articles:
    """All paragraphs of some articles, and so many of their questions, drawn by their ids."""
    paragraphs, questions = {}, []
    for article in articles:
        for paragraph in article["paragraphs"]:
            paragraphs[paragraph["context"]] = None
            for asked in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in asked["answers"]))
                questions.append(Question(asked["id"], asked["question"], answers, context=paragraph["context"]))
    return Articles(list(paragraphs), sorted(questions, key=lambda question: hashed(question.id))[:most])


def unseen(data: Path) -> list[dict[str, Any]]:
    """Articles of the training set without those of the reader's subset, in an order drawn by their titles."""
    seen = {article["title"] for article in articles_of(data / "squad" / "train-subset-v1.1.json.gz")}
    seen |= {article["title"] for article in articles_of(data / "squad" / "dev-A-v1.1.json.gz")}
    rest = [article for article in articles_of(data / "squad" / "train-v1.1.json.gz") if article["title"] not in seen]
    return sorted(rest, key=lambda article: hashed(article["title"], "article"))


def write_pairs(data: Path, folder: Path, articles: int, calibration: int, questions: int) -> None:
    """Paragraphs as a corpus of candidates, with questions and gold: a cross-encoder of passages is trained on them."""
    chosen = opened(unseen(data)[calibration : calibration + articles], questions)
    ids = {text: f"p{number}" for number, text in enumerate(chosen.paragraphs)}
    rows = {
        "corpus": [{"sentence_id": id, "text": text, "title": "", "document_id": id} for text, id in ids.items()],
        "questions": [{"question_id": question.id, "text": question.text} for question in chosen.questions],
        "gold": [{"question_id": q.id, "sentence_id": ids[q.context or ""], "relevance": 1} for q in chosen.questions],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    print(f"{folder}: {len(ids):,} paragraphs, {len(chosen.questions):,} questions")


# --- passages in memory ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A paragraph, as a library gives it."""

    passage_id: str
    document_id: str
    text: str
    score: float = 0.0
    title: str = ""
    headings: tuple[str, ...] = ()
    page: int | None = None
    line: int | None = None
    scores: dict[str, float] = field(default_factory=dict)


class Paragraphs:
    """Paragraphs by words, by vectors, or by the sum of 1 / (60 + rank) of both."""

    def __init__(self, texts: Sequence[str], encoder: raydist.TextEncoder) -> None:
        self.texts, self.encoder = list(texts), encoder
        self.bm25 = raydist.BM25(self.texts)
        self.vectors = encoder.encode(self.texts)

    def search(
        self, questions: Sequence[str], k: int = 10, *, kind: str = "hybrid", where: str | None = None
    ) -> list[list[Found]]:
        words = [{hit.number: hit.score for hit in hits} for hits in self.bm25.search(list(questions), DEPTH)]
        dense = [self._nearest(row) for row in self.encoder.encode(list(questions)) @ self.vectors.T]
        chosen = {"bm25": lambda a, b: a, "dense": lambda a, b: b, "hybrid": fused}[kind]
        return [self._best(chosen(a, b), {"bm25": a, "dense": b}, k) for a, b in zip(words, dense)]

    def _nearest(self, products: np.ndarray) -> dict[int, float]:
        order = np.argsort(-products, kind="stable")[:DEPTH]
        return dict(zip(order.tolist(), products[order].tolist()))

    def _best(self, scores: dict[int, float], by: dict[str, dict[int, float]], k: int) -> list[Found]:
        order = sorted(scores, key=lambda number: -scores[number])[:k]
        return [self._found(number, scores[number], by) for number in order]

    def _found(self, number: int, score: float, by: dict[str, dict[int, float]]) -> Found:
        known = {name: scores[number] for name, scores in by.items() if number in scores}
        return Found(f"p{number}", f"p{number}", self.texts[number], score, scores=known)


def fused(first: dict[int, float], second: dict[int, float]) -> dict[int, float]:
    total: dict[int, float] = {}
    for ranked in (first, second):
        for rank, number in enumerate(sorted(ranked, key=lambda number: -ranked[number]), 1):
            total[number] = total.get(number, 0.0) + 1 / (RRF + rank)
    return total


# --- models that remember --------------------------------------------------------------------------------------------


class Kept:
    """What a model said of pairs, in a file of JSON Lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                self.known.update(json.loads(line))
            except ValueError:  # cut off when it was interrupted
                continue

    def of(self, pairs: Sequence[tuple[str, str]], ask: Callable[[list[tuple[str, str]]], list[Any]]) -> list[Any]:
        keys = [blake2b("\0".join(pair).encode(), digest_size=9).hexdigest() for pair in pairs]
        new = {key: pair for key, pair in zip(keys, pairs) if key not in self.known}
        if new:
            said = dict(zip(new, ask(list(new.values()))))
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps(said) + "\n")
            self.known |= said
        return [self.known[key] for key in keys]


@dataclass(frozen=True)
class ReadBefore:
    nbest: tuple[AnswerSpan, ...]
    null_score: float


class KeptReader:
    def __init__(self, reader: raydist.Reader, path: Path) -> None:
        self.reader, self.kept, self.folder = reader, Kept(path), reader.folder

    def ask_all(self, pairs: Sequence[tuple[str, str]], *, n_best: int) -> list[ReadBefore]:
        return [
            ReadBefore(tuple(AnswerSpan(*span) for span in spans), null)
            for spans, null in self.kept.of(pairs, partial(self._read, n_best))
        ]

    def _read(self, n_best: int, pairs: list[tuple[str, str]]) -> list[Any]:
        answers = self.reader.ask_all(pairs, n_best=n_best)
        return [[[list(asdict(span).values()) for span in answer.nbest], answer.null_score] for answer in answers]


class KeptScorer:
    def __init__(self, scorer: raydist.CrossScorer, path: Path) -> None:
        self.scorer, self.kept, self.folder = scorer, Kept(path), scorer.folder

    def score(
        self, questions: Sequence[str], texts: Sequence[str], question_of: Sequence[int], text_of: Sequence[int]
    ) -> np.ndarray:
        return np.array(self.kept.of([(questions[q], texts[t]) for q, t in zip(question_of, text_of)], self._score))

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        numbers = range(len(pairs))
        return self.scorer.score([q for q, _ in pairs], [t for _, t in pairs], list(numbers), list(numbers)).tolist()


# --- rows of the table -----------------------------------------------------------------------------------------------


def ask_all(asker: Asker, questions: Sequence[Question]) -> list[Gathered]:
    gathered: list[Gathered] = []
    for first in range(0, len(questions), BLOCK):
        texts = [question.text for question in questions[first : first + BLOCK]]
        gathered += asker.gather(texts, depth=DEPTH)
        print(f"\r  {len(gathered):,}/{len(questions):,}", end="", flush=True)
    print()
    return gathered


def half_removed(articles: Articles) -> Articles:
    """Without half of the paragraphs; a question whose paragraph went has no answer."""
    kept = [text for text in articles.paragraphs if hashed(text, "removed") >= 0.5]
    there = set(kept)
    questions = [q if q.context in there else replace(q, answers=(), context=None) for q in articles.questions]
    return Articles(kept, questions)


def score_method(asker: Asker, dev: Articles, dev_library: Paragraphs, test: Articles) -> dict[str, Any]:
    """Calibrated on dev, scored on test; at the threshold of 0.5, and at those for wanted precisions."""
    library = asker.library
    asker.library = dev_library
    gathered = ask_all(asker, dev.questions)
    right = [right_candidates(question, found) for question, found in zip(dev.questions, gathered)]
    calibration = fit_calibration([found.features for found in gathered], right, asker.setup)
    asker.library = library
    found = ask_all(asker, test.questions)
    plain = [judge(question, each, asker.weigh(each)) for question, each in zip(test.questions, found)]
    scores: dict[str, Any] = {"uncalibrated_em": chain_scores(plain, at_k=(), reranked=False)["em"]}
    calibrated = asker.calibrated(calibration)
    outcomes = [judge(question, each, calibrated.weigh(each)) for question, each in zip(test.questions, found)]
    scores |= chain_scores(outcomes, at_k=AT_K, reranked=asker.cross_encoder is not None, bootstrap=1000)
    for wanted in PRECISIONS:
        scores |= at_precision(calibrated, wanted, test.questions, found)
    return scores | {"calibration": calibration.to_json()}


def at_precision(asker: Asker, wanted: float, questions: Sequence[Question], found: Sequence[Gathered]) -> dict[str, Any]:
    try:
        strict = asker.calibrated(asker.calibration, precision=wanted)
    except raydist.InputError as error:
        return {f"wanted {wanted}": str(error)}
    outcomes = [judge(question, each, strict.weigh(each)) for question, each in zip(questions, found)]
    scores = chain_scores(outcomes, at_k=(), reranked=False)
    names = ("answered", "precision", "not_found.precision", "not_found.recall")
    return {f"wanted {wanted}": {name: scores[name] for name in names if name in scores} | {"threshold": strict.threshold}}


def gold_scores(reader: KeptReader, questions: Sequence[Question]) -> dict[str, Any]:
    """The reader that is given the gold paragraph."""
    pairs = [(question.text, question.context or "") for question in questions]
    answers = [answer for first in range(0, len(pairs), 256) for answer in reader.ask_all(pairs[first : first + 256], n_best=5)]
    texts = {question.id: answer.nbest[0].text for question, answer in zip(questions, answers)}
    return squad_scores(texts, {question.id: question.answers for question in questions})


def rows(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Name and making of every row of the table."""
    data, out = Path(options.data_dir), Path(options.out)
    test = opened(articles_of(data / "squad" / "dev-A-v1.1.json.gz"), options.questions)
    dev = opened(unseen(data)[: options.articles], options.calibrate)
    encoder = raydist.TextEncoder("builtin:minilm", pooling="mean", max_length=256, precision=options.precision)
    reader = KeptReader(raydist.Reader.load(options.reader, precision=options.precision), out / "read.jsonl")
    scorer = None
    if options.cross_encoder:
        opened_scorer = raydist.CrossScorer(options.cross_encoder, max_length=256, precision=options.precision)
        scorer = KeptScorer(opened_scorer, out / "scored.jsonl")
    yield "gold paragraph", partial(gold_scores, reader, test.questions)
    sets = {"": (dev, test), ", half removed": (half_removed(dev), half_removed(test))}
    libraries: dict[str, list[Paragraphs]] = {}

    def make(kind: str, rerank: bool, ending: str) -> dict[str, Any]:
        if ending not in libraries:
            libraries[ending] = [Paragraphs(each.paragraphs, encoder) for each in sets[ending]]
        models: dict[str, Any] = {"reader": reader, "cross_encoder": scorer if rerank else None}
        asker = Asker(libraries[ending][1], **models, kind=kind, k=options.k, depth=options.depth)
        return score_method(asker, sets[ending][0], libraries[ending][0], sets[ending][1])

    for name, rerank in METHODS.items():
        for ending in sets if scorer or not rerank else ():
            yield name + ending, partial(make, name.partition(",")[0], rerank, ending)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--reader")
    parser.add_argument("--cross-encoder", help="folder of its model")
    parser.add_argument("--out", default="runs/asking")
    parser.add_argument("--questions", type=int, help="of dev-A; default: all")
    parser.add_argument("--articles", type=int, default=24, help="of the training set, for the calibration")
    parser.add_argument("--calibrate", type=int, default=1500, help="questions of these")
    parser.add_argument("--k", type=int, default=10, help="passages that are read")
    parser.add_argument("--depth", type=int, default=20, help="passages that are ranked anew")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--pairs", help="write tables for a cross-encoder into this folder, and end")
    parser.add_argument("--pair-articles", type=int, default=40)
    parser.add_argument("--pair-questions", type=int, default=1500)
    options = parser.parse_args()
    if options.pairs:
        pairs = (Path(options.pairs), options.pair_articles, options.articles, options.pair_questions)
        write_pairs(Path(options.data_dir), *pairs)
        return
    results = Path(options.out) / "results.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    table = json.loads(results.read_text()) if results.is_file() else {}
    for name, make in rows(options):
        if name not in table:
            print(name, flush=True)
            table[name] = make()
            results.write_text(json.dumps(table, indent=1))
        print_row(name, table[name])


def print_row(name: str, scores: dict[str, Any]) -> None:
    shown = ("recall@1", "recall@5", "recall@20", "recall_read", "em", "f1", "answered", "precision")
    shown += ("calibration_error", "not_found.precision", "not_found.recall")
    print(f"{name:32}" + "  ".join(f"{key} {scores[key]:.1f}" for key in shown if key in scores), flush=True)


if __name__ == "__main__":
    main()
