"""Data sets of a reader: read, checked, cut into windows. Reports bad data before any model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from raydist.config import SourceConfig
from raydist.corpus.examples import plan_splits
from raydist.corpus.formats import READER_FORMATS
from raydist.corpus.hub import hub_language, is_saved, load_hub
from raydist.corpus.paths import expand_paths, files_of_split
from raydist.corpus.rejected import NOT_AT_OFFSET, UNLABELLED
from raydist.corpus.rules import choose_rule
from raydist.draws import Choice, Fold, draw_questions
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.files.storage import Place, file_digest, read_parquet
from raydist.models.checked import check_model as check_folder
from raydist.models.encoders import longest_input
from raydist.models.loading import open_config
from raydist.models.located import Model, NamedModel, tokenizer_digest
from raydist.reader.metrics import normaliser
from raydist.reader.model import check_reader
from raydist.reader.stages import ExampleKeys, Examples, HubExamples, Reading, SourceFile, Windows, WindowSet
from raydist.records import ReadCounts
from raydist.runs.locate import locate
from raydist.runs.overlap import check_overlap
from raydist.runs.rejected import keep_rejected, listed, refuse_too_many
from raydist.runs.run import Run
from raydist.terminal import said_if_long, say

# Names of splits, by the key that a data set stands under.
SPLITS = {"train": ("train",), "dev": ("validation", "valid", "val", "dev"), "test": ("test",)}


def prepare(run: Run, names: Iterable[str]) -> dict[str, WindowSet]:
    """Data sets, read, checked and cut into windows; each at most once per command."""
    names = list(names)
    missing = [name for name in names if name not in run.prepared]
    if missing:
        check_model(run)  # before any data is read
        run.prepared |= make_windows(run, make_examples(run, missing))
    return {name: run.prepared[name] for name in names}


# --- examples --------------------------------------------------------------------------------------------------------


def make_examples(run: Run, names: Iterable[str]) -> dict[str, Made]:
    """Read and check data sets; stop if too many rows of one are bad."""
    sources = {name: run.config.sets()[name] for name in names}
    stages = {name: (examples_stage(run, name, source), f"examples of {name}") for name, source in sources.items()}
    made = run.make_all(stages, label="read")
    for name, examples in made.items():
        _report_rejected(run, name, sources[name], examples)
        _check_rule(name, sources[name], examples)
    return made


def examples_stage(run: Run, name: str, source: SourceConfig) -> Examples | HubExamples:
    """The stage that reads a data set."""
    data = run.config.data
    language = source.language or (hub_language(source.hub, source.hub_config) if source.hub else None)
    reading = Reading(source.format, language, source.columns, data.repair_offsets, name == "train", data.part_rows)
    splits_of = (source.split,) if source.split else SPLITS.get(name, SPLITS["test"])
    if hub := source.hub or _saved_folder(run, source):
        hub_set = (hub, splits_of[0], source.hub_config)
        rows = load_hub(*hub_set)
        return HubExamples(reading, hub_set, rows._fingerprint, len(rows))
    places = _files(run, source, splits_of)
    with said_if_long(f"examples of {name}: looking at the files"):
        splits = plan_splits(
            sorted(places),
            format=source.format,
            language=source.language,
            columns=source.columns,
            repair_offsets=data.repair_offsets,
            labelled=name == "train",
            scored=name != "train",
            split=splits_of[-1],
        )
    if any(READER_FORMATS[split.format].has_splits for split in splits):
        reading = replace(reading, split=splits[0].split)
    seen = {split.path: split for split in splits}  # a folder, too, may set the language
    with said_if_long(f"examples of {name}: looking whether the files have changed"):
        files = [
            SourceFile(seen[path].language, seen[path].format, Path(path).name, file_digest(path)) for path in sorted(places)
        ]
    return Examples(reading, tuple(files), tuple((split, places[split.path]) for split in splits))


def _saved_folder(run: Run, source: SourceConfig) -> str | None:
    """The folder of `save_to_disk` that stands for files."""
    path = locate(run, source.files[0]).fetch() if len(source.files) == 1 else None
    return str(path) if path and is_saved(path) else None


def _files(run: Run, source: SourceConfig, splits: Sequence[str]) -> dict[str, Place]:
    """Every file of a data set: its path on this node -> its location for any node."""
    places: dict[str, Place] = {}
    for pattern in source.files:
        place = locate(run, pattern)
        for path in files_of_split(place.fetch(), splits) or expand_paths([str(place.fetch())]):
            inside = os.path.relpath(path, Place("", place.storage).fetch()) if place.storage else path
            places[path] = Place(inside, place.storage)
    return places


def set_key(name: str) -> str:
    """The dotted key of a data set."""
    return f"data.{name}" if name in ("train", "dev") else f"data.test.{name}"


def _check_rule(name: str, source: SourceConfig, examples: Made) -> None:
    """Reject, before training, a scoring rule that does not cover the set's languages."""
    rule = choose_rule(source.rule, examples.manifest.identity)
    if name == "train" or rule != "mlqa":  # the other rules take any language
        return
    if assumed := total_counts(examples).language_assumed:
        raise InputError(
            f"{name}: the rule mlqa depends on the language of the passages, and neither rows nor file names say it for "
            f"{assumed:,} of {examples.rows:,} questions: set {set_key(name)}.language (de, say), or {set_key(name)}.rule=squad"
        )
    columns = [table["language"] for table in examples.tables(["language"])]
    for language in sorted({language for column in columns for language in column.unique().to_pylist()}):
        try:
            normaliser(rule, language)
        except InputError as error:
            raise InputError(f"{name}: {error} ({set_key(name)}.rule=squad)") from None


