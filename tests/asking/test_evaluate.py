"""Scores of the whole chain, by hand, and where what it loses is lost."""

import numpy as np
import pytest
from helpers.passages import BRIDGES

from raydist.asking.asker import Gathered, Reply
from raydist.asking.evaluate import Outcome, asked_table, chain_scores, evaluation_table, judge, right_candidates
from raydist.asking.merge import FEATURES, Candidate
from raydist.asking.questions import Question

BUILT, FELL, TOWER, SHIPS = BRIDGES
NOTHING = (0.0,) * len(FEATURES)


def outcome(
    answers: tuple[str, ...], found: list, ranked: list, read: list, text: str, p: float = 0.9, threshold: float = 0.5
) -> Outcome:
    question = Question(f"{answers} {text}", "Who?", answers, context=found[0].text if answers and found else None)
    candidates = [Candidate(text, 0, 0, 1, 1.0, 1, NOTHING)] if text else []
    gathered = Gathered("Who?", found, ranked, read, candidates)
    source = read[0] if read and text else None
    reply = Reply("Who?", p >= threshold, text, p, source, 0, len(text), tuple(candidates), tuple(read), {}, True, threshold)
    return judge(question, gathered, reply)


RIGHT = outcome(("Mina Orlov",), [BUILT, FELL], [BUILT, FELL], [BUILT], "Mina Orlov")
WITHHELD = outcome(("Mina Orlov",), [FELL, BUILT], [FELL, BUILT], [BUILT], "the Mina Orlov", p=0.4)
MISREAD = outcome(("Mina Orlov",), [BUILT], [BUILT], [BUILT], "Orlov", p=0.7)
LOST = outcome(("Mina Orlov",), [BUILT, FELL], [FELL, BUILT], [FELL], "1911", p=0.3)
NOT_RETRIEVED = outcome(("Jon Haas",), [FELL, SHIPS], [FELL, SHIPS], [FELL], "1911", p=0.6)
ABSENT = outcome((), [SHIPS], [SHIPS], [SHIPS], "noon", p=0.2)
ABSENT_ANSWERED = outcome((), [SHIPS], [SHIPS], [SHIPS], "noon", p=0.8)
EMPTY = outcome((), [], [], [], "", p=0.0)
ALL = [RIGHT, WITHHELD, MISREAD, LOST, NOT_RETRIEVED, ABSENT, ABSENT_ANSWERED, EMPTY]


def test_what_is_lost_is_lost_at_one_step():
    assert [each.cause for each in ALL] == [
        *("right", "right", "misread", "lost in ranking", "not retrieved"),
        *["not in the documents"] * 3,
    ]


def test_scores_by_hand():
    scores = chain_scores(ALL, at_k=(1, 2), reranked=True)
    assert (scores["questions"], scores["answerable"]) == (8, 5)
    assert scores["em"] == 40.0  # of five that are answered somewhere, two
    assert scores["f1"] == pytest.approx((100 + 100 + 200 / 3) / 5)
    assert (scores["recall@1"], scores["recall@2"]) == (60.0, 80.0)
    assert (scores["reranked_recall@1"], scores["reranked_recall@2"]) == (40.0, 80.0)
    assert scores["recall_read"] == 60.0
    assert (scores["answered"], scores["precision"]) == (50.0, 25.0)  # four given, one right
    assert (scores["not_found.precision"], scores["not_found.recall"]) == (50.0, pytest.approx(200 / 3))
    assert scores["precision.at_25"] == 50.0  # of the two surest, one


def test_errors_are_counted_by_cause_and_by_whether_an_answer_was_given():
    scores = chain_scores(ALL, at_k=(), reranked=False)
    counts = {key.removeprefix("errors."): value for key, value in scores.items() if key.startswith("errors.") and value}
    assert counts == {
        "right.answered": 1,
        "right.withheld": 1,
        "misread.answered": 1,
        "lost_in_ranking.withheld": 1,
        "not_retrieved.answered": 1,
        "not_in_the_documents.answered": 1,
        "not_in_the_documents.withheld": 2,
    }
    assert sum(counts.values()) == len(ALL)


def test_without_questions_that_are_not_answered_there_is_no_score_of_not_found():
    assert not any(key.startswith("not_found") for key in chain_scores([RIGHT, MISREAD], at_k=(), reranked=False))


def test_intervals_are_around_their_score():
    scores = chain_scores(ALL, at_k=(), reranked=False, bootstrap=200)
    assert scores["em.low"] <= scores["em"] <= scores["em.high"]


def test_right_candidates_are_exact_matches():
    texts = ("Mina Orlov", "the Mina Orlov.", "Mina", "Orlov")
    gathered = Gathered("Who?", [], [], [], [Candidate(text, 0, 0, 1, 1.0, 1, NOTHING) for text in texts])
    assert right_candidates(Question("", "Who?", ("Mina Orlov",)), gathered).tolist() == [True, True, False, False]
    assert not right_candidates(Question("", "Who?", ()), gathered).any()
    assert right_candidates(Question("", "Who?", ("x",)), Gathered("Who?", [], [], [], [])).shape == (0,)


def test_tables_have_a_row_for_each_question():
    asked, evaluated = asked_table(ALL), evaluation_table(ALL)
    assert asked["held_at"].to_pylist() == [0, 1, 0, 0, -1, -1, -1, -1]
    assert asked["ranked_at"].to_pylist() == [0, 1, 0, 1, -1, -1, -1, -1]
    assert asked["document_id"].to_pylist()[-2:] == ["ships.txt", None]
    assert evaluated["prediction"].to_pylist() == ["Mina Orlov", "", "Orlov", "", "1911", "", "noon", ""]
    assert np.array(evaluated["em"]).tolist() == [100, 0, 0, 0, 0, 100, 0, 100]  # as SQuAD v2 has it
