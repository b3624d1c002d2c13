"""Mining and retrieval (docs/methods.md 5), stage by stage:

    files -> sentences -> BM25 and dense index -> what both find -> labelled pairs -> cross-encoder
    what both find -> candidates -> scores -> silver pairs -> dual encoder -> index -> ranked lists -> P@N, MRR

A block is `mining.part_questions` questions: the unit of work of every stage between questions and pairs. What a block holds
depends on the questions alone, so results do not depend on workers or nodes (the last bits of a model that is not packed, see
models/packed.py, do on the threads of an actor, which `cluster.threads_per_worker` fixes). The driver sees counts, and no
texts. What grows with the corpus: the sentence table and the indexes, all mapped; with the questions: one file of hits,
candidates and scores per block. A cross-encoder and the dual encoders it is compared with are runs of their own beside the
main one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.cluster.pipeline import Made, Run, locate, report, run_stages, tokenizer_digest, train_on
from raydist.cluster.stages import Work
from raydist.cluster.watch import show
from raydist.config import CORPUS_COLUMNS, Config, CorpusSource, MiningConfig, RetrieverConfig, flatten, override
from raydist.corpus.recognise import language_of
from raydist.errors import InputError
from raydist.files.stage import Stage, encode_table
from raydist.files.storage import Storage, fetch, file_digest, folder_digest, has_model, read_parquet
from raydist.models.loading import TOWERS, is_folder, open_model, tower_folder
from raydist.records import RANKED_SCHEMA, rejected_table
from raydist.retrieval import parts as make
from raydist.terminal import said_if_long, say
from raydist.training import trackers as track

VERSION = 4  # raise when a stage's output changes
SILVER_VERSION = 4  # the same, of silver pairs alone: no score is asked for again
PAIR_ROWS_VERSION = 5  # the same, of the dual encoder's rows alone: nothing before them is made anew
TOLD_ROWS = 100_000  # the size of a larger index is told before it is built


# --- corpus ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """A retrieval set on disk: where its tables are, and its sentences by number."""

    name: str
    made: Made
    sentences: Made
    num_sentences: int
    block_questions: int

    @property
    def num_questions(self) -> int:
        return self.made.manifest.parts[0]["info"]["questions"]

    @property
    def num_gold(self) -> int:
        return self.made.manifest.parts[0]["info"]["gold"]

    def table(self, name: str) -> dict[str, Any]:
        """A whole table beside the sentences: questions, gold."""
        return {"folder": self.made.stage.uri, "name": f"{name}-00000.parquet"}

    def blocks(self) -> list[dict[str, Any]]:
        """What every stage over questions is cut into: a block of questions, and where the rest is."""
        size = self.block_questions
        ranges = [(first, min(first + size, self.num_questions)) for first in range(0, self.num_questions, size)]
        shared = {"gold": self.table("gold"), "sentences": self.sentences.stage.uri}
        return [shared | {"block": self.table("questions") | {"first": first, "last": last}} for first, last in ranges]

    def read(self, name: str) -> pa.Table:
        """A whole table, for the driver: questions or gold, never sentences."""
        return read_parquet(self.made.stage.storage, f"{self.made.stage.folder}/{name}-00000.parquet")


def open_corpora(run: Run, names: list[str] | None = None, *, with_questions: bool = True) -> dict[str, Corpus]:
    """Read and check retrieval sets ("train", and the test sets by name), and put their sentences in order on disk."""
    sources = ({"train": run.config.corpus.train} if run.config.corpus.train else {}) | run.config.corpus.test
    for name in names or []:
        if name not in sources:
            wanted = "set corpus.train" if name == "train" else f"there are {', '.join(sources) or 'none'}"
            raise InputError(f"there is no retrieval set {name!r}: {wanted}")
    sources = {name: source for name, source in sources.items() if names is None or name in names}
    if not sources:
        raise InputError("there is no corpus: set corpus.train or corpus.test")
    for name, source in sources.items():
        if with_questions and source.format == "documents":
            raise InputError(
                f"corpus {name}: format documents has no questions with gold answers, which mining, training and evaluation "
                "need; give a set that has (format beir or tables, say), or make an index of it: raydist index"
            )
    works = {name: _set_work(run, name, source) for name, source in sources.items()}
    read = _run(run, list(works.values()), make.retrieval_set_part_maker, {}, "read corpus")
    for name, made in zip(works, read):
        _tell(run, name, made)
    tables = [_table_work(run, name, made) for name, made in zip(works, read)]
    sentences = _run(run, tables, make.sentence_table_part_maker, {}, "sentences")
    return {
        name: Corpus(name, made, table, made.manifest.rows, run.config.mining.part_questions)
        for name, made, table in zip(works, read, sentences)
    }


def _run(run: Run, works: list[Work], maker: Callable, kwargs: dict, label: str, **options: Any) -> list[Made]:
    options.setdefault("actors", run.config.cluster.actors)
    manifests = run_stages(run, works, maker, kwargs, label=label, **options)
    return [Made(work.stage, manifest) for work, manifest in zip(works, manifests)]


def _set_work(run: Run, name: str, source: CorpusSource) -> Work:
    places = [locate(run, file) for file in source.files]
    boundaries = locate(run, source.boundaries) if source.boundaries else None
    paths = [str(fetch(place)) for place in [*places, *([boundaries] if boundaries else [])]]
    for path in paths:
        if not any(Path().glob(path) if not Path(path).is_absolute() else Path("/").glob(path.lstrip("/"))):
            raise InputError(f"corpus {name}: there is no {path}; relative names start at data.root ({run.config.data.root!r})")
    wanted = ("corpus.jsonl*", "queries.jsonl*", f"qrels/{source.split}.tsv*")
    patterns = wanted if source.format == "beir" else ("*",)
    files = [file for path in paths[: len(places)] for file in _files_of(Path(path), patterns)]
    files += [fetch(boundaries)] if boundaries else []
    reading = source.model_dump(mode="json", exclude={"files", "boundaries"}) | {"seed": run.config.data.seed}
    reading["columns"] = {table: source.columns_of(table) for table in CORPUS_COLUMNS.get(source.format, {})}
    with said_if_long(f"corpus {name}: looking whether the files have changed"):
        digests: list[dict[str, Any]] = [{"name": file.name, "digest": file_digest(file)} for file in files]
    if source.format == "squad":  # whose sentences are cut by language, which a folder's name may tell
        digests = [digest | {"language": language_of(str(file))} for digest, file in zip(digests, files)]
    identity = {"version": VERSION, "files": digests, **reading}
    stage = Stage(run.storage, "retrieval_set", identity)
    return Work(stage, [reading | {"files": places, "boundaries": boundaries, "stage": stage.uri}], f"corpus {name}")


def _files_of(path: Path, patterns: tuple[str, ...]) -> list[Path]:
    if path.is_dir():
        return sorted(file for pattern in patterns for file in path.glob(pattern) if file.is_file())
    return sorted(path.parent.glob(path.name))


def _table_work(run: Run, name: str, made: Made) -> Work:
    """Keyed by what the sentences are, so that sets over the same corpus share the table and its indexes."""
    identity = {"version": VERSION, **made.manifest.parts[0]["info"]["digests"]}
    stage = Stage(run.storage, "sentences", identity)
    files = {name: f"{name}-00000.parquet" for name in ("sentences", "passages")}
    spec = {"set": made.stage.uri, **files, "stage": stage.uri}
    return Work(stage, [spec], f"sentences of {name}")


def _tell(run: Run, name: str, made: Made) -> None:
    """Say what was refused, and stop where it is too much."""
    info = made.manifest.parts[0]["info"]
    questions = info.get("questions_read", info["questions"])  # a set that was read before this was counted has the second
    repeated = ", ".join(f"{number:,} {kind}" for kind, number in info["duplicates"].items() if number)
    if repeated:
        say(f"corpus {name}: sentences whose text stands elsewhere, too: {repeated}; none of them is a negative of the other")
    for note, number in info["notes"].items():
        say(f"corpus {name}: {number:,} {note}")
    if info["rejected"]:
        table = read_parquet(run.storage, f"{made.stage.folder}/rejected-00000.parquet")
        _tell_rejected(run, f"corpus {name}", f"rejected/corpus_{name}.parquet", table, made.manifest.rows, questions)
    else:
        run.folder.delete(f"rejected/corpus_{name}.parquet")  # of an earlier command, before the data were mended


def _tell_rejected(run: Run, what: str, file: str, rejected: pa.Table, sentences: int, questions: int = 0) -> None:
    """Put the rejected rows into the run and say how many they are, and stop where it is too many: of all rows, or of the
    questions alone, which are few beside the sentences.
    """
    run.folder.write_bytes(file, encode_table(rejected, "parquet", {}))
    run.rejected[what] = len(rejected)
    show("raydist_rejected_rows", len(rejected), run=run.config.name, set=what)
    reasons = sorted(Counter(rejected["reason"].to_pylist()).items())
    listed, where = ", ".join(f"{number:,} {reason}" for reason, number in reasons), run.folder.path(file)
    say(f"{what}: rejected {len(rejected):,} rows ({listed}); see {where}")
    asked, limit = rejected["what"].to_pylist().count("question"), run.config.data.max_rejected
    shares = {"rows": len(rejected) / (sentences + questions + len(rejected)), "questions": asked / max(1, questions + asked)}
    share, of = max((share, of) for of, share in shares.items())
    if share > limit:
        raise InputError(
            f"{what}: {share:.1%} of the {of} are bad, more than data.max_rejected allows ({limit:.1%}). Look at "
            f"{where}; mend the data, or raise data.max_rejected (to {np.ceil(share * 100) / 100:.2f})"
        )


# --- indexes and what they find --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    """A model that makes vectors: where workers find it, what it is, how it is used."""

    where: dict[str, Any]
    digest: str
    pooling: str
    context: bool  # an answer goes in with its paragraph
    lengths: dict[str, int]  # of questions and answers, in tokens
    prefixes: dict[str, str]  # before questions and answers
    precision: str

    @property
    def identity(self) -> dict[str, Any]:
        said = {"model": self.digest, "pooling": self.pooling, "context": self.context, "lengths": self.lengths}
        said |= {"prefixes": self.prefixes} if any(self.prefixes.values()) else {}
        return said | ({"precision": self.precision} if self.precision != "fp32" else {})

    def settings(self, of: str) -> dict[str, Any]:
        limits = {"max_length": self.lengths[of], "precision": self.precision}
        return {"pooling": self.pooling, "prefix": self.prefixes[of], **limits}


def _encoder(
    run: Run, where: dict[str, Any], folder: Path, used: RetrieverConfig | MiningConfig, pooling: str, context: bool
) -> Encoder:
    from raydist.retrieval.pooling import resolve_prefixes

    given = run.config.retriever
    lengths = {"question": given.max_question_length, "answer": given.max_answer_length}
    prefixes = resolve_prefixes(used.question_prefix, used.answer_prefix, folder)
    return Encoder(where, folder_digest(folder), pooling, context, lengths, prefixes, run.config.index.precision)


def mining_encoder(run: Run) -> Encoder:
    """The encoder that finds candidates in the first round."""
    from raydist.models.loading import model_folder

    given = run.config.mining
    where = {"name": given.encoder, "revision": None}
    return _encoder(run, where, model_folder(given.encoder, towers=True), given, given.pooling, context=False)


def own_encoder(run: Run) -> Encoder:
    """The model that training starts from, untrained."""
    from raydist.models.loading import model_folder

    model, given = run.config.model, run.config.retriever
    where = {"name": model.name, "revision": model.revision}
    folder = model_folder(model.name, model.revision, towers=True)
    return _encoder(run, where, folder, given, given.pooling, given.answer_context == "paragraph")


def trained_encoder(run: Run) -> Encoder:
    """The retriever that a run has trained."""
    given = run.config.retriever
    where = {"storage": run.folder.uri, "folder": "model"}
    return _encoder(run, where, run.folder.local_copy("model"), given, "auto", given.answer_context == "paragraph")


def index_bm25(run: Run, corpus: Corpus) -> Made:
    """A BM25 index of a corpus, in shards whose statistics are those of the whole."""
    from raydist.retrieval.bm25 import estimate_bytes, publish_index, stop_words

    given, rows = run.config.index, corpus.num_sentences
    rules = {"min_chars": given.min_chars, "stop_words": stop_words(given.stop_words), "stemmer": given.stemmer}
    identity = {"version": VERSION, "sentences": corpus.sentences.stage.fingerprint, "rules": rules}
    identity["shard_rows"] = given.shard_rows
    stage = Stage(run.storage, "bm25", identity)
    work = Work(stage, _shards(corpus, stage, given.shard_rows), f"BM25 index of {corpus.name}")
    if stage.manifest() is None and rows > TOLD_ROWS:
        files = corpus.sentences.stage.storage.sizes(f"{corpus.sentences.stage.folder}/table")
        size = estimate_bytes(rows, files["texts_bytes.npy"], files["ids_bytes.npy"], len(work.specs))
        say(f"{work.title}: {rows:,} sentences, about {size / 2**30:.1f} GiB")

    def publish(work: Work, lines: list[dict]) -> list[dict]:
        _publish(work, lambda folder, names: publish_index(folder, names))
        return lines

    return _run(run, [work], make.bm25_shard_part_maker, {"rules": rules}, "index", finish=publish)[0]


def index_dense(run: Run, corpus: Corpus, encoder: Encoder) -> Made:
    """Vectors of all sentences of a corpus."""
    from raydist.retrieval.dense import FAISS_FILE, DenseSettings, estimate_bytes, publish_index
    from raydist.retrieval.encode import ENCODE_ROWS

    given, rows = run.config.index, corpus.num_sentences
    settings = given.dense_settings()
    identity = {"version": VERSION, "sentences": corpus.sentences.stage.fingerprint, "encoder": encoder.identity}
    shard_rows = -(-given.shard_rows // ENCODE_ROWS) * ENCODE_ROWS
    identity |= {"settings": settings, "shard_rows": shard_rows}
    if given.dense != "flat":
        identity["file"] = FAISS_FILE
    stage = Stage(run.storage, "vectors", identity)
    work = Work(stage, _shards(corpus, stage, shard_rows), f"dense index of {corpus.name}")
    if stage.manifest() is None and (rows > TOLD_ROWS or given.dense != "flat"):
        wanted, units = DenseSettings(**settings), encoder_units(encoder)
        wanted.check(min(rows, shard_rows), units)  # now, and not when all is encoded
        if rows > TOLD_ROWS:
            size = estimate_bytes(rows, units, wanted, shards=len(work.specs))
            say(f"dense index of {corpus.name}: {rows:,} sentences, about {size / 2**30:.1f} GiB at {units} units")

    def publish(work: Work, lines: list[dict]) -> list[dict]:
        _publish(work, lambda folder, names: publish_index(folder, names, {"where": encoder.where, **encoder.identity}))
        return lines

    kwargs = {
        "model": encoder.where,
        "encoder": encoder.settings("answer"),
        "context": encoder.context,
        "threads": _threads(run),
        "settings": settings,
    }
    return _run(run, [work], make.dense_shard_part_maker, kwargs, "encode", finish=publish, gpus=_gpus(run))[0]


def encoder_units(encoder: Encoder) -> int:
    """How long its vectors are, without its weights."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(tower_folder(open_model(encoder.where), "answer")).hidden_size


