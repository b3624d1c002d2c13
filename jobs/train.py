"""Train a reader, a retriever or a cross-encoder.

python jobs/train.py quickstart
ray job submit --working-dir . -- python jobs/train.py configs/quickstart.yaml storage=/shared/runs cluster.workers=2
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("train", sys.argv[1:]))
