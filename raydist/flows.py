"""Which flow a config's task takes."""

from __future__ import annotations

from typing import Any, Protocol

from raydist.config import Config
from raydist.runs.run import Run


class Flow(Protocol):
    """What both flows can do."""

    def run_all(self, run: Run, *, fresh: bool = False) -> None: ...

    def train(self, run: Run, *, fresh: bool = False) -> None: ...

    def evaluate(self, run: Run) -> Any: ...


def flow_of(config: Config) -> Flow:
    """`reader/flow.py` or `retrieval/flow.py`."""
    if config.task == "reader":
        from raydist.reader import flow as reader_flow

        return reader_flow
    from raydist.retrieval import flow as retrieval_flow

    return retrieval_flow
