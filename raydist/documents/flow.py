"""From folders to passages: reads only files that changed since the index was made.

    update = read_documents(run)      # scans files and reads the changed ones
    ...                               # the index takes update.removed out, and update.passages() in
    keep(run, update)                 # records that the index holds the update

A command that ends before `keep` loses nothing: the next one gets the same update and reuses its stage. So the index may
already hold added documents; it replaces them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from raydist.config import DocumentsConfig
from raydist.corpus.messages import some
from raydist.corpus.rejected import DUPLICATE_ID
from raydist.documents.decode import one_line
from raydist.documents.known import FILE, FileRead, Known, all_rejected, known_table, read_known
from raydist.documents.metadata import check_number, common_kind, with_kinds
from raydist.documents.scan import Scan, changes, scan
from raydist.documents.schema import METADATA_TYPES, Source
from raydist.documents.stages import (
    DocumentPassages,
    Reading,
    made_documents,
    made_kinds,
    made_passages,
    made_rejected,
)
from raydist.errors import InputError
from raydist.files.stage import Made, encode_table, plain_fields
from raydist.files.storage import fingerprint
from raydist.records import Rejected, name_rejected, rejected_table
from raydist.runs.rejected import keep_rejected, listed, refuse_too_many
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say


@dataclass(frozen=True)
class Update:
    """The changes that bring an index up to date with the folders: document ids, and the passages of new documents."""

    added: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    known: Known  # after it
    made: Made | None  # passages of the files read; None without any

    @property
    def documents(self) -> int:
        """Number of documents after it."""
        return len(self.known.owners())

    @property
    def metadata(self) -> dict[str, pa.DataType]:
        """The columns of metadata, over all files."""
        return {name: METADATA_TYPES[kind] for name, kind in self._kinds.items()}

    @property
    def _kinds(self) -> dict[str, str]:
        return {name: common_kind(kinds) for name, kinds in sorted(self.known.kinds.items())}

    def passages(self) -> Iterator[pa.Table]:
        """The passages of added and changed documents, part by part: PASSAGES, then the metadata columns."""
        if self.made is None:
            return
        owners, new = self.known.owners(), {*self.added, *self.changed}

        def is_new(documents: pa.Table) -> np.ndarray:
            rows = zip(documents["document_id"].to_pylist(), documents["file"].to_pylist())
            return np.array([id in new and owners[id] == file for id, file in rows], bool)

        for table in made_passages(self.made, is_new):
            if len(table):
                yield with_kinds(table, self._kinds)


def read_documents(run: Run) -> Update:
    """Read the files changed since the last `keep`; report rejected ones, and stop if they are too many."""
    settings = run.config.documents
    if not settings.files:
        raise InputError("there are no documents: set documents.files to folders, files or globs")
    reading = reading_of(settings)
    before = read_known(run.folder)
    found = _scanned(run, settings, before)
    _refuse_others(run, before, found)
    is_same = before.reading == _fingerprint(reading)
    again = _to_read(before, found.sources) if is_same else found.sources
    made = _made(run, settings, reading, again, found)
    after = _after(before, found, again, made, reading)
    widened = _widened(before, after) if is_same else []
    if widened and len(again) < len(found.sources):  # a column in the index has another type
        say(f"documents: all are read again, since {', '.join(widened)}; documents.metadata can give a column its type")
        again = found.sources
        made = _made(run, settings, reading, again, found)
        after = _after(before, found, again, made, reading)
    owners = after.owners()
    _report(run, after, owners, found)
    old, new = before.digests(before.owners()), after.digests(owners)
    update = Update(
        added=[id for id in new if id not in old],
        changed=[id for id in new if id in old and (widened or new[id] != old[id])],
        removed=[id for id in old if id not in new],
        known=after,
        made=made,
    )
    counts = (len(update.added), len(update.changed), len(update.removed), len(new))
    say("documents: {:,} added, {:,} changed, {:,} removed; there are {:,}".format(*counts))
    return update


def keep(run: Run, update: Update) -> None:
    """Record that the index holds the update."""
    table, said = known_table(update.known)
    run.folder.write_bytes(FILE, encode_table(table, "parquet", said))


def reading_of(settings: DocumentsConfig) -> Reading:
    """The stage's settings for reading documents."""
    return Reading(
        settings.passage_words,
        settings.columns,
        settings.metadata,
        settings.language or "",
        tuple(sorted(settings.languages)),
        settings.max_file_bytes,
        settings.max_seconds,
    )


def _fingerprint(reading: Reading) -> str:
    return fingerprint({"version": DocumentPassages.version, **plain_fields(reading)})


# --- files -----------------------------------------------------------------------------------------------------------


