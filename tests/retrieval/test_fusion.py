"""One list from two: by ranks and by scores, worked by hand; and the weight that development questions choose."""

import random

import pytest

from raydist.errors import InputError
from raydist.retrieval.fusion import Fusion, tune

WORDS = [("a", 9.0), ("b", 5.0), ("c", 1.0)]
MEANING = [("c", 0.9), ("d", 0.7), ("a", 0.5)]


def test_reciprocal_ranks_are_added():
    found = dict(Fusion("rrf").fuse(WORDS, MEANING))
    assert found == pytest.approx({"a": 1 / 61 + 1 / 63, "c": 1 / 63 + 1 / 61, "b": 1 / 62, "d": 1 / 62})


def test_scores_are_scaled_to_their_list_and_weighted():
    found = dict(Fusion("minmax", 0.25).fuse(WORDS, MEANING))
    assert found == pytest.approx({"a": 0.75 * 1 + 0.25 * 0, "b": 0.75 * 0.5, "c": 0.25 * 1, "d": 0.25 * 0.5})
    found = dict(Fusion("z", 0.5).fuse(WORDS, MEANING))
    deviation = (32 / 3) ** 0.5, (0.08 / 3) ** 0.5
    assert found["a"] == pytest.approx(0.5 * 8 / deviation[0])
    assert found["d"] == pytest.approx(0.5 * 0.2 / deviation[1])


@pytest.mark.parametrize("kind", ["rrf", "minmax", "z"])
def test_equal_scores_go_by_id_and_an_empty_list_gives_nothing(kind):
    assert [id for id, _ in Fusion(kind).fuse([("b", 1.0)], [("a", 1.0)])] == ["a", "b"]
    assert [id for id, _ in Fusion(kind).fuse([], MEANING)] == ["c", "d", "a"]
    assert Fusion(kind).fuse([], []) == []


def test_development_questions_choose_whom_to_trust():
    lists = {f"q{n}": [(f"z{n}", 2.0), (f"t{n}", 1.0)] for n in range(20)}
    wrong = {f"q{n}": [(f"t{n}", 2.0), (f"u{n}", 1.9), (f"z{n}", 1.0)] for n in range(20)}
    gold = {f"q{n}": {f"z{n}": 1, f"t{n}": 0} for n in range(20)}
    assert tune(lists, wrong, gold).dense_weight < 0.5
    assert tune(wrong, lists, gold).dense_weight > 0.5
    assert tune(lists, lists, gold) == Fusion("rrf"), "what makes no difference stays plain"


def test_the_tuned_fusion_has_the_highest_mrr_of_all_that_are_tried():
    draw = random.Random(0)

    def lists(quality: float) -> dict[str, list[tuple[str, float]]]:
        scores = {f"q{n}": {f"s{m}": draw.random() + quality * (m == n % 12) for m in range(12)} for n in range(60)}
        return {q: sorted(of.items(), key=lambda pair: -pair[1])[:8] for q, of in scores.items()}

    words, meaning = lists(0.5), lists(0.3)
    gold = {f"q{n}": {f"s{n % 12}": 1} for n in range(60)}

    def mrr(fusion: Fusion) -> float:
        ranked = {q: [id for id, _ in fusion.fuse(words[q], meaning[q])] for q in gold}
        return sum(1 / (1 + ranked[q].index(s)) for q, of in gold.items() for s in of if s in ranked[q]) / len(gold)

    best = tune(words, meaning, gold)
    tried = [Fusion(), *(Fusion(kind, weight / 20) for kind in ("minmax", "z") for weight in range(21))]
    assert mrr(best) == pytest.approx(max(map(mrr, tried)))
    assert mrr(best) > max(mrr(Fusion("minmax", 0)), mrr(Fusion("minmax", 1)))


def test_a_weight_beyond_its_range_is_refused():
    with pytest.raises(InputError, match="dense_weight from 0 to 1"):
        Fusion("z", 1.5)
