"""The command line. Exit statuses are in exits.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from raydist import __version__
from raydist.cli_config import config_app
from raydist.cli_jobs import jobs_app
from raydist.cli_options import Address, ConfigArg, Fresh, Insecure, Overrides, Verbose
from raydist.errors import InputError
from raydist.exits import INTERRUPTED, WRONG_INPUT, exit_status

if TYPE_CHECKING:
    from raydist.runs.run import Run

app = typer.Typer(
    help="Question answering on a Ray cluster: mine, train, sweep, evaluate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(config_app, name="config")
app.add_typer(jobs_app, name="jobs")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"raydist {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Question answering on a Ray cluster: mine, train, sweep, evaluate."""


@contextmanager
def opened(config: str, overrides: list[str] | None, verbose: bool = False) -> Iterator[Run]:
    """The run that a config describes, on its cluster."""
    from raydist.cluster.connect import Cluster
    from raydist.cluster.machine import RayMachine
    from raydist.config import load_config
    from raydist.runs.run import Run

    loaded = load_config(config, overrides or ())
    with Cluster(loaded.config.cluster, verbose=verbose) as cluster, Run(loaded.config, RayMachine(cluster)) as run:
        yield run


@app.command()
def run(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """A whole pipeline, stage by stage. Interrupted, the same command goes on where it stopped.

    Example: raydist run quickstart
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.run_all(run, fresh=fresh)


@app.command()
def train(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Train; the model is in RUN/model, in Hugging Face layout.

    Example: raydist train reader data.train=train.json data.dev=dev.json name=mine
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.train(run, fresh=fresh)
        ending = "_cross_encoder" if run.config.task == "cross_encoder" else ""
        print(f"model in {run.storage.path(run.config.name + ending, 'model')}")


@app.command()
def predict(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """n-best answers of the dev and test sets, as JSON and Parquet.

    Example: raydist predict quickstart predict.split=dev predict.n_best=5
    """
    from raydist.reader import flow

    with opened(config, overrides, verbose) as run:
        tables = flow.predict(run)
        for name, table in tables.items():
            print(
                f"{name}: {table.num_rows:,} questions in {run.folder.path('predictions')}/{name}.json, .nbest.json, .parquet"
            )


@app.command()
def evaluate(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """Scores of the dev and test sets, by the run's model or from another tool's predictions file.

    Retrieval takes another tool's TREC run in the same way (evaluate.predictions.TEST=run.trec).

    Example: raydist evaluate quickstart name=theirs evaluate.predictions.dev=predictions.json
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.evaluate(run)


@app.command()
def mine(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Candidates, cross-encoder scores, silver pairs: RUN/mining/silver.parquet has every pair, kept or why not.

    Example: raydist mine retrieval mining.threshold=0.7
    """
    from raydist.retrieval import flow

    with opened(config, overrides, verbose) as run:
        print(f"silver pairs in {flow.mine(run, fresh=fresh)}")


@app.command()
def index(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG | PATH", help="A config, or documents: a folder, a file, a glob, a URI.")
    ],
    overrides: Overrides = None,
    add: Annotated[Optional[list[Path]], typer.Option(help="Documents to add: rows as the corpus has them.")] = None,  # noqa: UP045
    verbose: Verbose = False,
) -> None:
    """An index in RUN/index: of documents, of which a second call reads only what has changed, or of a corpus.

    Example: raydist index docs/ name=docs
    """
    from raydist import flows

    with opened(*flows.config_of(config, overrides or []), verbose) as run:
        if add:
            print(f"added {flows.add_to_index(run, add):,} sentences to {run.folder.path('index')}")
        else:
            print(f'index in {(made := flows.index(run))}; ask it with: raydist search {made} "..."')


@app.command()
def search(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="A folder or URI that `raydist index` wrote, or its run.")],
    question: Annotated[str, typer.Argument(help="What to look for.")],
    k: Annotated[int, typer.Option("-k", help="How many.")] = 10,
    kind: Annotated[Optional[str], typer.Option(help="hybrid, bm25 or dense; of documents.")] = None,  # noqa: UP045
    where: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CONDITION", help="Of documents: \"year >= 2020 and language = 'de'\"."),
    ] = None,
    rerank: Annotated[int, typer.Option(metavar="N", help="How many a cross-encoder ranks anew; of documents.")] = 0,
    cross_encoder: Annotated[Optional[str], typer.Option(metavar="MODEL", help="That ranks anew.")] = None,  # noqa: UP045
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list, with all that is known.")] = False,
) -> None:
    """The best passages or sentences of an index for a question.

    Example: raydist search runs/docs "How is an index updated?" -k 3 --where "language = 'en'"
    """
    from raydist.library.asked import search_index

    print(search_index(index, question, k, as_json, kind=kind, where=where, rerank=rerank, cross_encoder=cross_encoder))


@app.command()
def ask(
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help="The run or index of documents; with --passage, a reader instead.")
    ],
    question: Annotated[Optional[str], typer.Argument(help="What to ask; without it, a prompt.")] = None,  # noqa: UP045
    passage: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read this text, of any length, and no index; -: standard input.")
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="RUN", help="A reader's run, its model's folder, or a Hugging Face name.")
    ] = None,
    rerank: Annotated[str | None, typer.Option(metavar="MODEL", help="A cross-encoder that ranks passages anew.")] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Which passages, by metadata.")] = None,
    kind: Annotated[str | None, typer.Option(help="hybrid, bm25 or dense.")] = None,
    k: Annotated[int | None, typer.Option("-k", "--k", help="How many passages are read.")] = None,
    n_best: Annotated[int, typer.Option(metavar="K", help="How many answers.")] = 1,
    calibration: Annotated[str | None, typer.Option(metavar="FILE", help="Of another run with the same models.")] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="P", help="Withhold answers, so that this share of the given ones is right.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(metavar="P", help="Withhold answers below this probability.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, with scores.")] = False,
) -> None:
    """The answer that documents give to a question, where it stands, or that it is not found; without a question, a prompt.

    Example: raydist ask runs/docs "Who built the bridge?" --reader runs/quickstart
    """
    if passage is not None:
        if question is None:
            raise InputError("with --passage a question is wanted: raydist ask READER QUESTION --passage FILE")
        ask_passage(index, question, read_text(passage), n_best, as_json)
        return
    from raydist.asking.session import Showing, ask_library

    models = {"reader": reader, "cross_encoder": rerank, "calibration": calibration}
    settings = {"kind": kind, "k": k, "precision": precision, "threshold": threshold}
    ask_library(index, question, {**models, **settings}, Showing(where, n_best, as_json))


def ask_passage(reader: str, question: str, text: str, n_best: int, as_json: bool) -> None:
    """Print a passage's answers to a question: rank, probability, first and last character, text."""
    from raydist.reader.answers import Reader

    answer = Reader.load(reader).ask(question, text, n_best=n_best)
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps(asdict(answer), ensure_ascii=False, indent=1))
        return
    if not answer.answered:
        print(f"the passage does not seem to say (p {answer.null_probability:.4f}); its best spans:")
    for rank, span in enumerate(answer.nbest, 1):
        print(f"{rank:3}  {span.probability:6.4f}  {span.start}-{span.end}  {span.text}")


def read_text(name: str) -> str:
    """A text file; - is standard input."""
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start}); convert it first, for example with iconv") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None


