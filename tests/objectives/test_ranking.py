import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny import on_ranks, seeded
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from raydist.errors import InputError
from raydist.objectives.pairs import CrossBatch, CrossGroup, PairBatch, PairGroup, PairVectors, Tokens
from raydist.objectives.ranking import CrossEntropy, Ranking, allowed_columns, kl_losses, margin_mse_losses, softmax_losses

D = 5
NO_TOKENS = Tokens(torch.zeros(0, 1), torch.zeros(0, 1, dtype=torch.bool), None)  # objectives see vectors alone


def make_group(size=4, *, question=None, bag_key=None, weight=None, positives=(), negatives=(), first=0):
    """Rows that differ in everything unless told. ``positives`` and ``negatives``: (row, bag key)."""
    own = np.arange(size)
    positives, negatives = (np.array(given, np.int64).reshape(-1, 2) for given in (positives, negatives))
    return PairGroup(
        row=100 + first + own,
        question=first + own if question is None else np.array(question),
        bag_key=first + 10 + own if bag_key is None else np.array(bag_key),
        weight=np.ones(size) if weight is None else np.array(weight, float),
        positives=positives[:, 1],
        positives_of=positives[:, 0],
        negative_bag_key=negatives[:, 1],
        negative_of=negatives[:, 0],
        has_teacher=np.isin(own, negatives[:, 0]),
    )


def make_batch(*groups: PairGroup, group: int = 0, mine=None) -> PairBatch:
    rows = groups[group]
    mine = np.arange(len(rows)) if mine is None else np.array(mine)
    own = np.concatenate([np.flatnonzero(rows.negative_of == place) for place in mine])
    place_G = np.full(len(rows), -1)
    place_G[mine] = np.arange(len(mine))
    random = np.random.default_rng(5)
    teacher_G, teacher_K = random.normal(size=len(rows)) * 4, random.normal(size=len(rows.negative_of)) * 4
    return PairBatch(
        questions=NO_TOKENS,
        answers=NO_TOKENS,
        negatives=None,
        negatives_mine=torch.from_numpy(own),
        negative_row_K=torch.from_numpy(place_G[rows.negative_of[own]]),
        teacher_B=torch.from_numpy(teacher_G[mine]),
        teacher_K=torch.from_numpy(teacher_K[own]),
        groups=groups,
        group=group,
        mine=torch.from_numpy(mine),
    )


def make_vectors(rows: int, negatives: int = 0, seed=0) -> PairVectors:
    torch.manual_seed(seed)
    return PairVectors(*(normalize(torch.randn(n, D, dtype=torch.float64), dim=1) for n in (rows, rows, negatives)))


# A batch with everything: a question twice, the same words twice, known positives that are another row's answer or negative,
# a negative with the words of an answer, rows with two, one and no negatives.
FULL = {
    "size": 6,
    "question": [1, 2, 1, 3, 4, 5],
    "bag_key": [11, 12, 13, 12, 14, 15],
    "weight": [1, 0.81, 0.25, 1, 0.5, 1],
    "positives": [(0, 11), (0, 13), (1, 12), (1, 31), (2, 11), (2, 13), (3, 12), (3, 14), (4, 14), (5, 15), (5, 99)],
    "negatives": [(0, 31), (0, 32), (2, 13), (5, 34)],
}


def slow_columns(rows: PairGroup, i: int) -> list[bool]:
    """M[i, :] in the words of docs/methods.md 5.6."""
    known = {int(s) for s, of in zip(rows.positives, rows.positives_of) if of == i}
    allowed = []
    for j in range(len(rows)):
        hidden = rows.bag_key[j] in known or rows.bag_key[j] == rows.bag_key[i]
        allowed.append(j == i or not (hidden or rows.question[j] == rows.question[i]))
    for bag in rows.negative_bag_key:
        allowed.append(not (bag in known or bag == rows.bag_key[i]))
    return allowed


