"""PFA (docs/methods.md 4): perturb the word embeddings, make a second pass, align the two outputs.

Shapes: B rows of this rank, T tokens, H hidden units, E embedding units, N tokens aligned on this rank, K units of the
critic, S sampled tokens of a row. Where passages are aligned (`points`), N are the passages of this rank.

Every mean over tokens is a local sum and a count over all ranks, so ranks may hold different numbers of tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from raydist.config.explain import checked_section
from raydist.config.objectives import PfaConfig
from raydist.draws import keyed_uniform
from raydist.objectives.base import (
    Batch,
    GroupRows,
    Objective,
    ReaderModel,
    ReaderOutput,
    Term,
    at_least_float32,
    gather_group,
    masked_mean,
    world_size,
)
from raydist.objectives.clouds import (
    SlopeCritic,
    classified_divergence,
    classifier_loss,
    fit_gaussians,
    gaussian_divergence,
    sinkhorn_divergence,
)
from raydist.objectives.span import check_reduction, span_term

LEAK = 0.01  # slope of LeakyReLU below 0


# --- the equations


def token_distances(kind: str, clean_NH: Tensor, perturbed_NH: Tensor) -> Tensor:
    """The distance that each token moved, [N] (4.3, 4.4)."""
    if kind == "cos":
        return 1 - F.cosine_similarity(clean_NH, perturbed_NH, dim=1)
    if kind == "fro":
        return (clean_NH - perturbed_NH).square().mean(1)
    log_p_NH, log_q_NH = clean_NH.log_softmax(1), perturbed_NH.log_softmax(1)  # over the features
    if kind == "kl":
        return _kl(log_p_NH, log_q_NH)
    log_middle_NH = torch.logaddexp(log_p_NH, log_q_NH) - np.log(2)
    return (_kl(log_p_NH, log_middle_NH) + _kl(log_q_NH, log_middle_NH)) / 2


def _kl(log_p_NH: Tensor, log_q_NH: Tensor) -> Tensor:
    return (log_p_NH.exp() * (log_p_NH - log_q_NH)).sum(1)


@torch.no_grad()
def _start_as_projection(inner: nn.Linear, outer: nn.Linear, words_VE: Tensor | None) -> None:
    """M(e) = m + P^T P (e - m), by pairs of units: LeakyReLU(z) - LeakyReLU(-z) = (1 + LEAK) z (4.1).

    P has one direction per pair of units, at most all: the principal ones of the word table around its mean m, or without a
    table arbitrary ones and m = 0. Units beyond the pairs start with zero output weight.
    """
    units, size = inner.weight.shape
    pairs = min(units // 2, size)
    if words_VE is None:
        mean_E, directions_KE = torch.zeros(size), nn.init.orthogonal_(torch.empty(size, size))[:pairs]
    else:
        mean_E = at_least_float32(words_VE).mean(0)
        around_VE = words_VE - mean_E
        directions_KE = torch.linalg.eigh(around_VE.T @ around_VE).eigenvectors.T.flip(0)[:pairs]
    paired_UE = torch.cat([directions_KE, -directions_KE])
    inner.weight[: 2 * pairs] = paired_UE
    inner.bias[: 2 * pairs] = -paired_UE @ mean_E
    outer.weight.zero_()
    outer.weight[:, : 2 * pairs] = paired_UE.T / (1 + LEAK)
    outer.bias.copy_(mean_E)


class Critic(nn.Module):
    """H(c) = v . LeakyReLU(U c + a) + b.

    H is linear in c wherever no unit changes sign, LeakyReLU(z) = leak(z) z, so its gradient is U^T (v leak) in closed form and
    H(c) = gradient . c + (v leak) . a + b. With the leaks as constants, which they are almost everywhere, value and gradient
    take two products over the tokens, and their derivative in U, v and a one more.
    """

    def __init__(self, hidden_size: int, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, size)
        self.outer = nn.Linear(size, 1)

    def forward(self, points_NH: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            open_NK = self.inner(points_NH).gt_(0)  # in place: this is the largest tensor here
        outer_K = self.outer.weight[0]

        def leaked(units_KX: Tensor) -> Tensor:
            """Sums over units, each times its leak: 1 if open, else LEAK."""
            return LEAK * units_KX.sum(0) + (1 - LEAK) * (open_NK @ units_KX)

        slope_NH = leaked(outer_K[:, None] * self.inner.weight)
        value_N = (slope_NH * points_NH).sum(1) + leaked(outer_K * self.inner.bias) + self.outer.bias
        return value_N, slope_NH


def slope_penalty(slope_NH: Tensor, kind: str) -> Tensor:
    """The penalty on the norm of a gradient, [N]: squared (the paper), or its distance from 1, above or on both sides."""
    square_N = slope_NH.square().sum(1)
    if kind == "squared":
        return square_N
    excess_N = (square_N + 1e-12).sqrt() - 1
    return (excess_N.clamp(min=0) if kind == "one_sided" else excess_N).square()


def critic_scores(critic: SlopeCritic, clean_NH: Tensor, perturbed_NH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """N D(H), differentiable in H alone, and H's slopes at the clean and at the perturbed points."""
    value_M, slope_MH = critic(torch.cat([clean_NH, perturbed_NH]).detach())
    n = len(clean_NH)
    return value_M[:n].sum() - value_M[n:].sum(), slope_MH[:n], slope_MH[n:]


