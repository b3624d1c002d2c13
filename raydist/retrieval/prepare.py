"""Corpora, ready for later stages: their files, their rejected rows, and the limit at which a run stops."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from raydist.config import CORPUS_COLUMNS, CorpusSource
from raydist.corpus.formats import CORPUS_FORMATS
from raydist.corpus.formats.base import ChecksFiles, CorpusFiles, CorpusInFolder
from raydist.corpus.formats.zipped import unpack_beir
from raydist.corpus.paths import expand_paths
from raydist.corpus.recognise import language_of
from raydist.corpus.recognise_corpus import corpus_format
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.files.storage import Place, Storage, file_digest, fingerprint, read_parquet, writing_to
from raydist.judgements.reading import read_judgements
from raydist.retrieval.corpus_stages import (
    Corpus,
    CorpusCounts,
    CorpusFile,
    CorpusShare,
    CorpusTables,
    QuestionKeys,
    Sentences,
    ShareCounts,
)
from raydist.retrieval.judged import JudgedCounts, JudgedPairs, judgements_digest
from raydist.retrieval.silver import Answers
from raydist.runs.locate import SAMPLE, locate
from raydist.runs.overlap import check_overlap
from raydist.runs.rejected import keep_rejected, listed, refuse_too_many
from raydist.runs.run import Run
from raydist.runs.stages import StageUse
from raydist.terminal import said_if_long, say


def open_corpora(run: Run, names: Iterable[str] | None = None, *, with_questions: bool = True) -> dict[str, Corpus]:
    """Read and check corpora ("train", with its dev, and the test sets by name), and put their sentences in order on disk."""
    sources = _sources(run, names)
    stages = {name: (corpus_stage(run, name, source), f"corpus {name}") for name, source in sources.items()}
    if with_questions:
        _check_questions({name: stage.format for name, (stage, _) in stages.items()})
    for name, (stage, _) in stages.items():
        if not run.storage.exists(f"{stage.folder}/manifest.json"):
            with said_if_long(f"corpus {name}: looking at the files"):
                files = [file for place in stage.places for file in _files_of(place.fetch(), stage.format, stage.split)]
                stage.check(sum(file.stat().st_size for file in files))
    tables = run.make_all(stages, label="read corpus")
    counts = {name: CorpusCounts(**made.manifest.parts[0].info) for name, made in tables.items()}
    for name, made in tables.items():
        _report(run, name, made, counts[name])
    stages_of_sentences = {
        name: (Sentences(**counts[name].digests, tables=made), f"sentences of {name}") for name, made in tables.items()
    }
    sentences = run.make_all(stages_of_sentences, label="sentences")
    corpora = {
        name: Corpus(
            name,
            made,
            sentences[name],
            num_questions=counts[name].questions,
            num_sentences=counts[name].rows,
            num_gold=counts[name].gold,
            block_questions=run.config.mining.part_questions,
        )
        for name, made in tables.items()
    }
    if with_questions and "train" in corpora:
        corpora["train"] = _with_judgements(run, _with_dev(run, corpora))
    return {name: corpus for name, corpus in corpora.items() if name == "train" or name in run.config.corpus.test}


def _with_dev(run: Run, corpora: dict[str, Corpus]) -> Corpus:
    """The training corpus with its dev: another corpus, or a share of its questions, held out from training."""
    train, share, seed = corpora["train"], run.config.corpus.dev_share, run.config.data.seed
    if not share:
        return replace(train, dev=corpora.get("dev") if run.config.corpus.dev else None)
    names = {"train": "questions that train", "dev": "questions of dev"}
    stages = {name: (CorpusShare(train.tables, seed, share, name == "dev"), title) for name, title in names.items()}
    sides = {}
    for name, made in run.make_all(stages, label="hold out").items():
        counts = ShareCounts(**made.manifest.parts[0].info)
        sides[name] = replace(train, name=name, tables=made, num_questions=counts.questions, num_gold=counts.gold)
    say(f"corpus train: {sides['dev'].num_questions:,} of {train.num_questions:,} questions held out as dev (corpus.dev_share)")
    return replace(sides["train"], dev=sides["dev"])


def _with_judgements(run: Run, train: Corpus) -> Corpus:
    """The training corpus with its judged pairs; dev and test sets stay as they are."""
    paths = [locate(run, file).fetch() for file in run.config.corpus.judgements]
    if not paths:
        return train
    read = read_judgements(expand_paths([str(path) for path in paths]))
    for note in read.notes:
        say(f"corpus.judgements: {note}")
    stage = JudgedPairs(train.tables, train.sentences, judgements_digest(read.verdicts), tuple(read.verdicts))
    made = run.make(stage, f"judged pairs of {train.name}")
    counts = JudgedCounts(**made.manifest.parts[0].info)
    left_out = {
        "about questions or texts that it does not have": counts.unknown,
        "against its own gold pairs, which stay": counts.contradicted,
    }
    but = "".join(f"; {number:,} judgements are {what}" for what, number in left_out.items() if number)
    say(f"corpus train: {counts.accepted:,} accepted pairs are gold, {counts.rejected:,} rejected ones negatives{but}")
    return replace(train, judged=made, num_gold=counts.gold)


def report_overlap(run: Run, corpora: dict[str, Corpus], *, is_ranked: bool = False) -> None:
    """Report overlap between the questions of train and dev and those of test sets. `is_ranked`: dev ranks trials."""
    tests = [name for name in run.config.corpus.test if name in corpora]
    asked = {"train": corpora.get("train"), "dev": corpora["train"].dev if "train" in corpora else None}
    named = {name: corpus for name, corpus in asked.items() if corpus} | {name: corpora[name] for name in tests}
    tests += ["dev"] * bool(run.config.corpus.dev and asked["dev"])  # a held-out share of train never overlaps with it
    if not tests or len(tests) == len(named):
        return
    stages = {name: (QuestionKeys(corpus), f"texts of {name}") for name, corpus in named.items()}
    check_overlap(run, run.make_all(stages, label="texts"), tests, chosen=is_ranked or run.config.chooses_by_dev)


def _sources(run: Run, names: Iterable[str] | None) -> dict[str, CorpusSource]:
    corpus = run.config.corpus
    sources = ({"train": corpus.train} if corpus.train else {}) | corpus.test
    wanted = list(sources) if names is None else list(names)
    for name in wanted:
        if name not in sources:
            way = "set corpus.train" if name == "train" else f"there are {', '.join(sources) or 'none'}"
            raise InputError(f"there is no retrieval set {name!r}: {way}")
    if not wanted:
        raise InputError("no corpus: set corpus.train or corpus.test")
    dev = {"dev": corpus.dev} if corpus.dev and "train" in wanted else {}
    return {name: source for name, source in sources.items() if name in wanted} | dev


def _check_questions(formats: dict[str, str]) -> None:
    for name, format in formats.items():
        if format == "documents":
            raise InputError(
                f"corpus {name}: format documents has no questions with gold answers, which mining, training and evaluation "
                "need; give a set that has (format beir or tables, say), or make an index of it: raydist index"
            )


def corpus_stage(run: Run, name: str, source: CorpusSource) -> CorpusTables:
    """The stage that reads a corpus."""
    places = tuple(_unpacked(run, locate(run, file)) for file in source.files)
    boundaries = locate(run, source.boundaries) if source.boundaries else None
    paths = [place.fetch() for place in (*places, *_some(boundaries))]
    for path in paths:
        if not any(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))):
            raise InputError(f"corpus {name}: there is no {path}; relative names start at data.root ({run.config.data.root!r})")
    own = paths[: len(places)]
    format = corpus_format(own, source.columns) if source.format == "auto" else source.format
    columns = {table: source.columns_of(table) for table in CORPUS_COLUMNS.get(format, {})}
    try:
        if source.columns and not columns:
            raise InputError(f"columns: {own[0]} is of format {format}, which has names of its own; leave them out")
        if isinstance(checking := CORPUS_FORMATS[format], ChecksFiles):
            checking.check(CorpusFiles(own, source.split, columns))
        files = [file for path in own for file in _files_of(path, format, source.split)]
    except InputError as error:
        raise InputError(f"corpus {name}: {error}") from None
    with said_if_long(f"corpus {name}: looking whether the files have changed"):
        known = tuple(_known_file(file, format) for file in [*files, *paths[len(places) :]])
    return CorpusTables(
        format=format,
        split=source.split,
        columns=columns,
        questions=source.questions,
        seed=run.config.data.seed,
        files=known,
        places=places,
        boundaries=boundaries,
        language=source.language or (language_of(str(files[0])) if format == "msmarco" else None),
    )


def _unpacked(run: Run, place: Place) -> Place:
    """A place; for a zipped BEIR set the folder of the storage into which it is unpacked, once."""
    path = place.fetch()
    if path.suffix != ".zip" or not path.is_file():
        return place
    folder = f"stages/unpacked-{fingerprint({'zip': file_digest(path)})}"
    is_there = run.storage.exists(f"{folder}/unpacked.json")
    run.use(StageUse(folder, f"{path.name}, unpacked", reused=is_there))
    if not is_there:
        say(f"{path.name}: unpacking into {folder}")
        _unpack(run.storage, path, folder)
    return Place("", run.storage.at(folder).uri)


def _unpack(storage: Storage, path: Path, folder: str) -> None:
    beside = Path(storage.path(f"{folder}.{uuid4().hex}.tmp")) if storage.is_local else None
    target = beside or Path(tempfile.mkdtemp())
    try:
        with writing_to(target):
            target.mkdir(parents=True, exist_ok=True)
            unpack_beir(path, target)
            (target / "unpacked.json").write_text(json.dumps({"file": path.name}))
            if beside:
                os.replace(beside, storage.path(folder))
            else:
                storage.upload(target, folder, last="unpacked.json")
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _some(place: Place | None) -> list[Place]:
    return [place] if place else []


def _known_file(file: Path, format: str) -> CorpusFile:
    """A file's identity; format squad splits sentences by language, which a folder's name may give."""
    return CorpusFile(file.name, file_digest(file), language_of(str(file)) if format == "squad" else None)


def _files_of(path: Path, format: str, split: str) -> list[Path]:
    """The files behind a name: one, those of a glob, or those in a folder that its format reads."""
    if not path.is_dir():
        return sorted(path.parent.glob(path.name))
    in_folder = CORPUS_FORMATS[format]
    if not isinstance(in_folder, CorpusInFolder):
        return sorted(file for file in path.glob("*") if file.is_file())
    return sorted(in_folder.files_of(path, split))


def sample_answers(run: Run, corpus: Corpus) -> Answers | None:
    """Right answers beside gold; only the embedded sample lists them."""
    source = run.config.corpus.train
    if source is None or not source.files[0].startswith(SAMPLE):
        return None
    file = locate(run, f"{SAMPLE}restated.jsonl").fetch()
    if not file.is_file():
        return None
    asked = {id for batch in corpus.batches("questions", ["question_id"]) for id in batch["question_id"].to_pylist()}
    with file.open(encoding="utf-8") as lines:
        pairs = ((row["query-id"], row["corpus-id"]) for row in map(json.loads, lines))
        return {pair for pair in pairs if pair[0] in asked}


# --- rejected rows ---------------------------------------------------------------------------------------------------


def _report(run: Run, name: str, tables: Made, counts: CorpusCounts) -> None:
    """Report duplicates, notes and rejected rows of a corpus; stop if too many rows are bad."""
    repeated = ", ".join(f"{number:,} {kind}" for kind, number in counts.duplicates.items() if number)
    if repeated:
        say(f"corpus {name}: sentences with the same text as another: {repeated}; they are never negatives of each other")
    for note, number in counts.notes.items():
        say(f"corpus {name}: {number:,} {note}")
    file = f"rejected/corpus_{name}.parquet"
    if counts.rejected:
        rejected = read_parquet(tables.folder, "rejected-00000.parquet")
        report_rejected(run, f"corpus {name}", file, rejected, counts.rows, counts.questions_read)
    else:
        run.folder.delete(file)  # left by an earlier command, before the data were mended


def report_rejected(run: Run, what: str, file: str, rejected: pa.Table, sentences: int, questions: int = 0) -> None:
    """Store the rejected rows in the run, report their number, and stop if there are too many: of all rows, or of the
    questions alone, which are few beside the sentences.
    """
    location = keep_rejected(run, what, file, len(rejected), rejected)
    reasons = dict(sorted(Counter(rejected["reason"].to_pylist()).items()))
    say(f"{what}: rejected {len(rejected):,} rows ({listed(reasons)}); see {location}")
    bad_questions = rejected["what"].to_pylist().count("question")
    shares: dict[str, Any] = {
        "rows": len(rejected) / (sentences + questions + len(rejected)),
        "questions": bad_questions / max(1, questions + bad_questions),
    }
    share, of = max((share, of) for of, share in shares.items())
    refuse_too_many(run, what, share, location, of=of)
