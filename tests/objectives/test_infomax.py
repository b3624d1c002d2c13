import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny import TinyReader, make_batch, on_ranks, seeded, share
from torch import nn
from torch.nn.functional import logsigmoid

from raydist.draws import keyed_uniform
from raydist.errors import InputError
from raydist.objectives.base import ReaderOutput, keyed_dropout
from raydist.objectives.infomax import Infomax, draw_partners, hit_rate, infomax_bound

H = 6
SETTINGS = [
    {"variant": variant, "summary": summary} for variant in ("paper", "reference") for summary in ("mean", "max", "sample")
]


def make_infomax(**settings) -> Infomax:
    return seeded(lambda: Infomax(H, **{"dropout": 0.0, **settings}))


def output_of(batch, seed=1) -> ReaderOutput:
    torch.manual_seed(seed)
    hidden_BTH = torch.randn(*batch.input_ids_BT.shape, H, dtype=torch.float64)
    return ReaderOutput(hidden_BTH, hidden_BTH[..., 0], hidden_BTH[..., 1])


def loss_of(infomax, terms):
    return sum(weight * terms[part].mean for part, weight in infomax.weights(0).items())


def slow_infomax(infomax, batch, hidden_BTH):
    """-LC and -GC summed over rows, from docs/methods.md 3.3 to 3.5 and the table of 3.8, one pair at a time."""
    rows, reference, C = batch.world, infomax.variant == "reference", infomax.context
    T = hidden_BTH.shape[1]
    partner = draw_partners(rows, batch.seed, batch.step, infomax.variant)
    x, s, near, rest = [], [], [], []
    for i in range(len(rows)):
        start, end = int(batch.start_B[i]), int(batch.end_B[i])
        answer = list(range(start, end + 1))
        if reference:
            # [s - 5, e + 4]; without context the answer, since what x is drawn from cannot be without it
            window = [t for t in range(start - C, max(end + C - 1, end) + 1) if 0 <= t < T]
            source, outside = window, [t for t in range(T) if t not in answer]
        else:
            window = [t for t in range(start - C, end + C + 1) if 0 <= t < T and batch.passage_BT[i, t]]
            words = batch.passage_BT[i] | batch.question_BT[i]
            source, outside = answer, [t for t in range(T) if words[t] and t not in answer]
        word, other = (
            source[math.floor(keyed_uniform(batch.seed, batch.step, stream, rows.row[i : i + 1])[0] * len(source))]
            for stream in ("infomax.word", "infomax.summary")
        )
        x.append(hidden_BTH[i, word])
        values = torch.stack([hidden_BTH[i, t] for t in source])
        s.append(
            {"mean": values.mean(0).sigmoid(), "max": values.max(0).values.sigmoid(), "sample": hidden_BTH[i, other]}[
                infomax.summary
            ]
        )
        near.append([hidden_BTH[i, t] for t in window if reference or t != word])
        rest.append([hidden_BTH[i, t] for t in outside])

    def bounds(part, vector, words):
        g, total = infomax.discriminators[part], 0.0
        for i, j in enumerate(partner):
            if j < 0:
                continue
            own = [logsigmoid(vector[i] @ g.weight @ y + g.bias) for y in words[i]]
            other_y = [logsigmoid(-(vector[i] @ g.weight @ y + g.bias)) for y in words[j]]
            other_x = [logsigmoid(-(vector[j] @ g.weight @ y + g.bias)) for y in words[i]]
            if reference:
                total += sum(own + other_y + other_x) / (len(own) + len(other_y) + len(other_x))
            else:
                total += sum(
                    share * sum(values) / max(1, len(values)) for share, values in ((1, own), (0.5, other_y), (0.5, other_x))
                )
        return -total

    sets = {"local": (x, near), "global": (s, rest)}
    return {part: bounds(part, *sets[part]) for part in infomax.discriminators}


