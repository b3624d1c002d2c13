"""An index to search in.

python jobs/index.py retrieval index.kind=bm25
ray job submit --working-dir . -- python jobs/index.py configs/retrieval.yaml storage=/shared/runs cluster.actors=4
"""

import sys

from raydist.cli import job

if __name__ == "__main__":
    sys.exit(job("index", sys.argv[1:]))
