"""The one policy on bad input rows: they are kept beside the run, counted and reported; too many of them stop it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from raydist.errors import InputError
from raydist.files.stage import encode_table
from raydist.runs.run import Run


def keep_rejected(run: Run, what: str, file: str, rows: int, rejected: pa.Table) -> str:
    """Write rejected rows to a file of the run and record their number; returns the file's path."""
    run.folder.write_bytes(file, encode_table(rejected, "parquet", {}))
    run.reject(what, rows)
    return run.folder.path(file)


def listed(reasons: Mapping[str, int]) -> str:
    """Reasons with their counts."""
    return ", ".join(f"{number:,} {reason}" for reason, number in reasons.items())


def refuse_too_many(
    run: Run, what: str, share: float, location: str, *, of: str = "rows", reasons: str = "", ways: Sequence[str] = ()
) -> None:
    """Stop if the bad share exceeds data.max_rejected, and suggest remedies: fix the data, or one of `ways`."""
    limit = run.config.data.max_rejected
    if share <= limit:
        return
    because = f": {reasons}" if reasons else ""
    raise InputError(
        f"{what}: {share:.1%} of the {of} are bad, more than data.max_rejected allows ({limit:.1%}){because}. Look at "
        f"{location}; {', '.join(['mend the data', *ways])}, or raise data.max_rejected (to {math.ceil(share * 100) / 100:.2f})"
    )
