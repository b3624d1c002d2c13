"""Settings chosen by a searcher from earlier results: Optuna's TPE over the axes of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raydist.config import Config
from raydist.errors import InputError
from raydist.files.storage import Storage, fingerprint
from raydist.sweep.plan import Plan, Trial
from raydist.sweep.ranking import scores_of
from raydist.sweep.space import TRIES, Axis, typed

ASKED = "asked.json"


class Study:
    """Optuna's TPE over the axes. Results of earlier sessions are added with `know` before the first question."""

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
            return CategoricalDistribution(range(len(axis.values)))  # positions: a value may be a whole section
        if axis.kind == "int":
            return IntDistribution(*axis.values)
        low, high = axis.values
        return FloatDistribution(low, high, log=axis.kind == "loguniform")

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """A question, to be answered with `tell`, and its setting."""
        trial = self.study.ask(self.distributions)
        choice = {}
        for key, value in trial.params.items():
            axis = self.axes[key]
            choice[key] = axis.values[value] if axis.kind == "choice" else value if axis.kind == "int" else axis.tidy(value)
        return trial, choice

    def tell(self, question: Any, value: float | None) -> None:
        """Answer a question with a score; None if there is none."""
        from optuna.trial import TrialState

        self.study.tell(question, value, state=TrialState.COMPLETE if value is not None else TrialState.FAIL)

    def know(self, choice: Mapping[str, Any], score: float) -> bool:
        """Add a result of an earlier session; False if it lies outside the space."""
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


class StudySession:
    """A study over the sessions of a sweep: its questions are in asked.json, their answers in the ledger.

    A question is a setting, answered once all its seeds have ended. Every question is carried through.
    """

    def __init__(self, config: Config, plan: Plan, folder: Storage) -> None:
        assert config.sweep is not None
        self.plan, self.folder, self.metric = plan, folder, config.sweep.metric
        fresh = int(np.random.SeedSequence([config.seed, len(self.asked())]).generate_state(1)[0])  # to ask something new
        self.study = Study(plan.axes, fresh, config.sweep.mode)
        self.open: dict[str, tuple[Any, tuple[Trial, ...]]] = {}  # unanswered settings: the study's own trial, and ours
        self.is_exhausted = False

    def asked(self) -> list[dict[str, Any]]:
        """The settings that the study chose, in this session and before."""
        return self.folder.read_json(ASKED) if self.folder.exists(ASKED) else []

    def recall(self, entries: Mapping[str, Mapping[str, Any]]) -> list[Trial]:
        """The trials of earlier questions; the study receives the results of the finished ones."""
        keys = {axis.key for axis in self.plan.axes}
        choices = [choice for choice in self.asked() if choice.keys() == keys]  # others belong to another space of this name
        for choice in choices:
            self.open[fingerprint(choice)] = None, self._trials(choice)
            self.answer(choice, entries)
        return [trial for choice in choices for trial in self._trials(choice)]

    def ask(self, known: Mapping[str, Trial]) -> tuple[Trial, ...]:
        """The trials of a new setting; none if the space seems exhausted."""
        for _ in range(0 if self.is_exhausted else TRIES):
            question, drawn = self.study.ask()
            try:
                choice = typed(self.plan.base, drawn)
            except InputError:  # values valid alone, but not together
                self.study.tell(question, None)
                continue
            trials = self._trials(choice)
            if trials[0].id in known:
                self.study.tell(question, None)
                continue
            self.open[fingerprint(choice)] = question, trials
            self.folder.write_json(ASKED, [*self.asked(), choice])
            return trials
        self.is_exhausted = True
        return ()

    def answer(self, choice: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Pass a setting's result to the study, once all its seeds have ended."""
        key = fingerprint(dict(choice))
        question, trials = self.open.get(key, (None, ()))
        if not trials or not all(trial.id in entries for trial in trials):
            return
        mean = scores_of(trials, entries, self.metric).mean
        if question is not None:
            self.study.tell(question, mean)
        elif mean is not None:
            self.study.know(choice, mean)
        del self.open[key]

    def _trials(self, choice: Mapping[str, Any]) -> tuple[Trial, ...]:
        return tuple(Trial(choice, seed) for seed in self.plan.seeds)
