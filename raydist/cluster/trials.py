"""The trials of a sweep on a cluster, as many at once as it has room for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from raydist.cluster.connect import Cluster
from raydist.cluster.machine import RayMachine
from raydist.config import Config
from raydist.sweep.driver import Sweep
from raydist.terminal import say


class RayTrials:
    """Runs the trials of a sweep under Ray Tune, on a cluster joined or started for the first trial."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.machine = cluster, RayMachine(cluster)

    def run(self, sweep: Sweep) -> None:
        """Run every trial of the queue, or of the study."""
        self.cluster.start()
        number = self._share_cores(sweep)

        from raydist.cluster.tune import run_trials  # imported late: Ray reads its settings on import

        run_trials(sweep, number)

    def _share_cores(self, sweep: Sweep) -> int:
        """Return how many trials run at once, and give each its share of the threads."""
        import ray

        config, local = sweep.config, not (self.cluster.config.address or os.environ.get("RAY_ADDRESS"))
        resources = ray.cluster_resources()
        number = min(trials_at_once(config, resources, local=local), sweep.total)  # a single trial has all cores
        cores = min(resources.get("CPU", 1.0), os.cpu_count() or 1) if local else resources.get("CPU", 1.0)
        if number > 1 and not config.cluster.gpus_per_worker:
            sweep.threads = max(1, int(cores // (number * config.cluster.max_workers)))
        hint = "" if local or sweep.settings.at_once else ", by what the cluster has now; if it can grow, set sweep.at_once"
        say(f"sweep: {number} trial{'s' * (number > 1)} at once, {config.cluster.max_workers} worker(s) each{hint}")
        return number


def sweep_cluster(config: Config, *, verbose: bool = False) -> Cluster:
    """The cluster of a sweep; a local one has logical CPUs for all concurrent trials."""
    cluster = config.cluster
    if config.sweep and not cluster.address and not cluster.local_cpus:
        number = trials_at_once(config, {"CPU": float(os.cpu_count() or 1)}, local=True)
        needed = number * max(cluster.max_workers, cluster.num_actors) + 2
        cluster = cluster.model_copy(update={"local_cpus": max(needed, Cluster(cluster).local_cpus)})
    return Cluster(cluster, verbose=verbose)


def trials_at_once(config: Config, resources: Mapping[str, float], *, local: bool) -> int:
    """sweep.at_once, else as many trials as can run all their workers. A local cluster's logical CPUs are not cores."""
    assert config.sweep is not None
    cluster = config.cluster
    of_a_trial = max(cluster.max_workers, cluster.num_actors)
    allowed = max(1, cluster.max_cpus // of_a_trial) if cluster.max_cpus else None
    if config.sweep.at_once:
        return min(config.sweep.at_once, allowed or config.sweep.at_once)
    cpus = resources.get("CPU", 1.0)
    if local:
        cpus = min(cpus, os.cpu_count() or 1)
    most = min(cpus // of_a_trial, allowed or cpus)
    if cluster.gpus_per_worker:
        most = min(most, resources.get("GPU", 0.0) // (cluster.gpus_per_worker * cluster.max_workers))
    return max(1, int(most))
