"""Exact match and F1 of predicted answers (docs/methods.md 2.5, 3.7). All scores run from 0 to 100.

``squad``, ``mrqa`` and ``hotpotqa`` normalise as for English whatever the language; ``mlqa`` by the language of the passage.
Under ``hotpotqa`` yes, no and noanswer share no word with any other answer.
A set with unanswerable questions is scored as SQuAD v2 defines, others as SQuAD v1.1; the two differ only if a gold answer is
empty after normalisation. A question without a prediction scores 0 under both.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import string
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.corpus.checks import is_writable
from raydist.errors import InputError
from raydist.files.given import check_regular, parse_json
from raydist.records import Example, GoldAnswer, Score

RULES = ("squad", "mrqa", "hotpotqa", "mlqa")
_CLOSED = frozenset({"yes", "no", "noanswer"})

# The articles that MLQA's official rule blanks out, by language of the passage. As in the official pattern, the Arabic article
# goes even inside a word: scores are comparable only if this is kept. Hindi and Chinese have no list.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
    "zh": None,
}


class _DropPunctuation(dict[int, int | None]):
    """A lazy table for ``str.translate`` that drops every Unicode category P* and ASCII punctuation."""

    def __missing__(self, code: int) -> int | None:
        drop = unicodedata.category(chr(code)).startswith("P") or chr(code) in string.punctuation
        self[code] = None if drop else code
        return self[code]


_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANY_PUNCTUATION = _DropPunctuation()
_CHINESE = re.compile(r"([\u4e00-\u9fa5])")


@cache
def normaliser(rule: str, language: str | None = None) -> Callable[[str], str]:
    """The function that makes answers comparable under a rule: words separated by one blank, the rest dropped."""
    if rule not in RULES:
        raise InputError(f"scoring rule {rule!r} is unknown; known are {', '.join(RULES)}")
    if rule == "mlqa" and not language:
        raise InputError(f"the mlqa rule depends on the language of the passages: say which, one of {', '.join(_ARTICLES)}")
    if rule == "mlqa" and language not in _ARTICLES:
        raise InputError(
            f"the mlqa rule has no language {language!r}, only {', '.join(_ARTICLES)}; score such data with the squad rule"
        )
    articles = re.compile(_ARTICLES[language if rule == "mlqa" and language else "en"] or r"(?!)")
    punctuation: Mapping[int, int | None] = _ANY_PUNCTUATION if rule == "mlqa" else _ASCII_PUNCTUATION

    def words(text: str) -> str:
        return " ".join(articles.sub(" ", text.lower().translate(punctuation)).split())

    def characters(text: str) -> str:
        return " ".join(_CHINESE.sub(r" \1 ", text.lower().translate(punctuation)).split())

    return characters if rule == "mlqa" and language == "zh" else words


class _Gold:
    """The gold answers of one question, normalised once."""

    def __init__(self, example: Example, rule: str, v2: bool) -> None:
        self.normalise = normaliser(rule, example.language)
        self.whole = _CLOSED if rule == "hotpotqa" else frozenset()  # right or wrong, no partial credit
        texts = [self.normalise(text) for text in example.golds] if not example.is_impossible else []
        if v2:  # empty gold answers do not count; with no other gold answer, the empty answer is right
            texts = [text for text in texts if text] or [""]
        self.empty_f1 = 100.0 if v2 and texts == [""] else 0.0  # v1.1: no common word, no F1, even for two empty texts
        self.texts = frozenset(texts)
        self.words = [(len(words), Counter(words)) for words in map(str.split, self.texts - self.whole)]

    def score(self, prediction: str) -> tuple[float, float]:
        """(EM, F1), each the largest over the gold answers."""
        text = self.normalise(prediction)
        words = text.split()
        if not words:
            return 100.0 * (text in self.texts), self.empty_f1
        if text in self.texts:
            return 100.0, 100.0
        if text in self.whole:
            return 0.0, 0.0
        best = 0.0
        for num_gold, gold in self.words:
            left: dict[str, int] = {}
            same = 0
            for word in words:
                if word in gold:
                    left[word] = left.get(word, gold[word]) - 1
                    same += left[word] >= 0
            best = max(best, 2 * same / (len(words) + num_gold))
        return 0.0, 100.0 * best


def _golds(examples: Sequence[Example], rule: str) -> list[_Gold]:
    v2 = any(example.is_impossible for example in examples)
    return [_Gold(example, rule, v2) for example in examples]


def score_predictions(predictions: Mapping[str, str], examples: Sequence[Example], rule: str) -> list[Score]:
    """EM and F1 of every question, in the order of the examples; an id without a prediction scores 0."""
    scores = []
    for example, gold in zip(examples, _golds(examples, rule)):
        prediction = predictions.get(example.id)
        em, f1 = (0.0, 0.0) if prediction is None else gold.score(prediction)
        has_answer = not example.is_impossible
        scores.append(Score(example.id, example.language, prediction, em, f1, has_answer))
    return scores


def squad_scores(
    predictions: Mapping[str, str],
    references: Mapping[str, str | Sequence[str]],
    *,
    rule: str = "squad",
    language: str | None = None,
) -> dict[str, float]:
    """EM and F1 from 0 to 100, as the official SQuAD script computes them (v2's if any reference has no answer).

    >>> import raydist
    >>> raydist.squad_scores({"q1": "the Orla bridge"}, {"q1": ["Orla bridge", "bridge"], "q2": "1894"})
    {'em': 50.0, 'f1': 50.0, 'questions': 2, 'missing': 1}
    >>> scores = raydist.squad_scores({"q1": "1894", "q2": ""}, {"q1": "in 1894", "q2": []})      # q2: no answer is right
    >>> scores["em"], scores["no_ans_em"], round(scores["has_ans_f1"], 2)
    (50.0, 100.0, 66.67)

    ``rule`` is how answers are made comparable: squad, mrqa, hotpotqa, or mlqa, which needs the ``language`` of the passages.
    """
    normaliser(rule, language)
    examples = []
    for id, gold in references.items():
        texts = [gold] if isinstance(gold, str) else gold
        answers = [GoldAnswer(text, -1) for text in texts]
        examples.append(Example(id, "", "", answers, language=language or "en", is_impossible=not answers))
    if not examples:
        raise InputError("no references: nothing to score")
    return aggregate(score_predictions(predictions, examples, rule))


def score_nbest(
    nbest: Mapping[str, Sequence[str]], examples: Sequence[Example], rule: str, ks: Sequence[int]
) -> dict[str, np.ndarray]:
    """``em@k`` and ``f1@k`` of every question: the best over its first k texts. Their means are the scores of the set."""
    best = np.zeros((2, len(examples), max(ks)))
    for i, (example, gold) in enumerate(zip(examples, _golds(examples, rule))):
        for rank, text in enumerate(nbest.get(example.id, ())[: max(ks)]):
            best[:, i, rank] = gold.score(text)
    em, f1 = np.maximum.accumulate(best, axis=2)
    return {f"em@{k}": em[:, k - 1] for k in ks} | {f"f1@{k}": f1[:, k - 1] for k in ks}


def aggregate(scores: Sequence[Score]) -> dict[str, float]:
    """Mean EM and F1, and the numbers of questions and of missing predictions; for SQuAD v2 also those of its two halves."""
    table: dict[str, float] = _means(scores) | {"missing": sum(score.prediction is None for score in scores)}
    if not all(score.has_answer for score in scores):
        for name, has_answer in (("has_ans", True), ("no_ans", False)):
            half = [score for score in scores if score.has_answer == has_answer]
            table |= {f"{name}_{key}": value for key, value in _means(half).items()}
    return table


def _means(scores: Sequence[Score]) -> dict[str, float]:
    questions = len(scores)
    sums = {"em": sum(score.em for score in scores), "f1": sum(score.f1 for score in scores)}
    return {name: total / max(1, questions) for name, total in sums.items()} | {"questions": questions}


def by_language(scores: Iterable[Score]) -> dict[str, dict[str, float]]:
    """The aggregate of each language, in alphabetic order."""
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.language, []).append(score)
    return {language: aggregate(groups[language]) for language in sorted(groups)}


def null_differences(predictions: pa.Table) -> dict[str, float]:
    """Null score less best span's score of every row of a PREDICTION_SCHEMA table; infinite without a span."""
    nbest = predictions.column("nbest").combine_chunks()
    offsets = nbest.offsets.to_numpy()
    score = np.append(nbest.values.field("score").to_numpy(), 0.0)[offsets[:-1]]
    null = predictions.column("null_score").to_numpy()
    difference = np.where(offsets[1:] > offsets[:-1], null - score, np.inf)
    return dict(zip(predictions.column("id").to_pylist(), difference.tolist()))


def apply_threshold(scores: Sequence[Score], differences: Mapping[str, float], threshold: float) -> list[Score]:
    """The scores when every question with ``null score - best span's score > threshold`` is left unanswered (SQuAD v2)."""
    return [
        replace(score, prediction="", em=_null(score), f1=_null(score))
        if score.prediction is not None and differences[score.id] > threshold
        else score
        for score in scores
    ]


def _null(score: Score) -> float:
    """The score of leaving the question unanswered."""
    return 0.0 if score.has_answer else 100.0


def best_threshold(scores: Sequence[Score], differences: Mapping[str, float], metric: str = "f1") -> tuple[float, float]:
    """The threshold that gives the highest mean of a metric, and that mean; ``scores`` are those of the best spans.

    An exact search over the sorted differences, like the official one, except where the latter differs from the scores of its
    own threshold: equal differences pass together (no threshold separates them), "all unanswered" is a threshold below every
    difference and not 0, and a prediction that only normalisation makes empty counts as it is scored.
    """
    predicted = [score for score in scores if score.prediction is not None]
    if not predicted:
        raise InputError("there is no prediction to tune the no-answer threshold on")
    difference = np.array([differences[score.id] for score in predicted])
    null = np.array([_null(score) for score in predicted])
    answered = np.array([getattr(score, metric) for score in predicted])
    order = np.argsort(difference, kind="stable")
    difference = difference[order]
    total = null.sum() + np.concatenate([[0.0], np.cumsum((answered - null)[order])])  # total[i]: the first i are answered
    possible = np.flatnonzero(np.concatenate([[True], difference[1:] > difference[:-1], [True]]))
    best = possible[np.argmax(total[possible])]
    threshold = difference[best - 1] if best else np.nextafter(difference[0], -np.inf)
    return float(threshold), float(total[best] / len(scores))


Nbest = dict[str, list[dict[str, Any]]]


def read_predictions(path: str | Path) -> Nbest:
    """Predictions from a JSON file, plain or gzipped: ``{id: text}`` as SQuAD tools write it, or ``{id: [{"text": ...}, ...]}``
    best first, as ``raydist predict`` writes it. Returns a list of spans per id, in which only ``text`` is guaranteed."""
    path = Path(path)
    wanted = '{"question id": "text"} or {"question id": [{"text": ..., "probability": ...}, ...]}'
    check_regular(path)
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        predictions = parse_json(raw.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; give the predictions file itself") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise InputError(f"{path} is a truncated or damaged gzip file; copy or download it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); a predictions file is JSON: {wanted}") from None
    except json.JSONDecodeError as error:
        seen = "is empty" if not raw.strip() else f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg})"
        raise InputError(f"{path} {seen}; wanted {wanted}") from None
    except ValueError as error:
        raise InputError(f"{path} is not a predictions file: it holds {error}; wanted {wanted}") from None
    except _Duplicate as error:
        raise InputError(f"{path} holds the key {error.args[0]!r} twice; every question may have one prediction") from None
    if not isinstance(predictions, dict):
        raise InputError(f"{path} holds a JSON {_kind(predictions)}; wanted {wanted}")
    if isinstance(predictions.get("data"), list) and "version" in predictions:
        raise InputError(f"{path} is a data file with questions and answers, not a predictions file; wanted {wanted}")
    return {key: _nbest(path, key, value) for key, value in predictions.items()}