@app.command()
def sweep(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Trials of a config over its section `sweep`, ranked. Interrupted, the same command goes on where it stopped.

    Example: raydist sweep sweeps/pfa_bottleneck sweep.seeds=[0,1,2]
    """
    from raydist.config import load_config
    from raydist.sweep.plan import plan_sweep

    loaded = load_config(config, overrides or ())
    plan_sweep(loaded.config)  # reports problems before Ray is loaded

    from raydist.cluster.trials import RayTrials, sweep_cluster
    from raydist.sweep.driver import run_sweep

    with sweep_cluster(loaded.config, verbose=verbose) as cluster:
        run_sweep(loaded.config, RayTrials(cluster), fresh=fresh)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Folders of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Where; default: the run's report.html, or compare.html beside several.")
    ] = None,
) -> None:
    """One HTML file about a run or a sweep, or about several runs side by side.

    Example: raydist report runs/plain runs/infomax --out compare.html
    """
    from raydist.report.html import write_report
    from raydist.report.summary import say_summary

    for folder in runs:
        if not (folder / "config.yaml").is_file():
            raise InputError(
                f"{folder} is not a run: it has no config.yaml; runs are folders in `storage`, such as runs/quickstart"
            )
    if len(runs) == 1 and (runs[0] / "sweep.json").is_file():
        from raydist.report.sweep import write_sweep_report

        print(f"report in {write_sweep_report(runs[0], out)}")
    else:
        say_summary(runs)
        print(f"report in {write_report(runs, out or (runs[0].parent / 'compare.html' if len(runs) > 1 else None))}")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    to: Annotated[str, typer.Option(metavar="KIND", help="hub-folder, sentence-transformers, triplets or onnx.")],
    out: Annotated[Path | None, typer.Option(help="Where; default: RUN/exported/KIND.")] = None,
) -> None:
    """A run's model or mined pairs, for other tools: a folder for the hub, one for sentence-transformers, triplets of texts.

    Example: raydist export runs/quickstart --to hub-folder --out my-reader
    """
    from raydist.exports import export as write_export

    print(f"{to} in {write_export(run, to, out)}")


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    size: Annotated[str, typer.Option(help="small, medium, large, or a number of corpus sentences.")] = "small",
    seed: Annotated[int, typer.Option(help="Of the invented world: the same seed, the same bytes.")] = 0,
) -> None:
    """Write the sample world: an invented encyclopedia with questions, in six languages.

    Example: raydist sample world --size medium --seed 1
    """
    from raydist.sample.write import write_sample
    from raydist.terminal import Progress

    with Progress("sample world", 0, "passages") as bar:
        counts = write_sample(out, size, seed, lambda done, total: bar.update(done, total=total))
    print(f"{out}: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()))


@app.command()
def status(run: Annotated[str, typer.Argument(metavar="RUN", help="The folder or URI of a run.")]) -> None:
    """How far a run is, and what it has reached.

    Example: raydist status runs/quickstart
    """
    from raydist.status import describe_run

    print(describe_run(run))


@app.command()
def clean(
    storage: Annotated[str, typer.Argument(help="The storage folder or URI, which holds runs and stages.")] = "runs",
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, list what would be deleted.")] = False,
    keep_runs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Keep the stages of this run alone (may be given again, and have a *); default: of all runs."),
    ] = None,
) -> None:
    """Delete cached stages that no run refers to.

    Example: raydist clean runs --keep-runs quickstart --keep-runs "mine*" --yes
    """
    from raydist.files.storage import Storage
    from raydist.runs.clean import unused_stages

    store = Storage(storage)
    unused = unused_stages(store, keep_runs or ())
    for name in unused:
        print(("deleted " if yes else "unused: ") + name)
        if yes:
            store.delete(name)
    if not unused:
        print("nothing to clean: every stage is used by a run that is kept")
    elif not yes:
        print(f"{len(unused)} stages would go; add --yes to delete them")


@app.command()
def doctor() -> None:
    """What this machine has: versions, cores, memory, disk, models.

    Example: raydist doctor
    """
    from raydist.doctor import examine

    for name, value in examine():
        print(f"{name:22} {value}")


@app.command()
def submit(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="run, train, ...: any command that takes a config.")],
    config: ConfigArg,
    overrides: Overrides = None,
    address: Address = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the log.")] = False,
    working_dir: Annotated[Path, typer.Option(help="Sent with the job; the config's relative paths start there.")] = Path(),
    exclude: Annotated[Optional[list[str]], typer.Option(help="Not sent; patterns as in a .gitignore.")] = None,  # noqa: UP045
    shared: Annotated[Optional[list[str]], typer.Option(help="A folder that every node mounts.")] = None,  # noqa: UP045
    fresh: Fresh = False,
    verbose: Verbose = False,
    insecure: Insecure = False,
) -> None:
    """A command as a job on a Ray cluster, after preflight. Ctrl-C detaches; the job's exit status is this command's.

    Example: raydist submit train quickstart storage=s3://bucket/runs --address http://127.0.0.1:8265
    """
    import inspect

    from raydist.submission.preflight import prepare

    callbacks = {info.name or info.callback.__name__: info.callback for info in app.registered_commands if info.callback}
    parameters = {name: inspect.signature(callback).parameters for name, callback in callbacks.items() if name != "submit"}
    job = prepare(
        command,
        config,
        overrides or (),
        address=address,
        working_dir=working_dir,
        exclude=exclude or (),
        shared=shared or (),
        insecure=insecure,
        options=["--fresh"] * fresh + ["--verbose"] * verbose,
        commands={name: [f"--{option}" for option in taken] for name, taken in parameters.items() if "config" in taken},
    )
    from raydist.cluster.submit import Jobs

    jobs = Jobs(job.target)
    job_id = jobs.send(job)
    print(f"submitted {job_id}", flush=True)
    if not no_wait:
        raise SystemExit(jobs.follow(job_id))


def job(command: str, arguments: list[str]) -> int:
    """Run a command with its arguments and return the exit status."""

    def call() -> None:
        try:
            status = app([command, *arguments] if command else arguments, standalone_mode=False)
        except typer.Abort:
            raise KeyboardInterrupt from None
        except Exception as error:
            if not hasattr(error, "show"):  # else typer's own, for an invalid command line
                raise
            error.show()
            raise SystemExit(WRONG_INPUT) from None
        if status == INTERRUPTED:  # typer's status for a KeyboardInterrupt
            raise KeyboardInterrupt
        raise SystemExit(status)

    return exit_status(call)


def main() -> None:
    sys.exit(job("", sys.argv[1:]))


if __name__ == "__main__":
    main()
