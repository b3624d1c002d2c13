"""Train a reader.

python jobs/train.py quickstart
ray job submit --working-dir . -- python jobs/train.py configs/quickstart.yaml cluster.workers=2
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("train", sys.argv[1:]))
