"""Distances of clouds: against loops, against what is known in closed form, and as parts of the objective."""

import math

import numpy as np
import pytest
import torch
from helpers.tiny import TinyReader, make_batch, seeded
from torch import nn

from raydist.objectives.clouds import (
    FLOOR,
    Gaussian,
    classified_divergence,
    classifier_loss,
    fit_gaussians,
    gaussian_divergence,
)
from raydist.objectives.pfa import Critic, Pfa

H = 6
GAUSSIANS, CLASSIFIERS = ("gaussian_kl", "gaussian_js"), ("classifier_kl", "classifier_js")


def clouds(rows=7, other=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, H, dtype=torch.float64, generator=generator) for n in (rows, other)]


def made(align: str, **settings) -> Pfa:
    def make() -> Pfa:
        pfa = Pfa(H, align=align, bottleneck=4, critic_size=9, **settings)
        if pfa.critic is not None:
            nn.init.uniform_(pfa.critic.outer.weight, -1 / 3, 1 / 3)  # a new one is flat
        return pfa

    return seeded(make)


# --- loops


def slow_gaussian(kind: str, clean: list[list[float]], perturbed: list[list[float]]) -> float:
    def fit(points):
        columns = list(zip(*points))
        means = [sum(column) / len(column) for column in columns]
        spread = [sum((x - m) ** 2 for x in column) / len(column) + FLOOR for column, m in zip(columns, means)]
        return means, spread

    def kl(first, second):
        terms = [
            0.5 * (v / w + (m - n) ** 2 / w - 1 - math.log(v / w))
            for m, v, n, w in zip(first[0], first[1], second[0], second[1])
        ]
        return sum(terms) / len(terms)

    P, Q = fit(clean), fit(perturbed)
    if kind == "gaussian_kl":
        return kl(P, Q)
    middle = (
        [(m + n) / 2 for m, n in zip(P[0], Q[0])],
        [(v + w) / 2 + ((m - n) / 2) ** 2 for m, v, n, w in zip(P[0], P[1], Q[0], Q[1])],
    )
    return (kl(P, middle) + kl(Q, middle)) / 2


def slow_classifier(pfa: Pfa, point: torch.Tensor) -> float:
    value = pfa.critic.outer.bias.item()
    for weights, bias, out in zip(pfa.critic.inner.weight.tolist(), pfa.critic.inner.bias.tolist(), pfa.critic.outer.weight[0]):
        z = sum(w * x for w, x in zip(weights, point.tolist())) + bias
        value += out.item() * (z if z > 0 else 0.01 * z)
    return value


def slow_slope(pfa: Pfa, point: torch.Tensor) -> float:
    """The squared norm of the classifier's gradient."""
    point = point.detach().clone().requires_grad_()
    value = pfa.critic.outer(nn.functional.leaky_relu(pfa.critic.inner(point), 0.01)).sum()
    return torch.autograd.grad(value, point)[0].square().sum().item()


def points_of(pfa: Pfa, batch, output) -> list[torch.Tensor]:
    """Tokens, or means over the tokens of a passage, one by one."""
    mask_BT, found = pfa.acts_on(batch), []
    for b in range(len(mask_BT)):
        tokens = [output.hidden_BTH[b, t] for t in range(mask_BT.shape[1]) if mask_BT[b, t]]
        found += [sum(tokens) / len(tokens)] if pfa.settings.points == "passages" else tokens
    return found


@pytest.mark.parametrize("align", [*GAUSSIANS, *CLASSIFIERS])
@pytest.mark.parametrize("points", ["tokens", "passages"])
@pytest.mark.parametrize("scope", ["passage", "all"])
def test_equals_a_loop_over_points(align, points, scope):
    batch, reader, pfa = make_batch(), seeded(TinyReader), made(align, points=points, scope=scope, alpha=0.3, gamma=0.8)
    output = reader(batch)
    terms = pfa(batch, output, reader)
    changed = reader(batch, pfa.perturb(batch, reader.embed(batch), output.hidden_BTH)[0])
    clean, perturbed = points_of(pfa, batch, output), points_of(pfa, batch, changed)
    if align in GAUSSIANS:
        wanted = slow_gaussian(align, [p.tolist() for p in clean], [p.tolist() for p in perturbed])
        assert terms["alignment"].count == 1, "one divergence of the whole group"
        assert terms.keys() == {"perturbed_span", "alignment"}
    else:
        own = [slow_classifier(pfa, p / math.sqrt(H)) for p in clean]
        other = [slow_classifier(pfa, p / math.sqrt(H)) for p in perturbed]
        sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
        logs = sum(math.log(sigmoid(a)) + math.log(sigmoid(-b)) for a, b in zip(own, other)) / 2
        if align == "classifier_js":
            wanted = len(own) * math.log(2) + logs
        else:
            wanted = sum(a + 1 - math.exp(b) for a, b in zip(own, other))
        slopes = [slow_slope(pfa, p / math.sqrt(H)) for p in clean], [slow_slope(pfa, p / math.sqrt(H)) for p in perturbed]
        penalty = 0.7 * sum(slopes[0]) + 0.3 * sum(slopes[1])
        assert terms["penalty"].total.item() == pytest.approx(penalty, abs=1e-9)
        assert terms["critic"].total.item() == pytest.approx(0.8 * penalty - logs, abs=1e-9)
        assert terms["alignment"].count == terms["critic"].count == len(clean)
        assert terms.keys() == {"perturbed_span", "alignment", "critic", "penalty"}
    assert terms["alignment"].total.item() == pytest.approx(wanted, abs=1e-9)


# --- what is known


