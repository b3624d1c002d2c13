"""The commands' work, stage by stage: examples -> windows -> training -> predictions -> scores -> report.

Each function brings one thing about and needs what the one before it left; a thing that is there already is left alone.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from raydist.cluster.connect import Cluster
from raydist.cluster.stages import Work, run_parts
from raydist.cluster.watch import show
from raydist.config import Config, SourceConfig, flatten, override, to_yaml
from raydist.errors import InputError
from raydist.files.stage import Manifest, Stage, describe_part, encode_table
from raydist.files.storage import Storage, differences, fetch, file_digest, fingerprint, folder_digest, has_model, read_parquet
from raydist.models.loading import is_folder
from raydist.records import REJECTED_SCHEMA, ReadCounts
from raydist.sweep.plan import Ledger, is_finished
from raydist.terminal import Progress, duration, said_if_long, say
from raydist.training import trackers as track

EXAMPLES_VERSION = 5  # raise when a reader's output changes: older stages are then not taken for current ones
WINDOWS_VERSION = 1
PREDICTIONS_VERSION = 2
# keys of `retriever` that change the weights, and not only the rows
RETRIEVER_LOSS = (
    "pooling",
    "towers",
    "loss",
    "objective",
    "normalise",
    "scale",
    "temperature",
    "mask_known_positives",
    "bucket_by_length",
)
HUB_ROWS = 50_000  # of a `datasets` set in one part
# folders of a run, which hold no runs
RUN_FOLDERS = {"checkpoints", "best", "model", "tensorboard", "wandb", "predictions", "evaluation", "rejected"}


@dataclass(frozen=True)
class ReadySet:
    """A data set, read and cut into windows."""

    examples: Made
    where: dict  # windows and examples, as workers take it


@dataclass
class Run:
    """A run's folder, its config, and which stages it used."""

    config: Config
    cluster: Cluster
    stages: dict[str, dict] = field(default_factory=dict)
    prepared: dict[str, ReadySet] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)  # titles of stages that this command has used
    rejected: dict[str, int] = field(default_factory=dict)  # rows of each set, to be told again at the end
    base: str | None = None  # the name of its base reader's run (two_stage.py), where trials share one

    def __post_init__(self) -> None:
        """Folders of models and a tracker's database as full paths: workers start elsewhere."""
        flat = flatten(self.config)
        names = {key: flat.get(key) for key in ("model.name", "cross_encoder.model.name", "mining.encoder", "predict.model")}
        local = {key: str(Path(name).expanduser().absolute()) for key, name in names.items() if name and is_folder(name)}
        if uri := self.config.track.mlflow:
            local["track.mlflow"] = track.full_uri(uri)
        changes = {key: path for key, path in local.items() if path != flat[key]}
        if changes:
            self.config = override(self.config, changes)

    @cached_property
    def storage(self) -> Storage:
        return Storage(self.config.storage)

    @cached_property
    def folder(self) -> Storage:
        return self.storage.at(self.config.name)

    @cached_property
    def model_folder(self) -> Path:
        from raydist.models.loading import model_folder

        may_have_two = self.config.task == "retriever" and self.config.retriever.towers != "shared"
        return model_folder(self.config.model.name, self.config.model.revision, towers=may_have_two)

    def begin(self) -> None:
        """Write the resolved config, unless a trained run has its own; remember the stages that earlier commands used."""
        track.check_installed(self.config.track)
        trained = self.folder.exists("training.json")
        if self.config.evaluate.predictions and self.config.task == "reader" and (trained or self.folder.sizes("predictions")):
            raise InputError(
                f"run {self.config.name!r} in {self.folder.path()} has answers of its own, and evaluate.predictions would put "
                f"another tool's scores in place of theirs: give those a run of their own (name=...)"
            )
        if not trained:
            self.save_config()
        if self.folder.exists("stages.json"):
            self.stages = self.folder.read_json("stages.json")

    def save_config(self) -> None:
        self.folder.write_bytes("config.yaml", to_yaml(self.config).encode())

    def used(self, title: str, stage: Stage, manifest: Manifest, reused: bool, parts: int = 0) -> None:
        """Note a stage (`parts`: of how many, while it is made). One title may stand for several (of an encoder each, say);
        those of an earlier command give way.
        """
        names = [title, *(f"{title} ({number})" for number in range(2, 100))]
        mine = [name for name in names if name in self.touched and self.stages[name]["folder"] == stage.folder]
        title = mine[0] if mine else next(name for name in names if name not in self.touched)
        self.touched.add(title)
        self.stages[title] = {"folder": stage.folder, "rows": manifest.rows, "seconds": manifest.seconds, "reused": reused}
        self.stages[title] |= {"parts": parts} if parts else {}
        self.folder.write_json("stages.json", self.stages)

    def tell_rejected(self) -> None:
        """At the end of a command: how much of its input was left out."""
        if self.rejected:
            listed = ", ".join(f"{number:,} of {name}" for name, number in self.rejected.items())
            say(f"rejected rows: {listed}; see {self.folder.path('rejected')}")

    def add_metrics(self, values: dict[str, Any], instead_of: str | None = None) -> None:
        """Final numbers, added to metrics.json in place of those that begin alike (by default, with the same first word)."""
        known = self.folder.read_json("metrics.json") if self.folder.exists("metrics.json") else {}
        prefixes = (instead_of,) if instead_of else tuple({key.split(".")[0] + "." for key in values})
        kept = {key: value for key, value in known.items() if not key.startswith(prefixes)}
        self.folder.write_json("metrics.json", dict(sorted((kept | values).items())))