def test_bound_by_hand():
    # One word in each row, W = 1, b = 0; x = 1, -1 and y = log 3, 0; each row is the other's partner. Slots: own, partner's
    # x with my word, my chooser's x with my word (the same x here).
    x, y = torch.tensor([1.0, -1.0]), torch.tensor([math.log(3), 0.0])
    logits_BKT = torch.stack([x[[0, 1, 1]] * y[0], x[[1, 0, 0]] * y[1]])[..., None]
    weight_BK = torch.tensor([[1.0, 0.5, 0.5]] * 2)
    # sigmoid(log 3) = 3/4 and sigmoid(0) = 1/2. Words of row 0: log 3/4 + 1/2 log 3/4 + 1/2 log 3/4; of row 1: 2 log 1/2
    wanted = 2 * math.log(3 / 4) + 2 * math.log(1 / 2)
    bound = infomax_bound(logits_BKT, torch.ones(2, 1, dtype=torch.bool), weight_BK)
    assert bound.item() == pytest.approx(wanted, abs=1e-6)
    # row 0: log 3 > 0 right, -log 3 < 0 right twice: 1. Row 1: all logits 0, none right.
    assert hit_rate(logits_BKT, torch.ones(2, 1, dtype=torch.bool), torch.ones(2, 3)).item() == pytest.approx(1.0)


def test_each_constraint_has_a_discriminator_of_its_own_which_starts_by_xaviers_rule():
    infomax = seeded(lambda: Infomax(64))
    bound = math.sqrt(6 / (64 * 64 + 64))
    for g in infomax.discriminators.values():
        # of 4096 uniform draws one is within 1 % of each end; their deviation is bound / sqrt(3)
        assert 0.99 * bound < g.weight.max() <= bound * (1 + 1e-6)
        assert 0.99 * bound < -g.weight.min() <= bound * (1 + 1e-6)
        assert g.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert g.bias.item() == 0
    one, other = infomax.discriminators["local"], infomax.discriminators["global"]
    assert not torch.equal(one.weight, other.weight)
    batch, infomax = make_batch(), make_infomax()
    terms = infomax(batch, output_of(batch))
    for part in ("local", "global"):
        names = [name for name, _ in infomax.named_parameters()]
        grads = torch.autograd.grad(terms[part].total, list(infomax.parameters()), retain_graph=True, allow_unused=True)
        moved = {name for name, grad in zip(names, grads) if grad is not None and grad.any()}
        assert moved == {f"discriminators.{part}.weight", f"discriminators.{part}.bias"}


@pytest.mark.parametrize(("variant", "wanted"), [("paper", 2 * math.log(2)), ("reference", math.log(2))])
def test_without_weights_the_bound_is_a_constant_of_the_preset(variant, wanted):
    batch = make_batch()
    infomax = make_infomax(variant=variant)
    for parameter in infomax.parameters():
        nn.init.zeros_(parameter)
    terms = infomax(batch, output_of(batch))
    # (alpha + beta) 2 log 2 = 2.0794, or (alpha + beta) log 2 = 1.0397, with alpha = 1 and beta = 1/2
    assert (terms["local"].mean + 0.5 * terms["global"].mean).item() == pytest.approx(1.5 * wanted, abs=1e-12)
    assert terms["local"].count == 5


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS,
        *({"variant": variant, "context": context} for variant in ("paper", "reference") for context in (0, 1, 3)),
        *({"variant": variant, only: 0.0} for variant in ("paper", "reference") for only in ("alpha", "beta")),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_answer", [[True] * 6, [True, False, True, True, False, True]], ids=["all", "some"])
