"""Ray Tune around the trials of a sweep: it starts them, bounds how many run at once, and stops the hopeless ones.

Tune's own state is discarded: the sweep's ledger records finished trials. Inside a trial Ray Train works as it does without a
sweep. A trial's own process reserves no CPU; its train workers and Ray Data actors do, so waiting trials never block those that
could run.
"""

from __future__ import annotations

import time
from typing import Any

import ray.data
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule
from ray.tune.search import Searcher

from raydist.cluster.connect import Cluster, export, quieten, restore
from raydist.cluster.machine import RayMachine
from raydist.config import Config
from raydist.sweep.driver import Sweep
from raydist.sweep.plan import Trial
from raydist.sweep.trial import TrialOrder, run_trial

NO_END = 10**9  # steps: no trial is stopped for its length
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",  # its new output cannot be silenced
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial has its own log
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C stops the command, as it does elsewhere
}


def run_trials(sweep: Sweep, number: int) -> None:
    """Run every trial of a sweep, `number` at once."""
    wake_ray_data()
    sweep.folder.delete("tune")
    before = export(QUIET)
    try:
        make_tuner(sweep, number).fit()
    finally:
        restore(before)
    sweep.folder.delete("tune")


def make_tuner(sweep: Sweep, number: int) -> tune.Tuner:
    """A tuner for a sweep's trials, `number` at once."""
    stops_early = sweep.settings.scheduler != "none"

    def trial(parameters: dict[str, Any]) -> None:
        run_order(parameters["order"], stops_early)

    return tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"memory": 1}])),
        tune_config=tune.TuneConfig(
            search_alg=NextTrial(sweep),
            scheduler=make_scheduler(sweep.config),
            num_samples=-1,  # until the searcher is exhausted
            max_concurrent_trials=number,
            trial_name_creator=lambda trial: trial.trial_id,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=sweep.folder.uri,
            verbose=0,
            callbacks=[Silent()],
            failure_config=tune.FailureConfig(max_failures=sweep.config.cluster.max_failures),  # of a trial's own process
        ),
    )


class NextTrial(Searcher):
    """Supplies Tune with trials and records their ends. Both happen on the driver."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__()
        self.sweep = sweep
        self.running: dict[str, Trial] = {}

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        try:
            trial = self.sweep.next()
        except Exception as error:  # Tune would wrap it
            self.sweep.problem = error
            return Searcher.FINISHED
        if trial is None:
            return None if self.running and self.sweep.session and not self.sweep.problem else Searcher.FINISHED
        self.running[trial_id] = trial
        return {"order": self.sweep.order(trial).to_json()}  # one string: Tune would build names from a mapping's contents

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        if trial_id not in self.running:
            return
        try:
            self.sweep.finished(self.running.pop(trial_id), result, error)
        except Exception as problem:
            self.sweep.problem = problem

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the ledger has it all."""


class Silent(TrialProgressCallback):
    """Replaces Tune's report of each trial's end: the driver prints its own."""

    def _print(self, msg: str) -> None:
        pass


def wake_ray_data() -> None:
    """Start Ray Data's helper actors here: they belong to their first user, and would end with a trial."""
    ray.data.range(1, override_num_blocks=1).take_all()


# --- stopping early --------------------------------------------------------------------------------------------------


def make_scheduler(config: Config) -> Any:
    """The scheduler that stops trials early, by the dev score that training reports."""
    sweep, train = config.sweep, config.train
    assert sweep is not None
    grace = sweep.grace_steps or train.evaluate_every or 1
    goes_by = {"time_attr": "step", "metric": f"dev.{config.dev_metric}", "mode": "max"}
    if sweep.scheduler == "asha":
        return ASHAScheduler(**goes_by, max_t=max(NO_END, grace), grace_period=grace, reduction_factor=sweep.reduction)
    if sweep.scheduler == "median":
        return Median(**goes_by, grace_period=grace, min_time_slice=float("inf"))  # stops, never pauses
    return FIFOScheduler()


class Median(MedianStoppingRule):
    """Ignores trials that ended without a score: Ray would look up their step, and fail."""

    def __init__(self, *, time_attr: str, metric: str, **options: Any) -> None:
        super().__init__(time_attr=time_attr, metric=metric, **options)
        self.needed = {time_attr, metric}

    def on_trial_complete(self, controller: Any, trial: Any, result: dict) -> None:
        if self.needed <= result.keys():
            super().on_trial_complete(controller, trial, result)


class DevReports(TuneReportCallback):
    """Passes the train workers' dev scores to Tune, except the last: a completed trial must not be stopped."""

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.score = f"dev.{metric}"

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        values = metrics[0]
        if self.score in values and values["dev.step"] == values["step"] < values["total"]:  # a new score
            super().after_report(run_context, [{"step": values["step"], self.score: values[self.score]}], None)

    def wait(self) -> None:
        """Wait until Tune has taken the last score: the trial's end must not overtake it."""
        while not self._training_actor_item_queue.empty():
            time.sleep(0.2)
        time.sleep(0.5)


def run_order(text: str, stops_early: bool) -> None:
    """Run a trial in the process that Tune gave it."""
    order = TrialOrder.from_json(text)
    quieten()
    reports = [DevReports(order.config.dev_metric)] if stops_early else []
    run_trial(order, RayMachine(Cluster(order.config.cluster)), callbacks=reports)
    for report in reports:
        report.wait()