def run_stages(run: Run, works: list[Work], maker: Callable, kwargs: dict, **options: Any) -> list[Manifest]:
    """`run_parts`, with a note in the run of which stages it used. The same stage asked for twice is made once."""
    unique = list({work.stage.fingerprint: work for work in works}.values())
    before = {work.stage.fingerprint: work.stage.manifest() is not None for work in unique}
    for work in works:  # before it is made, so that `raydist clean` leaves it alone
        reused, nothing = before[work.stage.fingerprint], Manifest(work.stage.name, work.stage.fingerprint, {})
        run.used(work.title, work.stage, nothing, reused, parts=len(work.specs))
    made = run_parts(run.cluster, unique, maker, kwargs, run=run.config.name, **options)
    manifests = {manifest.fingerprint: manifest for manifest in made}
    for work in works:
        run.used(work.title, work.stage, manifests[work.stage.fingerprint], before[work.stage.fingerprint])
    return [manifests[work.stage.fingerprint] for work in works]


# --- examples --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A stage that is whole."""

    stage: Stage
    manifest: Manifest


def make_sample(run: Run) -> str:
    """The sample world of this config in the run's storage, made on first use; its URI."""
    from raydist.sample.write import VERSION, write_sample

    sample = run.config.data.sample
    stage = Stage(run.storage, "sample", {"version": VERSION, "size": sample.size, "seed": sample.seed})
    run.used("sample world", stage, Manifest("sample", stage.fingerprint, {}), run.storage.exists(f"{stage.folder}/world.json"))
    if not run.storage.exists(f"{stage.folder}/world.json"):
        say(f"sample world: writing {stage.folder}")
        with Progress("sample world", 0, "passages") as bar:

            def tell(done: int, total: int) -> None:
                bar.update(done, total=total)

            if run.storage.is_local:
                write_sample(Path(run.storage.path(stage.folder)), sample.size, sample.seed, tell)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    write_sample(Path(folder) / "world", sample.size, sample.seed, tell)
                    run.storage.upload(Path(folder) / "world", stage.folder, last="world.json")
    return stage.uri


def make_examples(run: Run, names: Iterable[str]) -> dict[str, Made]:
    """Read and check data sets; stop if too much of one is bad."""
    from raydist.reader.parts import example_part_maker

    def finish(work: Work, parts: list[dict]) -> list[dict]:
        with said_if_long(f"{work.title}: looking for ids that stand there twice"):
            return _drop_duplicates(work, parts)

    sources = {name: run.config.sets()[name] for name in names}
    works = {name: _examples_work(run, name, source) for name, source in sources.items()}
    manifests = run_stages(
        run,
        list(works.values()),
        example_part_maker,
        {"row_group": run.config.data.part_rows},
        label="read",
        actors=run.config.cluster.actors,
        finish=finish,
    )
    made = {name: Made(works[name].stage, manifest) for name, manifest in zip(works, manifests)}
    for name, examples in made.items():
        _tell_rejected(run, name, sources[name], examples)
        _check_rule(run, name, sources[name], examples)
    return made


def _examples_work(run: Run, name: str, source: SourceConfig) -> Work:
    from raydist.corpus.examples import plan_splits
    from raydist.corpus.hub import hub_format, hub_language, load_hub
    from raydist.corpus.paths import expand_paths

    data = run.config.data
    reading = {
        "version": EXAMPLES_VERSION,
        "format": source.format,
        "language": source.language,
        "columns": source.columns,
        "repair_offsets": data.repair_offsets,
        "labelled": name == "train",
        "part_rows": data.part_rows,
    }
    title = f"examples of {name}"
    if source.hub:
        hub = [source.hub, source.split, source.hub_config]
        rows = load_hub(source.hub, source.split, source.hub_config)
        reading["language"] = source.language or hub_language(source.hub, source.hub_config)
        name_of_hub = "hub:" + "/".join(part for part in hub if part)
        as_rows: dict[str, Any] = {"file": name_of_hub, "format": hub_format(source.hub, source.format)}
        as_rows |= {key: reading[key] for key in ("language", "columns", "repair_offsets", "labelled")}
        specs: list[dict] = [
            {"hub": hub, "start": start, "end": min(start + HUB_ROWS, len(rows)), "reading": as_rows}
            for start in range(0, len(rows), HUB_ROWS)
        ]
        return Work(Stage(run.storage, "examples", reading | {"hub": hub, "rows": rows._fingerprint}), specs, title)
    places: dict[str, dict[str, str]] = {}  # of every file, by its path on this node
    for pattern in source.files:
        place = locate(run, pattern)
        for path in expand_paths([str(fetch(place))]):
            inside = os.path.relpath(path, fetch(place | {"name": ""})) if place["folder"] else path
            places[path] = place | {"name": inside}
    with said_if_long(f"{title}: looking at the files"):
        splits = plan_splits(
            sorted(places),
            format=source.format,
            language=source.language,
            columns=source.columns,
            repair_offsets=data.repair_offsets,
            labelled=name == "train",
        )
    told = {split.path: {"language": split.language, "format": split.format} for split in splits}  # language: also by a folder
    with said_if_long(f"{title}: looking whether the files have changed"):
        files = [told[path] | {"name": Path(path).name, "digest": file_digest(path)} for path in sorted(places)]
    specs = [asdict(split) | {"path": places[split.path]} for split in splits]
    return Work(Stage(run.storage, "examples", reading | {"files": files}), specs, title)


def locate(run: Run, pattern: str) -> dict[str, str]:
    """Where any node finds a file or a glob, as `fetch` takes it: `sample:` names in the sample world, which is in the storage;
    others by their full path, relative ones under data.root.
    """
    if pattern.startswith("sample:"):
        return {"folder": make_sample(run), "name": pattern.removeprefix("sample:")}
    path = Path(run.config.data.root).expanduser() / Path(pattern).expanduser()
    return {"folder": "", "name": str(path.absolute())}