def test_equals_a_loop_over_pairs(settings, has_answer):
    batch = make_batch(6, has_answer=has_answer, passage=[1, 1, 1, 2, 3, 4], padding=4)
    infomax = make_infomax(**settings)
    hidden_BTH = output_of(batch).hidden_BTH.requires_grad_()
    terms = infomax(batch, output_of(batch)._replace(hidden_BTH=hidden_BTH))
    slow = slow_infomax(infomax, batch, hidden_BTH)
    assert {part for part in terms if not part.endswith("_accuracy")} == slow.keys()
    inputs = [hidden_BTH, *infomax.parameters()]
    for part in slow:
        torch.testing.assert_close(terms[part].total, slow[part], atol=1e-10, rtol=1e-10)
    fast_grads = torch.autograd.grad(sum(terms[part].total for part in slow), inputs)
    slow_grads = torch.autograd.grad(sum(slow.values()), inputs)
    for fast, by_loop in zip(fast_grads, slow_grads):
        torch.testing.assert_close(fast, by_loop, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_padding_and_specials_change_nothing_in_the_paper_preset(dropout):
    short = make_batch(padding=0)
    long = make_batch(padding=5)
    infomax, T = make_infomax(dropout=dropout), short.input_ids_BT.shape[1]
    output = output_of(long)
    words_BT = long.question_BT | long.passage_BT
    noisy_BTH = torch.where(words_BT[..., None], output.hidden_BTH, 1e3 * torch.randn_like(output.hidden_BTH))
    gradients = []
    for batch, hidden_BTH in ((short, output.hidden_BTH[:, :T]), (long, noisy_BTH)):
        hidden_BTH = hidden_BTH.clone().requires_grad_()
        loss = loss_of(infomax, infomax(batch, output._replace(hidden_BTH=hidden_BTH)))
        gradients.append((loss, *torch.autograd.grad(loss, [*infomax.parameters(), hidden_BTH])))
    for one, other in zip(gradients[0][:-1], gradients[1][:-1]):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(gradients[0][-1], gradients[1][-1][:, :T])
    assert (gradients[1][-1][~words_BT] == 0).all()


def test_a_row_without_answer_changes_nothing():
    batch = make_batch(5, has_answer=[True, True, False, True, True])
    infomax, output = make_infomax(), output_of(batch)
    kept = loss_of(infomax, infomax(batch, output))
    output.hidden_BTH[2] = 1e3
    torch.testing.assert_close(loss_of(infomax, infomax(batch, output)), kept)


def test_the_shift_is_a_derangement_that_varies_with_seed_and_step():
    rows = make_batch(7).world
    seen = set()
    for seed, step in itertools.product(range(5), range(40)):
        partner_G = draw_partners(rows, seed, step)
        assert sorted(partner_G) == list(range(7))
        assert (partner_G != np.arange(7)).all()
        assert (partner_G == draw_partners(rows, seed, step)).all()
        seen.add(tuple(partner_G))
    assert len(seen) > 100


def test_the_reference_preset_pairs_each_row_with_the_next_whatever_its_passage():
    rows = make_batch(4, has_answer=[True, False, True, True], passage=[1, 1, 1, 1]).world
    for seed, step in itertools.product(range(3), range(3)):
        assert draw_partners(rows, seed, step, "reference").tolist() == [2, -1, 3, 0]


def test_two_rows_of_one_passage_never_pair():
    rows = make_batch(6, passage=[1, 1, 1, 2, 2, 3]).world
    left_out = 0
    for step in range(300):
        partner_G = draw_partners(rows, 0, step)
        usable = partner_G >= 0
        left_out += (~usable).sum()
        assert (rows.passage[usable] != rows.passage[partner_G[usable]]).all()
    # A row of passage 1 fails a draw with probability 2/5, hence all five with about 1 %: some, but few, are left out.
    assert 0 < left_out < 0.03 * 6 * 300
    assert (draw_partners(make_batch(4, passage=[1] * 4).world, 0, 0) == -1).all()


def test_partners_do_not_depend_on_the_order_of_rows():
    rows = make_batch(6, passage=[1, 1, 1, 2, 2, 3]).world
    turned = np.array([4, 2, 5, 0, 1, 3])
    moved = type(rows)(**{name: value[turned] for name, value in vars(rows).items()})
    for step in range(50):
        partner_G, moved_G = draw_partners(rows, 0, step), draw_partners(moved, 0, step)
        pairs = {(rows.row[i], rows.row[j]) for i, j in enumerate(partner_G) if j >= 0}
        assert pairs == {(moved.row[i], moved.row[j]) for i, j in enumerate(moved_G) if j >= 0}


@pytest.mark.parametrize(
    ("variant", "given"),
    [
        *((variant, {"has_answer": has}) for variant in ("paper", "reference") for has in ([False, True, False], [False] * 3)),
        ("paper", {"passage": [1, 1, 1]}),
    ],
    ids=str,
)
def test_without_two_rows_to_pair_the_loss_is_zero_with_a_gradient_for_every_parameter(variant, given):
    batch = make_batch(3, **given)
    infomax, output = make_infomax(variant=variant, dropout=0.5), output_of(batch)
    terms = infomax(batch, output._replace(hidden_BTH=output.hidden_BTH.requires_grad_()))
    assert all(term.count == 0 for term in terms.values())
    loss = loss_of(infomax, terms)
    loss.backward()
    assert loss.item() == 0
    for leaf in (output.hidden_BTH, *infomax.parameters()):
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_the_sampled_word_is_a_function_of_seed_step_and_row():
    batch = make_batch(5)
    position_T = torch.arange(batch.input_ids_BT.shape[1], dtype=torch.float64)

    def words(batch) -> list[float]:
        hidden_BTH = position_T[: batch.input_ids_BT.shape[1]].expand(len(batch.start_B), -1)[..., None]
        return make_infomax().vectors_and_words(batch, hidden_BTH)[0]["local"].flatten().tolist()

    drawn = {(seed, step): words(replace(batch, seed=seed, step=step)) for seed in range(3) for step in range(10)}
    for (seed, step), found in drawn.items():
        again = replace(batch, seed=seed, step=step)
        assert words(again) == found
        assert words(share(again, [3, 1])) == [found[3], found[1]]  # on another rank
    for seed in range(3):
        assert len({tuple(drawn[seed, step]) for step in range(10)}) > 5
    assert drawn[0, 1] != drawn[1, 1]


def test_the_sampled_word_is_each_word_of_the_answer_in_turn():
    batch = make_batch(1)
    batch = replace(batch, end_B=batch.start_B + 2)
    position = torch.arange(batch.input_ids_BT.shape[1], dtype=torch.float64)
    words = [
        int(make_infomax().vectors_and_words(replace(batch, step=step), position.view(1, -1, 1))[0]["local"].item())
        for step in range(300)
    ]
    start = int(batch.start_B[0])
    assert {word - start for word in words} == {0, 1, 2}
    assert min(words.count(start + k) for k in range(3)) > 60


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_gradcheck(settings):
    batch = make_batch(3, padding=1)
    infomax, output = make_infomax(**settings), output_of(batch)
    names = [name for name, _ in infomax.named_parameters()]

    def total(hidden_BTH, *values):
        call = torch.func.functional_call(infomax, dict(zip(names, values)), (batch, output._replace(hidden_BTH=hidden_BTH)))
        return call["local"].total + call["global"].total

    assert torch.autograd.gradcheck(total, (output.hidden_BTH.requires_grad_(), *infomax.parameters()))


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"span_reduction": "sum"}, {"local": 0.3, "global": 0.15}),
        ({"span_reduction": "mean"}, {"local": 0.15, "global": 0.075}),
        ({"span_reduction": "sum", "variant": "reference"}, {"local": 0.25, "global": 0.125}),
        ({"span_reduction": "sum", "alpha": 0.0}, {"global": 0.15}),
        ({"span_reduction": "sum", "beta": 0.0, "weight": 1.0}, {"local": 1.0}),
    ],
)
def test_the_published_weight_is_on_the_sum_and_an_absent_half_has_no_parameters(settings, weights):
    infomax, batch = make_infomax(**settings), make_batch()
    effective = {part: weight for part, weight in infomax.weights(0).items() if weight}
    assert effective == pytest.approx(weights)
    assert infomax.weights(0).keys() == infomax(batch, output_of(batch)).keys()
    assert len(list(infomax.parameters())) == 2 * len(weights)
    assert infomax.total_scale == pytest.approx(1 / 3 if infomax.variant == "reference" else 1)