def total_counts(examples: Made) -> ReadCounts:
    """Rows read and rejected, over all parts."""
    counts = [ReadCounts(**part.info) for part in examples.manifest.parts]
    names = [key for key in ReadCounts.__dataclass_fields__ if key != "reasons"]
    reasons: dict[str, int] = {}
    for count in counts:
        for reason, number in count.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
    return ReadCounts(**{key: sum(getattr(count, key) for count in counts) for key in names}, reasons=reasons)


def _report_rejected(run: Run, name: str, source: SourceConfig, examples: Made) -> None:
    """Copy the rejected rows into the run, report their number, and stop if they are too many or no row is left."""
    total = total_counts(examples)
    if total.answers_repaired:
        say(f"{name}: {total.answers_repaired:,} answers moved to where their text is")
    if total.several_occurrences:
        say(f"{name}: {total.several_occurrences:,} answers without an offset occur more than once; the first is the label")
    if total.not_extractive:
        fate = "left out" if name == "train" else "they are scored, and no span can answer them"
        say(f"{name}: {total.not_extractive:,} questions have answers that are not part of the passage (yes, no): {fate}")
    if total.left_out:
        say(f"{name}: {total.left_out:,} of {total.questions:,} questions left out: they have no short answer in their passage")
    if total.unlabelled:
        others = f"; {total.impossible:,} others are marked is_impossible" if total.impossible else ""
        way = f". If they have no answer, mark them, or set {set_key(name)}.format=squad_v2"
        say(
            f"{name}: {total.unlabelled:,} of {total.questions:,} questions have neither an answer nor is_impossible: they are "
            f"answered and not scored{others}" + way * (total.unlabelled < examples.rows)  # else they are only answered
        )
    bad = total.questions_rejected + total.answers_rejected
    reasons = listed(dict(sorted(total.reasons.items(), key=lambda item: -item[1])))
    file = f"rejected/{name}.parquet"
    if bad or total.answers_unplaced:
        tables = [
            read_parquet(examples.folder, f"rejected-{number:05d}.parquet") for number in range(len(examples.manifest.parts))
        ]
        location = keep_rejected(run, name, file, bad, pa.concat_tables(tables))
        if total.answers_unplaced:
            say(
                f"{name}: {total.answers_unplaced:,} of {total.answers:,} answers are not where their offset says, or empty: "
                f"scored by their texts; see {location}"
            )
        if bad:
            say(
                f"{name}: rejected {total.answers_rejected:,} of {total.answers:,} answers and {total.questions_rejected:,} of "
                f"{total.questions:,} questions ({reasons}); see {location}"
            )
    else:
        run.folder.delete(file)  # left by an earlier command, before the data was fixed
    ways = []
    if NOT_AT_OFFSET in total.reasons and not run.config.data.repair_offsets:
        ways.append("try data.repair_offsets=true")
    if UNLABELLED in total.reasons:
        ways.append(f"set {set_key(name)}.format=squad_v2 if questions without answers have none")
    refuse_too_many(run, name, total.rejected_share, run.folder.path(file), reasons=reasons, ways=ways)
    if not examples.rows:
        raise InputError(f"{name}: no usable question in {', '.join(source.files) or source.hub}")