def _drop_duplicates(work: Work, parts: list[dict]) -> list[dict]:
    """Of questions with the same id the first is kept; the others are rejected by name. Rewrites only parts that hold some."""
    from raydist.corpus.examples import UNITS
    from raydist.corpus.rejected import DUPLICATE_ID

    storage, folder = work.stage.storage, work.stage.folder
    seen: set[tuple[str, str]] = set()
    lines = []
    for number, part in enumerate(parts):
        name = f"{folder}/{part['name']}"
        keys = read_parquet(storage, name, ["id", "language"])
        ids = list(zip(keys["id"].to_pylist(), keys["language"].to_pylist()))  # translations share the ids of their source
        again = []
        for row, key in enumerate(ids):
            if key in seen:
                again.append(row)
            seen.add(key)
        if again:
            table = read_parquet(storage, name)
            dropped = table.take(again).select(["file", "line", "id"])
            reason = {
                "what": "question",
                "reason": DUPLICATE_ID,
                "detail": "another question of this data set has the same id",
                "unit": UNITS[work.specs[number].get("layout", "parquet")],  # the hub's are rows, too
            }
            rejected_name = f"{folder}/rejected-{number:05d}.parquet"
            old = read_parquet(storage, rejected_name).to_pylist()
            new = [row | reason for row in dropped.to_pylist()]
            rows = old + [row for row in new if row not in old]
            storage.write_bytes(rejected_name, encode_table(pa.Table.from_pylist(rows, REJECTED_SCHEMA), "parquet", {}))
            counts = ReadCounts(**part["info"])
            counts.questions_rejected += len(again)
            counts.reasons[DUPLICATE_ID] = counts.reasons.get(DUPLICATE_ID, 0) + len(again)
            keep = np.setdiff1d(np.arange(len(ids)), again)
            row_group = work.stage.identity["part_rows"]
            content = encode_table(table.take(keep), "parquet", asdict(counts), row_group)
            storage.write_bytes(name, content)
            part = describe_part(part["name"], content)
        lines.append(part)
    return lines


def _key(name: str) -> str:
    """The dotted key of a data set."""
    return f"data.{name}" if name in ("train", "dev") else f"data.test.{name}"


def _check_rule(run: Run, name: str, source: SourceConfig, examples: Made) -> None:
    """A set is scored by a rule that knows its languages; told now, and not after the training."""
    from raydist.reader.metrics import choose_rule, normaliser

    rule = choose_rule(source.rule, examples.stage.identity)
    if name == "train" or rule != "mlqa":  # the others are for any language
        return
    parts = [f"{examples.stage.folder}/{part['name']}" for part in examples.manifest.parts]
    columns = [read_parquet(run.storage, part, ["language"])["language"] for part in parts]
    for language in sorted({language for column in columns for language in column.unique().to_pylist()}):
        try:
            normaliser(rule, language)
        except InputError as error:
            raise InputError(f"{name}: {error} ({_key(name)}.rule=squad)") from None


def _tell_rejected(run: Run, name: str, source: SourceConfig, examples: Made) -> None:
    """Copy the rejected rows into the run, say how many, and stop where they are too many or nothing is left."""
    from raydist.corpus.rejected import NOT_AT_OFFSET, UNLABELLED

    counts = [ReadCounts(**part["info"]) for part in examples.manifest.parts]
    total = ReadCounts(
        **{key: sum(getattr(count, key) for count in counts) for key in ReadCounts.__dataclass_fields__ if key != "reasons"}
    )
    reasons: dict[str, int] = {}
    for count in counts:
        for reason, number in count.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
    bad = total.questions_rejected + total.answers_rejected
    if total.answers_repaired:
        say(f"{name}: {total.answers_repaired:,} answers moved to where their text is")
    if total.several_occurrences:
        say(f"{name}: {total.several_occurrences:,} answers without an offset occur more than once; the first is the label")
    if total.not_extractive:
        say(f"{name}: {total.not_extractive:,} questions have answers that are no piece of the passage (yes, no): left out")
    if total.unlabelled:
        others = f"; {total.impossible:,} others are marked is_impossible" if total.impossible else ""
        way = f". If they have no answer, mark them, or set {_key(name)}.format=squad_v2"
        say(
            f"{name}: {total.unlabelled:,} of {total.questions:,} questions have neither an answer nor is_impossible: they are "
            f"answered and not scored{others}" + way * (total.unlabelled < examples.manifest.rows)  # else they are but asked
        )
    listed = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items(), key=lambda item: -item[1]))
    if bad:
        run.rejected[name] = bad
        show("raydist_rejected_rows", bad, run=run.config.name, set=name)
        tables = [
            read_parquet(run.storage, f"{examples.stage.folder}/rejected-{number:05d}.parquet")
            for number in range(len(examples.manifest.parts))
        ]
        run.folder.write_bytes(f"rejected/{name}.parquet", encode_table(pa.concat_tables(tables), "parquet", {}))
        say(
            f"{name}: rejected {total.answers_rejected:,} of {total.answers:,} answers and {total.questions_rejected:,} of "
            f"{total.questions:,} questions ({listed}); see {run.folder.path('rejected')}/{name}.parquet"
        )
    else:
        run.folder.delete(f"rejected/{name}.parquet")  # of an earlier command, before the data were mended
    limit = run.config.data.max_rejected
    if total.rejected_share > limit:
        ways = ["mend the data"]
        if NOT_AT_OFFSET in reasons and not run.config.data.repair_offsets:
            ways.append("try data.repair_offsets=true")
        if UNLABELLED in reasons:
            ways.append(f"set {_key(name)}.format=squad_v2 if questions without answers have none")
        raise InputError(
            f"{name}: {total.rejected_share:.1%} of the rows are bad, more than data.max_rejected allows ({limit:.1%}): "
            f"{listed}. Look at {run.folder.path('rejected')}/{name}.parquet; {', '.join(ways)}, "
            f"or raise data.max_rejected (to {np.ceil(total.rejected_share * 100) / 100:.2f})"
        )
    if not examples.manifest.rows:
        raise InputError(f"{name}: no usable question in {', '.join(source.files) or source.hub}")