def test_keyed_dropout_is_a_function_of_seed_step_stream_and_row():
    batch = make_batch(6)
    ones_BTH = torch.ones(6, 50, 40)
    drop = lambda batch, values=ones_BTH, stream="a", rate=0.3: keyed_dropout(values, rate, batch, stream)  # noqa: E731
    whole_BTH = drop(batch)
    kept_BTH = whole_BTH > 0
    # 12,000 draws: the share of zeros has a standard deviation of 0.004; in a unit of a row, of 50 draws, of 0.065
    assert kept_BTH.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert kept_BTH.float().mean(1).std().item() == pytest.approx(0.065, rel=0.15)
    torch.testing.assert_close(whole_BTH[kept_BTH], torch.full_like(whole_BTH[kept_BTH], 1 / 0.7), rtol=1e-4, atol=0)
    assert torch.equal(drop(batch), whole_BTH)
    assert torch.equal(drop(batch, ones_BTH[:, :20]), whole_BTH[:, :20])  # less padding
    assert torch.equal(drop(share(batch, [4, 2]), ones_BTH[:2]), whole_BTH[[4, 2]])  # another rank
    others = [drop(replace(batch, step=9)), drop(replace(batch, seed=9)), drop(batch, stream="b"), whole_BTH.flip(0)]
    for other_BTH in others:  # independent: both kept in 0.49 of the places
        assert (kept_BTH & (other_BTH > 0)).float().mean().item() == pytest.approx(0.49, abs=0.02)
    values_BTH = torch.randn(6, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: drop(batch, values), (values_BTH,))
    assert torch.equal(drop(batch, rate=0.0), ones_BTH)


