import math
from dataclasses import replace

import pytest
import torch
from helpers.tiny import TinyReader, make_batch, seeded, share

from raydist.errors import InputError
from raydist.objectives.base import ReaderOutput
from raydist.objectives.span import Span, allowed_positions, span_log_probs, span_losses


def output_of(batch, seed=0):
    torch.manual_seed(seed)
    start_BT, end_BT = torch.randn(2, *batch.input_ids_BT.shape, dtype=torch.float64)
    return ReaderOutput(torch.zeros(0), start_BT, end_BT)


def test_a_row_by_hand():
    batch = make_batch(1, padding=1)
    passage_T = batch.passage_BT[0]
    start_BT, end_BT = torch.full((2, 1, len(passage_T)), 50.0, dtype=torch.float64)  # high wherever it must not count
    start_BT[0, 0] = end_BT[0, 0] = 0.0
    start_BT[0, passage_T] = end_BT[0, passage_T] = 0.0
    start_BT[0, batch.start_B[0]] = math.log(3)
    allowed = int(passage_T.sum()) + 1  # the passage and CLS
    # start: 3 / (3 + allowed - 1)      end: 1 / allowed
    wanted = -math.log(3 / (allowed + 2)) + math.log(allowed)
    loss_B = span_losses(ReaderOutput(torch.zeros(0), start_BT, end_BT), batch)
    torch.testing.assert_close(loss_B, torch.tensor([wanted], dtype=torch.float64))


@pytest.mark.parametrize("mask_non_passage", [True, False])
def test_equals_a_loop_over_rows_and_positions(mask_non_passage):
    batch = make_batch(6, has_answer=[True, False, True, True, False, True])
    output = output_of(batch)
    total = 0.0
    for b in range(6):
        kept = [
            t
            for t in range(batch.input_ids_BT.shape[1])
            if (bool(batch.passage_BT[b, t]) or t == 0 if mask_non_passage else bool(batch.attention_BT[b, t]))
        ]
        for logits_BT, gold_B in ((output.start_BT, batch.start_B), (output.end_BT, batch.end_B)):
            total -= math.log(math.exp(logits_BT[b, gold_B[b]]) / sum(math.exp(logits_BT[b, t]) for t in kept))
    term = Span(span_reduction="sum", mask_non_passage=mask_non_passage)(batch, output)["loss"]
    assert term.count == 6
    assert term.total.item() == pytest.approx(total, abs=1e-10)


def test_sum_and_mean_differ_by_exactly_two_in_value_and_gradient():
    batch, gradients = make_batch(), {}
    for reduction in ("sum", "mean"):
        reader = seeded(TinyReader)
        term = Span(span_reduction=reduction)(batch, reader(batch))["loss"]
        term.mean.backward()
        gradients[reduction] = [parameter.grad for parameter in reader.parameters()]
    for whole, half in zip(gradients["sum"], gradients["mean"]):
        assert torch.equal(whole, 2 * half)


def test_the_null_span_is_where_the_tokenizer_puts_cls():
    batch = make_batch(3, has_answer=[True, False, True])
    last_B = batch.attention_BT.sum(1) - 1  # some tokenizers end with CLS
    moved = replace(batch, start_B=torch.where(batch.has_answer_B, batch.start_B, last_B), extras={"cls_B": last_B})
    moved = replace(moved, end_B=torch.where(batch.has_answer_B, batch.end_B, last_B))
    allowed_BT = allowed_positions(moved)
    assert not allowed_BT[:, 0].any()
    assert allowed_BT.gather(1, last_B[:, None]).all()
    assert (span_losses(output_of(batch), moved) < 30).all()


def test_positions_that_are_not_allowed_have_no_probability_and_get_no_gradient():
    batch = make_batch()
    output = output_of(batch)
    logits_BT = output.start_BT.clone().requires_grad_()
    log_start_BT, _ = span_log_probs(output._replace(start_BT=logits_BT), batch)
    torch.testing.assert_close(log_start_BT.exp().sum(1), torch.ones(5, dtype=torch.float64))
    span_losses(output._replace(start_BT=logits_BT), batch).sum().backward()
    assert (logits_BT.grad[~allowed_positions(batch)] == 0).all()
    assert torch.isfinite(span_log_probs(output._replace(start_BT=output.start_BT.half()), batch)[0]).all()


def test_shares_of_a_batch_sum_to_the_batch():
    batch, reader = make_batch(), seeded(TinyReader)
    whole = Span()(batch, reader(batch))["loss"].mean
    parts = [Span()(part, reader(part))["loss"].mean for part in (share(batch, [0, 2, 4]), share(batch, [1, 3]))]
    torch.testing.assert_close(sum(parts), whole)


def test_gradcheck():
    batch = make_batch(3)
    output = output_of(batch)
    logits = (output.start_BT.requires_grad_(), output.end_BT.requires_grad_())
    assert torch.autograd.gradcheck(lambda start, end: span_losses(ReaderOutput(start, start, end), batch), logits)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InputError, match="'total'"):
        Span(span_reduction="total")
