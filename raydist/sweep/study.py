"""Settings that a searcher chooses by what earlier ones reached: Optuna's TPE over the axes of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydist.sweep.space import Axis


class Study:
    """Optuna's TPE over the axes. Results of earlier sessions go in (`know`) before the first question."""

    def __init__(self, axes: Sequence[Axis], seed: int, mode: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.axes = {axis.key: axis for axis in axes}
        self.distributions = {axis.key: self._distribution(axis) for axis in axes}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(sampler=sampler, direction="maximize" if mode == "max" else "minimize")

    @staticmethod
    def _distribution(axis: Axis) -> Any:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if axis.kind == "choice":
            return CategoricalDistribution(range(len(axis.values)))  # places: a value may be a whole section
        if axis.kind == "int":
            return IntDistribution(*axis.values)
        low, high = axis.values
        return FloatDistribution(low, high, log=axis.kind == "loguniform")

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """A setting to try, and the question that `tell` answers."""
        trial = self.study.ask(self.distributions)
        choice = {}
        for key, value in trial.params.items():
            axis = self.axes[key]
            choice[key] = axis.values[value] if axis.kind == "choice" else value if axis.kind == "int" else axis.tidy(value)
        return trial, choice

    def tell(self, question: Any, value: float | None) -> None:
        """The answer to a question; None where there is no score."""
        from optuna.trial import TrialState

        self.study.tell(question, value, state=TrialState.COMPLETE if value is not None else TrialState.FAIL)

    def know(self, choice: Mapping[str, Any], score: float) -> bool:
        """A result of an earlier session; False where it lies outside the space."""
        from optuna.trial import create_trial

        params = {}
        for key, axis in self.axes.items():
            if key not in choice:
                return False
            value = choice[key]
            if axis.kind == "choice":
                if value not in axis.values:
                    return False
                params[key] = axis.values.index(value)
            elif not axis.values[0] <= value <= axis.values[1]:
                return False
            else:
                params[key] = value
        self.study.add_trial(create_trial(params=params, distributions=self.distributions, value=score))
        return True