def prepare(run: Run, names: Iterable[str]) -> dict[str, ReadySet]:
    """Data sets, read, checked and cut into windows; each at most once per command."""
    names = list(names)
    missing = [name for name in names if name not in run.prepared]
    if missing:
        _check_model(run)  # before anything is read
        examples = make_examples(run, missing)
        where = make_windows_of(run, examples)
        run.prepared |= {name: ReadySet(examples[name], where[name]) for name in missing}
    return {name: run.prepared[name] for name in names}


# --- windows ---------------------------------------------------------------------------------------------------------


def make_windows_of(run: Run, examples: dict[str, Made]) -> dict[str, dict]:
    """Cut data sets into windows. For each: where windows and examples are, as workers take it."""
    from raydist.reader.parts import window_part_maker

    data, model = run.config.data, run.config.model
    lengths = {key: getattr(data, key) for key in ("max_length", "max_question_length", "doc_stride", "no_answer_windows")}
    lengths |= {"passage_first": True} if data.passage_first else {}  # absent, it leaves the names of stages as they were
    tokenizer = tokenizer_digest(run.model_folder)
    works = {}
    for name, made in examples.items():
        choice = _choice(run, name, made)
        own = lengths if name == "train" else lengths | {"no_answer_windows": "cls"}
        identity = {
            "version": WINDOWS_VERSION,
            "examples": made.stage.fingerprint,
            "tokenizer": tokenizer,
            "choice": choice,
        } | own
        specs = [
            {
                "folder": made.stage.uri,
                "part": part,
                "row_group": group,
                "choice": choice,
                "lengths": own,
            }
            for part, group in _row_groups(run, made)
        ]
        works[name] = Work(Stage(run.storage, "windows", identity, kind="arrow"), specs, f"windows of {name}")
    kwargs = {"model": model.name, "revision": model.revision}
    manifests = run_stages(
        run, list(works.values()), window_part_maker, kwargs, label="windows", actors=run.config.cluster.actors
    )
    return {
        name: {
            "windows_folder": work.stage.uri,
            "windows": [part["name"] for part in manifest.parts],
            "fingerprint": manifest.fingerprint,
            "folder": examples[name].stage.uri,
            "examples": _row_groups(run, examples[name]),
            "choice": work.stage.identity["choice"],
            "identity": dict(work.stage.identity) | {"examples": dict(examples[name].stage.identity)},
            "rows": manifest.rows,
        }
        for (name, work), manifest in zip(works.items(), manifests)
    }


def tokenizer_digest(folder: Path) -> str:
    words = ("token", "vocab", "merges")
    files = [path for path in sorted(folder.glob("*")) if path.suffix == ".model" or any(word in path.name for word in words)]
    return fingerprint({path.name: file_digest(path) for path in files})


def _check_model(run: Run) -> None:
    """It must be there, have a span head (those that are built in have), and positions for a window."""
    from raydist.reader.model import COUNTED_POSITIONS, check_reader

    config = json.loads((run.model_folder / "config.json").read_text())
    if not run.config.model.name.startswith("builtin:"):
        check_reader(run.model_folder)
    most = config.get("max_position_embeddings")
    if most and config.get("model_type") in COUNTED_POSITIONS:
        most -= config.get("pad_token_id", 1) + 1
    if most and run.config.data.max_length > most:
        raise InputError(
            f"data.max_length is {run.config.data.max_length}, and {run.config.model.name} has {most} positions: lower it"
        )


