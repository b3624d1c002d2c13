"""Files of judgements -> the judgements in force."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydist.errors import InputError
from raydist.judgements.judgement import Judgement


@dataclass
class Ledger:
    """Lines of a file, read one after another: the judgements that stand."""

    by_id: dict[str, Judgement] = field(default_factory=dict)

    def read(self, line: bytes) -> None:
        """Raises InputError if the line is no judgement."""
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError("not JSON; wanted one judgement a line") from None
        if not isinstance(row, dict):
            raise InputError("no JSON object; wanted one judgement a line")
        if "undo" in row:
            self.by_id.pop(str(row["undo"]), None)
        else:
            judgement = Judgement.of(row)
            self.by_id[judgement.id] = judgement


@dataclass(frozen=True)
class Judgements:
    """The judgements in force: of each subject the last one, skips left out."""

    verdicts: list[Judgement]
    notes: list[str]  # what was dropped, by name


def read_judgements(paths: Iterable[Path | str]) -> Judgements:
    """The judgements of files. A last line that was cut off is dropped and noted; any other damage is an error."""
    notes: list[str] = []
    all_of_them = [judgement for path in paths for judgement in _of_file(Path(path), notes)]
    all_of_them.sort(key=lambda judgement: judgement.time)
    return Judgements(in_force(all_of_them), notes)


def in_force(judgements: Sequence[Judgement]) -> list[Judgement]:
    """The last judgement of each subject, without those that were skipped."""
    last = {judgement.subject: judgement for judgement in judgements}
    return [judgement for judgement in last.values() if judgement.right is not None]


def _of_file(path: Path, notes: list[str]) -> Iterator[Judgement]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; wanted a file of judgements, such as `raydist judge RUN` writes") from None
    *lines, tail = content.split(b"\n")
    if tail.strip():
        notes.append(f"{path}, line {len(lines) + 1}: cut off, and left out")
    ledger = Ledger()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                ledger.read(line)
            except InputError as error:
                raise InputError(f"{path}, line {number}: {error}") from None
    yield from ledger.by_id.values()