def test_dropout_acts_in_training_only():
    batch, infomax = make_batch(), make_infomax(dropout=0.5)
    output = output_of(batch)
    quiet = loss_of(infomax, make_infomax()(batch, output))
    assert not torch.isclose(loss_of(infomax, infomax(batch, output)), quiet)
    torch.testing.assert_close(loss_of(infomax, infomax.eval()(batch, output)), quiet)


def test_discriminators_learn_to_tell_and_taking_them_away_leaves_the_reader_bit_identical():
    batch, reader = make_batch(6), seeded(TinyReader)
    task = nn.ModuleDict({"reader": reader, "infomax": make_infomax()})
    optimizer, losses, accuracy = torch.optim.Adam(task.parameters(), lr=0.05), [], []
    for _ in range(40):
        terms = task["infomax"](batch, reader(batch), reader)
        optimizer.zero_grad()
        (terms["local"].mean + terms["global"].mean).backward()
        optimizer.step()
        losses.append(terms["local"].mean.item())
        accuracy.append(terms["local_accuracy"].mean.item())
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy[-1] > 0.9
    kept = {name.removeprefix("reader."): value for name, value in task.state_dict().items() if name.startswith("reader.")}
    plain = TinyReader()
    plain.load_state_dict(kept, strict=True)
    assert torch.equal(plain(batch).start_BT, reader(batch).start_BT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "both"}, "infomax.variant: .* got 'both'"),
        ({"summary": "sum"}, "summary: .* got 'sum'"),
        ({"alpha": 0.0, "beta": 0.0}, "both 0"),
        ({"weight": -1.0}, "weight: .* got -1.0"),
        ({"context": -1}, "got -1"),
        ({"dropout": 1.0}, "got 1.0"),
        ({"lr": 0.0}, "lr: should be greater than 0"),
        ({"span_reduction": "total"}, "'total'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Infomax(H, **settings)


RANK_CASES = [{**settings, "has": has} for settings in SETTINGS for has in ("all", "some")]
RANK_CASES += [{"variant": variant, "dropout": 0.5, "has": "all"} for variant in ("paper", "reference")]
RANK_ROWS = [[0, 2, 4], [1, 3]]


def step_of(case: dict, rows: list[int] | None) -> dict:
    """Loss and gradients of one rank (or, without rows, of the whole batch) for one case."""
    settings = {key: value for key, value in case.items() if key != "has"}
    has_answer = [True] * 5 if case["has"] == "all" else [True, False, True, True, False]  # rank 1 then has one row to use
    batch = make_batch(5, has_answer=has_answer)
    # the reference preset counts padding, so ranks must pad alike to agree
    batch = batch if rows is None else share(batch, rows, trim=settings["variant"] == "paper")
    reader, infomax = seeded(TinyReader), make_infomax(**settings)
    terms = infomax(batch, reader(batch), reader)
    loss_of(infomax, terms).backward()
    module = nn.ModuleDict({"reader": reader, "infomax": infomax})
    gradients = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {"terms": {name: term.mean.detach() for name, term in terms.items()}, "gradients": gradients}


def one_rank(rank: int) -> dict:
    return {str(number): step_of(case, RANK_ROWS[rank]) for number, case in enumerate(RANK_CASES)}


def test_two_ranks_equal_one(tmp_path):
    ranks = on_ranks(one_rank, tmp_path)
    for number, case in enumerate(RANK_CASES):
        whole, parts = step_of(case, None), [rank[str(number)] for rank in ranks]
        for kind in ("terms", "gradients"):
            for name, value in whole[kind].items():
                together = sum(part[kind][name] for part in parts)
                torch.testing.assert_close(
                    together, value, atol=1e-10, rtol=1e-10, msg=lambda m, n=name, c=case: f"{c} {n}: {m}"
                )


def test_the_discriminators_share_the_common_rate_unless_they_have_their_own():
    assert Infomax(6).parameter_groups() == []
    infomax = Infomax(6, lr=1e-3)
    (group,) = infomax.parameter_groups()
    assert (group["lr"], group["weight_decay"]) == (1e-3, 0.0)
    assert {id(parameter) for parameter in group["params"]} == {id(parameter) for parameter in infomax.parameters()}
