"""Training objectives. Sections are named after the methods; docs/methods.md has the equations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from raydist.config.section import WEIGHTS, Section, key, section


class SpanConfig(Section):
    """The task itself: start and end cross-entropy (docs/methods.md 2.2, 2.3)."""

    reduction: Literal["mean", "sum"] = key("mean", "Mean or sum of the start and the end loss", WEIGHTS)
    mask_non_passage: bool = key(True, "Allow starts and ends only within the passage", WEIGHTS)


class InfomaxConfig(Section):
    """QAInfomax: an answer stays informative of its context (docs/methods.md 3). It costs nothing at inference."""

    weight: float | None = key(
        None, "Lambda, on the sum of start and end loss; null: the variant's own, 0.3 or 0.25", WEIGHTS, ge=0
    )
    alpha: float = key(1.0, "Weight of the local constraint", WEIGHTS, ge=0)
    beta: float = key(0.5, "Weight of the global constraint", WEIGHTS, ge=0)
    context: int = key(5, "Tokens on each side of the answer that the local constraint sees", WEIGHTS, unit="tokens", ge=0)
    summary: Literal["mean", "max", "sample"] = key("mean", "Summary of the answer that the global constraint takes", WEIGHTS)
    variant: Literal["paper", "reference"] = key("paper", "The published text, or the released code (3.8)", WEIGHTS)
    dropout: float = key(0.5, "Dropout on the inputs of the discriminators", WEIGHTS, ge=0, lt=1)
    lr: float | None = key(None, "Learning rate of the discriminators; null: optim.lr, as published", WEIGHTS, gt=0)

    def _problems(self) -> Iterator[str]:
        if self.alpha == self.beta == 0:
            yield "alpha and beta are both 0, which leaves nothing: set one, or leave infomax out"


class PfaConfig(Section):
    """Perturbation for alignment (methods 4): a second pass over perturbed embeddings, and both readings brought together."""

    perturber: Literal["mlp", "noise", "dropout", "gaussian", "identity"] = key(
        "mlp", "How the embeddings are perturbed; gaussian is SWEP (4.8)", WEIGHTS
    )
    bottleneck: int = key(500, "Hidden units of mlp", WEIGHTS, unit="units", ge=1)
    start: Literal["random", "projection"] = key(
        "projection",
        "Initialisation of mlp; projection keeps the bottleneck / 2 main directions of the word embeddings",
        WEIGHTS,
    )
    delta: float = key(0.5, "Range of noise, or rate of dropout", WEIGHTS, gt=0)
    align: Literal[
        "cos", "fro", "kl", "js", "w1", "sinkhorn", "gaussian_kl", "gaussian_js", "classifier_kl", "classifier_js"
    ] = key("w1", "Distance between both readings (4.3 to 4.5): of points that correspond, or of the clouds they make", WEIGHTS)
    points: Literal["tokens", "passages"] = key(
        "tokens", "What is aligned: every token, or the mean of each passage's tokens", WEIGHTS, later=True
    )
    lambda1: float = key(1.0, "Weight of the perturbed reading's loss", WEIGHTS, ge=0)
    lambda2: float = key(1.0, "Weight of the alignment", WEIGHTS, ge=0)
    gamma: float = key(1.0, "w1, classifier_...: weight of the gradient penalty", WEIGHTS, gt=0)
    alpha: float = key(0.5, "w1, classifier_...: share of the perturbed side in the penalty", WEIGHTS, ge=0, le=1)
    every: int = key(1, "Apply the objective in every n-th step", WEIGHTS, unit="steps", ge=1)
    scope: Literal["passage", "all"] = key("passage", "Tokens to perturb and align", WEIGHTS)
    penalty: Literal["squared", "one_sided", "two_sided"] = key("squared", "w1, classifier_...: form of the penalty", WEIGHTS)
    penalty_at: Literal["representation", "embedding"] = key(
        "representation", "w1: where the penalised gradient is taken; embedding needs eager attention", WEIGHTS
    )
    critic_sees: Literal["scaled", "raw"] = key(
        "scaled",
        "w1, classifier_...: representations divided by the square root of their size, or as they are",
        WEIGHTS,
        before="raw",
    )
    critic_size: int | None = key(
        None,
        "w1, classifier_...: hidden units of the critic; null: 8/3 of the encoder's, 2048 for a base model",
        WEIGHTS,
        unit="units",
        ge=1,
    )
    critic_steps: int = key(0, "w1, classifier_...: updates of the critic before each step", WEIGHTS, unit="updates", ge=0)
    critic_lr: float = key(1e-4, "w1, classifier_...: learning rate of the critic", WEIGHTS, gt=0)
    beta_kl: float = key(1.0, "gaussian: weight of the divergence from the prior", WEIGHTS, ge=0)
    prior_dropout: float = key(0.1, "gaussian: dropout rate that the prior corresponds to", WEIGHTS, gt=0, lt=1)
    sinkhorn_tokens: int = key(256, "sinkhorn: tokens drawn from the rows of a group", WEIGHTS, unit="tokens", ge=2)
    sinkhorn_epsilon: float = key(0.05, "sinkhorn: entropic regularisation", WEIGHTS, gt=0)
    sinkhorn_iterations: int = key(20, "sinkhorn: iterations", WEIGHTS, unit="iterations", ge=1)

    def _problems(self) -> Iterator[str]:
        if self.lambda1 == self.lambda2 == 0 and self.perturber != "gaussian":
            yield "lambda1 and lambda2 are both 0, which leaves nothing: set one, or leave pfa out"
        if self.perturber == "gaussian" and self.every > 1:
            yield f"every {self.every} does not go with perturber: gaussian, the mean of both readings: leave it out"
        if self.perturber == "dropout" and self.delta >= 1:
            yield f"delta is the rate of perturber: dropout, and should be below 1, got {self.delta:g}"
        if self.points == "passages" and self.perturber == "gaussian":
            yield "points is of the alignment, which perturber: gaussian has not: leave it out"
        if self.points == "passages" and self.penalty_at == "embedding":
            yield "penalty_at: embedding is of every token, and points is passages: leave one of them out"
        if self.critic_steps and self.penalty_at == "embedding":
            yield "critic_steps works on finished representations: leave it out, or set penalty_at to representation"

    @property
    def has_critic(self) -> bool:
        """Whether a network of its own judges the two clouds."""
        return self.perturber != "gaussian" and self.lambda2 > 0 and self.align in ("w1", "classifier_kl", "classifier_js")

    @property
    def differentiates_twice(self) -> bool:
        """Whether a gradient in the embeddings is penalised."""
        return self.has_critic and self.align == "w1" and self.penalty_at == "embedding"


class HardLearningConfig(Section):
    """Hard learning (methods 6.4), in place of the span loss: n-best spans of a base reader, weighed by closeness to gold."""

    mode: Literal["posterior", "mml", "hard_em", "learned", "ce"] = key(
        "posterior", "How the spans of a set are weighted; ce: gold only", WEIGHTS
    )
    size: int = key(20, "Spans of an n-best set, |Z|", WEIGHTS, unit="spans", ge=1)
    kappa: float = key(4.0, "How much the prior prefers overlap with gold", WEIGHTS, ge=0)
    rho: float = key(0.5, "Floor under gold: its share of the loss", WEIGHTS, ge=0, le=1)
    temperature: float = key(1.0, "Temperature of the posterior; towards 0, hard EM", WEIGHTS, gt=0)
    hard_em_steps: int = key(4000, "hard_em: steps over which its probability grows", WEIGHTS, unit="steps", ge=1)
    eta: float = key(1.0, "learned: weight of the anchor of the prior", WEIGHTS, gt=0)
    sets: str | None = key(
        None, "N-best lists from `raydist predict ... predict.split=train`, a file or URI; null: train a base reader", WEIGHTS
    )
    nbest_folds: int = key(
        1, "Number of base readers; each makes the lists for questions outside its training data", WEIGHTS, unit="folds", ge=1
    )

    @model_validator(mode="after")
    def _own_folds(self) -> Self:
        if self.sets and self.nbest_folds > 1:
            raise ValueError("nbest_folds applies to base readers trained by this run: leave it out if sets is set")
        return self

    @property
    def needs_sets(self) -> bool:
        """Whether n-best sets are used: `ce` uses gold alone."""
        return self.mode != "ce"

    @property
    def has_base(self) -> bool:
        """Whether base readers are trained for this objective."""
        return self.needs_sets and not self.sets


class AnswerContrastConfig(Section):
    """Answer-aware contrast (methods 6.5): the gold span against its nearest rivals; alpha of it, 1 - alpha of span loss."""

    alpha: float = key(0.5, "Share of the contrast in the loss", WEIGHTS, ge=0, lt=1)  # at 1 the span head would not be trained
    tau: float = key(10.0, "Temperature by which cosines are divided", WEIGHTS, gt=0)
    top: int = key(50, "Best spans of a window from which rivals are chosen", WEIGHTS, unit="spans", ge=1)
    theta: int = key(1, "Rivals per row", WEIGHTS, unit="spans", ge=1)
    select: Literal["nearest", "top1", "random"] = key("nearest", "How rivals are chosen", WEIGHTS)
    negatives: Literal["hard", "in_batch", "both"] = key("both", "A row's rivals, other rows' gold spans, or both", WEIGHTS)
    hard_from_others: bool = key(False, "Count the rivals of other rows as well", WEIGHTS)
    question: Literal["mean", "cls"] = key("mean", "Vector of the question", WEIGHTS)
    gather: bool = key(True, "Use the rows of all workers, not only those of the row's own worker", WEIGHTS)
    schedule: Literal["joint", "sequential"] = key("joint", "Contrast from the first step, or after some epochs", WEIGHTS)
    sequential_epochs: float = key(1.0, "sequential: epochs during which alpha is 0", WEIGHTS, unit="epochs", ge=0)

    def _problems(self) -> Iterator[str]:
        if self.theta > self.top:
            yield f"theta {self.theta} is more than the top {self.top} spans that rivals are chosen from: lower it or raise top"
        if self.hard_from_others and self.negatives == "in_batch":
            yield "hard_from_others needs hard negatives: set negatives to hard or both, or leave it out"


class ObjectivesConfig(Section):
    """What training minimises. An objective is on when its section is present."""

    span: SpanConfig = section(SpanConfig(), "The task itself: start and end of the answer")
    infomax: InfomaxConfig | None = key(None, "QAInfomax: an answer stays informative of its context", WEIGHTS)
    pfa: PfaConfig | None = key(None, "Perturbation for alignment: a second reading over perturbed embeddings", WEIGHTS)
    hard_learning: HardLearningConfig | None = key(
        None, "Hard learning: n-best spans of a base reader instead of the gold span alone", WEIGHTS
    )
    answer_contrast: AnswerContrastConfig | None = key(
        None, "Answer-aware contrast: the gold span against its nearest rivals", WEIGHTS
    )