def _shards(corpus: Corpus, stage: Stage, shard_rows: int) -> list[dict]:
    return [
        {
            "sentences": corpus.sentences.stage.uri,
            "first": first,
            "last": min(first + shard_rows, corpus.num_sentences),
            "stage": stage.uri,
            "name": f"shard-{number:05d}",
        }
        for number, first in enumerate(range(0, corpus.num_sentences, shard_rows))
    ]


def _publish(work: Work, publish: Callable[[Path, list[str]], None]) -> None:
    """Put the shards in force: statistics over all of them, then index.json."""
    storage, names = Storage(work.stage.uri), [spec["name"] for spec in work.specs]
    folder = storage.local_copy("")
    (folder / "index.json").unlink(missing_ok=True)  # of an attempt that was cut before the manifest
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    publish(folder, names)
    if not storage.is_local:
        for file in sorted(folder.rglob("*"), key=lambda file: (file.name == "index.json", file)):
            if file.is_file() and before.get(file) != file.stat().st_mtime_ns:
                storage.write_bytes(file.relative_to(folder).as_posix(), file.read_bytes())


def search_bm25(run: Run, corpus: Corpus, index: Made, k: int, within: int = 0) -> Made:
    """The k best sentences for each question by BM25; where the best `within` are wanted, too, one search serves both."""
    formula = run.config.index.formula()
    identity = {"version": VERSION, "index": index.stage.fingerprint, "formula": formula, "k": k}
    if within > k:
        return _cut(run, corpus, "bm25_hits", identity, search_bm25(run, corpus, index, within), k)
    kwargs = {"k": k, "threads": _threads(run), "formula": formula}
    return _over_blocks(run, corpus, "bm25_hits", identity, make.bm25_hits_part_maker, kwargs, {"index": index.stage.uri})


