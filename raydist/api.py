"""The commands as functions: in this process or, on request, on a Ray cluster.

A config is the name of a shipped one, a YAML file, or a `Config`; overrides are dotted keys and values, or lines `key=value`.
Progress goes to stderr: stdout belongs to the caller.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.config import Config, ConfigError, override
from raydist.config import load_config as read_config
from raydist.files.yaml_text import YamlError, load_yaml

if TYPE_CHECKING:
    import pyarrow as pa

    from raydist.runs.run import Run

Overrides = Mapping[str, Any] | Sequence[str]


def load_config(config: str | Path | Config, overrides: Overrides = ()) -> Config:
    """Load a config and check it as a whole; one `InputError` lists all problems.

    `config` is the name of a shipped config, a YAML file, or a `Config`; overrides are a mapping of dotted keys, or lines
    `key=value` as on the command line.

    >>> import raydist
    >>> config = raydist.load_config("reader", {"optim.lr": 2e-5, "data.train": "train.json"})
    >>> config.optim.lr, config.data.train.files
    (2e-05, ['train.json'])
    >>> raydist.load_config(config, ["train.epochs=1"]).train.epochs
    1.0
    """
    if isinstance(config, Config):
        return override(config, _changes(overrides)) if overrides else config
    return read_config(str(config), _lines(overrides)).config


def _lines(overrides: Overrides) -> list[str]:
    """Overrides as command-line lines: JSON is valid YAML."""
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value, default=str, ensure_ascii=False)}" for key, value in overrides.items()]
    return list(overrides)


def _changes(overrides: Overrides) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
    changes = {}
    for line in _lines(overrides):
        key, equals, text = line.partition("=")
        if not equals or not key:
            raise ConfigError(f"{line}: an override is key=value")
        try:
            changes[key] = load_yaml(text)
        except YamlError:
            raise ConfigError(f"{key}: not YAML: {text!r}") from None
    return changes


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its folder and its final metrics.

    >>> import raydist
    >>> outcome = raydist.train("debug_reader", {"data.train.questions": 20, "data.dev.questions": 10})
    >>> outcome.folder, outcome.model
    ('runs/debug_reader', 'runs/debug_reader/model')
    >>> outcome.metrics["train.steps"]
    2
    """

    folder: str  # of the run: its path on disk or in the object store
    metrics: dict[str, Any]  # all final numbers, as metrics.json holds them: "dev.f1", "train.steps", ...

    @property
    def model(self) -> str:
        """The folder of the trained model, if any, in Hugging Face layout."""
        return f"{self.folder}/model"


def run(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False, fresh: bool = False) -> Outcome:
    """Run the whole pipeline of a config, like `raydist run`: finished work is not repeated.

    By default everything runs in this process. `ray=True` uses the cluster that the config names (by default a local one,
    started and ended by this call), `ray="HOST:PORT"` another. `fresh` discards the run's training and starts over.

    >>> import raydist
    >>> outcome = raydist.run("debug_reader", {"data.train.questions": 20, "data.dev.questions": 10, "data.test": {}})
    >>> 0 <= outcome.metrics["dev.f1"] <= 100
    True
    """
    from raydist import flows

    with _opened(config, overrides, ray) as opened:
        flows.run_all(opened, fresh=fresh)
    return _outcome(opened)


def train(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False, fresh: bool = False) -> Outcome:
    """Train, or resume training; `ray` and `fresh` as for `run`.

    >>> import raydist
    >>> outcome = raydist.train("debug_reader", ["data.train.questions=20", "data.dev.questions=10"])
    >>> raydist.Reader.load(outcome.folder).ask("Who built it?", "Mina Orlov built it.").text in "Mina Orlov built it."
    True
    """
    from raydist import flows

    with _opened(config, overrides, ray) as opened:
        flows.train(opened, fresh=fresh)
    return _outcome(opened.beside(f"{opened.config.name}_cross_encoder") if opened.config.task == "cross_encoder" else opened)


def predict(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False) -> dict[str, pa.Table]:
    """Predict the n-best answers of a reader's dev and test sets (or those of predict.split): an Arrow table for each set.

    >>> import raydist
    >>> sets = raydist.predict("debug_reader", {"data.train.questions": 20, "data.dev.questions": 10, "predict.split": "dev"})
    >>> sets["dev"].num_rows, sets["dev"].column_names
    (10, ['id', 'passage_id', 'language', 'nbest', 'null_score'])
    >>> sorted(sets["dev"]["nbest"][0].as_py()[0])
    ['end', 'probability', 'score', 'start', 'text']
    """
    from raydist.reader import flow

    with _opened(config, overrides, ray, only="reader") as opened:
        return flow.predict(opened)


