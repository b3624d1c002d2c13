import subprocess
import sys

CHURN = """
import resource, torch
from raydist.cores import use_cores
{setup}
def churn(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones({mib} << 18)  # freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
churn(10)
print(churn(10))
"""


def page_faults(setup: str, mib: int = 64) -> int:
    script = CHURN.format(setup=setup, mib=mib)
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def test_a_block_that_was_freed_is_used_again_without_asking_the_kernel():
    assert page_faults("torch.set_num_threads(1)") > 20_000  # 64 MiB are 16,384 pages, each time
    assert page_faults("use_cores(1)") < 2_000


def test_a_worker_that_does_other_things_later_keeps_what_is_small():
    assert page_faults("use_cores(1, keep_all=False)", mib=24) < 2_000
    assert page_faults("use_cores(1, keep_all=False)", mib=64) > 20_000  # goes back at once
