import math

import numpy as np
import pytest
import torch

from raydist.reader.decode import Spans, nbest_table, top_spans, top_spans_product
from raydist.records import PREDICTION_SCHEMA


def brute_force(start, end, passage, k, max_answer_length):
    """The slow twin: every span of the band, sorted by (score desc, start, end). One window, float32 sums."""
    start, end = start.float(), end.float()
    spans = [
        (-(start[s] + end[e]).item(), s, e)
        for s in range(len(start))
        for e in range(s, min(s + max_answer_length, len(start)))
        if passage[s] and passage[e]
    ]
    return [(s, e, -score) for score, s, e in sorted(spans)[:k]]


def product_twin(start, end, passage, k, max_answer_length, n):
    starts = sorted(range(len(start)), key=lambda i: (-start[i].item(), i))[:n]
    ends = sorted(range(len(end)), key=lambda i: (-end[i].item(), i))[:n]
    spans = [
        (-(start[s] + end[e]).item(), s, e)
        for s in starts
        for e in ends
        if passage[s] and passage[e] and 0 <= e - s < max_answer_length
    ]
    return [(s, e, -score) for score, s, e in sorted(spans)[:k]]


def listed(spans: Spans, row: int):
    keep = spans.valid_BK[row]
    return list(zip(spans.start_BK[row][keep].tolist(), spans.end_BK[row][keep].tolist(), spans.score_BK[row][keep].tolist()))


def random_windows(B, T, seed, levels=None):
    """Logits with a question before the passage and padding after it; with levels, so few values that most spans tie."""
    generator = torch.Generator().manual_seed(seed)
    start_BT, end_BT = torch.randn(2, B, T, generator=generator)
    if levels:
        start_BT, end_BT = (start_BT * levels).round() / levels, (end_BT * levels).round() / levels
    passage_BT = torch.zeros(B, T, dtype=torch.bool)
    for b in range(B):
        first, last = sorted(torch.randint(0, T, (2,), generator=generator).tolist())
        passage_BT[b, first:last] = True
    return start_BT, end_BT, passage_BT


@pytest.mark.parametrize("levels", [None, 1, 2])
@pytest.mark.parametrize(("T", "k", "max_answer_length"), [(40, 20, 7), (40, 50, 30), (12, 5, 1), (9, 200, 30), (1, 3, 4)])
def test_top_spans_equal_brute_force(levels, T, k, max_answer_length):
    windows = random_windows(12, T, seed=T + k, levels=levels)
    spans = top_spans(*windows, k, max_answer_length)
    assert spans.start_BK.shape == spans.valid_BK.shape == (12, k)
    for b in range(12):
        assert listed(spans, b) == brute_force(*(x[b] for x in windows), k, max_answer_length)


def test_equal_logits_come_in_the_order_of_the_text():
    zeros, passage = torch.zeros(1, 6), torch.tensor([[False, True, True, True, True, False]])
    spans = top_spans(zeros, zeros, passage, k=5, max_answer_length=2)
    # starts 1, 2, 3, 4, lengths 1 and 2, nothing beyond token 4
    assert [(s, e) for s, e, _ in listed(spans, 0)] == [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]


def test_minus_zero_equals_zero():
    start = torch.tensor([[-0.0, 0.0]])
    spans = top_spans(start, start, torch.ones(1, 2, dtype=torch.bool), k=3, max_answer_length=2)
    assert [(s, e) for s, e, _ in listed(spans, 0)] == [(0, 0), (0, 1), (1, 1)]


def test_the_other_way_of_taking_k_agrees():
    """On a GPU `topk` picks among the same keys; asking for all of them takes that way on a CPU too."""
    windows = random_windows(6, 30, seed=3, levels=1)
    some, every = top_spans(*windows, 10, 5), top_spans(*windows, 150, 5)
    for few, many in zip(some, every):
        assert torch.equal(few, many[:, :10])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_added_in_float32(dtype):
    start_BT, end_BT, passage_BT = random_windows(4, 30, seed=5)
    start_BT, end_BT = start_BT.to(dtype), end_BT.to(dtype)
    spans = top_spans(start_BT, end_BT, passage_BT, 10, 8)
    assert spans.score_BK.dtype == torch.float32
    for b in range(4):
        assert listed(spans, b) == brute_force(start_BT[b], end_BT[b], passage_BT[b], 10, 8)


def test_what_lies_outside_the_passage_may_hold_anything():
    start_BT, end_BT, passage_BT = random_windows(4, 30, seed=6)
    wanted = top_spans(start_BT, end_BT, passage_BT, 10, 8)
    start_BT[~passage_BT], end_BT[~passage_BT] = math.nan, math.inf
    for a, b in zip(wanted, top_spans(start_BT, end_BT, passage_BT, 10, 8)):
        assert torch.equal(a, b)


