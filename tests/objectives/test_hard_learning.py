"""Hard learning against its equations (docs/methods.md 6.4), a slow loop, and itself on two ranks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import tiny

from raydist.config import OptimConfig
from raydist.config.objectives import HardLearningConfig
from raydist.errors import InputError
from raydist.objectives.base import Batch, ReaderOutput
from raydist.objectives.hard_learning import HardLearning, overlap_f1, put_gold_in, span_types
from raydist.objectives.span import span_log_probs
from raydist.training.optim import build_optimizer

MODES = tiny.choices(HardLearningConfig, "mode")


def make_batch(rows=5, spans=6, step=0, without_answer=(1,)) -> Batch:
    """The tiny batch with sets Z: gold somewhere, some elements masked and left with positions that exist nowhere."""
    batch = tiny.make_batch(rows, step=step, has_answer=[i not in without_answer for i in range(rows)])
    rng = np.random.default_rng(1)
    first, length = batch.passage_BT.int().argmax(1).numpy()[:, None], batch.passage_BT.sum(1).numpy()[:, None]
    z_start = first + rng.integers(0, length - 2, (rows, spans))
    z_end = z_start + rng.integers(0, 3, (rows, spans))
    mask = rng.random((rows, spans)) < 0.7
    gold, at = rng.integers(0, spans, rows), np.arange(rows)
    start, end = batch.start_B.numpy(), batch.end_B.numpy()
    z_start[at, gold], z_end[at, gold], mask[at, gold] = start, end, True
    kind = (z_start != start[:, None]).astype(int) + (z_end != end[:, None])
    z_start[~mask], z_end[~mask] = -1, 99
    return replace(batch, extras=nbest(*map(torch.from_numpy, (z_start, z_end, mask, kind, gold))))


def nbest(start_BK, end_BK, mask_BK, type_BK, gold_B) -> dict[str, torch.Tensor]:
    names = ("nbest_start_BK", "nbest_end_BK", "nbest_mask_BK", "nbest_type_BK", "nbest_gold_B")
    return dict(zip(names, (start_BK, end_BK, mask_BK, type_BK, gold_B)))


def random_output(batch: Batch, seed=1, scale=2.0) -> ReaderOutput:
    torch.manual_seed(seed)
    B, T = batch.input_ids_BT.shape
    logits = scale * torch.randn(2, B, T, dtype=torch.float64)
    return ReaderOutput(torch.zeros(B, T, 2), logits[0].requires_grad_(), logits[1].requires_grad_())


def plain_losses(batch, output):
    """Start plus end loss of each row over the passage and CLS."""
    losses = []
    for i in range(len(batch.start_B)):
        allowed = [t for t in range(batch.input_ids_BT.shape[1]) if batch.passage_BT[i, t] or t == 0]
        z = [logits[i, allowed].logsumexp(0) - logits[i, at[i]] for logits, at in zip(output[1:], (batch.start_B, batch.end_B))]
        losses.append(z[0] + z[1])
    return losses


def slow_hard_learning(batch, output, mode, *, temperature, kappa, rho, a, hard):
    """docs/methods.md 6.4, line by line: the sum of L_hl, and of the anchor."""
    total, anchor = torch.zeros(()).double(), torch.zeros(()).double()
    for i, l_gold in enumerate(plain_losses(batch, output)):
        if mode == "ce" or not batch.has_answer_B[i]:
            total = total + l_gold
            continue
        gold = set(range(batch.start_B[i], batch.end_B[i] + 1))
        losses, closeness, kinds = [], [], []
        for k in range(batch.extras["nbest_start_BK"].shape[1]):
            if not batch.extras["nbest_mask_BK"][i, k]:
                continue
            s, e = int(batch.extras["nbest_start_BK"][i, k]), int(batch.extras["nbest_end_BK"][i, k])
            one = replace(tiny.share(batch, [i], trim=False), start_B=torch.tensor([s]), end_B=torch.tensor([e]))
            losses += plain_losses(one, ReaderOutput(None, output.start_BT[i : i + 1], output.end_BT[i : i + 1]))
            z = set(range(s, e + 1))
            closeness.append(2 * len(z & gold) / (len(z) + len(gold)))
            kinds.append((s != batch.start_B[i]).item() + (e != batch.end_B[i]).item())
        prior = [math.exp(kappa * f) / sum(math.exp(kappa * g) for g in closeness) for f in closeness]
        if mode == "learned":
            learned = [a[k].exp() / sum(a[m].exp() for m in kinds) for k in kinds]
            anchor = anchor + sum(p * (math.log(p) - q.log()) for p, q in zip(prior, learned))
            prior = learned
        if mode in ("posterior", "learned"):
            soft = -temperature * sum(p * (-l / temperature).exp() for p, l in zip(prior, losses)).log()
            total = total + rho * l_gold + (1 - rho) * soft
        elif hard:
            total = total + min(losses)
        else:
            total = total - sum((-l).exp() for l in losses).log()
    return total, anchor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [0, 41])
def test_every_mode_equals_the_slow_loop_in_value_and_gradient(mode, step):
    batch = make_batch(step=step)
    output = random_output(batch)
    objective = HardLearning(mode=mode, temperature=0.7, kappa=3.0, rho=0.3, hard_em_steps=4).double()
    hard = mode == "hard_em" and objective.takes_hard_branch(batch.seed, step)
    terms = objective(batch, output, reader=None)
    a = objective.type_logits if mode == "learned" else None
    total, anchor = slow_hard_learning(batch, output, mode, temperature=0.7, kappa=3.0, rho=0.3, a=a, hard=hard)
    fast = terms["loss"].total + (terms["anchor"].total if mode == "learned" else 0)
    torch.testing.assert_close(fast, total + anchor, rtol=0, atol=1e-10)
    leaves = [output.start_BT, output.end_BT, *objective.parameters()]
    for got, wanted in zip(torch.autograd.grad(fast, leaves), torch.autograd.grad(total + anchor, leaves)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    assert terms["loss"].count == 5


def test_both_branches_of_hard_em_are_among_the_steps_above():
    objective = HardLearning(mode="hard_em", hard_em_steps=4)
    assert [objective.takes_hard_branch(make_batch(step=step).seed, step) for step in (0, 41)] == [False, True]


def test_posterior_by_hand():
    # One passage of three tokens at positions 3..5, allowed: 0, 3, 4, 5. All logits 0 but start[3] = log 3: start probabilities
    # are 1/6, 1/2, 1/6, 1/6 and end probabilities 1/4 each. Gold is [3, 4], P = 1/8; the other span is [4, 4], P = 1/24.
    # f = 1 and 2 * 1 / (2 + 1) = 2/3, so with kappa = 3 log 2 the prior is 8 : 4 = 2/3 : 1/3.
    # G = -log(2/3 * 1/8 + 1/3 * 1/24) = -log(7/72); L = 1/2 log 8 + 1/2 log(72/7) = 2.205098
    # w = 6/7, 1/7: entropy 6/7 log(7/6) + 1/7 log 7 = 0.410116
    batch = make_batch(rows=1, without_answer=())
    extras = nbest(*map(torch.tensor, ([[4, 3]], [[4, 4]], [[1, 1]], [[1, 0]], [1])))
    start_BT, end_BT = torch.zeros(2, *batch.input_ids_BT.shape)
    start_BT[0, 3] = math.log(3)
    position_T = torch.arange(start_BT.shape[1])
    passage_BT = ((position_T >= 3) & (position_T <= 5))[None]
    batch = replace(batch, passage_BT=passage_BT, start_B=torch.tensor([3]), end_B=torch.tensor([4]), extras=extras)
    terms = HardLearning(kappa=3 * math.log(2))(batch, ReaderOutput(torch.zeros(1), start_BT, end_BT), reader=None)
    torch.testing.assert_close(terms["loss"].mean, torch.tensor(2.205098))
    torch.testing.assert_close(terms["entropy"].mean, torch.tensor(0.410116))
    assert terms["gold_first"].mean == 1
    # mml and hard_em have neither prior nor temperature: w = 1/8 : 1/24 = 3/4, 1/4, entropy 3/4 log(4/3) + 1/4 log 4 = 0.562335
    for mode in ("mml", "hard_em"):
        objective = HardLearning(mode=mode, kappa=3 * math.log(2), temperature=0.5)
        terms = objective(batch, ReaderOutput(torch.zeros(1), start_BT, end_BT), reader=None)
        torch.testing.assert_close(terms["entropy"].mean, torch.tensor(0.562335))
        assert terms["gold_first"].mean == 1


def test_overlap_by_hand():
    # gold is 4..6: the same; 5..6 shares 2 of 2 + 3; 6..9 shares 1 of 4 + 3; 7..8 shares none
    start, end = torch.tensor([[4, 5, 6, 7]]), torch.tensor([[6, 6, 9, 8]])
    torch.testing.assert_close(
        overlap_f1(start, end, torch.tensor([4]), torch.tensor([6])), torch.tensor([[1.0, 4 / 5, 2 / 7, 0.0]]).double()
    )


def only_gold(batch: Batch) -> Batch:
    gold_B1 = batch.extras["nbest_gold_B"][:, None]
    kept = {name: values.gather(1, gold_B1) for name, values in batch.extras.items() if name != "nbest_gold_B"}
    return replace(batch, extras=kept | {"nbest_gold_B": torch.zeros_like(gold_B1[:, 0])})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [0, 41])
def test_with_one_span_every_mode_is_the_plain_loss(mode, step):
    batch = only_gold(make_batch(step=step))
    output = random_output(batch)
    terms = HardLearning(mode=mode, hard_em_steps=4).double()(batch, output, reader=None)
    torch.testing.assert_close(terms["loss"].total, sum(plain_losses(batch, output)))
    if mode == "learned":
        assert terms["anchor"].total == 0


@pytest.mark.parametrize("mode", ["posterior", "learned"])
def test_with_rho_1_it_is_the_plain_loss(mode):
    batch = make_batch()
    output = random_output(batch)
    terms = HardLearning(mode=mode, rho=1.0).double()(batch, output, reader=None)
    torch.testing.assert_close(terms["loss"].total, sum(plain_losses(batch, output)))


def test_a_flat_prior_without_floor_is_mml_plus_log_k_with_its_gradient():
    batch = make_batch()
    output = random_output(batch)
    posterior = HardLearning(mode="posterior", temperature=1.0, kappa=0.0, rho=0.0)(batch, output, reader=None)["loss"].total
    mml = HardLearning(mode="mml")(batch, output, reader=None)["loss"].total
    k_B = batch.extras["nbest_mask_BK"].sum(1)[batch.has_answer_B]
    assert len(set(k_B.tolist())) > 1
    torch.testing.assert_close(posterior, mml + k_B.double().log().sum())
    leaves = [output.start_BT, output.end_BT]
    for got, wanted in zip(torch.autograd.grad(posterior, leaves), torch.autograd.grad(mml, leaves)):
        torch.testing.assert_close(got, wanted)


def test_a_cold_posterior_is_the_best_span():
    batch = make_batch(without_answer=())
    output = random_output(batch)
    cold = HardLearning(mode="posterior", temperature=1e-3, kappa=0.0, rho=0.0)(batch, output, reader=None)["loss"].mean
    hard = HardLearning(mode="hard_em", hard_em_steps=1)
    step = next(step for step in range(1, 50) if hard.takes_hard_branch(batch.seed, step))
    best = hard(replace(batch, step=step), output, reader=None)["loss"].mean
    assert abs(cold - best) < 1e-2
    mml = HardLearning(mode="mml")(batch, output, reader=None)["loss"].mean
    assert abs(mml - best) > 0.1  # the other branch would have been seen


@pytest.mark.parametrize("mode", MODES)
def test_masked_spans_have_no_influence_even_with_log_probability_0(mode):
    batch = make_batch(rows=4, without_answer=(3,), step=41)
    output = random_output(batch)
    with torch.no_grad():
        output.start_BT[:, 12] = output.end_BT[:, 12] = 1e4  # P([12, 12]) is exactly 1
    mask_BK = batch.extras["nbest_mask_BK"]
    objective = HardLearning(mode=mode, hard_em_steps=4).double()

    def value_and_gradient(start, end, kind):
        names = ("nbest_start_BK", "nbest_end_BK", "nbest_type_BK")
        moved = {name: batch.extras[name].masked_fill(~mask_BK, to) for name, to in zip(names, (start, end, kind))}
        terms = objective(replace(batch, extras=batch.extras | moved), output, reader=None)
        total = sum(term.total for term in terms.values())
        return [total, *torch.autograd.grad(total, [output.start_BT, output.end_BT, *objective.parameters()])]

    log_start_BT, log_end_BT = span_log_probs(output, batch)
    sure_B = batch.has_answer_B & ((log_start_BT + log_end_BT)[:, 12] == 0)
    assert (~mask_BK[sure_B]).any()  # [12, 12] is in their passage: masked elements whose log P is exactly 0
    for got, wanted in zip(value_and_gradient(12, 12, 0), value_and_gradient(0, 0, 2)):
        assert got.isfinite().all()
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_windows_without_answer_keep_the_plain_loss_and_every_parameter_a_gradient(mode):
    batch = make_batch(without_answer=range(5), step=41)
    output = random_output(batch, scale=50.0)
    objective = HardLearning(mode=mode, hard_em_steps=4, temperature=2.0).double()
    terms = objective(batch, output, reader=None)
    sum(term.total for term in terms.values()).backward()
    torch.testing.assert_close(terms["loss"].total, sum(plain_losses(batch, output)))
    assert mode == "ce" or terms["entropy"].mean == 0
    for leaf in (output.start_BT, output.end_BT):
        assert leaf.grad.isfinite().all()
    for parameter in objective.parameters():
        assert (parameter.grad == 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [0, 41])
def test_gradients_agree_with_finite_differences(mode, step):
    batch = make_batch(rows=3, spans=4, step=step)
    output = random_output(batch, scale=1.0)
    objective = HardLearning(mode=mode, hard_em_steps=4, temperature=0.8).double()

    def loss(start_BT, end_BT, *parameters):
        terms = objective(batch, ReaderOutput(output.hidden_BTH, start_BT, end_BT), reader=None)
        return sum(weight * terms[name].total for name, weight in objective.weights(step).items())

    assert torch.autograd.gradcheck(loss, (output.start_BT, output.end_BT, *objective.parameters()))


def test_the_learned_prior_moves_at_the_rates_of_a_training():
    """As many steps as a small training has, at its rate: the three numbers must get somewhere."""
    objective, batch = HardLearning(mode="learned", eta=0.01).double(), make_batch()
    before = objective.type_logits.detach().clone()
    optimizer = build_optimizer(objective, OptimConfig(lr=1e-4))
    output = random_output(batch)
    for _ in range(200):
        optimizer.zero_grad()
        terms = objective(batch, output, reader=None)
        sum(terms[name].mean * weight for name, weight in objective.weights(0).items()).backward()
        optimizer.step()
    assert (objective.type_logits - before).abs().max() > 0.5


def test_the_learned_prior_stays_where_the_anchor_holds_it():
    batch = make_batch()
    objective = HardLearning(mode="learned", eta=1.0).double()
    optimizer = torch.optim.LBFGS(objective.parameters(), max_iter=40, line_search_fn="strong_wolfe")
    output = random_output(batch)

    def closure():
        optimizer.zero_grad()
        terms = objective(batch, output, reader=None)
        loss = sum(terms[name].mean * weight for name, weight in objective.weights(0).items())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert objective.type_logits.grad.abs().max() < 1e-3  # an interior minimum was reached
    assert objective.type_logits.abs().max() < 20


def test_extreme_logits_in_float32_give_finite_gradients():
    for mode in MODES:
        batch = make_batch()
        logits_BT = torch.full(batch.input_ids_BT.shape, -3e4)
        logits = [logits_BT.index_fill(1, torch.tensor(at), 3e4).requires_grad_() for at in (5, 7)]
        terms = HardLearning(mode=mode, temperature=0.01)(batch, ReaderOutput(torch.zeros(5, 17, 2), *logits), reader=None)
        terms["loss"].total.backward()
        assert terms["loss"].total.isfinite()
        assert logits[0].grad.isfinite().all()


@pytest.mark.parametrize("mode", ["posterior", "mml", "ce"])
def test_without_the_mask_the_softmax_is_over_all_real_tokens(mode):
    batch = make_batch()
    output = random_output(batch)
    real = replace(batch, passage_BT=batch.attention_BT)  # the loop's positions: passage and CLS
    total, _ = slow_hard_learning(real, output, mode, temperature=1.0, kappa=4.0, rho=0.5, a=None, hard=False)
    masked, free = (
        HardLearning(mode=mode, mask_non_passage=on)(batch, output, reader=None)["loss"].total for on in (True, False)
    )
    torch.testing.assert_close(free, total, rtol=0, atol=1e-10)
    assert free > masked  # question and separators have their share of the probability


@pytest.mark.parametrize("mode", MODES)
def test_every_part_has_a_weight_and_the_mean_reduction_halves_them(mode):
    batch = make_batch()
    weights = [HardLearning(mode=mode, eta=3.0, span_reduction=reduction).weights(0) for reduction in ("sum", "mean")]
    assert HardLearning(mode=mode)(batch, random_output(batch), reader=None).keys() == weights[0].keys()
    assert weights[0]["loss"] == 1.0
    assert weights[0].get("anchor", 3.0) == 3.0
    assert {name: weight / 2 for name, weight in weights[0].items()} == weights[1]


def test_hard_em_takes_the_best_span_more_and_more_often_up_to_four_times_in_five():
    objective = HardLearning(mode="hard_em", hard_em_steps=4000)
    share = lambda first: np.mean([objective.takes_hard_branch(7, step) for step in range(first, first + 400)])  # noqa: E731
    assert not objective.takes_hard_branch(7, 0)
    # standard deviation of a share of 400 draws is at most 0.025; the mean over 1800..2199 is 1/2
    assert abs(share(1800) - 0.5) < 0.1
    assert abs(share(10**6) - 0.8) < 0.1


def test_gold_in_z_that_is_not_the_rows_gold_is_refused():
    batch = make_batch()
    moved = batch.extras["nbest_end_BK"].clone()
    moved[3, batch.extras["nbest_gold_B"][3]] += 1
    with pytest.raises(InputError, match=f"row {batch.world.row[3]} .*another tokenizer"):
        HardLearning()(replace(batch, extras=batch.extras | {"nbest_end_BK": moved}), random_output(batch), reader=None)


def test_mode_ce_looks_at_gold_alone_and_asks_for_no_sets():
    batch = make_batch()
    output = random_output(batch)
    terms = HardLearning(mode="ce")(replace(batch, extras={}), output, reader=None)
    assert terms.keys() == {"loss"}, "there is nothing in Z to weigh or to rank"
    torch.testing.assert_close(terms["loss"].total, sum(plain_losses(batch, output)))


def test_rows_without_n_best_sets_are_refused():
    batch = make_batch()
    with pytest.raises(InputError, match=r"predict\.split=train"):
        HardLearning()(replace(batch, extras={}), random_output(batch), reader=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "soft"}, r"objectives.hard_learning.mode: should be 'posterior', .* got 'soft'"),
        ({"temperature": 0.0}, "temperature: should be greater than 0"),
        ({"kappa": -1.0}, "kappa"),
        ({"rho": 1.5}, "rho: should be less than or equal to 1, got 1.5"),
        ({"hard_em_steps": 0}, "hard_em_steps"),
        ({"eta": 0.0}, "eta"),
    ],
)
def test_bad_settings_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        HardLearning(**wrong)


def test_gold_is_put_in_where_it_is_missing():
    spans = np.array([[0, 4], [0, 9], [5, 9]])
    for gold, size, kept, at in [
        ((0, 9), 3, [[0, 4], [0, 9], [5, 9]], 1),  # there already
        ((2, 9), 3, [[0, 4], [0, 9], [2, 9]], 2),  # takes the last one's place
        ((5, 9), 2, [[0, 4], [5, 9]], 1),  # found, but beyond the size: as if missing
        ((2, 9), 5, [[0, 4], [0, 9], [5, 9], [2, 9]], 3),  # a short list has room
        ((2, 9), 1, [[2, 9]], 0),
    ]:
        got, index = put_gold_in(spans, gold, size)
        assert got.tolist() == kept
        assert index == at
    assert put_gold_in(np.zeros((0, 2)), (1, 2), 20)[0].tolist() == [[1, 2]]
    with pytest.raises(InputError, match="size"):
        put_gold_in(spans, (0, 9), 0)


def test_types_count_the_boundaries_that_disagree():
    assert span_types(np.array([[3, 7], [3, 5], [1, 7], [7, 3], [1, 2]]), (3, 7)).tolist() == [0, 1, 1, 2, 2]


def losses_and_gradients(rows: list[int]) -> list[torch.Tensor]:
    """These rows' part of every term and of the gradient, for every mode at two steps."""
    found = []
    for mode in MODES:
        for step in (0, 41):
            reader, objective = tiny.seeded(tiny.TinyReader), HardLearning(mode=mode, hard_em_steps=4).double()
            batch = tiny.share(make_batch(step=step), rows)
            terms = objective(batch, reader(batch), reader)
            loss = sum(weight * terms[name].mean for name, weight in objective.weights(step).items())
            gradients = torch.autograd.grad(loss, [*reader.parameters(), *objective.parameters()])
            found += [torch.stack([term.mean.detach() for term in terms.values()]), *gradients]
    return found


def branches(rows: list[int]) -> list[bool]:
    """Which steps take the best span, for these rows of the batch."""
    batch, objective = tiny.share(make_batch(), rows), HardLearning(mode="hard_em", hard_em_steps=40)
    return [objective.takes_hard_branch(batch.seed, step) for step in range(1, 51)]


def on_one_of_two(rank: int) -> dict:
    rows = [[0, 2, 3], [4, 1]][rank]
    return {"parts": losses_and_gradients(rows), "branches": branches(rows)}


def test_two_ranks_equal_one_and_take_the_same_branch(tmp_path):
    alone = losses_and_gradients([0, 1, 2, 3, 4])
    assert sum(gradient.abs().max() > 1e-3 for gradient in alone) > len(MODES)
    ranks = tiny.on_ranks(on_one_of_two, tmp_path)
    for first, second, one in zip(*(rank["parts"] for rank in ranks), alone, strict=True):
        torch.testing.assert_close(first + second, one, rtol=0, atol=1e-6)
    assert ranks[0]["branches"] == ranks[1]["branches"] == branches([0, 1, 2, 3, 4])
    assert set(ranks[0]["branches"]) == {False, True}
