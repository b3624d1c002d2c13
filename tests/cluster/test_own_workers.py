"""Which workers the tests kill, and which of Ray's processes give way to others."""

import contextlib
import os
import subprocess
import time

import psutil
import pytest
import ray
from helpers.own_workers import own_workers

from raydist.cluster.local import _comes_back, _title


def test_only_what_this_process_started_is_found_by_its_title():
    raylet = "bash -c \"exec -a 'ray::OwnWorker.run' sleep 100\" & wait"  # the worker is a child's child
    stranger = "exec -a 'ray::OwnWorker.stranger' sleep 100 >/dev/null 2>&1 & echo $!"  # its parent is gone
    orphan = psutil.Process(int(subprocess.run(["bash", "-c", stranger], capture_output=True, check=True).stdout))
    with subprocess.Popen(["bash", "-c", raylet], start_new_session=True) as child:
        ends = time.monotonic() + 60
        while not (found := own_workers("OwnWorker")):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert orphan.is_running()
        (worker,) = found
        assert "OwnWorker.run" in worker.cmdline()[0]
        for process in (worker, child, orphan):
            process.kill()


def test_workers_of_a_local_cluster_stand_back_for_no_other_process(cluster):
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has SCHED_IDLE")
def test_while_workers_train_the_rest_of_ray_takes_no_core_from_them_and_afterwards_all_are_alike(cluster):
    def policies() -> dict[str, int]:
        found = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                found[_title(process)] = os.sched_getscheduler(process.pid)
        return found

    before = ray.get(ray.remote(lambda: os.sched_getscheduler(0)).remote())
    cluster.here.stand_back()
    during = policies()
    assert during["IDLE"] == before == os.SCHED_OTHER, "a worker that waits for work is no part of the rest"
    assert during["DashboardAgent"] == os.SCHED_IDLE
    assert (during["raylet"] == os.SCHED_IDLE) == _comes_back(), "what cannot come back and is needed later stays"
    cluster.here.stand_back(False)
    assert not _comes_back() or os.SCHED_IDLE not in policies().values()
    assert "log_monitor" not in during, "nobody reads what it would send"


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has SCHED_IDLE")
def test_a_worker_that_starts_while_ray_stands_back_does_not_wait_for_an_idle_core(cluster):
    """As one does that takes a dead one's place: its parent, Ray's raylet, comes last."""
    started = ray.remote(lambda: os.getpid()).options(runtime_env={"env_vars": {"RAYDIST_TEST": "a process of its own"}})
    cluster.here.stand_back()
    try:
        worker, ends = ray.get(started.remote()), time.monotonic() + 60
        while os.sched_getscheduler(worker) != os.SCHED_OTHER:
            assert time.monotonic() < ends
            time.sleep(0.1)
    finally:
        cluster.here.stand_back(False)