def test_gaussians_by_hand():
    one, other = (Gaussian(torch.tensor([m]), torch.tensor([v])) for m, v in ((0.0, 1.0), (2.0, 4.0)))
    # (1/4 + 4/4 - 1 - log(1/4)) / 2
    assert gaussian_divergence("gaussian_kl", one, other).item() == pytest.approx((0.25 + math.log(4)) / 2)
    # the middle has mean 1 and variance 2.5 + 1: ((1 + 1)/3.5 - 1 + log 3.5)/2 and ((4 + 1)/3.5 - 1 + log(3.5/4))/2
    js = ((2 / 3.5 - 1 + math.log(3.5)) / 2 + (5 / 3.5 - 1 + math.log(3.5 / 4)) / 2) / 2
    assert gaussian_divergence("gaussian_js", one, other).item() == pytest.approx(js)
    assert gaussian_divergence("gaussian_js", other, one).item() == pytest.approx(js), "it has two equal sides"


def test_the_order_of_points_changes_nothing_and_neither_do_units_that_all_agree():
    clean_NH, perturbed_NH = clouds(6, 6)
    for kind in GAUSSIANS:
        value = gaussian_divergence(kind, *fit_gaussians(clean_NH, perturbed_NH))
        assert gaussian_divergence(kind, *fit_gaussians(clean_NH.flip(0), perturbed_NH)) == pytest.approx(value.item())
        still_NH = torch.ones(6, H, dtype=torch.float64)
        assert gaussian_divergence(kind, *fit_gaussians(still_NH, still_NH)).item() == 0
        assert torch.isfinite(gaussian_divergence(kind, *fit_gaussians(still_NH, perturbed_NH)))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_trained_classifier_reaches_the_divergence_of_two_gaussians(kind):
    generator = torch.Generator().manual_seed(0)
    shift, n = 1.0, 20_000
    clean_NH = torch.randn(n, 1, generator=generator)
    perturbed_NH = torch.randn(n, 1, generator=generator) + shift
    torch.manual_seed(0)
    classifier = Critic(1, 16)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        (classifier_loss(classifier(clean_NH)[0], classifier(perturbed_NH)[0]) / n).backward()
        optimizer.step()
    found = classified_divergence(kind, classifier, clean_NH, perturbed_NH).item() / n
    x = np.linspace(-12, 12, 200_001)
    p, q = (np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (0.0, shift))
    middle, step = (p + q) / 2, x[1] - x[0]
    js = float((p * np.log(p / middle) + q * np.log(q / middle)).sum() * step / 2)
    wanted = shift**2 / 2 if kind == "classifier_kl" else js
    assert found == pytest.approx(wanted, rel=0.08)


# --- gradients


@pytest.mark.parametrize("kind", [*GAUSSIANS, *CLASSIFIERS])
def test_gradcheck_in_both_clouds_and_of_the_classifiers_own_loss(kind):
    clean_NH, perturbed_NH = clouds(4, 4)
    classifier = seeded(lambda: Critic(H, 5))

    def value(c, p):
        if kind in GAUSSIANS:
            return gaussian_divergence(kind, *fit_gaussians(c, p))
        return classified_divergence(kind, classifier, c, p)

    assert torch.autograd.gradcheck(value, (clean_NH.clone().requires_grad_(), perturbed_NH.clone().requires_grad_()))

    def own_loss(*values):
        names = [name for name, _ in classifier.named_parameters()]
        call = lambda points: torch.func.functional_call(classifier, dict(zip(names, values)), (points,))  # noqa: E731
        return classifier_loss(call(clean_NH)[0], call(perturbed_NH)[0])

    assert torch.autograd.gradcheck(own_loss, tuple(classifier.parameters()))


@pytest.mark.parametrize("align", CLASSIFIERS)
def test_the_classifier_alone_follows_its_loss_and_never_the_alignment(align):
    batch, reader, pfa = make_batch(), seeded(TinyReader), made(align)
    parameters = {**dict(reader.named_parameters()), **dict(pfa.named_parameters())}
    reached = {}
    for part in ("alignment", "critic"):
        terms = pfa(batch, reader(batch), reader)
        grads = torch.autograd.grad(terms[part].total, list(parameters.values()), allow_unused=True)
        reached[part] = {name for name, grad in zip(parameters, grads) if grad is not None and grad.abs().sum() > 0}
    assert reached["critic"] == {name for name in parameters if name.startswith("critic.")}
    assert not reached["alignment"] & reached["critic"]
    assert {"mlp.0.weight", "words.weight", "query.weight"} <= reached["alignment"]


@pytest.mark.parametrize(
    ("align", "points"), [("gaussian_js", "tokens"), ("gaussian_kl", "passages"), ("classifier_js", "tokens")]
)
def test_alignment_brings_the_two_clouds_together(align, points):
    batch, reader = make_batch(), seeded(TinyReader)
    pfa = made(align, points=points, start="random", lambda1=0.0, critic_steps=5 if "class" in align else 0, critic_lr=2e-2)
    optimizer = torch.optim.Adam([{"params": pfa.mlp.parameters(), "lr": 1e-2}, *pfa.parameter_groups()])

    def gap() -> float:
        with torch.no_grad():
            output = reader(batch)
            changed = reader(batch, pfa.perturb(batch, reader.embed(batch), output.hidden_BTH)[0])
            return (pfa.points(batch, output).mean(0) - pfa.points(batch, changed).mean(0)).norm().item()

    before = gap()
    for _ in range(120):
        optimizer.zero_grad()
        terms = pfa(batch, reader(batch), reader)
        sum(weight * terms[part].mean for part, weight in pfa.weights(0).items()).backward()
        optimizer.step()
    assert gap() < 0.5 * before