def slow_ranking(ranking: Ranking, batch: PairBatch, vectors: PairVectors) -> float:
    """The loss over one group that is one whole step, one pair of numbers at a time."""
    rows = batch.world
    u, v, n = (part.tolist() for part in vectors)

    def score(a, b):
        return ranking.scale * sum(x * y for x, y in zip(a, b))

    total, rows_used, weight_sum = 0.0, 0, 0.0
    for i in range(len(rows)):
        own = [k for k in range(len(n)) if rows.negative_of[k] == i]
        if ranking.loss == "softmax":
            allowed = slow_columns(rows, i) if ranking.mask_known_positives else [True] * (len(v) + len(n))
            best = max(score(u[i], column) for column in v + n)
            below = sum(math.exp(score(u[i], column) - best) for column, kept in zip(v + n, allowed) if kept)
            p = math.exp(score(u[i], v[i]) - best) / below
            loss = -math.log(p) if ranking.objective == "log" else -p
        elif not own:
            continue
        else:
            student = [score(u[i], v[i])] + [score(u[i], n[k]) for k in own]
            teacher = [float(batch.teacher_B[i])] + [float(batch.teacher_K[k]) for k in own]
            if ranking.loss == "margin_mse":
                apart = [(student[0] - a) - (teacher[0] - b) for a, b in zip(student[1:], teacher[1:])]
                loss = sum(x * x for x in apart) / len(apart)
            else:
                t = ranking.temperature
                p, q = (
                    [math.exp(x / t) / sum(math.exp(y / t) for y in scores) for x in scores] for scores in (teacher, student)
                )
                loss = t * t * sum(a * math.log(a / b) for a, b in zip(p, q))
        total += rows.weight[i] * loss
        rows_used, weight_sum = rows_used + 1, weight_sum + rows.weight[i]
    return total / (rows_used if ranking.normalise == "count" else weight_sum)


SETTINGS = [
    {"loss": "softmax", "objective": objective, "normalise": normalise, "mask_known_positives": mask}
    for objective in ("log", "prob")
    for normalise in ("count", "weight_sum")
    for mask in (True, False)
] + [
    {"loss": loss, "normalise": normalise, "temperature": temperature}
    for loss, temperature in (("margin_mse", 1.0), ("kl", 1.0), ("kl", 3.0))
    for normalise in ("count", "weight_sum")
]


def test_the_softmax_by_hand():
    axes = torch.eye(2, dtype=torch.float64)
    batch = make_batch(make_group(2, weight=[1, 0.25]))
    vectors = PairVectors(axes, axes, torch.zeros(0, 2, dtype=torch.float64))
    # S = [[1, 0], [0, 1]], so l = -1 + log(e + 1) = log(1 + 1/e) = 0.313262 for both; L = (1 + 0.25) * 0.313262 / 2
    assert Ranking(scale=1)(batch, vectors)["loss"].mean == pytest.approx(0.195789, abs=1e-6)
    # over the sum of weights: 0.313262; in the printed form: p = e / (e + 1) = 0.731059
    assert Ranking(scale=1, normalise="weight_sum")(batch, vectors)["loss"].mean == pytest.approx(0.313262, abs=1e-6)
    assert Ranking(scale=1, objective="prob")(batch, vectors)["loss"].mean == pytest.approx(-1.25 / 2 * 0.731059, abs=1e-6)


def test_distillation_by_hand():
    real_BC = torch.tensor([[True, True, True], [True, True, False]])
    scores_BC = torch.tensor([[5.0, 3.0, 1.0], [0.0, 0.0, 7.0]])
    teacher_BC = torch.tensor([[4.0, 3.0, 3.0], [math.log(3), 0.0, -9.0]])
    # margins of row 0: student 2, 4; teacher 1, 1; so (1 + 9) / 2. Row 1: student 0, teacher log 3
    torch.testing.assert_close(margin_mse_losses(scores_BC, teacher_BC, real_BC), torch.tensor([5.0, math.log(3) ** 2]))
    # row 1: 3/4 log((3/4) / (1/2)) + 1/4 log((1/4) / (1/2)) = 3/4 log 3 - log 2
    assert kl_losses(scores_BC, teacher_BC, real_BC)[1] == pytest.approx(0.75 * math.log(3) - math.log(2), abs=1e-6)
    assert kl_losses(teacher_BC, teacher_BC, real_BC).abs().max() < 1e-6


