"""A whole pipeline: train, evaluate, report.

python jobs/run.py quickstart
ray job submit --working-dir . -- python jobs/run.py configs/quickstart.yaml storage=/shared/runs cluster.workers=2
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("run", sys.argv[1:]))