def test_a_window_without_passage_has_no_spans():
    logits = torch.ones(2, 8)
    spans = top_spans(logits, logits, torch.zeros(2, 8, dtype=torch.bool), 4, 3)
    assert not spans.valid_BK.any()
    assert spans.score_BK.tolist() == [[-math.inf] * 4] * 2


def test_no_gradient_flows_through_the_selection():
    logits = torch.zeros(1, 4, requires_grad=True)
    assert not top_spans(logits, logits, torch.ones(1, 4, dtype=torch.bool), 2, 2).score_BK.requires_grad


@pytest.mark.parametrize("levels", [None, 1])
def test_product_of_tops_equals_its_twin(levels):
    windows = random_windows(12, 40, seed=9, levels=levels)
    spans = top_spans_product(*windows, k=8, max_answer_length=7, n=6)
    for b in range(12):
        assert listed(spans, b) == product_twin(*(x[b] for x in windows), 8, 7, 6)


def test_product_of_tops_misses_what_the_exact_search_finds():
    # The two best starts and ends are question tokens: the product has nothing left, the band has token 2.
    logits, passage = torch.tensor([[9.0, 8.0, 1.0]]), torch.tensor([[False, False, True]])
    assert listed(top_spans_product(logits, logits, passage, 5, 3, n=2), 0) == []
    assert listed(top_spans(logits, logits, passage, 5, 3), 0) == [(2, 2, 2.0)]


# One context, "Zoë saw Bo.", in two windows of three tokens that share the word "saw".
CONTEXT = "Zoë saw Bo."
WINDOWS = {
    "example_W": np.array([0, 0]),
    "token_start": np.array([-1, 0, 4, -1, 4, 8], np.int32),
    "token_end": np.array([-1, 3, 7, -1, 7, 10], np.int32),
    "row_offsets": np.array([0, 3, 6]),
}


def table(spans, null_score_W, k=20, **changes):
    texts = {"ids": ["q"], "passage_ids": ["p"], "languages": ["en"], "contexts": [CONTEXT]}
    return nbest_table(spans, np.array(null_score_W, np.float32), **{**WINDOWS, **texts, **changes}, k=k)


def some_spans(rows):
    """rows: per window a list of (start, end, score)."""
    start, end, score = (torch.tensor([[span[i] for span in row] for row in rows]) for i in range(3))
    return Spans(start, end, score.float(), score.float() > -math.inf)


def test_windows_of_one_example_are_merged_by_characters():
    spans = some_spans([[(1, 1, 2.0), (2, 2, 1.0), (1, 2, 0.0)], [(1, 1, 3.0), (1, 2, 0.0), (0, 0, -math.inf)]])
    result = table(spans, [0.5, -0.5])
    assert result.schema.equals(PREDICTION_SCHEMA)
    (row,) = result.to_pylist()
    # "saw" is in both windows, best score 3; equal scores 0 in the order of their first character
    found = [(span["text"], span["start"], span["end"], span["score"]) for span in row["nbest"]]
    assert found == [("saw", 4, 7, 3.0), ("Zoë", 0, 3, 2.0), ("Zoë saw", 0, 7, 0.0), ("saw Bo", 4, 10, 0.0)]
    weights = [math.exp(3), math.exp(2), 1, 1]
    assert [span["probability"] for span in row["nbest"]] == pytest.approx([w / sum(weights) for w in weights])
    assert (row["id"], row["passage_id"], row["language"], row["null_score"]) == ("q", "p", "en", -0.5)


def test_the_cut_comes_after_the_merge_and_before_the_softmax():
    spans = some_spans([[(1, 1, 2.0), (2, 2, 1.0)], [(1, 1, 3.0), (1, 2, 0.0)]])
    (row,) = table(spans, [0, 0], k=2).to_pylist()
    assert [span["text"] for span in row["nbest"]] == ["saw", "Zoë"]
    assert sum(span["probability"] for span in row["nbest"]) == pytest.approx(1)


def merge_twin(spans, windows, contexts, k):
    """The slow twin of nbest_table: a dictionary per example."""
    best = [{} for _ in contexts]
    for w, example in enumerate(windows["example_W"].tolist()):
        for s, e, score in listed(spans, w):
            place = int(windows["row_offsets"][w])
            chars = int(windows["token_start"][place + s]), int(windows["token_end"][place + e])
            best[example][chars] = max(score, best[example].get(chars, -math.inf))
    lists = []
    for context, found in zip(contexts, best):
        kept = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:k]
        weights = [math.exp(score - kept[0][1]) for _, score in kept]
        lists.append([(context[a:b], a, b, score, w / sum(weights)) for ((a, b), score), w in zip(kept, weights)])
    return lists


