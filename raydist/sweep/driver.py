"""The driver of a sweep: it chooses the next trial, collects results, and prunes finished trials.

A runner starts trials, decides how many run at once, and may stop the hopeless ones. The ledger (finished/ID.json) records
finished trials, so that the same command resumes where the last one stopped, whatever runs the trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from raydist.config import Config, override, to_yaml
from raydist.config.compare import changed_settings
from raydist.config.roles import settings_with_result
from raydist.errors import InputError, TrainingFailed
from raydist.files.storage import Storage, fingerprint
from raydist.here import Here
from raydist.report.sweep import write_sweep_report
from raydist.runs import trackers
from raydist.runs.owners import run_lease
from raydist.runs.run import Machine, Run
from raydist.runs.stages import read_stages
from raydist.sweep.ledger import Ledger, is_finished
from raydist.sweep.plan import DEFAULT_TRIALS, Trial, plan_sweep
from raydist.sweep.pruning import prune_runs
from raydist.sweep.ranking import SettingScores, as_table, best_trials, rank, show, summary
from raydist.sweep.space import applied
from raydist.sweep.study import StudySession
from raydist.sweep.trial import TrialOrder, base_name, run_trial, trial_config, trial_flow
from raydist.terminal import say

OF_A_SWEEP = (  # deleted by --fresh
    *("finished", "trials", "bases", "tune", "rejected"),
    *("begun.json", "base.json", "asked.json", "sweep.json", "best.yaml", "report.html", "stages.json"),
)


class TrialRunner(Protocol):
    """Runs trials on a machine."""

    @property
    def machine(self) -> Machine:
        """The machine on which the driver makes the stages that trials share."""
        ...

    def run(self, sweep: Sweep) -> None:
        """Run trials from `sweep.next` until there are none left, and report the end of each to `sweep.finished`."""
        ...


class LocalTrials:
    """Runs trials in this process, one at a time and each to its end."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine: Machine = machine or Here()

    def run(self, sweep: Sweep) -> None:
        if sweep.settings.scheduler != "none":
            raise InputError(
                f"sweep.scheduler: {sweep.settings.scheduler} compares trials that run side by side, and here they run one "
                f"after another: leave it out, or sweep on a cluster (raydist sweep)"
            )
        while (trial := sweep.next()) is not None:
            run_trial(sweep.order(trial), self.machine)
            sweep.finished(trial)


def run_sweep(config: Config, runner: TrialRunner, *, fresh: bool = False) -> dict[str, Any]:
    """Run all unfinished trials, then write the table, sweep.json, best.yaml and report.html. Returns sweep.json's contents."""
    sweep = Sweep(config, runner.machine)
    with run_lease(sweep.folder, config.name):
        sweep.begin(fresh)
        try:
            if sweep.plan_pending():
                runner.run(sweep)
                if sweep.problem:
                    raise sweep.problem
        finally:
            results = sweep.write_results()
        sweep.report(results)
    return results