def evaluate(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False) -> dict[str, dict[str, Any]]:
    """Score the run's model on the dev and test sets: a dictionary for each set.

    A reader's scores are `f1`, `em` and so on from 0 to 100; a retriever's are named `METHOD.METRIC`, from 0 to 1.

    >>> import raydist
    >>> scores = raydist.evaluate("debug_reader", {"data.train.questions": 20, "data.dev.questions": 10, "data.test": {}})
    >>> list(scores), scores["dev"]["questions"]
    (['dev'], 10)
    """
    from raydist import flows

    with _opened(config, overrides, ray) as opened:
        return flows.evaluate(opened)


def mine(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False, fresh: bool = False) -> Path:
    """Mine candidates, score them with a cross-encoder, choose silver pairs: the Parquet file of all pairs, kept or not.

    >>> import raydist, pyarrow.parquet
    >>> silver = raydist.mine("debug_retrieval")
    >>> pairs = pyarrow.parquet.read_table(silver, columns=["question_id", "sentence_id", "p", "kept", "why_not"])
    >>> pairs.num_rows > 0
    True
    """
    from raydist.retrieval import flow

    with _opened(config, overrides, ray, only="retriever") as opened:
        return flow.mine(opened, fresh=fresh)


def index(config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False, fresh: bool = False) -> Path:
    """Build an index: of documents (a folder, a glob, or a config of task documents) for `Library.open`; of a corpus for
    `Searcher.open`, with words or with the vectors of the run's retriever. An index of others under the run's name is
    replaced only if `fresh`.

    >>> import raydist
    >>> folder = raydist.index("debug_retrieval", {"index.kind": "bm25"})
    >>> len(raydist.Searcher.open(folder).search("Who built the bridge?", k=3))
    3
    """
    from raydist import flows

    if not isinstance(config, Config):
        config, overrides = flows.config_of(str(config), _lines(overrides))
    with _opened(config, overrides, ray) as opened:
        return flows.index(opened, fresh=fresh)


def run_sweep(
    config: str | Path | Config, overrides: Overrides = (), *, ray: bool | str = False, fresh: bool = False
) -> dict[str, Any]:
    """Run and rank all trials of a config's section `sweep`; returns the contents of sweep.json. The same call resumes an
    interrupted sweep.

    In this process they run one after another; with `ray` as for `run`, as many at once as the cluster has room for.

    >>> import raydist
    >>> few = {"data.train.questions": 20, "data.dev.questions": 10, "train.max_steps": 2, "sweep.seeds": [0]}
    >>> results = raydist.run_sweep("debug_sweep", few)
    >>> sorted(row["choice"]["optim.lr"] for row in results["settings"])
    [0.001, 0.003]
    """
    from raydist.sweep.driver import LocalTrials, TrialRunner
    from raydist.sweep.driver import run_sweep as drive

    loaded = load_config(config, overrides)
    with redirect_stdout(sys.stderr):
        if not ray:
            return drive(loaded, LocalTrials(), fresh=fresh)
        from raydist.cluster.trials import RayTrials, sweep_cluster

        if isinstance(ray, str):
            loaded = override(loaded, {"cluster.address": ray})
        with sweep_cluster(loaded) as cluster:
            runner: TrialRunner = RayTrials(cluster)
            return drive(loaded, runner, fresh=fresh)


# --- runs ------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(config: str | Path | Config, overrides: Overrides, ray: bool | str, only: str | None = None) -> Iterator[Run]:
    """The run that a config describes, on the requested machine; `only` names the accepted task."""
    from raydist.here import Here
    from raydist.runs.run import Run

    loaded = load_config(config, overrides)
    if only and loaded.task != only:
        raise ConfigError(f"this needs task: {only}, but the config has task: {loaded.task}")
    with redirect_stdout(sys.stderr):
        if not ray:
            with Run(loaded, Here()) as opened:
                yield opened
            return
        from raydist.cluster.connect import Cluster
        from raydist.cluster.machine import RayMachine

        if isinstance(ray, str):
            loaded = override(loaded, {"cluster.address": ray})
        cluster = Cluster(loaded.cluster)
        with Run(loaded, RayMachine(cluster)) as opened, cluster:
            yield opened


def _outcome(run: Run) -> Outcome:
    folder = str(Path(run.config.storage) / run.config.name) if run.folder.is_local else run.folder.uri
    return Outcome(folder, run.folder.read_json("metrics.json") if run.folder.exists("metrics.json") else {})