def search_dense(run: Run, corpus: Corpus, index: Made, encoder: Encoder, k: int, within: int = 0) -> Made:
    """The k best sentences for each question by a dense index, as in `search_bm25`."""
    search = run.config.index.dense_search()
    identity = {"version": VERSION, "index": index.stage.fingerprint, "k": k, "search": search}
    if within > k and run.config.index.dense == "flat":  # one that is not exact may find others where it looks deeper
        return _cut(run, corpus, "dense_hits", identity, search_dense(run, corpus, index, encoder, within), k)
    kwargs = {
        "model": encoder.where,
        "encoder": encoder.settings("question"),
        "k": k,
        "threads": _threads(run),
        "search": search,
    }
    same = {"index": index.stage.uri}
    return _over_blocks(run, corpus, "dense_hits", identity, make.dense_hits_part_maker, kwargs, same, gpus=_gpus(run))


def _cut(run: Run, corpus: Corpus, name: str, identity: dict[str, Any], hits: Made, k: int) -> Made:
    """The first k of deeper lists: the very stage that a search for k would make, so it is known by that alone."""
    return _over_blocks(run, corpus, name, identity, make.top_hits_part_maker, {"depth": k}, made_from={"hits": hits})


def _over_blocks(
    run: Run,
    corpus: Corpus,
    name: str,
    identity: dict[str, Any],
    maker: Callable,
    kwargs: dict,
    same: dict[str, Any] | None = None,
    inputs: dict[str, Made] | None = None,
    *,
    kind: str = "parquet",
    blocks: list[int] | None = None,
    gpus: float = 0,
    extra: dict[str, Any] | None = None,
    made_from: dict[str, Made] | None = None,
) -> Made:
    """A stage with one part for each block of questions; `inputs` are stages of the same blocks, taken part by part.
    `made_from` are such stages, too, but none that it is known by: without them the same would be made in another way.
    """
    inputs = inputs or {}
    identity = identity | {"set": corpus.made.stage.fingerprint, "block": corpus.block_questions}
    identity |= {of: made.stage.fingerprint for of, made in inputs.items()}
    specs = []
    for number, block in enumerate(corpus.blocks()):
        taken = {
            of: {"folder": made.stage.uri, "name": made.manifest.parts[number]["name"]}
            for of, made in (inputs | (made_from or {})).items()
        }
        specs.append(block | (same or {}) | taken | (extra or {}))
    stage = Stage(run.storage, name, identity, kind=kind)
    work = Work(stage, specs, f"{name.replace('_', ' ')} of {corpus.name}")
    return _run(run, [work], maker, kwargs, name.replace("_", " "), gpus=gpus)[0]