def _nbest(path: Path, key: str, value: Any) -> list[dict[str, Any]]:
    spans = [{"text": value}] if isinstance(value, str) else value
    if not isinstance(spans, list):
        raise InputError(f"{path}: the prediction of {_cut(key)} is a JSON {_kind(value)}; wanted a text or a list of spans")
    for rank, span in enumerate(spans):
        if not isinstance(span, dict) or not isinstance(span.get("text"), str):
            raise InputError(f'{path}: span {rank + 1} of {_cut(key)} is no object with a "text"; seen {_cut(span)}')
        for name, types in SPAN_NUMBERS.items():
            if not _is_number(span.get(name), types):
                raise InputError(
                    f"{path}: span {rank + 1} of {_cut(key)} has the {name} {_cut(span[name])}; wanted "
                    f"{'an integer' if types is int else 'a number'}, or leave it out"
                )
        if not is_writable(key + span["text"]):
            raise InputError(
                f"{path}: the prediction of {_cut(key)} has half of a character in it (a lone surrogate), which UTF-8 cannot "
                f"encode; seen {_cut(span['text'])}; cut texts between characters"
            )
    return spans


SPAN_NUMBERS: dict[str, Any] = {"start": int, "end": int, "probability": (int, float), "score": (int, float)}


def _is_number(value: Any, types: Any) -> bool:
    is_one = isinstance(value, types) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value is None or is_one or (types is not int and isinstance(value, float) and not math.isfinite(value))


def _cut(value: Any) -> str:
    return repr(value)[:80]


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


class _Duplicate(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise _Duplicate(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return table
