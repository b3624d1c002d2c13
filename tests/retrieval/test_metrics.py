import math
from itertools import pairwise

import numpy as np
import pytest
from helpers.trec import read_qrels
from hypothesis import given, settings
from hypothesis import strategies as st

from raydist.errors import InputError
from raydist.retrieval.metrics import (
    join_scores,
    rank_candidates,
    read_trec_run,
    retrieval_scores,
    score_run,
    trec_gold,
    trec_run,
)

GOLD = {"q1": {"a": 1}, "q2": {"b": 2, "c": 1}}
RUN = {"q1": [("x", 3.0), ("a", 2.0)], "q2": [("c", 9.0), ("x", 8.0), ("b", 7.0)]}


def test_the_metrics_by_hand():
    means = score_run(RUN, GOLD, hits_at=(1, 2), recall_at=(1, 3)).means()
    assert means["P@1"] == 0.5  # q1 has x first, q2 has gold first
    assert means["P@2"] == 1
    assert means["MRR@100"] == 0.75  # (1/2 + 1/1) / 2
    assert means["recall@1"] == 0.25  # (0/1 + 1/2) / 2
    assert means["recall@3"] == 1
    # q1: (1 / log2 3) / 1; q2: c at rank 1 with gain 1, b at rank 3 with gain 2, best order b, c
    q1, q2 = 1 / math.log2(3), (1 + 2 / 2) / (2 + 1 / math.log2(3))
    assert means["nDCG@10"] == pytest.approx((q1 + q2) / 2, abs=1e-15)


def test_equal_scores_go_by_id_or_with_gold_last():
    candidates = [("c", 1.0), ("b", 1.0), ("a", 1.0), ("z", 2.0)]
    assert [id for id, _ in rank_candidates(candidates)] == ["z", "a", "b", "c"]
    assert [id for id, _ in rank_candidates(candidates, "pessimistic", {"a": 1})] == ["z", "b", "c", "a"]
    run, gold = {"q": candidates}, {"q": {"a": 1}}
    assert score_run(run, gold).means()["MRR@100"] == 1 / 2
    assert score_run(run, gold, ties="pessimistic").means()["MRR@100"] == 1 / 4


def test_a_question_that_is_not_answered_counts_zero_and_rank_101_too():
    assert score_run({}, {"q": {"a": 1}}).means() == dict.fromkeys(
        ["P@1", "P@5", "P@10", "MRR@100", "recall@10", "recall@100", "nDCG@10"], 0.0
    )
    last = {"q": [(f"x{n:03d}", 1000.0 - n) for n in range(100)] + [("a", 1.0)]}
    assert score_run(last, {"q": {"a": 1}}, recall_at=(100, 101)).means()["MRR@100"] == 0
    assert score_run(last, {"q": {"a": 1}}, recall_at=(100, 101)).means()["recall@101"] == 1


@pytest.mark.parametrize(
    ("run", "gold", "message"),
    [
        ({}, {}, "nothing to score"),
        ({"q": []}, {"q": {}}, "'q' has no gold"),
        ({"other": []}, {"q": {"a": 1}}, "'other'"),
        ({"q": [("a", math.nan)]}, {"q": {"a": 1}}, "not finite"),
        ({"q": [("a", 1.0), ("a", 2.0)]}, {"q": {"a": 1}}, "more than once"),
    ],
)
def test_bad_input_is_named(run, gold, message):
    with pytest.raises(InputError, match=message):
        score_run(run, gold)


def test_an_unknown_tie_rule_is_named():
    with pytest.raises(InputError, match="optimistic"):
        rank_candidates([], "optimistic")


sentences = st.sampled_from([f"s{n}" for n in range(12)])
runs = st.dictionaries(st.sampled_from("pqr"), st.dictionaries(sentences, st.integers(0, 5).map(float), max_size=12))
golds = st.fixed_dictionaries({q: st.dictionaries(sentences, st.integers(1, 3), min_size=1, max_size=5) for q in "pqr"})


def slow(run, gold, ties):
    """The same in plain loops, for P@3, MRR@5, recall@4 and nDCG@6."""
    totals = {"P@3": 0.0, "MRR@5": 0.0, "recall@4": 0.0, "nDCG@6": 0.0}
    for question, judged in gold.items():
        order = sorted(
            run.get(question, {}).items(), key=lambda c: (-c[1], (c[0] in judged) if ties == "pessimistic" else 0, c[0])
        )
        ids = [id for id, _ in order]
        totals["P@3"] += any(id in judged for id in ids[:3])
        for rank, id in enumerate(ids[:5], 1):
            if id in judged:
                totals["MRR@5"] += 1 / rank
                break
        totals["recall@4"] += sum(id in judged for id in ids[:4]) / len(judged)
        best = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(sorted(judged.values(), reverse=True)[:6], 1))
        totals["nDCG@6"] += sum(judged.get(id, 0) / math.log2(rank + 1) for rank, id in enumerate(ids[:6], 1)) / best
    return {name: total / len(gold) for name, total in totals.items()}