def report_overlap(run: Run, names: Iterable[str], *, is_ranked: bool = False) -> None:
    """Report the overlap of dev and train with the test sets, all prepared. `is_ranked`: trials are ranked by dev."""
    examples = {name: run.prepared[name].examples for name in names}
    tests = [name for name in run.config.data.test if name in examples]
    if not tests or len(tests) == len(examples):
        return
    stages = {
        name: (ExampleKeys(made, choose_questions(run, name, made)), f"texts of {name}") for name, made in examples.items()
    }
    check_overlap(run, run.make_all(stages, label="texts"), tests, chosen=is_ranked or run.config.chooses_by_dev)


# --- windows ---------------------------------------------------------------------------------------------------------


def make_windows(run: Run, examples: Mapping[str, Made]) -> dict[str, WindowSet]:
    """Cut data sets into windows."""
    data, model = run.config.data, run.config.model
    tokenizer = Model(NamedModel(model.name, model.revision), tokenizer_digest(run.model_folder))
    stages = {}
    for name, made in examples.items():
        stage = Windows(
            made,
            tokenizer,
            choose_questions(run, name, made),
            data.max_length,
            data.max_question_length,
            data.doc_stride,
            data.no_answer_windows if name == "train" else "cls",
            data.passage_first,
        )
        stages[name] = (stage, f"windows of {name}")
    return {name: WindowSet(made, examples[name]) for name, made in run.make_all(stages, label="windows").items()}


def check_model(run: Run) -> None:
    """Reject a model that cannot be opened, has no place for a span head, or has too few positions for a window."""
    if not run.config.model.name.startswith("builtin:"):
        check_reader(run.model_folder)
        check_folder(run.model_folder, "AutoModelForQuestionAnswering")
    most = longest_input(open_config(run.model_folder))
    if most and run.config.data.max_length > most:
        raise InputError(
            f"data.max_length is {run.config.data.max_length}, and {run.config.model.name} has {most} positions: lower it"
        )


def choose_questions(run: Run, name: str, examples: Made) -> Choice | None:
    """The config's seeded choice of questions; None for all of them."""
    source, seed = run.config.sets()[name], run.config.data.seed
    everything = Choice(seed, source.adversarial, 1.0, source.leave_out, source.only)
    if source.questions is not None:
        ids = [id for table in examples.tables(["id"]) for id in table["id"].to_pylist()]
        if source.only:
            ids = [id for id, taken in zip(ids, Fold(seed, *source.only).holds(ids)) if taken]
        draws = np.unique(draw_questions(ids, seed, source.adversarial))
        if source.questions < len(draws):
            return replace(everything, highest=float(draws[source.questions - 1]))
    return everything if source.leave_out or source.only else None