def _threads(run: Run) -> int:
    cluster = run.config.cluster
    return cluster.threads_per_worker or max(1, (os.cpu_count() or 1) // cluster.actors)


def _gpus(run: Run) -> float:
    return run.config.cluster.gpus_per_worker


# --- cross-encoder ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What both retrievers found for the training questions."""

    bm25: Made
    dense: Made
    vectors: Made  # the index that `dense` was found in


def find(run: Run, corpus: Corpus, encoder: Encoder, depth: int) -> Found:
    """BM25 and dense results of the training questions. Negatives and candidates are drawn from one search, to the depth of
    the deeper; each is known by its own, so that another number of candidates leaves the cross-encoder as it is.
    """
    within = max(NEGATIVES_DEPTH, run.config.mining.candidates)
    bm25 = search_bm25(run, corpus, index_bm25(run, corpus), depth, within)
    vectors = index_dense(run, corpus, encoder)
    return Found(bm25, search_dense(run, corpus, vectors, encoder, depth, within), vectors)


NEGATIVES_DEPTH = 10  # docs/methods.md 5.2: negatives are drawn from so many of each source


def label_pairs(run: Run, corpus: Corpus, found: Found) -> Made:
    """Gold pairs and 1:1:1 negatives."""
    mining = run.config.mining
    settings = {
        "seed": run.config.seed,
        "negatives_per_source": mining.negatives_per_source,
        "dev_share": mining.dev_share,
    }
    inputs = {"bm25": found.bm25, "dense": found.dense}
    identity: dict[str, Any] = {"version": VERSION, **settings}
    return _over_blocks(
        run, corpus, "labelled_pairs", identity, make.labelled_part_maker, {"settings": settings}, inputs=inputs
    )


def train_cross_encoder(run: Run, corpus: Corpus, encoder: Encoder, *, fresh: bool = False) -> Run:
    """Train the cross-encoder on gold pairs and 1:1:1 negatives, in a run of its own; judge and calibrate it on others. One
    that is trained already is only judged.
    """
    given = run.config.cross_encoder
    found = find(run, corpus, encoder, NEGATIVES_DEPTH)
    labelled = label_pairs(run, corpus, found)
    held_out = sum(np.count_nonzero(table["is_dev"].to_numpy()) for table in _tables(labelled, ["is_dev"]))
    for_training = labelled.manifest.rows - held_out
    if not held_out or not (for_training or given.trained):
        raise InputError(
            f"{corpus.num_questions} questions leave {for_training} pairs for training and {held_out} held out, by which a "
            "cross-encoder is judged: give more questions, or set mining.dev_share"
        )
    lengths = {"max_question_length": given.max_question_length, "max_length": given.max_length}
    model = {"name": given.model.name, "revision": given.model.revision}
    context = _cross_context(run)
    changes = {
        "name": _cross_encoder_name(run),
        "task": "cross_encoder",
        "model": given.model.model_dump(mode="json"),
        "train": given.train.model_dump(mode="json"),
        "optim": given.optim.model_dump(mode="json", exclude_none=True),
    }
    beside = Run(override(run.config, changes), run.cluster)
    beside.begin()
    if given.trained:
        _take_trained(beside)
        _judge(run, beside, corpus, labelled, encoder, found.vectors)
        return beside
    sets = {}
    for name, dev in (("train", False), ("dev", True)):
        identity = {"version": VERSION, "tokenizer": tokenizer_digest(beside.model_folder), "lengths": lengths, "dev": dev}
        rows = _over_blocks(
            beside,
            corpus,
            "cross_rows",
            identity | context,
            make.cross_rows_part_maker,
            {"model": model, "lengths": lengths, **context},
            inputs={"labelled": labelled},
            kind="arrow",
            extra={"dev": dev},
        )
        sets[name] = _rows(rows)
    train_on(beside, sets, fresh=fresh)
    _judge(run, beside, corpus, labelled, encoder, found.vectors)
    return beside


def _take_trained(beside: Run) -> None:
    """Put a cross-encoder that needs no training where one that was trained would be."""
    if beside.folder.exists("training.json"):
        raise InputError(
            f"{beside.folder.path()} holds a cross-encoder that was trained there, and cross_encoder.trained would put another "
            "in its place: give this run another name (name=...)"
        )
    folder = beside.model_folder
    if not has_model(beside.folder) or folder_digest(beside.folder.local_copy("model")) != folder_digest(folder):
        beside.folder.upload(folder, "model")
    say(f"cross-encoder: {beside.config.model.name}, as it is")


def _cross_context(run: Run) -> dict[str, bool]:
    """Whether the cross-encoder reads paragraphs: nothing where it does not, so that what was made before is still known."""
    return {"context": True} if run.config.cross_encoder.answer_context == "paragraph" else {}


def _cross_encoder_name(run: Run) -> str:
    """A run beside the main one; trials of a sweep share theirs."""
    return run.base or f"{run.config.name}_cross_encoder"


def _rows(made: Made) -> dict[str, Any]:
    """Training rows as workers take them."""
    parts = made.manifest.parts
    return {
        "rows_folder": made.stage.uri,
        "parts": [part["name"] for part in parts],
        "rows": made.manifest.rows,
        "identity": dict(made.stage.identity),
    }


def _judge(run: Run, beside: Run, corpus: Corpus, labelled: Made, encoder: Encoder, vectors: Made) -> None:
    """cross_encoder/metrics.json and reliability.json of the main run: scores of held-out pairs, beside them what the encoder's
    vectors say of the same pairs, and both calibrations; and which sources the negatives of all pairs came from.
    """
    from raydist.retrieval import cross_encoder as judge
    from raydist.retrieval.negatives import count_sources, fallbacks

    sources = count_sources(_tables(labelled, ["asked", "source"]))
    if told_fallbacks := fallbacks(sources):
        say(f"cross-encoder: {told_fallbacks}")
    scored = score(run, beside, corpus, labelled, "held_out_scores", plain=True)
    table = pa.concat_tables(_tables(scored, ["label", "logit"]))
    labels, logits = table["label"].to_numpy().astype(int), table["logit"].to_numpy().astype(float)
    temperature, platt = judge.fit_temperature(labels, logits), judge.fit_platt(labels, logits)
    told: dict[str, Any] = {}
    for name, fitted in (("before", judge.Platt(1.0, 0.0)), ("after", judge.Platt(temperature, 0.0)), ("platt", platt)):
        bins = judge.reliability_bins(labels, judge.sigmoid(logits, *fitted))
        error = judge.expected_calibration_error(bins)
        told[name] = {**fitted._asdict(), "expected_calibration_error": error, "bins": [bin._asdict() for bin in bins]}
    cosines = _over_blocks(
        run,
        corpus,
        "held_out_cosines",
        {"version": VERSION, "index": vectors.stage.fingerprint},
        make.cosines_part_maker,
        {"model": encoder.where, "encoder": encoder.settings("question"), "threads": _threads(run)},
        {"index": vectors.stage.uri},
        {"pairs": labelled},
        gpus=_gpus(run),
    )
    told_apart = pa.concat_tables(_tables(cosines))
    dense = judge.average_precision(told_apart["label"].to_numpy(), told_apart["cosine"].to_numpy())
    scores = judge.classification_scores(labels, logits) | {"dense_average_precision": dense, "pairs": len(labels)}
    scores |= {f"negatives.{asked}.{source}": number for (asked, source), number in sources.items()}
    run.folder.write_json("cross_encoder/metrics.json", scores)
    run.folder.write_json("cross_encoder/reliability.json", told | {"temperature": temperature})
    run.add_metrics({f"cross_encoder.{key}": value for key, value in scores.items()})
    say(
        f"cross-encoder on {len(labels):,} held-out pairs: average precision {100 * scores['average_precision']:.1f}, F1 "
        f"{100 * scores['f1']:.1f}, accuracy {100 * scores['accuracy']:.1f} (majority {100 * scores['majority']:.1f})"
    )
    if scores["average_precision"] <= dense:
        say(
            f"the cross-encoder knows no more than mining.encoder, {run.config.mining.encoder}, whose products of two vectors "
            f"have an average precision of {100 * dense:.1f} on the same pairs. Silver pairs are not likely to help; train it "
            "longer, on more questions, or from a larger model (cross_encoder.train, corpus.train, cross_encoder.model)"
        )


def _tables(made: Made, columns: list[str] | None = None) -> Iterator[pa.Table]:
    for part in made.manifest.parts:
        yield read_parquet(made.stage.storage, f"{made.stage.folder}/{part['name']}", columns)


def score(run: Run, cross_encoder: Run, corpus: Corpus, pairs: Made | None, name: str, *, plain: bool = False) -> Made:
    """The cross-encoder's logits of some pairs (None: gold), block by block; each block's file appears when it is whole."""
    given = run.config.cross_encoder
    digest = folder_digest(cross_encoder.folder.local_copy("model"))
    settings = {
        "max_question_length": given.max_question_length,
        "max_length": given.max_length,
        "token_budget": given.batch_tokens,
        "precision": given.precision,
    }
    kwargs = {
        "model": {"storage": cross_encoder.folder.uri, "folder": "model"},
        "digest": digest,
        "threads": _threads(run),
        "settings": settings,
        **_cross_context(run),
    }
    identity = {"version": VERSION, "model": digest, **settings, **_cross_context(run)}
    return _over_blocks(
        run,
        corpus,
        name,
        identity,
        make.scores_part_maker,
        kwargs,
        inputs={"pairs": pairs} if pairs else {},
        gpus=_gpus(run),
        extra={"plain": plain},
    )


# --- silver pairs ----------------------------------------------------------------------------------------------------


def score_candidates(run: Run, corpus: Corpus, encoder: Encoder, cross_encoder: Run) -> Made:
    """Candidates -> scores. These are kept: threshold, power and calibration change without a model call."""
    mining = run.config.mining
    found = find(run, corpus, encoder, mining.candidates)
    settings = {"top": mining.candidates, "same_doc": mining.same_doc, "seed": run.config.seed}
    candidates = _over_blocks(
        run,
        corpus,
        "candidates",
        {"version": VERSION, **settings},
        make.candidates_part_maker,
        {"settings": settings},
        inputs={"bm25": found.bm25, "dense": found.dense},
    )
    return score(run, cross_encoder, corpus, candidates, "scores")


def mine(run: Run, corpus: Corpus, encoder: Encoder, cross_encoder: Run, number: int = 1) -> Made:
    """Candidates -> scores -> silver pairs; `number` is that of the round."""
    mining = run.config.mining
    scores = score_candidates(run, corpus, encoder, cross_encoder)
    choose = {"threshold": mining.threshold, "power": mining.power, "weighting": mining.weighting, "temperature": None}
    if mining.calibrate != "none":
        fitted = run.folder.read_json("cross_encoder/reliability.json")
        choose["temperature"] = fitted["temperature"]
        if mining.calibrate == "platt":
            choose |= {name: fitted["platt"][name] for name in ("temperature", "shift")}
    silver = _over_blocks(
        run,
        corpus,
        "silver",
        {"version": SILVER_VERSION, **choose},
        make.silver_part_maker,
        {"settings": choose},
        inputs={"scores": scores},
    )
    _tell_yield(run, corpus, silver, number)
    return silver


def _tell_yield(run: Run, corpus: Corpus, silver: Made, number: int) -> None:
    """mining/: yield.json, examples.parquet, and silver.parquet with every scored pair of the round. metrics.json keeps the
    yield of every round where there are several, and under the plain names that of the last.
    """
    from raydist.corpus.sentence_table import SentenceTable
    from raydist.retrieval.silver import example_table, write_selection

    mining = run.config.mining
    sentences = SentenceTable(Storage(corpus.sentences.stage.uri).local_copy("") / "table")
    settings: dict[str, Any] = {"sentences": sentences, "threshold": mining.threshold, "seed": run.config.seed}
    with run.folder.writing("mining/silver.parquet") as file:
        told = write_selection(file, _tables(silver), corpus.num_gold, **settings)
    examples = example_table(told.examples, corpus.read("questions"), corpus.read("gold"), sentences)
    run.folder.write_json("mining/yield.json", told.curve)
    run.folder.write_bytes("mining/examples.parquet", encode_table(examples, "parquet", {}))
    share = told.kept / max(1, corpus.num_gold)
    found = {"candidates": silver.manifest.rows, "silver": told.kept, "yield": share}
    names = ["mining.", *([f"mining.round{number}."] if mining.rounds > 1 else [])]
    run.add_metrics(
        {name + key: value for name in names for key, value in found.items()},
        instead_of="mining." if number == 1 else names[-1],
    )
    say(
        f"mined: {told.kept:,} silver pairs of {silver.manifest.rows:,} candidates (p >= {mining.threshold}), {share:.1%} of "
        f"{corpus.num_gold:,} gold pairs; all of them in {run.folder.path('mining')}/silver.parquet"
    )


# --- dual encoder ----------------------------------------------------------------------------------------------------


def train_retriever(run: Run, corpus: Corpus, cross_encoder: Run, silver: Made, weighting: str, *, fresh: bool = False) -> None:
    """Train the run's dual encoder on gold pairs, with or without silver ones, weighted or not."""
    given, mining = run.config.retriever, run.config.mining
    lengths = {"max_question_length": given.max_question_length, "max_answer_length": given.max_answer_length}
    negatives = {"hard_negatives": mining.hard_negatives, "negative_p": mining.negative_p}
    kwargs = {
        "model": {"name": run.config.model.name, "revision": run.config.model.revision},
        "context": given.answer_context == "paragraph",
        "lengths": lengths,
        "weighting": weighting,
        "negatives": negatives,
        "prefixes": own_encoder(run).prefixes,
    }
    tokenizers = {tokenizer_digest(tower_folder(run.model_folder, tower)) for tower in TOWERS}
    if len(tokenizers) > 1:
        raise InputError(f"{run.model_folder}: its towers have two tokenizers, and training takes one: save the same in both")
    identity = {"version": PAIR_ROWS_VERSION, "tokenizer": tokenizers.pop(), **kwargs}
    if is_folder(run.config.model.name):  # whose path is another one in every job: the tokenizer is all that is taken from it
        del identity["model"]
    inputs = {} if weighting == "gold" and not mining.hard_negatives else {"silver": silver}
    if given.loss != "softmax":
        inputs["gold_scores"] = score(run, cross_encoder, corpus, None, "gold_scores", plain=True)
    kept = [] if weighting == "gold" else [{"folder": silver.stage.uri, "name": part["name"]} for part in silver.manifest.parts]
    kwargs["everything"] = {name: corpus.table(name) for name in ("questions", "gold")} | {"silver": kept}
    rows = _over_blocks(run, corpus, "pair_rows", identity, make.pair_rows_part_maker, kwargs, inputs=inputs, kind="arrow")
    counts = {key: sum(part["info"][key] for part in rows.manifest.parts) for key in ("gold", "silver")}
    say(f"train: run {run.config.name}, {counts['gold']:,} gold and {counts['silver']:,} silver pairs")
    train_on(run, {"train": _rows(rows)}, fresh=fresh)


def _beside(run: Run, ending: str, **changes: Any) -> Run:
    other = Run(override(run.config, {"name": f"{run.config.name}_{ending}", **changes}), run.cluster)
    other.begin()
    return other


def run_retrieval(run: Run, *, fresh: bool = False) -> None:
    """Everything: all corpora first, so that a bad file stops it before any model is loaded."""
    corpora = open_corpora(run)
    if "train" not in corpora:
        raise InputError("there is nothing to train on: set corpus.train")
    cross_encoder, variants = build_retriever(run, corpora["train"], fresh=fresh)
    evaluate_retrieval(run, cross_encoder, variants, corpora)
    report(run)


def build_retriever(run: Run, corpus: Corpus, *, fresh: bool = False) -> tuple[Run, dict[str, Run]]:
    """Cross-encoder, mining and dual encoders; the runs of these by method. All that are compared learn from the same pairs."""
    _ = run.model_folder  # a wrong name is told before anything is trained
    if fresh:
        run.folder.delete("metrics.json")
    cross_encoder, silver, rounds = mine_rounds(run, corpus, fresh=fresh)
    variants: dict[str, Run] = {}
    for name in run.config.retriever.variants:
        variants[name] = _beside(run, name)
        train_retriever(variants[name], corpus, cross_encoder, silver, "gold" if name == "gold" else "none", fresh=fresh)
    train_retriever(run, corpus, cross_encoder, silver, "silver", fresh=fresh)
    return cross_encoder, variants | rounds | {"gold_silver_weighted": run}


def mine_rounds(run: Run, corpus: Corpus, *, fresh: bool = False) -> tuple[Run, Made, dict[str, Run]]:
    """The cross-encoder, the silver pairs of the last round, and the retrievers that each round before it has trained."""
    encoder = mining_encoder(run)
    cross_encoder = train_cross_encoder(run, corpus, encoder, fresh=fresh)
    silver = mine(run, corpus, encoder, cross_encoder)
    rounds: dict[str, Run] = {}
    for number, name in enumerate(_round_names(run), 1):
        rounds[name] = _beside(run, name, task="retriever")
        train_retriever(rounds[name], corpus, cross_encoder, silver, "silver", fresh=fresh)
        say(f"mining, round {number + 1}: the retriever of round {number} finds candidates")
        silver = mine(run, corpus, trained_encoder(rounds[name]), cross_encoder, number + 1)
    return cross_encoder, silver, rounds


def _round_names(run: Run) -> list[str]:
    """Of the rounds that train a retriever for the next one."""
    return [f"round{number}" for number in range(1, run.config.mining.rounds)]


# --- trials of a sweep -----------------------------------------------------------------------------------------------

OF_A_TRIAL = (  # what changes nothing of what trials share
    *("name", "storage", "cluster.", "sweep", "train.", "optim.", "objectives.", "predict.", "evaluate.", "track."),
    *("mining.threshold", "mining.power", "mining.weighting", "mining.calibrate", "mining.rounds"),
    *("mining.hard_negatives", "mining.negative_p"),
    *("retriever.towers", "retriever.loss", "retriever.objective", "retriever.normalise", "retriever.scale"),
    "retriever.temperature",
    *("retriever.mask_known_positives", "retriever.bucket_by_length", "retriever.chunk_rows", "retriever.cached"),
    *("retriever.variants", "retriever.rerank"),
)
NOT_OF_THE_CROSS_ENCODER = ("corpus.test", "model.", "mining.candidates", "mining.same_doc", "retriever.search_depth")


def shared_settings(config: Config, *, cross_encoder: bool = False) -> dict[str, Any]:
    """The settings that decide what trials share: all stages up to the scores, or the cross-encoder alone."""
    left_out = OF_A_TRIAL + (NOT_OF_THE_CROSS_ENCODER if cross_encoder else ())
    return {key: value for key, value in flatten(config).items() if not key.startswith(left_out)}


def prepare_trials(run: Run) -> dict[str, str]:
    """Make all that does not depend on a trial's own settings; the fingerprints of its corpora."""
    corpora = open_corpora(run)
    corpus = corpora["train"]
    encoder = mining_encoder(run)
    score_candidates(run, corpus, encoder, train_cross_encoder(run, corpus, encoder))
    for name in run.config.corpus.test:
        _untrained_lists(run, corpora[name])
    return fingerprints(corpora)


def fingerprints(corpora: dict[str, Corpus]) -> dict[str, str]:
    return {name: corpus.made.stage.fingerprint for name, corpus in corpora.items()}


# --- evaluation ------------------------------------------------------------------------------------------------------


def evaluate_retrieval(run: Run, cross_encoder: Run | None, variants: dict[str, Run], corpora: dict[str, Corpus]) -> None:
    """Every method on every test set: metrics.json, ranked lists in TREC format, a table on the terminal."""
    given = run.config.retriever
    depth = given.search_depth
    for name in run.config.corpus.test:
        corpus = corpora[name]
        lists = _untrained_lists(run, corpus)
        for method, encoder in {method: trained_encoder(other) for method, other in variants.items()}.items():
            lists[method] = search_dense(run, corpus, index_dense(run, corpus, encoder), encoder, depth)
        ranked: dict[str, Iterator[Ranked]] = {method: map(_ranked, _tables(made)) for method, made in lists.items()}
        if cross_encoder and given.rerank and "gold_silver_weighted" in lists:
            ranked["reranked"] = _rerank(run, cross_encoder, corpus, lists["gold_silver_weighted"], given.rerank)
        _score_lists(run, corpus, ranked)
    track.tell_end(run.config, run.folder)


def _untrained_lists(run: Run, corpus: Corpus) -> dict[str, Made]:
    """What BM25 and the encoder find before training."""
    depth, encoder = run.config.retriever.search_depth, own_encoder(run)
    bm25 = search_bm25(run, corpus, index_bm25(run, corpus), depth)
    return {"bm25": bm25, "untrained": search_dense(run, corpus, index_dense(run, corpus, encoder), encoder, depth)}


TESTED = RANKED_SCHEMA.names[2:]  # metrics with an interval, and compared question by question
Ranked = dict[str, list[tuple[str, float]]]  # (sentence, score) by question, of one block


def _ranked(table: pa.Table, by: str = "score") -> Ranked:
    lists: Ranked = {}
    for question, sentence, value in zip(*(table[name].to_pylist() for name in ("question_id", "sentence_id", by))):
        lists.setdefault(question, []).append((sentence, value))
    return lists


def _rerank(run: Run, cross_encoder: Run, corpus: Corpus, hits: Made, depth: int) -> Iterator[Ranked]:
    """The first `depth` of each list in the cross-encoder's order, then the rest in theirs; block by block."""
    top = _over_blocks(
        run, corpus, "top_hits", {"version": VERSION, "depth": depth}, make.top_hits_part_maker, {"depth": depth},
        inputs={"hits": hits},
    )  # fmt: skip
    scored = score(run, cross_encoder, corpus, top, "rerank_scores", plain=True)

    def joined(first: Ranked, lists: Ranked) -> Ranked:
        for question, rest in lists.items():
            lowest = min((logit for _, logit in first.get(question, [])), default=0.0)
            later = [(sentence, lowest - place) for place, (sentence, _) in enumerate(rest[depth:], 1)]
            first[question] = first.get(question, []) + later
        return first

    return (joined(_ranked(first, "logit"), _ranked(lists)) for first, lists in zip(_tables(scored), _tables(hits)))


def _score_lists(run: Run, corpus: Corpus, ranked: dict[str, Iterator[Ranked]]) -> None:
    """One method after the other, one block of questions at a time; what stays is a value for each question."""
    from raydist.retrieval.metrics import gold_of, join_scores, score_run, trec_gold, trec_run
    from raydist.statistics import bootstrap_interval

    ties, samples = run.config.evaluate.ties, run.config.evaluate.bootstrap
    tables = [make.read_gold(block, make.read_questions(block)) for block in corpus.blocks()]

    def gold_blocks() -> Iterator[dict[str, dict[str, int]]]:
        for table in tables:
            yield gold_of(*(table[name].to_pylist() for name in ("question_id", "sentence_id", "relevance")))

    found: dict[str, Any] = {}
    values: dict[str, pa.Table] = {}
    rows = []
    for method, blocks in ranked.items():
        with run.folder.writing(f"ranked/{corpus.name}.{method}.trec") as file:
            parts = []
            for lists, gold in zip(blocks, gold_blocks(), strict=True):
                parts.append(score_run(lists, gold, ties=ties))
                file.write(trec_run(lists, ties=ties, gold=gold).encode())
        scores = join_scores(parts)
        means = scores.means()
        for metric, value in means.items():
            key = f"retrieval.{corpus.name}.{method}.{metric}"
            found[key] = round(value, 6)
            if samples and metric in TESTED:
                interval = bootstrap_interval(scores.values[metric], samples=samples)
                found |= {f"{key}.low": round(interval.low, 6), f"{key}.high": round(interval.high, 6)}
        columns = {"question_id": scores.questions, "method": [method] * len(scores.questions)}
        values[method] = pa.table(columns | {metric: scores.values[metric] for metric in TESTED}).cast(RANKED_SCHEMA)
        rows.append((method, *(f"{100 * means[metric]:.1f}" for metric in ("P@1", "P@5", "P@10", "MRR@100"))))
    with run.folder.writing(f"ranked/{corpus.name}.qrels") as file:
        for gold in gold_blocks():
            file.write(trec_gold(gold).encode())
    run.folder.write_bytes(f"ranked/{corpus.name}.parquet", encode_table(pa.concat_tables(values.values()), "parquet", {}))
    if samples:
        found |= _differences(values, f"retrieval.{corpus.name}", samples)
    run.add_metrics(found, instead_of=f"retrieval.{corpus.name}.")
    counts = f"{corpus.num_questions:,} questions, {corpus.num_sentences:,} sentences"
    head = (f"{corpus.name}: {counts}", "P@1", "P@5", "P@10", "MRR@100")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
    for row in [head, *rows]:
        say("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))


def _differences(values: dict[str, pa.Table], name: str, samples: int) -> dict[str, float]:
    """How far each method is above gold pairs alone, and weights above none: paired over questions, with interval and p."""
    from raydist.statistics import paired_bootstrap

    pairs = [(method, "gold") for method in values if method != "gold"] + [("gold_silver_weighted", "gold_silver")]
    found: dict[str, float] = {}
    for method, other in pairs:
        if method not in values or other not in values:
            continue
        for metric in TESTED:
            first, second = (
                dict(zip(values[of]["question_id"].to_pylist(), values[of][metric].to_pylist())) for of in (other, method)
            )
            test = paired_bootstrap(first, second, samples=samples)
            key = f"{name}.{method}.{metric}.minus_{other}"
            found |= {key: round(test.difference, 6), f"{key}.p": round(test.p_value, 6)}
            found |= {f"{key}.low": round(test.low, 6), f"{key}.high": round(test.high, 6)}
    return found


# --- single commands -------------------------------------------------------------------------------------------------


def index(run: Run) -> Path:
    """An index of the training corpus (else of the first test set) in the run's folder, with the texts, for searching."""
    from raydist.retrieval.searcher import publish

    if not run.folder.is_local:
        raise InputError(f"an index is written to a disk, and storage is {run.config.storage}: set storage to a folder")
    name = "train" if run.config.corpus.train else next(iter(run.config.corpus.test), "train")
    corpus = open_corpora(run, [name], with_questions=False)[name]
    if run.config.index.kind == "bm25":
        made = index_bm25(run, corpus)
    else:
        trained = run.config.task == "retriever" and has_model(run.folder)
        made = index_dense(run, corpus, trained_encoder(run) if trained else own_encoder(run))
    target = Path(run.folder.path("index"))
    table = Storage(corpus.sentences.stage.uri).local_copy("") / "table"
    given = run.config.index
    search = {"formula": given.formula()} if given.kind == "bm25" else {"search": given.dense_search()}
    publish(target, Storage(made.stage.uri).local_copy(""), table, search)
    source = run.config.corpus.train or run.config.corpus.test[name]
    run.folder.write_json("index/corpus.json", {"format": source.format, "columns": source.columns_of("corpus")})
    say(f"{given.kind} index of {corpus.num_sentences:,} sentences")
    return target


def add_to_index(run: Run, files: list[Path]) -> int:
    """Add documents to the run's index, read as index/corpus.json says that its own were."""
    from raydist.corpus.formats import open_additions
    from raydist.retrieval.searcher import add_sentences

    if not run.folder.exists("index/corpus.json"):
        raise InputError(
            f"{run.folder.path('index')} holds no index to add to; make one with `raydist index CONFIG`, without --add"
        )
    found = open_additions(files, **run.folder.read_json("index/corpus.json")).whole()
    if found.rejected:
        table = rejected_table(found.rejected)
        _tell_rejected(run, ", ".join(map(str, files)), "rejected/added.parquet", table, len(found.sentences))
    return add_sentences(Path(run.folder.path("index")), found.sentences, [found.passages])


def mine_only(run: Run, *, fresh: bool = False) -> Path:
    """Candidates, scores and silver pairs of the training corpus, in as many rounds as a whole run has. What this needs (a
    cross-encoder, the retrievers of earlier rounds) is trained where there is none.
    """
    mine_rounds(run, open_corpora(run, ["train"])["train"], fresh=fresh)
    return Path(run.folder.path("mining", "silver.parquet"))


def train_task(run: Run, *, fresh: bool = False) -> None:
    """`raydist train` for task cross_encoder or retriever: what comes before it is made where it is missing."""
    corpus = open_corpora(run, ["train"])["train"]
    if run.config.task == "retriever":
        build_retriever(run, corpus, fresh=fresh)
        return
    encoder = mining_encoder(run)
    train_cross_encoder(run, corpus, encoder, fresh=fresh)


def evaluate_only(run: Run) -> None:
    """Scores of the test sets by what the run has trained so far."""
    names = list(run.config.corpus.test)
    if not names:
        raise InputError("there is nothing to evaluate on: set corpus.test")
    corpora = open_corpora(run, names)
    beside = ("gold", "gold_silver", *_round_names(run))
    runs = {name: Run(override(run.config, {"name": f"{run.config.name}_{name}"}), run.cluster) for name in beside}
    variants = {name: other for name, other in runs.items() if has_model(other.folder)}
    if has_model(run.folder):
        variants["gold_silver_weighted"] = run
    cross_encoder = Run(override(run.config, {"name": _cross_encoder_name(run)}), run.cluster)
    evaluate_retrieval(run, cross_encoder if has_model(cross_encoder.folder) else None, variants, corpora)
