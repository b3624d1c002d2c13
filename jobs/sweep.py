"""Trials of a config over a search space, ranked.

python jobs/sweep.py sweeps/pfa_bottleneck
ray job submit --working-dir . -- python jobs/sweep.py configs/sweeps/pfa_bottleneck.yaml storage=/shared/runs sweep.at_once=4
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("sweep", sys.argv[1:]))
