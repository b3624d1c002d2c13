"""Which workers the tests kill."""

import subprocess
import time

import psutil
from own_workers import own_workers


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
    import os

    import ray

    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