class Sweep:
    """A sweep in its folder: its plan, the queue of trials, the ledger."""

    def __init__(self, config: Config, machine: Machine) -> None:
        self.config, self.machine = config, machine
        self.plan = plan_sweep(config)
        assert config.sweep is not None
        self.settings = config.sweep
        self.store = Storage(config.storage)
        self.folder = self.store.at(config.name)
        self.ledger = Ledger(self.folder)
        self.trials: dict[str, Trial] = {trial.id: trial for trial in self.plan.trials}
        self.queue: list[Trial] = []
        self.session: StudySession | None = None
        self.threads: int | None = None  # of each worker of a trial, if its runner shares out the cores
        self.prepared: dict[str, dict[str, str]] = {}  # fingerprints of data sets, by the settings that made them
        self.warned: set[str] = set()
        self.problem: Exception | None = None  # stops the sweep

    @property
    def total(self) -> int:
        settings = self.settings.trials or DEFAULT_TRIALS if self.settings.search == "optuna" else len(self.plan.settings)
        return settings * len(self.plan.seeds)

    def begin(self, fresh: bool) -> None:
        """Start or resume; refuse to mix two sweeps under one name."""
        trackers.check_installed(self.config.track)
        if fresh:
            for name in OF_A_SWEEP:
                self.folder.delete(name)
        keys, values = [axis.key for axis in self.plan.axes], settings_with_result(self.plan.base)
        if self.folder.exists("begun.json"):
            before = self.folder.read_json("begun.json")
            self._check_settings(before["values"], values, swept=[*keys, *before["keys"]])
        self.folder.write_json("begun.json", {"keys": keys, "values": values})
        self.folder.write_bytes("config.yaml", to_yaml(self.config).encode())

    def _check_settings(self, before: Mapping[str, Any], now: Mapping[str, Any], swept: Iterable[str]) -> None:
        varied = tuple(f"{key}." for key in swept)
        differ = [line for key, line in changed_settings(before, now).items() if not f"{key}.".startswith(varied)]
        if differ:
            raise InputError(
                f"sweep {self.config.name!r} in {self.folder.path()} was begun with other settings:\n  "
                + "\n  ".join(differ)
                + "\ngive this one another name (name=...), or start it over with --fresh"
            )

    # --- a trial's inputs --------------------------------------------------------------------------------------------

    def settings_of(self, trial: Trial) -> Config:
        """A trial's settings, with paths as in the sweep's config."""
        return override(applied(self.plan.base, trial.choice), {"seed": trial.seed})

    def config_of(self, trial: Trial) -> Config:
        """The config that a trial runs with."""
        return trial_config(self.settings_of(trial), self.config.name, trial, threads=self.threads)

    def base_of(self, trial: Trial) -> str | None:
        """The run that a trial shares with others, named by the paths in the sweep's config: a job's folder differs every
        time.
        """
        return base_name(self.config.name, self.settings_of(trial))

    def order(self, trial: Trial) -> TrialOrder:
        """A trial as its runner receives it."""
        return TrialOrder(trial, self.folder.uri, self.config_of(trial), self.base_of(trial))

    def prepare(self, trial: Trial, *, all_stages: bool = True) -> dict[str, str]:
        """Make the stages that a trial shares with others, if missing; returns the fingerprints of its data sets. Only the
        driver does this, for one trial at a time, so nothing is made twice.
        """
        config = self.config_of(trial)
        flow = trial_flow(config)
        key = fingerprint(flow.shared_settings(config, all_stages=all_stages))
        if key not in self.prepared:
            run = Run(override(config, {"name": self.config.name}), self.machine, base=self.base_of(trial))
            run.stages = read_stages(self.folder)
            self.prepared[key] = flow.prepare_trials(run, all_stages=all_stages)
        return self.prepared[key]

    # --- the next trial ----------------------------------------------------------------------------------------------

    def plan_pending(self) -> bool:
        """Queue unfinished trials and make their shared stages; False if nothing is left to do."""
        entries = self.ledger.entries()
        finished = {id: entry for id, entry in entries.items() if is_finished(entry)}
        if self.settings.search == "optuna":
            self.session = StudySession(self.config, self.plan, self.folder)
            self.trials = {trial.id: trial for trial in self.session.recall(finished)}
        self.queue = [trial for id, trial in self.trials.items() if id not in finished]
        done = [trial for id, trial in self.trials.items() if id in finished]
        most, before = "up to " if self.session else "", f", {len(done)} finished before" if done else ""
        say(f"sweep {self.config.name}: {most}{self.total} trials{before}")
        for trial in done:
            self._check_data(trial, finished[trial.id])
        for trial in self.queue:
            self.ledger.forget(trial.id)
            if not self.session:  # problems of any trial are reported before the first one runs
                self.prepare(trial)
        return bool(self.queue) or len(self.trials) < self.total

    def _check_data(self, trial: Trial, entry: Mapping[str, Any]) -> None:
        """Refuse a sweep whose finished trials read other data than new ones would."""
        now = self.prepare(trial, all_stages=False)
        changed = [name for name in now if entry.get("data", {}).get(name, now[name]) != now[name]]
        if changed:
            raise InputError(
                f"sweep {self.config.name!r}: {', '.join(changed)} changed since trial {trial.id} was run; "
                f"give this one another name (name=...), or start it over with --fresh"
            )

    def next(self) -> Trial | None:
        """The next trial, ready to start; None if there is none, or none yet."""
        if self.problem:
            return None
        if not self.queue and self.session and len(self.trials) < self.total:
            self.queue = list(self.session.ask(self.trials))
            self.trials |= {trial.id: trial for trial in self.queue}
        if not self.queue:
            return None
        trial = self.queue.pop(0)
        self.prepare(trial)
        return trial

    # --- outcomes of trials ------------------------------------------------------------------------------------------

    def finished(self, trial: Trial, last: Mapping[str, Any] | None = None, died: bool = False) -> None:
        """Record the end of a trial: by itself, by a scheduler (then `last` is its last report), or because it died."""
        entry = self.ledger.get(trial.id) or self._add_end(trial, last, died)
        entries = self.ledger.entries()
        self._report_end(trial, entry, entries)
        self._repeat_warnings(trial)
        self.problem = _problem(entry, self.settings.metric) or self.problem
        if self.session:
            self.session.answer(trial.choice, entries)
        self.prune(entries)

    def _add_end(self, trial: Trial, last: Mapping[str, Any] | None, died: bool) -> dict[str, Any]:
        """The entry of a trial that could not write its own."""
        if died or not last or "step" not in last:
            entry = trial.entry | {"status": "error", "message": "its process died"}
        else:
            scores = {key: value for key, value in last.items() if key.startswith("dev.")}
            entry = trial.entry | {"status": "stopped", "metrics": scores, "steps": last.get("step")}
            entry["data"] = self.prepare(trial)
            trackers.tell_end(self.config_of(trial), self.folder.at("trials", trial.id), "KILLED")
        self.ledger.add(entry)
        return entry

    def _report_end(self, trial: Trial, entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
        score = entry.get("metrics", {}).get(self.settings.metric)
        count = sum(is_finished(entries.get(id)) for id in self.trials)
        reached = f"{self.settings.metric} {score:.2f}" if isinstance(score, int | float) else ""
        how = "" if entry["status"] == "done" else f"{entry['status']}, {entry.get('message', '')}".rstrip(", ")
        text = " ".join(part for part in (reached, how) if part)
        say(f"trial {count}/{self.total} ({_label(trial, self.plan.seeds)}): {text}")

    def _repeat_warnings(self, trial: Trial) -> None:
        """Repeat the warnings of a trial's training, which nobody saw; each text once for all trials."""
        name = f"trials/{trial.id}/progress.json"
        warnings = self.folder.read_json(name).get("warnings", []) if self.folder.exists(name) else []
        for text in warnings:
            if text not in self.warned:
                say(text)
        self.warned |= set(warnings)

    def _ranking(self, entries: Mapping[str, Mapping[str, Any]]) -> list[SettingScores]:
        return rank(self.trials.values(), entries, self.settings.metric, self.settings.mode)

    def is_running(self, entries: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether a trial has no end yet."""
        return len(self.trials) < self.total or any(id not in entries for id in self.trials)

    def prune(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Delete models, checkpoints and stages of all but the best trials. The last call comes when no trial is left: until
        then the best of a setting that lacks a seed stay, since its mean may still become the best.
        """
        ranking, number, mode = self._ranking(entries), self.settings.keep, self.settings.mode
        kept = best_trials(ranking, number, mode)
        if self.is_running(entries):
            kept += [id for setting in ranking if not setting.complete for id in best_trials([setting], number, mode)]
        ended = [id for id in self.trials if is_finished(entries.get(id))]
        pruned = [f"{self.config.name}/trials/{id}" for id in ended if id not in kept]
        prune_runs(self.store, pruned, is_over=len(ended) >= self.total)

    # --- results -----------------------------------------------------------------------------------------------------

    def write_results(self) -> dict[str, Any]:
        """Write sweep.json and best.yaml from the trials finished so far."""
        entries = self.ledger.entries()
        self.prune(entries)
        results = summary(self.config.name, self.config, self.plan, self._ranking(entries))
        self.folder.write_json("sweep.json", results)
        if results["best"]:
            own = {"name": f"{self.config.name}-best", "seed": self.plan.seeds[0]}
            self.folder.write_bytes("best.yaml", to_yaml(applied(self.plan.base, results["best"]["choice"] | own)).encode())
        return results

    def report(self, results: Mapping[str, Any]) -> None:
        """Print the table and file locations, and write report.html; failed trials raise an error."""
        for line in as_table(results):
            say(line)
        if results["best"]:
            say(f"best setting in {self.folder.path('best.yaml')}")
        if self.folder.is_local:
            say(f"report in {write_sweep_report(Path(self.folder.path()))}")
        entries = self.ledger.entries()
        errors = [entry for id in self.trials if (entry := entries.get(id)) and not is_finished(entry)]
        if errors:
            first = f"{len(errors)} of {self.total} trials failed; {errors[0]['id']}: {errors[0]['message']}"
            raise TrainingFailed(f"{first}. The same command tries them again.")


def _label(trial: Trial, seeds: tuple[int, ...]) -> str:
    named = [f"{key.rpartition('.')[2]}={show(value)}" for key, value in trial.choice.items()]
    return ", ".join(named + [f"seed {trial.seed}"] * (len(seeds) > 1))


def _problem(entry: Mapping[str, Any], metric: str) -> InputError | None:
    """A problem that every other trial would have, too."""
    if entry["status"] == "done" and entry["metrics"].get(metric) is None:
        scores = ", ".join(sorted(key for key, value in entry["metrics"].items() if isinstance(value, float)))
        return InputError(f"sweep.metric: a trial has no {metric}; it has {scores}")
    if entry["status"] == "error" and entry.get("input"):
        return InputError(entry["message"])
    return None