def with_critic_fixed(distance: Tensor, slopes: tuple[Tensor, Tensor], clean_NH: Tensor, perturbed_NH: Tensor) -> Tensor:
    """N D(H), differentiable in the two clouds alone: its gradient there is H's slope."""
    linear = (slopes[0].detach() * clean_NH).sum() - (slopes[1].detach() * perturbed_NH).sum()
    return linear + (distance - linear).detach()


# --- the objective


class Pfa(Objective):
    """The second pass and its losses.

    Parts: ``perturbed_span`` (L_St, in the reduction of the span loss), ``alignment`` (L_ali), with ``w1`` also ``critic``
    (-D + gamma GP, which H alone minimises) and ``penalty`` (GP, only logged); of a classifier -D is its logistic loss.
    ``gaussian`` is the baseline SWEP with its own loss (4.8) and has ``perturbed_span`` and ``kl``; lambdas, align and scope
    are not used there. ``words_VE`` is the reader's current table of word embeddings, which ``start: projection`` needs.

    With ``every`` = n it acts in one step of n, with the same weights: n is meant to lower its share of the training.
    ``critic_steps`` moves H that many times before the step, each tensor by ``critic_lr`` in root mean square along its
    gradient: Adam's step size without any state to keep, to checkpoint or to synchronise; gradients are summed over
    ranks, so H stays the same everywhere.

    >>> import torch, raydist
    >>> reader = raydist.SpanReader.over("builtin:tiny")
    >>> ids, place = torch.randint(5, 30, (4, 12)), torch.arange(12).expand(4, 12)
    >>> batch = raydist.Batch.whole(
    ...     ids, question=(place > 0) & (place < 4), passage=(place > 4) & (place < 11), start=[5, 6, 7, 8], end=[6, 6, 9, 8]
    ... )
    >>> objective = raydist.Pfa(reader.config.hidden_size)
    >>> terms = objective(batch, reader(batch), reader)
    >>> loss = sum(weight * terms[part].mean for part, weight in objective.weights(step=0).items())
    >>> loss.backward()
    >>> sorted(terms)
    ['alignment', 'critic', 'penalty', 'perturbed_span']
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        words_VE: Tensor | None = None,
        span_reduction: str = "mean",
        mask_non_passage: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        check_reduction(span_reduction)
        self.settings = own = checked_section(PfaConfig, "objectives.pfa", settings)
        self.critic_scale = hidden_size**-0.5 if own.critic_sees == "scaled" else 1.0
        self.span_reduction, self.mask_non_passage = span_reduction, mask_non_passage
        self.scope = "all" if own.perturber == "gaussian" else own.scope
        self.prior_variance = (own.prior_dropout / (1 - own.prior_dropout)) ** 0.5  # v0, taken as the variance (4.8)
        embedding_size = hidden_size if words_VE is None else words_VE.shape[1]
        self.to_mean = 1.0 if span_reduction == "mean" else 2.0  # the lambdas are defined on L_span(mean)
        self.mlp: nn.Sequential | None = None
        self.critic: Critic | None = None
        if own.perturber == "gaussian":
            self._build_gaussian(hidden_size, embedding_size)
            return
        self.part_weights = {"perturbed_span": own.lambda1}
        if own.perturber == "mlp":
            inner, outer = nn.Linear(embedding_size, own.bottleneck), nn.Linear(own.bottleneck, embedding_size)
            if own.start == "projection":
                _start_as_projection(inner, outer, words_VE)
            self.mlp = nn.Sequential(inner, nn.LeakyReLU(LEAK), outer)
        if own.lambda2:
            self.part_weights["alignment"] = own.lambda2 * self.to_mean
            if own.has_critic:
                self.part_weights |= {"critic": 1.0, "penalty": 0.0}
                self.critic = Critic(hidden_size, own.critic_size or round(hidden_size * 8 / 3))
                nn.init.zeros_(self.critic.outer.weight)  # flat: the reader would drift along random slopes (4.5)

    def _build_gaussian(self, hidden_size: int, embedding_size: int) -> None:
        """SWEP (4.8): it starts at the prior, N(1, v0), not at embeddings times 0."""
        self.total_scale = 0.5  # 1/2 (L_S + L_pert) + beta KL = 1/2 (L_S + L_pert + 2 beta KL)
        self.part_weights = {"perturbed_span": 1.0, "kl": 2 * self.settings.beta_kl * self.to_mean}
        last = nn.Linear(hidden_size, 2 * embedding_size)
        with torch.no_grad():
            last.bias[:embedding_size] += 1
            last.bias[embedding_size:] += float(np.log(self.prior_variance))
        self.mlp = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), last)

    def weights(self, step: int) -> dict[str, float]:
        return dict(self.part_weights)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The critic: its own rate, no decay."""
        if self.critic is None:
            return []
        return [{"params": list(self.critic.parameters()), "lr": self.settings.critic_lr, "weight_decay": 0.0}]

    def applies(self, step: int) -> bool:
        """Whether this step has a second pass."""
        return step % self.settings.every == 0

    def forward(self, batch: Batch, output: ReaderOutput, reader: ReaderModel) -> dict[str, Term]:
        if not self.applies(batch.step):
            return {part: Term(self.nothing().to(output.hidden_BTH.device), 0.0) for part in self.part_weights}
        words_BTE = reader.embed(batch)
        changed_BTE, kl = self.perturb(batch, words_BTE, output.hidden_BTH)
        changed = reader(batch, changed_BTE)
        terms = {
            "perturbed_span": span_term(
                changed, batch, span_reduction=self.span_reduction, mask_non_passage=self.mask_non_passage
            )
        }
        if kl is not None:
            terms["kl"] = Term(kl, batch.count(self.num_tokens))
        elif "alignment" in self.part_weights:
            with torch.autocast(words_BTE.device.type, enabled=False):
                terms |= self.aligned(batch, output, changed, words_BTE, changed_BTE, reader)
        return terms

    def acts_on(self, batch: Batch) -> Tensor:
        """The tokens to perturb and align: [B, T]."""
        return batch.passage_BT if self.scope == "passage" else batch.attention_BT

    def num_tokens(self, rows: GroupRows) -> int:
        """The number of such tokens in a group, over all ranks."""
        return int((rows.passage_tokens if self.scope == "passage" else rows.tokens).sum())

    def num_points(self, rows: GroupRows) -> int:
        """The number of aligned points in a group, over all ranks: its tokens, or its passages that have any."""
        if self.settings.points == "tokens":
            return self.num_tokens(rows)
        return int(((rows.passage_tokens if self.scope == "passage" else rows.tokens) > 0).sum())

    # --- Et from E (4.1)

    def perturb(self, batch: Batch, words_BTE: Tensor, hidden_BTH: Tensor) -> tuple[Tensor, Tensor | None]:
        """The perturbed embeddings, and for ``gaussian`` the sum over real tokens of its KL divergence."""
        kl = None
        if self.settings.perturber == "identity":
            return words_BTE, None
        if self.settings.perturber == "mlp":
            assert self.mlp is not None
            changed_BTE = self.mlp(words_BTE)
        elif self.settings.perturber == "noise":
            changed_BTE = words_BTE + self.settings.delta * (2 * keyed_draws(batch, words_BTE, "pfa.noise") - 1)
        elif self.settings.perturber == "dropout":
            kept_BTE = keyed_draws(batch, words_BTE, "pfa.dropout") >= self.settings.delta
            changed_BTE = words_BTE * kept_BTE / (1 - self.settings.delta)
        else:
            assert self.mlp is not None
            with torch.autocast(words_BTE.device.type, enabled=False):  # bf16 is too coarse for a divergence
                mean_BTE, log_variance_BTE = self.mlp(at_least_float32(hidden_BTH.detach())).chunk(2, dim=-1)
            deviation_BTE = (log_variance_BTE / 2).exp()
            changed_BTE = words_BTE * (mean_BTE + deviation_BTE * keyed_draws(batch, words_BTE, "pfa.gaussian", normal=True))
            ratio_BTE = (log_variance_BTE.exp() + (mean_BTE - 1).square()) / self.prior_variance
            kl_BTE = (ratio_BTE - 1 - log_variance_BTE + float(np.log(self.prior_variance))) / 2
            kl = kl_BTE.sum(-1).masked_fill(~batch.attention_BT, 0).sum()
        return torch.where(self.acts_on(batch)[..., None], changed_BTE, words_BTE), kl

    # --- L_ali (4.3 to 4.5)

    def aligned(
        self,
        batch: Batch,
        output: ReaderOutput,
        changed: ReaderOutput,
        words_BTE: Tensor,
        changed_BTE: Tensor,
        reader: ReaderModel,
    ) -> dict[str, Term]:
        """The alignment and, with a critic, its own loss and, with w1, its penalty."""
        align, groups = self.settings.align, float(len(batch.groups))
        if align == "sinkhorn":
            return {"alignment": Term(self._sinkhorn(batch, output, changed), groups)}
        clean_NH, perturbed_NH = self.points(batch, output), self.points(batch, changed)
        if align in ("gaussian_kl", "gaussian_js"):
            divergence = gaussian_divergence(align, *fit_gaussians(clean_NH, perturbed_NH))
            return {"alignment": Term(divergence / world_size(), groups)}
        count = batch.count(self.num_points)
        if self.critic is None:
            return {"alignment": Term(token_distances(align, clean_NH, perturbed_NH).sum(), count)}

        clean_NH, perturbed_NH = self.critic_scale * clean_NH, self.critic_scale * perturbed_NH  # the critic's inputs
        if self.training and batch.group == 0:
            self._improve_critic(clean_NH.detach(), perturbed_NH.detach(), self.num_points(batch.world))
        if align != "w1":
            loss, penalty = self._classifier_terms(clean_NH, perturbed_NH)
            return {
                "alignment": Term(classified_divergence(align, self.critic, clean_NH, perturbed_NH), count),
                "critic": Term(loss + self.settings.gamma * penalty, count),
                "penalty": Term(penalty.detach(), count),
            }
        distance, *slopes = critic_scores(self.critic, clean_NH, perturbed_NH)
        if self.settings.penalty_at == "representation":
            penalty = self._mixture(*(slope_penalty(slope_NH, self.settings.penalty).sum() for slope_NH in slopes))
        else:
            leaf_BTE = words_BTE.detach().requires_grad_()
            token_N = self.acts_on(batch).flatten().nonzero().squeeze(1)
            again_BTH = reader(batch, leaf_BTE).hidden_BTH  # with its own dropout: H's slopes are recomputed
            again_NH = at_least_float32(again_BTH).flatten(0, 1).index_select(0, token_N)
            again_slope_NH = self.critic(self.critic_scale * again_NH.detach())[1]
            penalty = self._mixture(
                self._embedding_penalty(again_BTH, leaf_BTE, self.critic_scale * again_slope_NH, token_N),
                self._embedding_penalty(changed.hidden_BTH, changed_BTE, self.critic_scale * slopes[1], token_N),
            )
        return {
            "alignment": Term(with_critic_fixed(distance, (slopes[0], slopes[1]), clean_NH, perturbed_NH), count),
            "critic": Term(self.settings.gamma * penalty - distance, count),
            "penalty": Term(penalty.detach(), count),
        }

    def points(self, batch: Batch, output: ReaderOutput) -> Tensor:
        """The aligned points of a reading: its tokens, or the mean of each passage's."""
        hidden_BTH, mask_BT = at_least_float32(output.hidden_BTH), self.acts_on(batch)
        if self.settings.points == "passages":
            return masked_mean(hidden_BTH, mask_BT, dim=1)[mask_BT.any(1)]
        return hidden_BTH.flatten(0, 1).index_select(0, mask_BT.flatten().nonzero().squeeze(1))

    def _critics_loss(self, clean_NH: Tensor, perturbed_NH: Tensor) -> Tensor:
        """What the critic alone minimises, summed over points."""
        assert self.critic is not None
        if self.settings.align != "w1":
            loss, penalty = self._classifier_terms(clean_NH, perturbed_NH)
            return loss + self.settings.gamma * penalty
        distance, *slopes = critic_scores(self.critic, clean_NH, perturbed_NH)
        penalty = self._mixture(*(slope_penalty(slope_NH, self.settings.penalty).sum() for slope_NH in slopes))
        return self.settings.gamma * penalty - distance

    def _classifier_terms(self, clean_NH: Tensor, perturbed_NH: Tensor) -> tuple[Tensor, Tensor]:
        """A classifier's loss and its penalty, summed over points; differentiable in it alone."""
        assert self.critic is not None
        value_M, slope_MH = self.critic(torch.cat([clean_NH, perturbed_NH]).detach())
        n, penalty_M = len(clean_NH), slope_penalty(slope_MH, self.settings.penalty)
        return classifier_loss(value_M[:n], value_M[n:]), self._mixture(penalty_M[:n].sum(), penalty_M[n:].sum())

    def _mixture(self, clean: Tensor, perturbed: Tensor) -> Tensor:
        return (1 - self.settings.alpha) * clean + self.settings.alpha * perturbed  # Eq. 10

    def _embedding_penalty(self, hidden_BTH: Tensor, words_BTE: Tensor, slope_NH: Tensor, token_N: Tensor) -> Tensor:
        """The penalty on the gradient of sum_t H(R_t) in the embeddings; differentiable in H alone, through its slopes in R."""
        empty_MH = torch.zeros_like(hidden_BTH).flatten(0, 1)
        direction_MH = empty_MH.index_copy(0, token_N, slope_NH.detach().to(empty_MH.dtype)).requires_grad_()
        (pulled_BTE,) = torch.autograd.grad(hidden_BTH, words_BTE, direction_MH.view_as(hidden_BTH), create_graph=True)
        penalty = slope_penalty(pulled_BTE.flatten(0, 1).index_select(0, token_N), self.settings.penalty).sum()
        (wanted_MH,) = torch.autograd.grad(penalty, direction_MH, retain_graph=True)
        return penalty.detach() + (wanted_MH[token_N] * (slope_NH - slope_NH.detach())).sum()

    def _improve_critic(self, clean_NH: Tensor, perturbed_NH: Tensor, num_points: int) -> None:
        """Extra updates of H alone, on fixed representations."""
        for _ in range(self.settings.critic_steps):
            assert self.critic is not None
            parameters = list(self.critic.parameters())
            loss = self._critics_loss(clean_NH, perturbed_NH) / max(1, num_points)
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                if world_size() > 1:
                    dist.all_reduce(gradient)
                with torch.no_grad():
                    # nothing depends on the outer bias: its gradient is 0 up to rounding, and 1e-8 keeps it in place
                    parameter.sub_(self.settings.critic_lr * gradient / (gradient.square().mean().sqrt() + 1e-8))

    def _sinkhorn(self, batch: Batch, output: ReaderOutput, changed: ReaderOutput) -> Tensor:
        """This rank's share of the divergence between the group's passages or samples of its tokens; the same on every rank."""
        units = output.hidden_BTH.shape[2]
        if self.settings.points == "passages":
            mask_BT = self.acts_on(batch)
            sides = [masked_mean(at_least_float32(side.hidden_BTH), mask_BT, dim=1)[:, None] for side in (output, changed)]
            weight_BS = mask_BT.any(1)[:, None]
        else:
            position_BS, weight_BS = self._sample(batch)
            index_BSH = position_BS[..., None].expand(-1, -1, units)
            sides = [at_least_float32(side.hidden_BTH).gather(1, index_BSH) for side in (output, changed)]
        gathered_GSX = gather_group(torch.cat([*sides, weight_BS[..., None].to(sides[0].dtype)], dim=2), batch)
        clean_GSH, perturbed_GSH, weight_GS1 = gathered_GSX.split([units, units, 1], dim=2)
        weight_M = weight_GS1.detach().flatten()
        divergence = sinkhorn_divergence(
            clean_GSH.flatten(0, 1),
            perturbed_GSH.flatten(0, 1),
            weight_M / weight_M.sum().clamp(min=1),
            epsilon=self.settings.sinkhorn_epsilon,
            iterations=self.settings.sinkhorn_iterations,
        )
        return divergence / world_size()

    def _sample(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sampled tokens of every row, and the number of the row's tokens that each represents (0: none), [B, S]."""
        mask_BT = self.acts_on(batch).cpu().numpy()
        row_B = batch.world.row[batch.mine.cpu().numpy()]
        size = max(1, self.settings.sinkhorn_tokens // len(batch.world))
        position_BS, weight_BS = np.zeros((len(row_B), size), dtype=np.int64), np.zeros((len(row_B), size))
        for b, row in enumerate(row_B):
            tokens = np.flatnonzero(mask_BT[b])
            draw = keyed_uniform(batch.seed, batch.step, "pfa.sinkhorn", (row << 20) + np.arange(len(tokens)))
            chosen = tokens[np.argsort(draw, kind="stable")[:size]]
            position_BS[b, : len(chosen)] = chosen
            weight_BS[b, : len(chosen)] = len(tokens) / max(1, len(chosen))
        device = batch.passage_BT.device
        return torch.from_numpy(position_BS).to(device), torch.from_numpy(weight_BS).to(device)


def keyed_draws(batch: Batch, like_BTE: Tensor, stream: str, *, normal: bool = False) -> Tensor:
    """A number for every element of every real token, uniform in [0, 1) or standard normal, keyed by (seed, step, row).

    A row's draws do not depend on its rank, its neighbours or its padding.
    """
    draws_BTE = torch.zeros(like_BTE.shape, dtype=torch.float32)
    seeds = keyed_uniform(batch.seed, batch.step, stream, batch.world.row[batch.mine.cpu().numpy()])
    for b, (seed, real_T) in enumerate(zip(seeds, batch.attention_BT.cpu())):
        generator = torch.Generator().manual_seed(int(seed * (1 << 53)))
        draw = torch.randn if normal else torch.rand
        draws_BTE[b, real_T] = draw(int(real_T.sum()), like_BTE.shape[2], generator=generator)
    return draws_BTE.to(like_BTE)


@torch.no_grad()
def trace_row(pfa: Pfa, batch: Batch, reader: ReaderModel, row: int = 0) -> dict[str, np.ndarray]:
    """One row's perturbed tokens before and after the encoder, for a picture: four arrays [tokens, units], float32.

    Keys ``embeddings``, ``embeddings_perturbed``, ``representations``, ``representations_perturbed``.
    """
    output = reader(batch)
    words_BTE = reader.embed(batch)
    changed_BTE, _ = pfa.perturb(batch, words_BTE, output.hidden_BTH)
    tensors = {
        "embeddings": words_BTE,
        "embeddings_perturbed": changed_BTE,
        "representations": output.hidden_BTH,
        "representations_perturbed": reader(batch, changed_BTE).hidden_BTH,
    }
    mask_T = pfa.acts_on(batch)[row]
    return {name: tensor[row, mask_T].float().cpu().numpy() for name, tensor in tensors.items()}