def _row_groups(run: Run, made: Made) -> list[tuple[str, int]]:
    """Every (part, row group) of an examples stage, in order. An empty part has none."""
    size = run.config.data.part_rows
    return [(part["name"], group) for part in made.manifest.parts for group in range(-(-part["rows"] // size))]


def _choice(run: Run, name: str, made: Made) -> dict | None:
    """A seeded choice of questions, as the highest draw that is still taken: a worker needs nothing but its own rows."""
    from raydist.reader.parts import draw_questions

    source = run.config.sets()[name]
    if source.questions is None and source.leave_out is None:
        return None
    choice = {"seed": run.config.data.seed, "adversarial": source.adversarial, "highest": 1.0, "leave_out": source.leave_out}
    if source.questions is None:
        return choice
    tables = [read_parquet(run.storage, f"{made.stage.folder}/{part['name']}", ["id"]) for part in made.manifest.parts]
    ids = [id for table in tables for id in table["id"].to_pylist()]
    draws = np.unique(draw_questions(ids, run.config.data.seed, source.adversarial))
    if source.questions >= len(draws):
        return choice if source.leave_out else None
    return choice | {"highest": float(draws[source.questions - 1])}


# --- training --------------------------------------------------------------------------------------------------------


def train(run: Run, *, fresh: bool = False, callbacks: Sequence[Any] = ()) -> None:
    """Train the run's reader, or go on with it; leave a finished one alone; refuse to mix it with another."""
    config = run.config
    if config.task != "reader":
        from raydist.cluster.retrieval import train_task

        return train_task(run, fresh=fresh)
    if config.data.train is None:
        raise InputError("there is nothing to train on: set data.train")
    names = ["train"] + ["dev"] * (config.data.dev is not None)
    sets = {name: ready.where for name, ready in prepare(run, names).items()}
    check_steps(run, sets["train"]["rows"])
    if config.objectives.hard_learning:
        from raydist.cluster.two_stage import with_nbest_sets

        sets["train"] = with_nbest_sets(run, sets["train"], fresh=fresh)
    train_on(run, sets, fresh=fresh, callbacks=callbacks)


def check_steps(run: Run, rows: int) -> None:
    """Refuse a contrast whose turn never comes: known with the rows, and told before base readers are trained."""
    from raydist.training.plan import num_steps

    contrast, given = run.config.objectives.answer_contrast, run.config.train
    if not contrast or contrast.schedule != "sequential":
        return
    wait = round(contrast.sequential_epochs * -(-rows // given.batch_size))
    steps = num_steps(rows, batch_size=given.batch_size, epochs=given.epochs, max_steps=given.max_steps)
    if wait >= steps:
        raise InputError(
            f"objectives.answer_contrast waits for sequential_epochs {contrast.sequential_epochs:g}, here {wait:,} steps, and "
            f"training has {steps:,}: it would never act; raise train.max_steps or train.epochs, or lower sequential_epochs"
        )


def train_on(run: Run, sets: dict[str, dict], *, fresh: bool = False, callbacks: Sequence[Any] = ()) -> None:
    """Train on rows that are there: `sets` says for "train" and perhaps "dev" where, how many, and what they were made of."""
    config = run.config
    rows = sets["train"]["rows"]
    smallest = rows // max(1, -(-rows // config.train.batch_size)) // config.train.accumulate
    if smallest < config.cluster.max_workers:
        raise InputError(
            f"{rows} training rows in batches of {config.train.batch_size}, cut into {config.train.accumulate}, leave "
            f"{smallest} rows for {config.cluster.max_workers} workers: raise train.batch_size, or lower train.accumulate or "
            f"cluster.workers"
        )
    identity = _training_identity(run, sets)
    if fresh:
        made = ["checkpoints", "best", "model", "fitted.json", "metrics.jsonl", "tensorboard", "workers.json", "progress.json"]
        made += ["predictions", "evaluation", "ranked", "trace", "report.html"]  # what the old model answered, and its scores
        made += ["mlflow.json", "wandb.json", "wandb"]  # started over, it is another run there, too
        if config.task == "reader":
            made.append("metrics.json")
        elif run.folder.exists("metrics.json"):  # to which mining has written before
            run.add_metrics({}, instead_of="retrieval.")
        for name in [*made, "training.json"]:  # last: until then the old checkpoints are known for what they are
            run.folder.delete(name)
    if run.folder.exists("training.json"):
        before = run.folder.read_json("training.json")
        if before["identity"] != identity:
            listed = "\n  ".join(differences(before["identity"], identity))
            raise InputError(
                f"run {config.name!r} in {run.folder.path()} was trained with other settings:\n  {listed}\n"
                f"give this one another name (name=...), or start it over with --fresh"
            )
        if before["done"] and has_model(run.folder):
            say(f"train: already done ({before['fitted']['steps']:,} steps)")
            return
    run.save_config()
    run.folder.write_json("training.json", {"identity": identity, "done": False})
    from raydist.cluster.fit import fit

    try:
        fitted = fit(run.cluster, config, run.folder, sets, callbacks)
    except Exception:
        track.tell_end(config, run.folder, "FAILED")
        raise
    run.add_metrics({f"train.{key}": value for key, value in fitted.items()})
    run.folder.write_json("training.json", {"identity": identity, "done": True, "fitted": fitted})


def _training_identity(run: Run, sets: dict[str, dict]) -> dict[str, Any]:
    """All that the trained weights depend on, flat, so that a difference can be named."""
    from raydist.reader.metrics import choose_rule

    config = run.config.model_dump(mode="json")
    keep = {key: config[key] for key in ("seed", "model", "train", "optim")}
    if config["task"] == "reader":
        keep["objectives"] = config["objectives"]
        keep["predict"] = {"max_answer_length": config["predict"]["max_answer_length"]}  # of the scores on dev
        if config["predict"]["precision"] != "fp32":
            keep["predict"]["precision"] = config["predict"]["precision"]
    elif config["task"] == "retriever":
        keep["retriever"] = {key: config["retriever"][key] for key in RETRIEVER_LOSS}
    for key in ("keep_checkpoints", "checkpoint_every", "log_every"):
        del keep["train"][key]
    flat = dict(_flat(keep))
    with said_if_long(f"train: looking whether {run.config.model.name} has changed"):
        flat["model.weights"] = folder_digest(run.model_folder)
    if is_folder(config["model"]["name"]):  # whose path is another one in every job: its content says which it is
        del flat["model.name"]
    for name, where in sets.items():
        flat |= dict(_flat(where["identity"], f"data.{name}"))
    if "dev" in sets and config["task"] == "reader":  # decides which model is the best one
        flat["data.dev.rule"] = choose_rule(config["data"]["dev"]["rule"], sets["dev"]["identity"]["examples"])
        if config["train"]["dev_questions"]:
            flat["data.seed"] = config["data"]["seed"]
    return json.loads(json.dumps(flat))  # as it comes back from the file


def _flat(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


# --- prediction and scores -------------------------------------------------------------------------------------------


def predict(run: Run, names: list[str] | None = None) -> dict[str, pa.Table]:
    """n-best lists of the dev and test sets (or those of predict.split), as Parquet and JSON in the run's folder.

    With hard learning, those of train are the lists that it takes: of the base readers, cross-fitted where nbest_folds says so.
    Not where `names` are given, since an evaluation is about the run's own reader; nor where a reader or a file is named.
    """
    from raydist.reader.evaluate import with_unique_ids

    config, hard = run.config, run.config.objectives.hard_learning
    by_bases = names is None and hard is not None and hard.has_base
    names = names or config.predict.split or [name for name in config.sets() if name != "train"]
    if not names:
        raise InputError("there is nothing to predict: set data.dev or data.test")
    if by_bases and hard and "train" in names and config.predict.model:
        if hard.nbest_folds > 1:
            raise InputError(
                "predict.model names one reader, and objectives.hard_learning.nbest_folds wants the lists of train from "
                "readers that were not trained on the question: leave one of the two out"
            )
        by_bases = False
    if not by_bases or set(names) != {"train"}:
        reader_folder(run)  # a missing one is told now, and not after all windows are made
    sets = {name: ready.where for name, ready in prepare(run, names).items()}
    made: dict[str, list[Made]] = {}
    if by_bases and "train" in sets:
        from raydist.cluster.two_stage import base_lists

        made["train"] = base_lists(run, sets.pop("train"), k=config.predict.n_best)
    if sets:
        own = make_predictions(run, sets, reader_folder(run), k=config.predict.n_best)
        made |= {name: [lists] for name, lists in own.items()}
    about: dict[str, Any] = {"tokenizer": tokenizer_digest(run.model_folder), "n_best": config.predict.n_best}
    about |= {"max_answer_length": config.predict.max_answer_length}
    tables = {}
    for name in names:
        stages = [(lists.stage, part) for lists in made[name] for part in lists.manifest.parts]
        table = pa.concat_tables([read_parquet(run.storage, f"{stage.folder}/{part['name']}") for stage, part in stages])
        tables[name] = with_unique_ids(table).replace_schema_metadata(None)
        models = [lists.stage.identity["model"] for lists in made[name]]
        source = {"model": ", ".join(models), "examples": run.prepared[name].examples.stage.fingerprint}
        _write_predictions(run, name, tables[name], about | source)
    return tables


def reader_folder(run: Run) -> Path:
    """The reader that predicts: predict.model, else the run's own."""
    from raydist.models.loading import model_folder

    config = run.config
    if config.predict.model:
        folder = model_folder(config.predict.model)
        if tokenizer_digest(folder) != tokenizer_digest(run.model_folder):
            raise InputError(
                f"predict.model {config.predict.model} has another tokenizer than model.name {config.model.name}; "
                f"set model.name to the same folder"
            )
        return folder
    if run.folder.exists("model/config.json"):
        return run.folder.local_copy("model")
    raise InputError(
        f"run {config.name!r} has no model yet: train it first (raydist train), or set predict.model to a reader's folder"
    )


def make_predictions(
    run: Run, sets: dict[str, dict], folder: Path, *, k: int, fold: tuple[int, int] | None = None
) -> dict[str, Made]:
    """n-best lists of some data sets by the reader in a folder, as stages. With `fold`, of the questions of that fold alone."""
    from raydist.reader.parts import prediction_part_maker

    config = run.config
    settings = {
        "k": k,
        "max_answer_length": config.predict.max_answer_length,
        "compat": config.predict.nbest_compat,
        "batch_tokens": config.predict.batch_tokens,
        "precision": config.predict.precision,
    }
    identity = {"version": PREDICTIONS_VERSION, "model": folder_digest(folder)} | settings
    asked = [config.data.seed, *fold] if fold else None
    if asked:
        identity["fold"] = asked
    works = []
    for name, where in sets.items():
        specs = [
            {
                "windows_folder": where["windows_folder"],
                "windows": windows,
                "folder": where["folder"],
                "part": part,
                "row_group": group,
                "choice": where["choice"] is not None,
                "fold": asked,
            }
            for windows, (part, group) in zip(where["windows"], where["examples"])
        ]
        stage = Stage(run.storage, "predictions", identity | {"windows": where["fingerprint"]})
        works.append(Work(stage, specs, f"predictions for {name}"))
    actors = config.cluster.actors
    threads = config.cluster.threads_per_worker or max(1, (os.cpu_count() or 1) // actors)
    where = {"model": config.predict.model} if config.predict.model else {"storage": run.folder.uri, "model": "model"}
    kwargs = where | {"threads": threads, "settings": settings}
    manifests = run_stages(
        run, works, prediction_part_maker, kwargs, label="predict", actors=actors, gpus=config.cluster.gpus_per_worker
    )
    return {name: Made(work.stage, manifest) for name, work, manifest in zip(sets, works, manifests)}


def _write_predictions(run: Run, name: str, table: pa.Table, about: dict[str, Any]) -> None:
    """predictions/NAME.parquet, and as JSON: the best text per question (SQuAD layout) and the n-best lists."""
    run.folder.write_bytes(f"predictions/{name}.parquet", encode_table(table, "parquet", about))
    lists = dict(zip(table["id"].to_pylist(), table["nbest"].to_pylist()))
    _write_answers(run, name, lists)
    run.folder.write_bytes(f"predictions/{name}.nbest.json", (json.dumps(lists, ensure_ascii=False) + "\n").encode())


def _write_answers(run: Run, name: str, nbest: Mapping[str, Sequence[Mapping]], unanswered: Set[str] = frozenset()) -> None:
    """predictions/NAME.json: the best text of every question, in the SQuAD layout."""
    best = {id: spans[0]["text"] if spans and id not in unanswered else "" for id, spans in nbest.items()}
    run.folder.write_bytes(f"predictions/{name}.json", (json.dumps(best, ensure_ascii=False, indent=1) + "\n").encode())


def evaluate(run: Run) -> dict[str, dict[str, Any]]:
    """Scores of every dev and test set, by the run's model, or from predictions that another tool made."""
    from raydist.reader.evaluate import evaluate_set, examples_of, with_unique_ids
    from raydist.reader.metrics import choose_rule, null_differences, read_predictions
    from raydist.reader.parts import chosen

    config = run.config
    if config.task != "reader":
        from raydist.cluster.retrieval import evaluate_only

        evaluate_only(run)
        return {}
    foreign = config.evaluate.predictions
    names = list(foreign) or config.predict.split or [name for name in config.sets() if name != "train"]
    if not names:
        say("evaluate: no dev or test set is given")
        return {}
    read = {name: read_predictions(fetch(locate(run, path))) for name, path in foreign.items()}
    names = names if foreign else _with_dev(run, names)
    tables = {} if foreign else predict(run, names)
    made = {name: run.prepared[name].examples for name in names} if tables else make_examples(run, names)
    threshold: float | None = None
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(names, key=lambda name: name != "dev"):  # dev first: its no-answer threshold serves the others
        source = config.sets()[name]
        parts = [read_parquet(run.storage, f"{made[name].stage.folder}/{part['name']}") for part in made[name].manifest.parts]
        table = pa.concat_tables(parts)
        choice = _choice(run, name, made[name]) if name in read else None
        if choice:
            table = table.filter(pa.array(chosen(table["id"].to_pylist(), choice)))
        table = with_unique_ids(table)
        table = table.filter(pc.is_in(table["id"], tables[name]["id"])) if name in tables else table
        examples = examples_of(table)
        unlabelled = table.num_rows - len(examples)
        if not examples:
            say(f"{name}: no question has an answer to compare with; see predictions/{name}.json")
            continue
        nbest = read[name] if name in read else dict(zip(tables[name]["id"].to_pylist(), tables[name]["nbest"].to_pylist()))
        if name in read and not any(example.id in nbest for example in examples):
            raise InputError(
                f"{foreign[name]} has no prediction for any question of {name}; its ids look like {next(iter(nbest), None)!r}, "
                f"those of the set like {examples[0].id!r}"
            )
        differences = null_differences(tables[name]) if name in tables else None
        with said_if_long(f"{name}: scoring {len(examples):,} questions"):
            scores, table = evaluate_set(
                examples,
                nbest,
                rule=choose_rule(source.rule, made[name].stage.identity),
                adversarial=source.adversarial,
                at_k=config.evaluate.at_k,
                bootstrap=config.evaluate.bootstrap,
                null_differences=differences,
                null_threshold=threshold,
            )
        if unlabelled:
            scores["unlabelled"] = unlabelled
        if name == "dev":
            threshold = scores.get("null_threshold")
        elif scores.get("null_threshold_from") == "this set":
            say(
                f"{name}: its no-answer threshold was tuned on its own answers, which flatters the scores: there is no "
                f"data.dev with questions that have no answer to tune it on"
            )
        if differences and "null_threshold" in scores:  # what is left unanswered is only known now
            _write_answers(run, name, nbest, {id for id, by in differences.items() if by > scores["null_threshold"]})
        if scores["missing"]:
            say(f"{name}: {scores['missing']:,} questions have no prediction and score 0")
        run.folder.write_bytes(f"evaluation/{name}.parquet", encode_table(table, "parquet", {}))
        run.add_metrics(
            {f"{name}.{key}": round(value, 6) if isinstance(value, float) else value for key, value in scores.items()}
        )
        found[name] = scores
    _print_scores(found)
    track.tell_end(config, run.folder)
    return found


def _with_dev(run: Run, names: list[str]) -> list[str]:
    """The sets that are asked for; with dev, where its no-answer threshold (SQuAD v2) is to serve one of them."""

    def has_unanswerable(name: str) -> bool:
        examples = prepare(run, [name])[name].examples
        parts = [f"{examples.stage.folder}/{part['name']}" for part in examples.manifest.parts]
        return any(pc.any(read_parquet(run.storage, part, ["is_impossible"])["is_impossible"]).as_py() for part in parts)

    if "dev" in names or "dev" not in run.config.sets() or not any(map(has_unanswerable, names)) or not has_unanswerable("dev"):
        return names
    say("dev: scored, too, since the no-answer threshold is tuned on it")
    return ["dev", *names]


def _print_scores(found: dict[str, dict[str, Any]]) -> None:
    """A table on the terminal."""
    rows = []
    for name, scores in found.items():
        rule = scores["rule"]
        if "addsent_f1" in scores:
            rows.append(
                (f"{name} (original questions)", "", f"{scores['original_f1']:.1f}", "", str(scores["originals"]), rule)
            )
            low, high = scores.get("addsent_f1.low"), scores.get("addsent_f1.high")
            between = "" if low is None else f"{low:.1f} - {high:.1f}"
            worst = f"{name} (worst copy of each)"
            rows.append(
                (worst, f"{scores['addsent_em']:.1f}", f"{scores['addsent_f1']:.1f}", between, str(scores["originals"]), rule)
            )
        else:
            between = "" if "f1.low" not in scores else f"{scores['f1.low']:.1f} - {scores['f1.high']:.1f}"
            rows.append((name, f"{scores['em']:.1f}", f"{scores['f1']:.1f}", between, str(scores["questions"]), rule))
    head = ("test set", "EM", "F1", "95 % interval", "questions", "rule")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        say("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))


def report(run: Run) -> Path | None:
    """report.html of the run."""
    from raydist.report.html import write_report

    if not run.folder.is_local:
        say("report: runs on an object store are not drawn; copy the run's folder and use raydist report")
        return None
    with said_if_long("report: drawing"):
        path = write_report([Path(run.folder.path())])
    say(f"report in {path}")
    return path


def run_all(run: Run, *, fresh: bool = False) -> None:
    """The whole pipeline: all data first, so that a bad file stops it before any model is loaded."""
    if run.config.task != "reader":
        from raydist.cluster.retrieval import run_retrieval

        return run_retrieval(run, fresh=fresh)
    if run.config.evaluate.predictions:
        raise InputError(
            "evaluate.predictions are another tool's answers, and `run` trains a reader of its own: score them with "
            "raydist evaluate, under another name (name=...)"
        )
    prepare(run, run.config.sets())
    train(run, fresh=fresh)
    if run.config.objectives.hard_learning:
        from raydist.cluster.two_stage import evaluate_base

        evaluate_base(run)
    evaluate(run)
    report(run)


# --- looking at runs -------------------------------------------------------------------------------------------------


def describe_run(folder: str) -> str:
    """How far a run is, and what it has reached."""
    run = Storage(folder)
    if not run.exists("config.yaml"):
        raise InputError(
            f"{folder} is not a run: it has no config.yaml; runs are folders in `storage`, such as runs/quickstart"
        )
    lines = [f"run {Path(folder).name}"]
    stages = run.read_json("stages.json") if run.exists("stages.json") else {}
    config = yaml.safe_load(run.read_bytes("config.yaml"))
    above = Path(run.path()).parents[config["name"].count("/")]
    storage = Storage(config["storage"] if "://" in config["storage"] else str(above))
    open_folders = []  # where something is still to be written
    for title, stage in stages.items():
        how_far = f"{stage['rows']:,} rows " if stage["rows"] else ""
        if "parts" in stage:  # when this was written, it was still to be made
            if storage.exists(f"{stage['folder']}/manifest.json"):
                made = Manifest(**storage.read_json(f"{stage['folder']}/manifest.json"))
                how_far = f"{made.rows:,} rows "
            else:
                done = sum(name.startswith("part-") for name in storage.sizes(stage["folder"]))
                how_far = f"{done} of {stage['parts']} parts "
                open_folders.append(storage.at(stage["folder"]))
        lines.append(f"  {title}: {how_far}({stage['folder']})")
    if run.exists("begun.json"):  # a sweep
        entries, begun = Ledger(run).entries(), run.folders("trials")
        finished = [id for id in entries if is_finished(entries[id])]
        failed = f", {len(entries) - len(finished)} with an error" if len(entries) > len(finished) else ""
        lines.append(f"  trials: {len(finished)} finished{failed}, {len(begun)} begun")
        open_folders += [run.at("trials", id) for id in begun if id not in entries]
    training = run.read_json("training.json") if run.exists("training.json") else None
    if training and training["done"]:
        fitted = training["fitted"]
        lines.append(
            f"  train: done, {fitted['steps']:,} steps in {fitted['seconds']:.0f} s ({fitted['examples_per_s']:.1f} examples/s)"
        )
    elif run.exists("progress.json"):
        seen = run.read_json("progress.json")
        lines.append(f"  train: step {seen['step']:,} of {seen['total']:,} {seen['note']}")
    if (training and not training["done"]) or open_folders:
        silent = time.time() - max(place.newest() for place in [run, *open_folders])
        lines.append(f"  last written to {duration(silent)} ago; if its command has ended, the same command goes on")
    if run.exists("failure.json"):
        lines.append(f"  failed: {run.read_json('failure.json')['message']}")
    metrics = run.read_json("metrics.json") if run.exists("metrics.json") else {}
    lines += [f"  {key}: {value:.2f}" for key, value in metrics.items() if key.endswith((".f1", ".em", ".addsent_f1"))]
    found = {key: value for key, value in metrics.items() if key.startswith("retrieval.") and key.endswith(("P@1", "MRR@100"))}
    lines += [f"  {key}: {100 * value:.2f}" for key, value in found.items()]
    return "\n".join(lines)


def unused_stages(storage: Storage, keep_runs: Sequence[str] = ()) -> list[str]:
    """Stage folders that no run's stages.json names; with `keep_runs`, names or patterns, that none of these does."""
    if not storage.folders():
        raise InputError(f"{storage.uri} holds no runs; give the folder that `storage` names in the config")
    runs = list(_runs_in(storage))
    for name in keep_runs:
        if not any(_is_called(run, name) for run in runs):
            raise InputError(f"--keep-runs {name}: no such run in {storage.uri}; there are {', '.join(runs) or 'none'}")
    left_out = {run for run in runs if keep_runs and not any(_is_called(run, name) for name in keep_runs)}
    used = used_stages(storage, but=left_out)
    return [f"stages/{name}" for name in storage.folders("stages") if f"stages/{name}" not in used]


def used_stages(storage: Storage, *, but: Container[str] = ()) -> set[str]:
    """Stage folders that some run's stages.json names, some runs left out."""
    runs = [run for run in _runs_in(storage) if run not in but]
    return {stage["folder"] for run in runs for stage in storage.read_json(f"{run}/stages.json").values()}


def _is_called(run: str, name: str) -> bool:
    """Whether a run has this name, or is in a folder of this name, as a sweep's trials are; `*` stands for anything."""
    return fnmatchcase(run, name) or fnmatchcase(run, f"{name}/*")


def _runs_in(storage: Storage, folder: str = "") -> Iterator[str]:
    """Every folder that says which stages it used; a run's name may have slashes, as a sweep's trials have."""
    for name in storage.folders(folder):
        inner = f"{folder}/{name}" if folder else name
        if inner == "stages":
            continue
        if storage.exists(f"{inner}/stages.json"):
            yield inner
        if name not in RUN_FOLDERS:
            yield from _runs_in(storage, inner)
