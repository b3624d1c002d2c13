"""n-best answers of the dev and test sets.

python jobs/predict.py quickstart
ray job submit --working-dir . -- python jobs/predict.py configs/quickstart.yaml storage=/shared/runs cluster.workers=2
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("predict", sys.argv[1:]))
