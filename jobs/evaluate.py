"""Scores of the dev and test sets.

python jobs/evaluate.py quickstart
ray job submit --working-dir . -- python jobs/evaluate.py configs/quickstart.yaml storage=/shared/runs cluster.workers=2
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("evaluate", sys.argv[1:]))
