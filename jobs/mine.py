"""Candidates, scores and silver pairs.

python jobs/mine.py retrieval
ray job submit --working-dir . -- python jobs/mine.py configs/retrieval.yaml storage=/shared/runs cluster.actors=4
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("mine", sys.argv[1:]))