def many_windows(seed, levels=None):
    """Forty examples, some without a window; texts of one to four bytes a character, tokens of one to four characters."""
    rng = np.random.default_rng(seed)
    contexts = ["".join(rng.choice(list("ab é漢😀"), rng.integers(1, 60))) for _ in range(30)]
    contexts += contexts[:10]  # a passage with two questions
    example, starts, ends, lengths = [], [], [], []
    for i in rng.integers(0, len(contexts), 90).tolist():
        text = len(contexts[i])
        cuts = np.unique(np.concatenate([[0], rng.integers(0, text + 1, text // 2 + 1), [text]]))
        first = rng.integers(0, len(cuts) - 1)  # windows of one passage overlap
        cuts = cuts[first:]
        example.append(i)
        starts.append(np.concatenate([[-1, -1], cuts[:-1], [-1]]))
        ends.append(np.concatenate([[-1, -1], cuts[1:], [-1]]))
        lengths.append(len(starts[-1]))
    T = max(lengths)
    start_BT, end_BT, _ = random_windows(len(example), T, seed, levels)
    passage_BT = torch.tensor([[t < len(s) and s[t] >= 0 for t in range(T)] for s in starts])
    windows = {
        "example_W": np.array(example),
        "token_start": np.concatenate(starts).astype(np.int32),
        "token_end": np.concatenate(ends).astype(np.int32),
        "row_offsets": np.cumsum([0, *lengths]),
    }
    return top_spans(start_BT, end_BT, passage_BT, 12, 6), windows, contexts


def whole(spans, windows, contexts, null_W, k=10):
    names = [f"q{i}" for i in range(len(contexts))]
    return nbest_table(spans, null_W, **windows, ids=names, passage_ids=names, languages=names, contexts=contexts, k=k)


@pytest.mark.parametrize("levels", [None, 1])
def test_the_table_equals_its_twin(levels):
    spans, windows, contexts = many_windows(1, levels)
    null_W = np.arange(len(windows["example_W"]), dtype=np.float32)
    result = whole(spans, windows, contexts, null_W)
    result.validate(full=True)
    rows = result.to_pylist()
    for i, wanted in enumerate(merge_twin(spans, windows, contexts, 10)):
        got = [tuple(span.values()) for span in rows[i]["nbest"]]
        assert [g[:4] for g in got] == [w[:4] for w in wanted]
        assert [g[4] for g in got] == pytest.approx([w[4] for w in wanted], abs=1e-6)
        mine = null_W[windows["example_W"] == i]
        assert rows[i]["null_score"] == (mine.min() if len(mine) else None)
    assert any(not row["nbest"] for row in rows)


def test_the_order_of_windows_changes_nothing():
    spans, windows, contexts = many_windows(2, levels=1)
    null_W = np.arange(len(windows["example_W"]), dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(null_W))
    pieces = [np.arange(windows["row_offsets"][w], windows["row_offsets"][w + 1]) for w in order]
    tokens = np.concatenate(pieces)
    shuffled = {
        "example_W": windows["example_W"][order],
        "token_start": windows["token_start"][tokens],
        "token_end": windows["token_end"][tokens],
        "row_offsets": np.cumsum([0, *map(len, pieces)]),
    }
    turned = Spans(*(x[torch.from_numpy(order)] for x in spans))
    assert whole(turned, shuffled, contexts, null_W[order]).equals(whole(spans, windows, contexts, null_W))


def test_batching_changes_nothing():
    windows = random_windows(10, 30, seed=4, levels=1)
    together = top_spans(*windows, 6, 5)
    apart = [top_spans(*(x[b : b + 3] for x in windows), 6, 5) for b in range(0, 10, 3)]
    for whole_BK, parts in zip(together, zip(*apart)):
        assert torch.equal(whole_BK, torch.cat(parts))


def test_no_windows_give_empty_lists():
    spans = Spans(torch.zeros(0, 3).long(), torch.zeros(0, 3).long(), torch.zeros(0, 3), torch.zeros(0, 3).bool())
    nothing = np.zeros(0, np.int64)
    (row,) = table(spans, [], example_W=nothing, token_start=nothing, token_end=nothing, row_offsets=np.array([0])).to_pylist()
    assert row["nbest"] == []
    assert row["null_score"] is None


def test_a_score_that_is_not_a_number_is_named():
    token = torch.tensor([[1], [1]])
    spans = Spans(token, token, torch.tensor([[math.nan], [1.0]]), torch.ones(2, 1).bool())
    with pytest.raises(ValueError, match="question 'q': a span's score is not a number"):
        table(spans, [0, 0])
