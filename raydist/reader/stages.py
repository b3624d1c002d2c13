"""The reader's stages: files -> examples -> windows -> predictions, and the n-best sets of hard learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from raydist.corpus.duplicates import duplicate_keys
from raydist.corpus.examples import UNITS, Read, Split, read_rows, read_split
from raydist.corpus.hub import hub_format, load_hub
from raydist.corpus.rejected import DUPLICATE_ID
from raydist.draws import Choice, Fold
from raydist.files.mapped import map_table
from raydist.files.stage import ASIDE, LATER, Line, Made, Part, Stage, Worker, describe_part, encode_table
from raydist.files.storage import Place, Storage, read_parquet
from raydist.models.located import Model
from raydist.records import REJECTED_SCHEMA, ReadCounts, examples_table, rejected_table

if TYPE_CHECKING:
    from raydist.reader.model import SpanReader

HUB_ROWS = 50_000  # rows of a `datasets` set per part


# --- examples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """A file of a data set as it enters the fingerprint of the examples."""

    language: str | None
    format: str
    name: str
    digest: str


@dataclass(frozen=True)
class Reading:
    """Settings for reading rows as examples."""

    format: str
    language: str | None
    columns: Mapping[str, str]
    repair_offsets: bool
    labelled: bool
    part_rows: int
    split: str = field(default="", metadata=LATER)  # of files that have several


@dataclass(frozen=True)
class Examples(Stage):
    """Files -> checked examples, and rejected rows."""

    name: ClassVar[str] = "examples"
    version: ClassVar[int] = 6

    reading: Reading
    files: tuple[SourceFile, ...]
    splits: tuple[tuple[Split, Place], ...] = field(metadata=ASIDE)  # independently readable pieces, and their files

    @property
    def identity(self) -> dict[str, Any]:
        found = super().identity
        return found | found.pop("reading")

    @property
    def parts(self) -> int:
        return len(self.splits)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            split, place = self.splits[number]
            return _examples(read_split(replace(split, path=str(place.fetch())), place.shown), self.reading)

        return make

    def finish(self, folder: Storage, lines: list[Line]) -> list[Line]:
        units = [UNITS[split.layout] for split, _ in self.splits]
        return drop_duplicates(folder, lines, units, self.reading.part_rows)


@dataclass(frozen=True)
class HubExamples(Stage):
    """A set of the `datasets` library -> checked examples, and rejected rows."""

    name: ClassVar[str] = "examples"
    version: ClassVar[int] = 6

    reading: Reading
    hub: tuple[str, str, str | None]  # name, split, config
    rows: str  # their fingerprint by `datasets`
    number_of_rows: int = field(metadata=ASIDE)

    @property
    def identity(self) -> dict[str, Any]:
        found = super().identity
        return found | found.pop("reading")

    @property
    def parts(self) -> int:
        return -(-self.number_of_rows // HUB_ROWS)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        reading = self.reading
        file, format = "hub:" + "/".join(part for part in self.hub if part), hub_format(self.hub[0], reading.format)

        def make(number: int) -> Part:
            first = number * HUB_ROWS
            rows = load_hub(*self.hub).select(range(first, min(first + HUB_ROWS, self.number_of_rows)))
            return _examples(
                read_rows(
                    rows,
                    first_line=first + 1,
                    language=reading.language,
                    columns=reading.columns,
                    repair_offsets=reading.repair_offsets,
                    labelled=reading.labelled,
                    scored=not reading.labelled,
                    file=file,
                    format=format,
                ),
                reading,
            )

        return make

    def finish(self, folder: Storage, lines: list[Line]) -> list[Line]:
        return drop_duplicates(folder, lines, [UNITS["parquet"]] * len(lines), self.reading.part_rows)


def _examples(read: Read, reading: Reading) -> Part:
    examples, rejected, counts = read
    return Part(examples_table(examples), {"rejected": rejected_table(rejected)}, counts, reading.part_rows)


def drop_duplicates(folder: Storage, lines: list[Line], units: Sequence[str], row_group: int) -> list[Line]:
    """Keep the first question of each id; reject the others by name. Rewrites only parts with duplicates."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for number, (line, unit) in enumerate(zip(lines, units)):
        keys = read_parquet(folder, line.name, ["id", "language"])
        again = []
        for row, key in enumerate(zip(keys["id"].to_pylist(), keys["language"].to_pylist())):  # translations share ids
            if key in seen:
                again.append(row)
            seen.add(key)
        kept.append(_without(folder, line, number, again, unit, row_group) if again else line)
    return kept


