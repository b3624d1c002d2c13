"""Ray Tune: many trials of one config. A trial is a run like any other, in <sweep>/trials/ID, made by the pipeline's functions.

Tune starts trials, bounds how many run at once and stops the hopeless ones. What is finished is known from our own ledger
(finished/ID.json): Tune's own state is thrown away, and the same command goes on where the last one stopped.

Inside a trial Ray Train works as it does without a sweep. A trial's own process holds no CPU: its train workers and its Ray
Data actors do, so that trials which wait never keep from work those which could.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.cluster import pipeline
from raydist.cluster.connect import Cluster, export, quieten, restore
from raydist.config import Config, override, to_yaml
from raydist.config.compare import changed_settings
from raydist.config.roles import plain_settings, settings_with_result, shared_settings
from raydist.errors import InputError, TrainingFailed
from raydist.files.storage import Storage, fingerprint
from raydist.models.loading import is_folder
from raydist.sweep.plan import (
    DEFAULT_TRIALS,
    TRIES,
    Ledger,
    Study,
    Trial,
    applied,
    as_table,
    best_trials,
    is_finished,
    plan_sweep,
    rank,
    show,
    summary,
    typed,
)
from raydist.terminal import say
from raydist.training import trackers as track

HEAVY = ("checkpoints", "best", "model", "predictions")  # of a trial that is not among the best
OF_ITS_MODEL = ("predictions", "dense index", "dense hits", "top hits", "rerank scores")  # its stages that no other trial makes
OWN = (
    *("finished", "trials", "bases", "tune", "rejected"),
    *("begun.json", "base.json", "asked.json", "sweep.json", "best.yaml", "report.html", "stages.json"),
)
NO_END = 10**9  # steps: no trial is stopped for having run long enough
QUIET_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",  # its new output cannot be silenced
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial has its own log
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C stops the command, as it does elsewhere
}


def sweep_cluster(config: Config, *, verbose: bool = False) -> Cluster:
    """The cluster of a sweep; a local one gets logical CPUs for all trials that run at once."""
    cluster = config.cluster
    if config.sweep and not cluster.address and not cluster.local_cpus:
        number = trials_at_once(config, {"CPU": float(os.cpu_count() or 1)}, local=True)
        needed = number * max(cluster.max_workers, cluster.actors) + 2
        cluster = cluster.model_copy(update={"local_cpus": max(needed, Cluster(cluster).local_cpus)})
    return Cluster(cluster, verbose=verbose)


def trials_at_once(config: Config, resources: Mapping[str, float], *, local: bool) -> int:
    """sweep.at_once, else as many trials as have all their workers at work. Logical CPUs of a local cluster are not cores."""
    assert config.sweep is not None
    if config.sweep.at_once:
        return config.sweep.at_once
    cluster = config.cluster
    cpus = resources.get("CPU", 1.0)
    if local:
        cpus = min(cpus, os.cpu_count() or 1)
    most = cpus // max(cluster.max_workers, cluster.actors)
    if cluster.gpus_per_worker:
        most = min(most, resources.get("GPU", 0.0) // (cluster.gpus_per_worker * cluster.max_workers))
    return max(1, int(most))


def run_sweep(config: Config, cluster: Cluster, *, fresh: bool = False) -> dict[str, Any]:
    """All trials that are not finished; then the table, sweep.json, best.yaml and report.html. Returns what sweep.json has."""
    sweep = Sweep(config, cluster)
    sweep.begin(fresh)
    try:
        if sweep.plan_pending():
            cluster.start()
            sweep.run_trials()
    finally:
        found = sweep.write_results()
    sweep.tell(found)
    return found


class Sweep:
    """The driver's side of a sweep: which trial is next, what the finished ones reached."""

    def __init__(self, config: Config, cluster: Cluster) -> None:
        self.config, self.cluster = config, cluster
        self.plan = plan_sweep(config)
        assert config.sweep is not None
        self.settings = config.sweep
        self.store = Storage(config.storage)
        self.folder = self.store.at(config.name)
        self.ledger = Ledger(self.folder)
        self.trials: dict[str, Trial] = {trial.id: trial for trial in self.plan.trials}
        self.queue: list[Trial] = []
        self.study: Study | None = None
        self.open: dict[str, tuple[Any, list[str]]] = {}  # settings the study waits for: its question, the trials' ids
        self.exhausted = False
        self.threads: int | None = None
        self.prepared: dict[str, dict[str, str]] = {}
        self.warned: set[str] = set()
        self.problem: Exception | None = None

    @property
    def total(self) -> int:
        wanted = self.settings.trials or DEFAULT_TRIALS
        return (wanted if self.settings.search == "optuna" else len(self.plan.settings)) * len(self.plan.seeds)

    def begin(self, fresh: bool) -> None:
        """Refuse to mix two sweeps under one name."""
        track.check_installed(self.config.track)
        if fresh:
            for name in OWN:
                self.folder.delete(name)
        keys, now = [axis.key for axis in self.plan.axes], settings_with_result(self.plan.base)
        if self.folder.exists("begun.json"):
            before = self.folder.read_json("begun.json")
            swept = tuple(f"{key}." for key in keys + before["keys"])
            changed = changed_settings(before["values"], now)
            if differ := [line for key, line in changed.items() if not f"{key}.".startswith(swept)]:
                raise InputError(
                    f"sweep {self.config.name!r} in {self.folder.path()} was begun with other settings:\n  "
                    + "\n  ".join(differ)
                    + "\ngive this one another name (name=...), or start it over with --fresh"
                )
        self.folder.write_json("begun.json", {"keys": keys, "values": now})
        self.folder.write_bytes("config.yaml", to_yaml(self.config).encode())

    # --- trials ------------------------------------------------------------------------------------------------------

    def settings_of(self, trial: Trial) -> Config:
        """A trial's settings, its paths as they were given."""
        return override(applied(self.plan.base, trial.choice), {"seed": trial.seed})

    def config_of(self, trial: Trial) -> Config:
        """A trial's config. Its paths are absolute: it runs in another folder, perhaps on another node."""
        config = self.settings_of(trial)
        own: dict[str, Any] = {
            "name": f"{self.config.name}/trials/{trial.id}",
            "data.root": str(Path(config.data.root).expanduser().absolute()),
        }
        if self.store.is_local:
            own["storage"] = self.store.path()
        models = {"model.name": config.model.name}
        if config.task == "retriever":
            own["retriever.variants"] = []  # what a trial is compared with are the other trials
            models |= {"mining.encoder": config.mining.encoder, "cross_encoder.model.name": config.cross_encoder.model.name}
        for key, name in models.items():
            if is_folder(name):
                own[key] = str(Path(name).expanduser().absolute())
        if self.threads and not config.cluster.threads_per_worker:
            own["cluster.threads_per_worker"] = self.threads
        if config.track.on:
            own["track.group"] = self.config.name
        if config.track.mlflow:
            own["track.mlflow"] = track.full_uri(config.track.mlflow)
        return override(config, own)

    def prepare(self, trial: Trial, *, all_stages: bool = True) -> dict[str, str]:
        """Make what a trial shares with others, unless it is made; the fingerprints of its data sets. Only the driver does so,
        and one trial after another: nothing is made twice.
        """
        config = self.config_of(trial)
        base = self.base_of(trial)
        if config.task == "retriever":
            return self._prepare_retrieval(config, base)
        plain = plain_settings(config)
        used = {key: plain[key] for key in ("data", "model")}
        two_stage = config.objectives.hard_learning is not None and all_stages
        if two_stage:
            used |= {key: plain[key] for key in ("seed", "train", "optim", "predict")}
            used |= {"sets": plain["objectives"]["hard_learning"], "span": plain["objectives"]["span"]}
        key = fingerprint(used)
        if key not in self.prepared:
            run = self._shared_run(config, base)
            ready = pipeline.prepare(run, config.sets())
            if two_stage:
                from raydist.cluster.two_stage import with_nbest_sets

                pipeline.check_steps(run, ready["train"].where["rows"])
                with_nbest_sets(run, ready["train"].where)
            self.prepared[key] = {name: made.where["fingerprint"] for name, made in ready.items()}
        return self.prepared[key]

    def _prepare_retrieval(self, config: Config, base: str | None) -> dict[str, str]:
        from raydist.cluster.retrieval import prepare_trials

        key = fingerprint(shared_settings(config))
        if key not in self.prepared:
            self.prepared[key] = prepare_trials(self._shared_run(config, base))
        return self.prepared[key]

    def base_of(self, trial: Trial) -> str | None:
        """The run that a trial shares with others (`base_name`). Named by paths as they were given: a job's folder is another
        one every time.
        """
        return base_name(self.config.name, self.settings_of(trial))

    def _shared_run(self, config: Config, base: str | None) -> pipeline.Run:
        """The sweep itself as a run: what it makes is made for all trials."""
        own = override(config, {"name": self.config.name})
        run = pipeline.Run(own, self.cluster, base=base)
        if self.folder.exists("stages.json"):
            run.stages = self.folder.read_json("stages.json")
        return run

    def plan_pending(self) -> bool:
        """Queue what is not finished, its shared stages made; False where nothing is left to do."""
        entries = self.ledger.entries()
        if self.settings.search == "optuna":
            self._recall(entries)
            return bool(self.queue) or len(self.trials) < self.total
        done = {id for id in self.trials if is_finished(entries.get(id))}
        self.queue = [trial for id, trial in self.trials.items() if id not in done]
        said = f", {len(done)} finished before" if done else ""
        say(f"sweep {self.config.name}: {self.total} trials{said}")
        for id in done:
            self._check_data(self.trials[id], entries[id])
        for trial in self.queue:
            self.ledger.forget(trial.id)
            self.prepare(trial)
        return bool(self.queue)

    def _recall(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell a new study what earlier sessions found; queue the trials that they began."""
        self.study = Study(self.plan.axes, self.config.seed + len(self._asked()), self.settings.mode)  # asks something new
        keys = {axis.key for axis in self.plan.axes}
        for choice in self._asked():
            if choice.keys() != keys:  # of another space under this name
                continue
            trials = [Trial(choice, seed) for seed in self.plan.seeds]
            left = [trial for trial in trials if not is_finished(entries.get(trial.id))]
            self.trials |= {trial.id: trial for trial in trials}
            self.open[fingerprint(choice)] = None, [trial.id for trial in trials]
            self._answer(choice, {id: entry for id, entry in entries.items() if is_finished(entry)})
            for trial in trials:
                if trial not in left:
                    self._check_data(trial, entries[trial.id])
            self.queue += left
            for trial in left:
                self.ledger.forget(trial.id)
        said = f", {len(self.trials) - len(self.queue)} finished before" if self.trials else ""
        say(f"sweep {self.config.name}: up to {self.total} trials{said}")

    def _check_data(self, trial: Trial, entry: Mapping[str, Any]) -> None:
        """A finished trial must have read what a new one would."""
        now = self.prepare(trial, all_stages=False)
        changed = [name for name in now if entry.get("data", {}).get(name, now[name]) != now[name]]
        if changed:
            raise InputError(
                f"sweep {self.config.name!r}: {', '.join(changed)} changed since trial {trial.id} was run; "
                f"give this one another name (name=...), or start it over with --fresh"
            )

    def next(self) -> Trial | None:
        """The next trial, ready to start; None where there is none left."""
        if self.problem:
            return None
        if not self.queue and self.study and len(self.trials) < self.total and not self.exhausted:
            self._ask()
        if not self.queue:
            return None
        trial = self.queue.pop(0)
        self.prepare(trial)
        return trial

    def _ask(self) -> None:
        """A new setting from the study, with all seeds."""
        assert self.study is not None
        for _ in range(TRIES):
            question, drawn = self.study.ask()
            try:
                choice = typed(self.plan.base, drawn)
            except InputError:  # right one by one, wrong together
                self.study.tell(question, None)
                continue
            trials = [Trial(choice, seed) for seed in self.plan.seeds]
            if trials[0].id in self.trials:  # asked before
                self.study.tell(question, None)
                continue
            self.trials |= {trial.id: trial for trial in trials}
            self.open[fingerprint(choice)] = question, [trial.id for trial in trials]
            self.folder.write_json("asked.json", [*self._asked(), choice])
            self.queue += trials
            return
        self.exhausted = True

    def _asked(self) -> list[dict[str, Any]]:
        """The settings that the study chose, in this session and before: a choice that was made is carried through."""
        return self.folder.read_json("asked.json") if self.folder.exists("asked.json") else []

    def finished(self, trial: Trial, last: Mapping[str, Any] | None, died: bool) -> None:
        """A trial came to an end: by itself, by the scheduler (then `last` is what it reported last), or because it died."""
        entry = self.ledger.get(trial.id)
        if entry is None:
            entry = {"id": trial.id, "choice": dict(trial.choice), "seed": trial.seed}
            if died or not last or "step" not in last:
                entry |= {"status": "error", "message": "its process died"}
            else:
                scores = {key: value for key, value in last.items() if key.startswith("dev.")}
                entry |= {"status": "stopped", "metrics": scores, "steps": last.get("step"), "data": self.prepare(trial)}
                track.tell_end(self.config_of(trial), self.folder.at("trials", trial.id), "KILLED")
            self.ledger.add(entry)
        entries = self.ledger.entries()
        score = entry.get("metrics", {}).get(self.settings.metric)
        count = sum(is_finished(entries.get(id)) for id in self.trials)
        reached = f"{self.settings.metric} {score:.2f}" if isinstance(score, int | float) else ""
        how = "" if entry["status"] == "done" else f"{entry['status']}, {entry.get('message', '')}".rstrip(", ")
        said = " ".join(part for part in (reached, how) if part)
        say(f"trial {count}/{self.total} ({_label(trial, self.plan.seeds)}): {said}")
        self._warn(trial)
        if entry["status"] == "done" and score is None:
            there = ", ".join(sorted(key for key, value in entry["metrics"].items() if isinstance(value, float)))
            self.problem = InputError(f"sweep.metric: a trial has no {self.settings.metric}; it has {there}")
        if entry["status"] == "error" and entry.get("input"):
            self.problem = InputError(entry["message"])
        self._answer(trial.choice, entries)
        self.prune(entries)

    def _warn(self, trial: Trial) -> None:
        """What its training warned of, where nobody saw it; of many trials with the same warning, once."""
        name = f"trials/{trial.id}/progress.json"
        warnings = self.folder.read_json(name).get("warnings", []) if self.folder.exists(name) else []
        for text in warnings:
            if text not in self.warned:
                say(text)
        self.warned |= set(warnings)

    def _answer(self, choice: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell the study what a setting reached, once all its seeds came to an end."""
        key = fingerprint(dict(choice))
        if not self.study or key not in self.open:
            return
        question, ids = self.open[key]
        if all(id in entries for id in ids):
            (setting,) = rank([self.trials[id] for id in ids], entries, self.settings.metric, self.settings.mode)
            if question is not None:
                self.study.tell(question, setting.mean)
            elif setting.mean is not None:
                self.study.know(choice, setting.mean)
            del self.open[key]

    def prune(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Models, checkpoints and stages of all but the best trials are deleted; their numbers stay. What a stopped trial still
        writes may hinder that, and goes with the next call; the last one comes when no trial is left.
        """
        ranked = rank(self.trials.values(), entries, self.settings.metric, self.settings.mode)
        kept = best_trials(ranked, self.settings.keep, self.settings.mode)
        ended = [id for id in self.trials if is_finished(entries.get(id))]
        pruned = [f"{self.config.name}/trials/{id}" for id in ended if id not in kept]
        for name in [f"{run}/{heavy}" for run in pruned for heavy in HEAVY]:
            with contextlib.suppress(OSError):
                self.store.delete(name)
        with contextlib.suppress(OSError):
            self._drop_stages(pruned, is_over=len(ended) >= self.total)

    def _drop_stages(self, pruned: list[str], is_over: bool) -> None:
        """Stages that only pruned trials refer to: those made with their models, and once no trial is left, the others, too;
        until then, one that is to come may take its silver pairs from them.
        """
        found = {run: self.store.read_json(f"{run}/stages.json") for run in pruned if self.store.exists(f"{run}/stages.json")}
        if not is_over and not any(title.startswith(OF_ITS_MODEL) for stages in found.values() for title in stages):
            return
        used = pipeline.used_stages(self.store, but=found)
        for run, stages in found.items():
            unused = {title: stage["folder"] for title, stage in stages.items() if stage["folder"] not in used}
            gone = {title: folder for title, folder in unused.items() if is_over or title.startswith(OF_ITS_MODEL)}
            for folder in gone.values():
                self.store.delete(folder)
            if gone:
                self.store.write_json(f"{run}/stages.json", {title: stages[title] for title in stages.keys() - gone.keys()})

    # --- Tune --------------------------------------------------------------------------------------------------------

    def run_trials(self) -> None:
        """Every trial of the queue, or of the study, under Ray Tune."""
        import ray
        from ray import tune

        config, local = self.config, not (self.cluster.config.address or os.environ.get("RAY_ADDRESS"))
        resources = ray.cluster_resources()
        number = min(trials_at_once(config, resources, local=local), self.total)  # a single trial has all cores
        cores = min(resources.get("CPU", 1.0), os.cpu_count() or 1) if local else resources.get("CPU", 1.0)
        if number > 1 and not config.cluster.gpus_per_worker:
            self.threads = max(1, int(cores // (number * config.cluster.max_workers)))
        known = "" if local or self.settings.at_once else ", by what the cluster has now; if it can grow, set sweep.at_once"
        say(f"sweep: {number} trial{'s' * (number > 1)} at once, {config.cluster.max_workers} worker(s) each{known}")
        wake_ray_data()
        self.folder.delete("tune")

        def trial(given: dict[str, Any]) -> None:
            run_trial(given)

        tuner = tune.Tuner(
            tune.with_resources(trial, tune.PlacementGroupFactory([{"memory": 1}])),
            tune_config=tune.TuneConfig(
                search_alg=tune_searcher(self),
                scheduler=tune_scheduler(config),
                num_samples=-1,  # until the searcher has no more
                max_concurrent_trials=number,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=self.folder.uri,
                verbose=0,
                callbacks=[silence()],
                failure_config=tune.FailureConfig(max_failures=config.cluster.max_failures),  # of a trial's own process
            ),
        )
        before = export(QUIET_TUNE)
        try:
            tuner.fit()
        finally:
            restore(before)
        self.folder.delete("tune")
        if self.problem:
            raise self.problem

    # --- results -----------------------------------------------------------------------------------------------------

    def write_results(self) -> dict[str, Any]:
        """sweep.json, best.yaml and report.html of what is finished so far."""
        entries = self.ledger.entries()
        self.prune(entries)
        ranked = rank(self.trials.values(), entries, self.settings.metric, self.settings.mode)
        found = summary(self.config.name, self.config, self.plan, ranked)
        self.folder.write_json("sweep.json", found)
        if found["best"]:
            own = {"name": f"{self.config.name}-best", "seed": self.plan.seeds[0]}
            self.folder.write_bytes("best.yaml", to_yaml(applied(self.plan.base, found["best"]["choice"] | own)).encode())
        return found

    def tell(self, found: Mapping[str, Any]) -> None:
        """The table and where things are; stop where trials are missing."""
        for line in as_table(found):
            say(line)
        if found["best"]:
            say(f"best setting in {self.folder.path('best.yaml')}")
        if self.folder.is_local:
            from raydist.report.sweep import write_sweep_report

            say(f"report in {write_sweep_report(Path(self.folder.path()))}")
        entries = self.ledger.entries()
        errors = [entry for id in self.trials if (entry := entries.get(id)) and not is_finished(entry)]
        if errors:
            first = f"{len(errors)} of {self.total} trials failed; {errors[0]['id']}: {errors[0]['message']}"
            raise TrainingFailed(f"{first}. The same command tries them again.")


def _label(trial: Trial, seeds: tuple[int, ...]) -> str:
    named = [f"{key.rpartition('.')[2]}={show(value)}" for key, value in trial.choice.items()]
    return ", ".join(named + [f"seed {trial.seed}"] * (len(seeds) > 1))


def base_name(sweep: str, config: Config) -> str | None:
    """The run of the base reader, or of the cross-encoder, that all trials share for which it would be the same; None for a
    reader of one stage.
    """
    if config.task == "retriever":
        return f"{sweep}/bases/{fingerprint(shared_settings(config, cross_encoder=True))[:12]}"
    if config.objectives.hard_learning is None:
        return None
    plain = plain_settings(config)
    used = {key: plain[key] for key in ("data", "model", "seed", "train", "optim", "predict")} | {
        "span": plain["objectives"]["span"]
    }
    folds = config.objectives.hard_learning.nbest_folds
    if folds > 1:  # each reader leaves out a fold: another share of the questions, another reader
        used["folds"] = folds
    return f"{sweep}/bases/{fingerprint(used)[:12]}"


def silence() -> Any:
    """Takes the place of what would print the end of each trial: we tell it ourselves."""
    from ray.tune.progress_reporter import TrialProgressCallback

    class Silent(TrialProgressCallback):
        def _print(self, msg: str) -> None:
            pass

    return Silent()


def wake_ray_data() -> None:
    """Ray Data's helper actors belong to whoever uses it first: if that were a trial, they would end with it."""
    import ray.data

    ray.data.range(1, override_num_blocks=1).take_all()


def tune_scheduler(config: Config) -> Any:
    """What stops trials early, by the dev score that training reports."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

    sweep, train = config.sweep, config.train
    assert sweep is not None
    grace = sweep.grace_steps or train.evaluate_every or 1
    goes_by = {"time_attr": "step", "metric": f"dev.{train.metric}", "mode": "max"}
    if sweep.scheduler == "asha":
        return ASHAScheduler(**goes_by, max_t=max(NO_END, grace), grace_period=grace, reduction_factor=sweep.reduction)
    if sweep.scheduler == "median":

        class Median(MedianStoppingRule):
            def on_trial_complete(self, controller: Any, trial: Any, result: dict) -> None:
                """A trial that ended before it had a score is no sample: Ray would look for its step, and fail."""
                if {goes_by["time_attr"], goes_by["metric"]} <= result.keys():
                    super().on_trial_complete(controller, trial, result)

        return Median(**goes_by, grace_period=grace, min_time_slice=float("inf"))  # stops, never pauses
    return FIFOScheduler()


def tune_searcher(sweep: Sweep) -> Any:
    """Tune asks here for the next trial, and tells when one has ended. Both happen on the driver."""
    from ray.tune.search import Searcher

    class NextTrial(Searcher):
        def __init__(self) -> None:
            super().__init__()
            self.running: dict[str, Trial] = {}

        def set_search_properties(self, *_: Any, **__: Any) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            try:
                trial = sweep.next()
            except Exception as error:  # Tune would wrap it
                sweep.problem = error
                return Searcher.FINISHED
            if trial is None:
                return None if self.running and sweep.study and not sweep.problem else Searcher.FINISHED
            self.running[trial_id] = trial
            given = {
                "id": trial.id,
                "choice": dict(trial.choice),
                "seed": trial.seed,
                "sweep": sweep.folder.uri,
                "config": sweep.config_of(trial).model_dump(mode="json"),
                "reports": sweep.settings.scheduler != "none",
                "base": sweep.base_of(trial),
            }
            return {"trial": json.dumps(given)}  # one string: Tune makes names of what it can look into

        def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
            if trial_id not in self.running:
                return
            try:
                sweep.finished(self.running.pop(trial_id), result, error)
            except Exception as problem:
                sweep.problem = problem

        def save(self, checkpoint_path: str) -> None:
            """Nothing: the ledger has it."""

    return NextTrial()


# --- in a trial ------------------------------------------------------------------------------------------------------


def run_trial(given: Mapping[str, Any]) -> None:
    """One trial: prepare (nothing is left to make), train, evaluate, and its line in the ledger."""
    trial = json.loads(given["trial"])
    config = Config.model_validate(trial["config"])
    ledger = Ledger(Storage(trial["sweep"]))
    quieten()
    reports = dev_reports(config) if trial["reports"] else None
    run = pipeline.Run(config, Cluster(config.cluster), base=trial["base"])
    entry = {key: trial[key] for key in ("id", "choice", "seed")}
    began = time.time()
    try:
        run.begin()
        if config.task == "retriever":
            entry["data"] = _run_retrieval_trial(run)
        else:
            ready = pipeline.prepare(run, config.sets())
            entry["data"] = {name: made.where["fingerprint"] for name, made in ready.items()}
            pipeline.train(run, callbacks=[reports] if reports else [])
            pipeline.evaluate(run)
        metrics = run.folder.read_json("metrics.json")
        entry |= {"status": "done", "steps": metrics.get("train.steps"), "metrics": metrics}
    except TrainingFailed as error:
        entry |= {"status": "failed", "message": str(error)}
    except Exception as error:
        lines = str(error).strip().splitlines()
        what = str(error) if isinstance(error, InputError) else lines[-1] if lines else type(error).__name__
        entry |= {"status": "error", "message": what, "input": isinstance(error, InputError)}
    ledger.add(entry | {"seconds": round(time.time() - began, 1)})
    if reports:
        reports.wait()


def _run_retrieval_trial(run: pipeline.Run) -> dict[str, str]:
    from raydist.cluster.retrieval import build_retriever, evaluate_retrieval, fingerprints, open_corpora

    corpora = open_corpora(run)
    cross_encoder, variants = build_retriever(run, corpora["train"])
    evaluate_retrieval(run, cross_encoder, variants, corpora)
    for before in variants.values():
        if before is not run:  # the retriever of an earlier round has served
            before.folder.delete("")
    return fingerprints(corpora)


def dev_reports(config: Config) -> Any:
    """Hands the dev scores of the train workers to Tune; the last one is left out: what ran to its end is not stopped."""
    from ray.tune.integration.ray_train import TuneReportCallback

    wanted = f"dev.{config.train.metric}"

    class DevReports(TuneReportCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            seen = metrics[0]
            if wanted in seen and seen["dev.step"] == seen["step"] < seen["total"]:  # not an old score with a checkpoint
                super().after_report(run_context, [{"step": seen["step"], wanted: seen[wanted]}], None)

        def wait(self) -> None:
            """Until Tune has taken the last score: the end of the trial must not overtake it."""
            while not self._training_actor_item_queue.empty():
                time.sleep(0.2)
            time.sleep(0.5)

    return DevReports()