def _scanned(run: Run, settings: DocumentsConfig, before: Known) -> Scan:
    known = [file.source for file in before.files.values()]
    storage = run.config.storage if "://" in run.config.storage else os.path.realpath(run.storage.path())
    with said_if_long("documents: looking whether the files have changed"):
        found = scan(
            settings.files,
            base=run.config.data.root,
            before=known,
            max_bytes=settings.max_file_bytes,
            without=storage,  # runs do not read their own output
        )
    if found.passed_over:
        names = some(f"{count:,} {ending}" for ending, count in found.passed_over.most_common())
        say(f"documents: {found.passed_over.total():,} files of no known format are passed over ({names})")
    return found


def _refuse_others(run: Run, before: Known, found: Scan) -> None:
    """Refuse documents that would replace those of another folder: nothing of the index is below these places, and less than
    half of its names is there.
    """
    places = tuple(f"{root.shown.rstrip('/')}/" for root in found.roots)
    is_there = any(file.source.uri.startswith(places) for file in before.files.values())
    same = sum(source.document_id in before.files for source in found.sources)  # of a folder that was moved
    if before.files and found.sources and not is_there and same < len(before.files) / 2:
        raise InputError(
            f"{run.folder.path('index')} is of other documents, {some(before.files)}: give this one another name (name=...), "
            f"or replace that with --fresh"
        )


def _to_read(before: Known, sources: Sequence[Source]) -> list[Source]:
    """Added and changed files; and files with a document of another file, which they may own by now."""
    differs = changes((file.source for file in before.files.values()), sources)
    names = {source.document_id for source in (*differs.added, *differs.changed)}
    names |= before.with_repeated(before.owners())
    return [source for source in sources if source.document_id in names]


def _made(run: Run, settings: DocumentsConfig, reading: Reading, sources: Sequence[Source], found: Scan) -> Made | None:
    if not sources:
        return None
    stage = DocumentPassages(reading, settings.part_bytes, tuple(sources), found.roots)
    return run.make(stage, "passages of documents", label="read documents")


def _after(before: Known, found: Scan, again: Sequence[Source], made: Made | None, reading: Reading) -> Known:
    """The records of all files: read now, or unchanged."""
    read = {source.document_id: FileRead(source) for source in again}
    kinds = {name: set(of) for name, of in before.kinds.items()} if len(again) < len(found.sources) else {}
    if made is not None:
        for row in made_documents(made).to_pylist():
            read[row["file"]].documents[row["document_id"]] = row["digest"]
        for row in made_rejected(made).to_pylist():
            read[row["file"]].rejected.append(Rejected(**row))
        for name, of in made_kinds(made).items():
            kinds.setdefault(name, set()).update(of)
    check_number(kinds, "documents")
    kept = {
        source.document_id: FileRead(source, file.documents, file.rejected)
        for source in found.sources
        if source.document_id not in read and (file := before.files[source.document_id])
    }
    return Known(kept | read, kinds, _fingerprint(reading))


def _widened(before: Known, after: Known) -> list[str]:
    """Columns of metadata with a changed type."""
    kinds = {
        name: (common_kind(of), common_kind(after.kinds[name])) for name, of in before.kinds.items() if name in after.kinds
    }
    return [f"column {name} was {old} and is {new}" for name, (old, new) in kinds.items() if old != new]


# --- rejected rows ---------------------------------------------------------------------------------------------------


def _report(run: Run, known: Known, owners: Mapping[str, str], found: Scan) -> None:
    """Write rejected rows into the run, name the first ones, and stop if they are too many or no document is left."""
    rejected = all_rejected(known, [*found.rejected, *_repeated(known, owners)])
    file = "rejected/documents.parquet"
    if rejected:
        location = keep_rejected(run, "documents", file, len(rejected), rejected_table(rejected))
        reasons = listed(dict(sorted(Counter(row.reason for row in rejected).items())))
        say(f"documents: rejected {len(rejected):,} ({reasons}); see {location}")
        for row in rejected[:5]:
            line = f", row {row.line}" if row.unit == "row" else ""
            say(f"documents: rejected {row.file}{line}: {row.reason} ({one_line(row.detail)})")
        documents = sum(row.what == "document" for row in rejected)
        refuse_too_many(run, "documents", documents / (documents + len(owners)), location, of="documents", reasons=reasons)
    else:
        run.folder.delete(file)  # left by an earlier command, before the files were fixed
    if not owners:
        names = ", ".join(run.config.documents.files)
        raise InputError(f"documents: there is nothing to read in {names}{name_rejected(rejected)}")


def _repeated(known: Known, owners: Mapping[str, str]) -> Iterator[Rejected]:
    """Documents whose id another file has, too."""
    for name in sorted(known.with_repeated(owners)):
        for id in known.files[name].documents:
            if owners[id] != name:
                detail = f"{PurePosixPath(owners[id])} has it, too"
                yield Rejected(name, 0, id, "document", DUPLICATE_ID, detail, "file")
