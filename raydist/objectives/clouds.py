"""Distances of two clouds of points, which need not correspond (docs/methods.md 4.4): transport, Gaussians, a classifier.

Shapes: N points of this rank, H units. Sums over points and counts over all ranks, so ranks may hold different numbers of them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from raydist.objectives.base import gather_rows, world_size

FLOOR = 1e-3  # added to every variance: a few points may agree in a unit, and a ratio must not explode


class SlopeCritic(Protocol):
    """H and its gradient at each point: (value_N, slope_NH), both differentiable in H's parameters."""

    def __call__(self, points_NH: Tensor) -> tuple[Tensor, Tensor]: ...


# --- transport


def sinkhorn_divergence(x_NH: Tensor, y_NH: Tensor, weight_N: Tensor, *, epsilon: float, iterations: int) -> Tensor:
    """OT(x, y) - OT(x, x)/2 - OT(y, y)/2, entropic, cost ||x - y||^2 / H; 0 where x = y.

    Both clouds have the same weights, which sum to 1. Gradients go through the unrolled iterations.
    """
    log_weight_N = weight_N.clamp(min=1e-30).log()

    def transport(a_NH: Tensor, b_NH: Tensor) -> Tensor:
        squares_NN = a_NH.square().sum(1)[:, None] + b_NH.square().sum(1) - 2 * a_NH @ b_NH.T
        cost_NN = squares_NN / (a_NH.shape[1] * epsilon)
        g_N = torch.zeros_like(weight_N)
        for _ in range(iterations):
            f_N = -torch.logsumexp(g_N + log_weight_N - cost_NN, dim=1)
            g_N = -torch.logsumexp((f_N + log_weight_N)[:, None] - cost_NN, dim=0)
        return epsilon * (weight_N * (f_N + g_N)).sum()

    return transport(x_NH, y_NH) - (transport(x_NH, x_NH) + transport(y_NH, y_NH)) / 2


# --- Gaussians


class Gaussian(NamedTuple):
    """A Gaussian without covariances."""

    mean_H: Tensor
    variance_H: Tensor


def fit_gaussians(clean_NH: Tensor, perturbed_NH: Tensor) -> tuple[Gaussian, Gaussian]:
    """The Gaussians of two clouds, by their moments over all ranks, with gradient: a loss of them is shared by all ranks."""
    sums = [clean_NH.sum(0), clean_NH.square().sum(0), perturbed_NH.sum(0), perturbed_NH.square().sum(0)]
    own_1X = torch.cat([*sums, sums[0].new_tensor([float(len(clean_NH))])])[None]
    rank = dist.get_rank() if world_size() > 1 else 0
    total_X = gather_rows(own_1X, torch.tensor([rank], device=own_1X.device), world_size()).sum(0)
    moments_4H = total_X[:-1].view(4, -1) / total_X[-1].detach().clamp(min=1)
    pairs = zip(moments_4H[0::2], moments_4H[1::2])
    first, second = (Gaussian(mean_H, (square_H - mean_H.square()).clamp(min=0) + FLOOR) for mean_H, square_H in pairs)
    return first, second


def gaussian_divergence(kind: str, first: Gaussian, second: Gaussian) -> Tensor:
    """KL(first, second), or JS with the Gaussian of the mixture's moments in its middle; means over the units."""
    if kind == "gaussian_kl":
        return _gaussian_kl(first, second)
    mean_H = (first.mean_H + second.mean_H) / 2
    spread_H = ((first.mean_H - second.mean_H) / 2).square()
    middle = Gaussian(mean_H, (first.variance_H + second.variance_H) / 2 + spread_H)
    return (_gaussian_kl(first, middle) + _gaussian_kl(second, middle)) / 2


def _gaussian_kl(first: Gaussian, second: Gaussian) -> Tensor:
    ratio_H = first.variance_H / second.variance_H
    shift_H = (first.mean_H - second.mean_H).square() / second.variance_H
    return ((ratio_H + shift_H - 1 - ratio_H.log()) / 2).mean()


# --- a classifier


def classifier_loss(clean_N: Tensor, perturbed_N: Tensor) -> Tensor:
    """The sum over pairs of points of the logistic loss of a classifier with these values."""
    return (F.softplus(-clean_N) + F.softplus(perturbed_N)).sum() / 2


def classified_divergence(kind: str, classifier: SlopeCritic, clean_NH: Tensor, perturbed_NH: Tensor) -> Tensor:
    """The sum over pairs of points of a divergence's lower bound by the classifier's log ratio T; differentiable in points.

    JS: log 2 + (log s(T) + log s(-T~)) / 2; KL: T + 1 - exp(T~). Both are reached where T is the log ratio of the densities.
    """
    clean_N, perturbed_N = _values_at(classifier, clean_NH), _values_at(classifier, perturbed_NH)
    if kind == "classifier_kl":
        return (clean_N + 1 - perturbed_N.exp()).sum()
    return (float(np.log(2)) - (F.softplus(-clean_N) + F.softplus(perturbed_N)) / 2).sum()


def _values_at(classifier: SlopeCritic, points_NH: Tensor) -> Tensor:
    """The classifier's values, with their slopes as gradient in the points, and none in the classifier."""
    with torch.no_grad():
        value_N, slope_NH = classifier(points_NH)
        rest_N = value_N - (slope_NH * points_NH).sum(1)
    return (slope_NH * points_NH).sum(1) + rest_N