def _without(folder: Storage, line: Line, number: int, rows: list[int], unit: str, row_group: int) -> Line:
    """Rewrite a part without some rows, rejected as duplicates."""
    table = read_parquet(folder, line.name)
    dropped = table.take(rows).select(["file", "line", "id"]).to_pylist()
    reason = {
        "what": "question",
        "reason": DUPLICATE_ID,
        "detail": "another question of this data set has the same id",
        "unit": unit,
    }
    file = f"rejected-{number:05d}.parquet"
    before = read_parquet(folder, file).to_pylist()
    rejected = before + [row for row in (row | reason for row in dropped) if row not in before]
    folder.write_bytes(file, encode_table(pa.Table.from_pylist(rejected, REJECTED_SCHEMA), "parquet", {}))
    counts = ReadCounts(**line.info)
    counts.questions_rejected += len(rows)
    counts.reasons[DUPLICATE_ID] = counts.reasons.get(DUPLICATE_ID, 0) + len(rows)
    content = encode_table(table.take(np.setdiff1d(np.arange(table.num_rows), rows)), "parquet", asdict(counts), row_group)
    folder.write_bytes(line.name, content)
    return describe_part(line.name, content)


def row_groups(examples: Made) -> list[tuple[int, int]]:
    """(part, row group) of all examples, in order. An empty part has none."""
    size = examples.manifest.identity["part_rows"]
    parts = enumerate(examples.manifest.parts)
    return [(number, group) for number, line in parts for group in range(-(-line.rows // size))]


@dataclass(frozen=True)
class GroupStage(Stage):
    """A part for each row group of examples."""

    examples: Made

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        return row_groups(self.examples)

    @property
    def parts(self) -> int:
        return len(self.groups)


@dataclass(frozen=True)
class ExampleKeys(GroupStage):
    """Row groups of examples -> hashes of the normalised texts of their questions and passages."""

    name: ClassVar[str] = "example_keys"

    choice: Choice | None

    def open(self, worker: Worker) -> Callable[[int], Part]:
        def make(number: int) -> Part:
            examples = self.examples.row_group(*self.groups[number])
            if self.choice:
                examples = examples.filter(pa.array(self.choice.takes(examples["id"].to_pylist())))
            return Part(
                pa.table({name: _text_keys(examples[of]) for name, of in (("question", "question"), ("passage", "context"))})
            )

        return make


def _text_keys(texts: pa.ChunkedArray) -> pa.Array:
    """Keys that are equal for texts equal after normalisation; neighbours often share a passage."""
    coded = texts.combine_chunks().dictionary_encode()
    keys = np.array([duplicate_keys(text)[0] for text in coded.dictionary.to_pylist()], np.int64)
    return pa.array(keys[coded.indices.to_numpy()], pa.int64())


# --- windows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowCounts:
    """Counts of a part of windows: the examples of its row group, and those with windows."""

    examples: int
    chosen: int


@dataclass(frozen=True)
class Windows(GroupStage):
    """Row groups of examples -> windows of tokens."""

    name: ClassVar[str] = "windows"
    kind: ClassVar[str] = "arrow"

    tokenizer: Model
    choice: Choice | None
    max_length: int
    max_question_length: int
    doc_stride: int
    no_answer_windows: str
    passage_first: bool = field(default=False, metadata=LATER)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        from transformers import AutoTokenizer

        from raydist.reader.features import make_windows

        tokenizer = AutoTokenizer.from_pretrained(self.tokenizer.folder())
        names = ("max_length", "max_question_length", "doc_stride", "no_answer_windows", "passage_first")
        lengths = {name: getattr(self, name) for name in names}

        def make(number: int) -> Part:
            examples = self.examples.row_group(*self.groups[number])
            rows = np.flatnonzero(self.choice.takes(examples["id"].to_pylist())).tolist() if self.choice else None
            windows = make_windows(examples, tokenizer, rows=rows, **lengths)
            return Part(windows, counts=WindowCounts(examples.num_rows, examples.num_rows if rows is None else len(rows)))

        return make


@dataclass(frozen=True)
class WindowSet:
    """A data set ready for a model: its windows, their examples, and n-best sets, if any."""

    windows: Made
    examples: Made
    nbest_sets: Made | None = None

    @property
    def known_by(self) -> str:
        return self.windows.fingerprint

    @property
    def rows(self) -> int:
        return self.windows.rows

    @property
    def is_choice(self) -> bool:
        """Whether only some of the questions were taken."""
        return self.windows.manifest.identity["choice"] is not None

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        return row_groups(self.examples)

    def examples_of(self, number: int) -> pa.Table:
        """The examples behind a part of the windows."""
        return self.examples.row_group(*self.groups[number])

    @property
    def identity(self) -> dict[str, Any]:
        """All its inputs, by name."""
        sets = {"nbest_sets": dict(self.nbest_sets.manifest.identity)} if self.nbest_sets else {}
        identities = {"examples": dict(self.examples.manifest.identity)}
        return dict(self.windows.manifest.identity) | identities | sets


# --- predictions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictions(Stage):
    """Windows -> the n-best answers of each question, by a reader."""

    name: ClassVar[str] = "predictions"
    version: ClassVar[int] = 2
    uses_model: ClassVar[bool] = True

    windows: WindowSet
    model: Model
    k: int
    max_answer_length: int
    compat: str
    batch_tokens: int
    precision: str
    fold: Fold | None = field(default=None, metadata=LATER)  # cross-fitting: only questions held out from the reader's training

    @property
    def parts(self) -> int:
        return len(self.windows.windows.manifest.parts)

    def read(self, number: int) -> tuple[pa.Table, pa.Table]:
        return map_table(self.windows.windows.file(number)), self.windows.examples_of(number)

    def open(self, worker: Worker) -> Callable[[tuple[pa.Table, pa.Table]], Part]:
        from raydist.reader.predict import predict_examples
        from raydist.reader.rows import WindowRows

        reader, pad_id = worker.keep(open_reader, self.model, worker.threads)

        def make(read: tuple[pa.Table, pa.Table]) -> Part:
            rows, examples = WindowRows([read[0]]), read[1]
            asked = np.unique(rows.examples) if self.windows.is_choice else np.arange(examples.num_rows)
            if self.fold:
                asked = asked[self.fold.holds(examples["id"].take(asked).to_pylist())]
            found = predict_examples(
                reader,
                rows,
                examples,
                asked,
                pad_id=pad_id,
                k=self.k,
                max_answer_length=self.max_answer_length,
                compat=self.compat,
                batch_tokens=self.batch_tokens,
                precision=self.precision,
            )
            return Part(found)

        return make


def open_reader(model: Model, threads: int) -> tuple[SpanReader, int]:
    """A reader on this worker's device, and its padding id."""
    import torch
    from transformers import AutoTokenizer

    from raydist.reader.model import load_trained_reader

    torch.set_num_threads(threads)
    folder = model.folder()
    reader = load_trained_reader(folder).to("cuda" if torch.cuda.is_available() else "cpu")
    return reader, AutoTokenizer.from_pretrained(folder).pad_token_id


# --- n-best sets -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NbestSets(Stage):
    """Windows and n-best lists of their questions -> the sets of hard learning.

    The lists are predictions, one set per fold, or one file with all questions.
    """

    name: ClassVar[str] = "nbest_sets"
    kind: ClassVar[str] = "arrow"

    windows: WindowSet
    size: int
    predictions: tuple[Made, ...] = field(default=(), metadata=LATER)
    file: str | None = field(default=None, metadata=LATER)  # the digest of a file of lists
    place: Place | None = field(default=None, metadata=ASIDE)  # its location

    @property
    def parts(self) -> int:
        return len(self.windows.windows.manifest.parts)

    def open(self, worker: Worker) -> Callable[[int], Part]:
        from raydist.reader.nbest_sets import make_sets
        from raydist.reader.rows import WindowRows

        def make(number: int) -> Part:
            examples = self.windows.examples_of(number)
            rows = WindowRows([self.windows.windows.file(number)])
            return Part(make_sets(rows, examples, self._lists(number, examples), self.size))

        return make

    def _lists(self, number: int, examples: pa.Table) -> pa.Table:
        if self.place is None:
            return pa.concat_tables([made.table(number) for made in self.predictions])
        ids, languages = examples["id"].to_pylist(), examples["language"].to_pylist()
        asked = ids + [f"{language}:{id}" for id, language in zip(ids, languages)]
        of_part = pc.field("id").isin(pa.array(asked))
        return pyarrow.dataset.dataset(str(self.place.fetch()), format="parquet").to_table(filter=of_part)
