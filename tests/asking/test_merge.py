"""From spans of several passages to one list of answers."""

import math
from dataclasses import dataclass

import numpy as np
from helpers.passages import Found

from raydist.asking.merge import FEATURES, feature_table, merge_spans
from raydist.reader.answers import AnswerSpan


@dataclass
class Read:
    nbest: tuple[AnswerSpan, ...]
    null_score: float = 0.0


def span(text: str, score: float, start: int = 0) -> AnswerSpan:
    return AnswerSpan(text, start, start + len(text), score, probability=0.5)


PASSAGES = [Found(f"p{number}", f"p{number}", "It was Mina Orlov.", scores={"bm25": 3.0 - number}) for number in range(3)]


def feature(candidate, name: str) -> float:
    return candidate.features[FEATURES.index(name)]


def test_equal_answers_of_several_passages_are_one_where_its_span_is_highest():
    read = [Read((span("the Orla bridge", 1.0), span("1894", 0.5))), Read((span("Orla Bridge!", 4.0, start=7),)), Read(())]
    merged = merge_spans(PASSAGES, read, 5)
    assert [(found.text, found.passage, found.start, found.passages) for found in merged] == [
        ("Orla Bridge!", 1, 7, 2),
        ("1894", 0, 0, 1),
    ]
    assert feature(merged[0], "agreement") == math.log(2)
    assert feature(merged[0], "bm25") == 2.0


def test_two_spans_of_one_passage_do_not_agree_with_each_other():
    (found,) = merge_spans(PASSAGES[:1], [Read((span("Mina Orlov", 2.0), span("the Mina Orlov", 1.0)))], 5)
    assert (found.passages, feature(found, "agreement")) == (1, 0.0)


def test_scores_are_compared_over_passages_as_they_are():
    """Within its passage the second is by far the surest; what counts is that the first is higher."""
    read = [Read((span("a tower", 9.0), span("a bridge", 8.9))), Read((span("a ship", 2.0), span("a boat", -20.0)))]
    assert [found.text for found in merge_spans(PASSAGES, read, 5)] == ["a tower", "a bridge", "a ship", "a boat"]


def test_margin_is_over_the_null_score_of_the_same_passage():
    merged = merge_spans(PASSAGES, [Read((span("x", 3.0),), 1.0), Read((span("y", 3.0),), -2.0)], 5)
    assert [feature(found, "margin") for found in merged] == [2.0, 5.0]


def test_only_the_best_spans_of_a_passage_are_taken_and_empty_ones_are_not():
    read = [Read((span("the", 9.0), span("a", 8.0), span("one", 7.0), span("two", 6.0)))]  # articles: nothing is left of them
    assert [found.text for found in merge_spans(PASSAGES, read, 3)] == ["one"]


def test_what_is_not_known_is_not_a_number_and_no_candidates_are_an_empty_table():
    (found,) = merge_spans(PASSAGES[:1], [Read((span("x", 3.0),))], 5)
    assert np.isnan([feature(found, name) for name in ("dense", "cross_encoder")]).all()
    assert feature_table([]).shape == (0, len(FEATURES))