def test_without_weights_and_masks_it_is_cross_entropy_with_the_diagonal_as_target():
    vectors = make_vectors(6)
    group = make_group(**{**FULL, "weight": [1] * 6, "negatives": []})
    loss = Ranking(mask_known_positives=False)(make_batch(group), vectors)["loss"].mean
    scores_BN = 100 * vectors.question_BD @ vectors.answer_BD.T
    torch.testing.assert_close(loss, cross_entropy(scores_BN, torch.arange(6)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("c", [0.01, 7.0])  # with 0.01 all weights together are less than 1
def test_scaled_weights_scale_the_loss_or_leave_it(c):
    vectors, rows = make_vectors(6, 4), make_group(**FULL)
    scaled = replace(rows, weight=c * rows.weight)
    for normalise, expected in (("count", c), ("weight_sum", 1.0)):
        ranking = Ranking(normalise=normalise)
        before, after = (ranking(make_batch(group), vectors)["loss"].mean for group in (rows, scaled))
        torch.testing.assert_close(after, expected * before, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("scale", [3.0, 100.0])
def test_equal_to_a_slow_loop(settings, scale):
    if settings["loss"] != "softmax":
        scale /= 10  # the loop does not guard its exponentials
    ranking = Ranking(**settings, scale=scale)
    batch, vectors = make_batch(make_group(**FULL)), make_vectors(6, 4)
    assert float(ranking(batch, vectors)["loss"].mean) == pytest.approx(slow_ranking(ranking, batch, vectors), abs=1e-9)


def test_columns_by_the_book():
    rows = make_group(**FULL)
    allowed_BN = allowed_columns(rows, np.arange(6))
    assert allowed_BN.tolist() == [slow_columns(rows, i) for i in range(6)]
    assert allowed_columns(rows, np.array([4, 1])).tolist() == [slow_columns(rows, i) for i in (4, 1)]
    assert allowed_columns(rows, np.arange(6), mask_known_positives=False).all()


def test_the_same_question_with_two_answers_pushes_neither_away():
    rows = make_group(4, question=[7, 7, 8, 9])
    assert allowed_columns(rows, np.arange(4)).tolist() == [
        [True, False, True, True],
        [False, True, True, True],
        [True, True, True, True],
        [True, True, True, True],
    ]


@pytest.mark.parametrize(
    ("change", "hidden"),
    [
        ({"bag_key": [21, 22, 21]}, {(0, 2), (2, 0)}),  # the same sentence, or its words under another id
        ({"positives": [(0, 10), (0, 12)]}, {(0, 2)}),  # the words of row 2's also answer question 0: not the other way
        ({"negatives": [(0, 31), (1, 32)], "positives": [(2, 31)]}, {(2, 3)}),  # row 0's negative answers question 2
        ({"negatives": [(0, 11)]}, {(1, 3)}),  # row 0's negative says what row 1's answer says
        ({"question": [7, 7, 8], "negatives": [(0, 31)]}, {(0, 1), (1, 0)}),  # a negative serves its question's other row
    ],
)
def test_what_hides_a_column(change, hidden):
    allowed_BN = allowed_columns(make_group(**{"size": 3, **change}), np.arange(3))
    assert {(int(i), int(j)) for i, j in zip(*np.nonzero(~allowed_BN))} == hidden


def test_a_hidden_column_changes_nothing_for_the_row_and_an_allowed_one_does():
    rows = make_group(3, positives=[(0, 12)])
    ranking, vectors = Ranking(scale=5), make_vectors(3)
    scores_BN = (5 * vectors.question_BD @ vectors.answer_BD.T).requires_grad_()
    losses_B = softmax_losses(scores_BN, torch.arange(3), torch.from_numpy(allowed_columns(rows, np.arange(3))))
    (gradient,) = torch.autograd.grad(losses_B.sum(), scores_BN)
    assert gradient[0, 2] == 0
    assert (gradient[[0, 1, 1, 2, 2], [1, 0, 2, 0, 1]] > 0).all()
    assert (gradient.diagonal() < 0).all()
    assert float(losses_B.sum().detach()) == pytest.approx(float(ranking(make_batch(rows), vectors)["loss"].total.detach()))


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_are_right(settings):
    ranking, batch = Ranking(**settings, scale=2), make_batch(make_group(**FULL))
    given = [part.requires_grad_() for part in make_vectors(6, 4)]
    assert torch.autograd.gradcheck(lambda *parts: ranking(batch, PairVectors(*parts))["loss"].mean, given)


def test_half_precision_and_large_scales_stay_finite_and_exact():
    vectors = PairVectors(*(part.bfloat16() for part in make_vectors(6, 4)))
    batch = make_batch(make_group(**FULL))
    exact = Ranking(scale=1000)(batch, PairVectors(*(part.double() for part in vectors)))["loss"].mean
    with torch.autocast("cpu", torch.bfloat16):
        found = Ranking(scale=1000)(batch, vectors)["loss"].mean
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=0, rtol=1e-5)


def test_accuracy_is_the_share_of_rows_whose_answer_comes_first():
    axes = torch.eye(3)
    vectors = PairVectors(
        axes, axes[[0, 2, 2]], torch.zeros(0, 3)
    )  # row 0 is right, row 1 wrong, row 2 ties with row 1's answer
    terms = Ranking()(make_batch(make_group(3)), vectors)
    assert (float(terms["accuracy"].total), terms["accuracy"].count) == (1.0, 3.0)
    assert "accuracy" not in Ranking().weights(0)


@pytest.mark.parametrize("loss", ["margin_mse", "kl"])
def test_with_nothing_to_distil_the_term_is_a_zero_with_gradients(loss):
    vectors = PairVectors(*(part.requires_grad_() for part in make_vectors(3)))
    term = Ranking(loss=loss)(make_batch(make_group(3)), vectors)["loss"]
    assert (float(term.total.detach()), term.count) == (0.0, 0.0)
    term.mean.backward()
    assert vectors.question_BD.grad.abs().sum() == 0


def test_counts_go_over_all_groups_of_a_step_and_columns_over_one():
    first, second = make_group(3, weight=[1, 0.5, 0.5]), make_group(2, first=50, weight=[0.25, 0.25])
    vectors = make_vectors(3)
    alone = Ranking()(make_batch(first), vectors)["loss"]
    within = Ranking()(make_batch(first, second), vectors)["loss"]
    assert within.count == 5
    assert float(within.total) == float(alone.total)
    weighted = Ranking(normalise="weight_sum")(make_batch(first, second), vectors)["loss"]
    assert float(weighted.mean) == pytest.approx(float(alone.total) / 2.5)  # weights: 1 + 1/2 + 1/2 + 1/4 + 1/4


@pytest.mark.parametrize("wrong", [{"loss": "hinge"}, {"objective": "sum"}, {"normalise": "mean"}])
def test_an_unknown_choice_is_refused(wrong):
    with pytest.raises(InputError, match="should be"):
        Ranking(**wrong)


# --- ranks -----------------------------------------------------------------------------------------------------------


def step_of(settings: dict, mine=None) -> dict:
    """Loss and gradients of one rank's rows (or of all) with a small linear encoder."""
    torch.manual_seed(3)
    inputs = [torch.randn(n, 4, dtype=torch.float64) for n in (6, 6, 4)]
    tower = seeded(lambda: nn.Linear(4, D))
    batch = make_batch(make_group(**FULL), mine=mine)
    places = (batch.mine, batch.mine, batch.negatives_mine)
    vectors = PairVectors(*(normalize(tower(part[rows]), dim=1) for part, rows in zip(inputs, places)))
    terms = Ranking(**settings, scale=10)(batch, vectors)
    terms["loss"].mean.backward()
    values = {f"term {name}": term.mean.detach() for name, term in terms.items()}
    return values | {name: parameter.grad for name, parameter in tower.named_parameters()}


def one_rank(rank: int) -> dict:
    world = torch.distributed.get_world_size()
    return {str(number): step_of(settings, range(rank, 6, world)) for number, settings in enumerate(SETTINGS)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_equal_one(tmp_path, ranks):
    """With four ranks two have one row each, and one has no negative of its own."""
    found = on_ranks(one_rank, tmp_path, ranks)
    for number, settings in enumerate(SETTINGS):
        whole = step_of(settings)
        for name, value in whole.items():
            together = sum(part[str(number)][name] for part in found)
            torch.testing.assert_close(
                together, value, atol=1e-10, rtol=1e-10, msg=lambda m, n=name, s=settings: f"{s} {n}: {m}"
            )


# --- cross-encoder ---------------------------------------------------------------------------------------------------


def cross_batch(labels, size=None) -> CrossBatch:
    group = CrossGroup(np.arange(size or len(labels)))
    return CrossBatch(tokens=NO_TOKENS, label_B=torch.tensor(labels), groups=(group,), group=0, mine=torch.arange(len(labels)))


def test_cross_entropy_by_hand():
    terms = CrossEntropy()(cross_batch([1.0, 0.0, 0.0]), torch.tensor([math.log(3), math.log(3), -math.log(4)]))
    # p = 3/4, 3/4, 1/5: -log 3/4, -log 1/4, -log 4/5
    assert terms["loss"].mean == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4) + math.log(4 / 5)) / 3, abs=1e-6)
    assert (float(terms["accuracy"].total), terms["accuracy"].count) == (2.0, 3.0)


def test_cross_entropy_of_two_ranks_adds_up():
    logit_B, labels = torch.tensor([2.0, -1.0, 0.5]), [1.0, 1.0, 0.0]
    whole = CrossEntropy()(cross_batch(labels), logit_B)["loss"].mean
    parts = [CrossEntropy()(cross_batch(labels[part], size=3), logit_B[part])["loss"].mean for part in (slice(2), slice(2, 3))]
    assert sum(parts) == pytest.approx(float(whole))


def test_logits_that_would_broadcast_are_refused():
    with pytest.raises(InputError, match=r"logits of shape \[2, 1\]"):
        CrossEntropy()(cross_batch([1.0, 0.0]), torch.zeros(2, 1))
