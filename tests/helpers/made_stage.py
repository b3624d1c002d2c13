"""A whole stage from tables, made by hand."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydist.files.stage import MANIFEST, Made, Manifest, Part, part_name, write_part
from raydist.files.storage import Storage


def made_stage(folder: Path, *tables: pa.Table, kind: str = "arrow", counts: Any = None, **identity: Any) -> Made:
    """One part for each table; `counts` are those of every part."""
    storage = Storage(str(folder))
    lines = [write_part(storage, part_name(number, kind), Part(table, {}, counts)) for number, table in enumerate(tables)]
    storage.write_json(MANIFEST, asdict(Manifest(folder.name, "12ab", identity, lines)))
    return Made(storage, folder.name, "12ab", kind)