@settings(max_examples=200, deadline=None)
@given(runs, golds, st.sampled_from(["id", "pessimistic"]))
def test_the_metrics_equal_a_slow_twin(run, gold, ties):
    listed = {question: list(candidates.items()) for question, candidates in run.items()}
    means = score_run(listed, gold, ties=ties, hits_at=(3,), recall_at=(4,), mrr_at=5, ndcg_at=6).means()
    assert means == pytest.approx(slow(run, gold, ties), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(runs, golds)
def test_blocks_of_questions_have_the_values_that_all_have_at_once(run, gold):
    listed = {question: list(candidates.items()) for question, candidates in run.items()}
    whole = score_run(listed, gold)
    blocks = [list(gold)[:2], list(gold)[2:]]
    joined = join_scores(
        [score_run({q: listed[q] for q in block if q in listed}, {q: gold[q] for q in block}) for block in blocks]
    )
    assert joined.questions == whole.questions
    assert {name: values.tolist() for name, values in joined.values.items()} == {
        name: values.tolist() for name, values in whole.values.items()
    }
    assert "".join(trec_gold({q: gold[q]}) for q in gold) == trec_gold(gold)


@pytest.mark.parametrize("ties", ["id", "pessimistic"])
def test_trec_eval_agrees_on_the_files_we_write_also_with_ties(tmp_path, ties):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    ids = [f"s{n:03d}" for n in range(300)]
    run, gold = {}, {}
    for question in (f"q{n}" for n in range(40)):
        shown = rng.choice(ids, 150, replace=False)
        run[question] = [(str(id), float(score)) for id, score in zip(shown, rng.integers(0, 25, 150) / 8)]  # many ties
        gold[question] = {str(id): int(gain) for id, gain in zip(rng.choice(ids, 6, replace=False), rng.integers(1, 4, 6))}
    (tmp_path / "run.txt").write_text(trec_run(run, ties=ties, gold=gold))
    (tmp_path / "gold.txt").write_text(trec_gold(gold))
    with open(tmp_path / "run.txt") as run_file, open(tmp_path / "gold.txt") as gold_file:
        their_run, their_gold = pytrec_eval.parse_run(run_file), pytrec_eval.parse_qrel(gold_file)
    top = {q: dict(sorted(c.items(), key=lambda item: -item[1])[:100]) for q, c in their_run.items()}  # for MRR@100
    measures = {"success.1,5,10", "recall.10,100", "ndcg_cut.10"}
    theirs = pytrec_eval.RelevanceEvaluator(their_gold, measures).evaluate(their_run)
    ranks = pytrec_eval.RelevanceEvaluator(their_gold, {"recip_rank"}).evaluate(top)
    ours = score_run(run, gold, ties=ties)
    names = {"P@1": "success_1", "P@5": "success_5", "P@10": "success_10", "recall@10": "recall_10"}
    names |= {"recall@100": "recall_100", "nDCG@10": "ndcg_cut_10"}
    for row, question in enumerate(ours.questions):
        for name, theirs_name in names.items():
            assert ours.values[name][row] == pytest.approx(theirs[question][theirs_name], abs=1e-9)
        assert ours.values["MRR@100"][row] == pytest.approx(ranks[question]["recip_rank"], abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(min_size=1, alphabet=" %\t\u00a0a2é"), st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_trec_files_read_back_in_the_order_written(tmp_path_factory, candidates):
    path = tmp_path_factory.mktemp("trec") / "run.txt"
    path.write_text(trec_run({"a question": list(candidates.items())}), encoding="utf-8")
    read = read_trec_run(path)["a question"]
    assert [id for id, _ in read] == [id for id, _ in rank_candidates(list(candidates.items()))]
    assert all(before > after for (_, before), (_, after) in pairwise(read))
    path.write_text(trec_gold({"a question": dict.fromkeys(candidates, 2)}), encoding="utf-8")
    assert read_qrels(path) == {"a question": dict.fromkeys(candidates, 2)}


@pytest.mark.parametrize("line", ["q Q0 s 1 tag", "q Q0 s 1 nan tag", "q Q0 s 1 high tag"])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / "run.txt").write_text(f"q Q0 a 1 2.5 tag\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_trec_run(tmp_path / "run.txt")


def test_lists_of_ids_are_scored_in_their_order_and_scored_ones_by_their_scores():
    ids = {"q1": ["s9", "s1", "s0"], "q2": ["s2"], "q3": []}
    scored = {"q1": [("s1", 0.5), ("s0", 0.1), ("s9", 0.7)], "q2": [("s2", 1.0)], "q3": []}
    gold = {"q1": {"s1": 1, "s0": 2}, "q2": {"s2": 1}, "q3": {"s3": 1}}
    wanted = score_run(scored, gold).means()
    assert retrieval_scores(ids, gold) == retrieval_scores(scored, gold) == wanted
    assert wanted["MRR@100"] == pytest.approx((1 / 2 + 1) / 3)
    plain = {"q1": ["s1", "s0"], "q2": "s2", "q3": {"s3"}}
    assert retrieval_scores(ids, plain)["recall@10"] == wanted["recall@10"]
    tied = {"q": [("a", 1.0), ("b", 1.0)]}
    assert retrieval_scores(tied, {"q": "a"})["P@1"] == 1
    assert retrieval_scores(tied, {"q": "a"}, ties="pessimistic")["P@1"] == 0
