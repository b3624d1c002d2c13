"""The command line. Exit statuses are in exits.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from raydist import __version__
from raydist.cli_ask import ask, judge, search, serve
from raydist.cli_config import config_app
from raydist.cli_jobs import jobs_app
from raydist.cli_options import Address, ConfigArg, Fresh, Insecure, Overrides, Verbose
from raydist.errors import InputError
from raydist.exits import INTERRUPTED, WRONG_INPUT, exit_status
from raydist.terminal import say

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
        say(f"raydist {__version__}")
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
    cluster = Cluster(loaded.config.cluster, verbose=verbose)
    with Run(loaded.config, RayMachine(cluster)) as run, cluster:  # whose processes end before the run is another's
        yield run


@app.command()
def run(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Run a whole pipeline, stage by stage. If interrupted, the same command resumes where it stopped.

    Example: raydist run quickstart
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.run_all(run, fresh=fresh)


@app.command()
def new(
    files: Annotated[list[str], typer.Argument(metavar="FILE [FILE ...]", help="Questions, a corpus's folder, or documents.")],
    out: Annotated[Path, typer.Option(help="The config to write.")] = Path("mine.yaml"),
    dev: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="FILE", help="A reader's development set; default: a tenth of the questions."),
    ] = None,
    test: Annotated[Optional[list[str]], typer.Option(metavar="FILE", help="A test set; may be given again.")] = None,  # noqa: UP045
    task: Annotated[str | None, typer.Option(help="reader, retriever or documents; default: by the files.")] = None,
) -> None:
    """Write a commented config for your own files, after a look at them.

    Example: raydist new train.json --dev dev.json --out mine.yaml
    """
    from raydist.new import next_steps, write_new

    if task not in (None, "reader", "retriever", "documents"):
        raise InputError(f"--task is reader, retriever or documents, not {task}")
    for line in write_new(files, out, task=task, dev=dev or (), test=test or ()):
        say(line)
    say(f"{out} is written; read it, then: {'; '.join(next_steps(out))}")


@app.command()
def train(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Train; the model is written to RUN/model, in Hugging Face layout.

    Example: raydist train reader data.train=train.json data.dev=dev.json name=mine
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.train(run, fresh=fresh)
        ending = "_cross_encoder" if run.config.task == "cross_encoder" else ""
        say(f"model in {run.storage.path(run.config.name + ending, 'model')}")


@app.command()
def predict(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """Predict n-best answers for the dev and test sets, as JSON and Parquet.

    Example: raydist predict quickstart predict.split=dev predict.n_best=5
    """
    from raydist.reader import flow

    with opened(config, overrides, verbose) as run:
        tables = flow.predict(run)
        for name, table in tables.items():
            say(f"{name}: {table.num_rows:,} questions in {run.folder.path('predictions')}/{name}.json, .nbest.json, .parquet")


@app.command()
def evaluate(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """Score the dev and test sets, with the run's model or from another tool's predictions file.

    For retrieval, the other tool's file is a TREC run (evaluate.predictions.TEST=run.trec).

    Example: raydist evaluate quickstart name=theirs evaluate.predictions.dev=predictions.json
    """
    from raydist import flows

    with opened(config, overrides, verbose) as run:
        flows.evaluate(run)


@app.command()
def mine(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Find candidates, score them, choose silver pairs: RUN/mining/silver.parquet lists every pair and its fate.

    Example: raydist mine retrieval mining.threshold=0.7
    """
    from raydist.retrieval import flow

    with opened(config, overrides, verbose) as run:
        say(f"silver pairs in {flow.mine(run, fresh=fresh)}")


@app.command()
def index(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG | PATH", help="A config, or documents: a folder, file, glob or URI.")
    ],
    overrides: Overrides = None,
    add: Annotated[Optional[list[Path]], typer.Option(help="Files to add, with rows like those of the corpus.")] = None,  # noqa: UP045
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the run's index, of whatever it is.")] = False,
    verbose: Verbose = False,
) -> None:
    """Build an index in RUN/index, of documents (a second call reads only what has changed) or of a corpus.

    Example: raydist index docs/ name=docs
    """
    from raydist import flows

    with opened(*flows.config_of(config, overrides or []), verbose) as run:
        if add:
            say(f"added {flows.add_to_index(run, add):,} sentences to {run.folder.path('index')}")
        else:
            say(f'index in {(made := flows.index(run, fresh=fresh))}; ask it with: raydist search {made} "..."')


for command in (search, ask, serve, judge):
    app.command()(command)


@app.command()
def sweep(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Run and rank the trials of a config's section `sweep`. If interrupted, the same command resumes where it stopped.

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
        Path | None, typer.Option(help="Output file; default: the run's report.html, or compare.html beside several runs.")
    ] = None,
) -> None:
    """Write an HTML report on a run or a sweep, or on several runs side by side.

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

        say(f"report in {write_sweep_report(runs[0], out)}")
    else:
        say_summary(runs)
        say(f"report in {write_report(runs, out or (runs[0].parent / 'compare.html' if len(runs) > 1 else None))}")


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

    say(f"{to} in {write_export(run, to, out)}")


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    size: Annotated[str, typer.Option(help="small, medium, large, or a number of corpus sentences.")] = "small",
    seed: Annotated[int, typer.Option(help="Seed of the invented world; the same seed gives the same bytes.")] = 0,
) -> None:
    """Write the sample world: an invented encyclopedia with questions, in six languages.

    Example: raydist sample world --size medium --seed 1
    """
    from raydist.sample.write import write_sample
    from raydist.terminal import Progress

    with Progress("sample world", 0, "passages") as bar:
        counts = write_sample(out, size, seed, lambda done, total: bar.update(done, total=total))
    say(f"{out}: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()))


@app.command()
def status(run: Annotated[str, typer.Argument(metavar="RUN", help="The folder or URI of a run.")]) -> None:
    """Show the progress and results of a run.

    Example: raydist status runs/quickstart
    """
    from raydist.status import describe_run

    say(describe_run(run))


@app.command()
def clean(
    storage: Annotated[str, typer.Argument(help="The storage folder or URI that holds runs and stages.")] = "runs",
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, list what would be deleted.")] = False,
    keep_runs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="Keep only the stages of these runs (repeatable, may contain *); default: of all runs."),
    ] = None,
) -> None:
    """Delete cached stages that no run refers to, and no command makes or uses at the moment.

    Example: raydist clean runs --keep-runs quickstart --keep-runs "mine*" --yes
    """
    from raydist.files.storage import Storage
    from raydist.runs.clean import clean_storage

    clean_storage(Storage(storage), keep_runs or (), yes=yes)


@app.command()
def doctor() -> None:
    """Describe this machine: versions, cores, memory, disk, models.

    Example: raydist doctor
    """
    from raydist.doctor import examine

    for name, value in examine():
        say(f"{name:22} {value}")


@app.command()
def submit(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="run, train, ...: any command that takes a config.")],
    config: ConfigArg,
    overrides: Overrides = None,
    address: Address = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the log.")] = False,
    working_dir: Annotated[
        Path, typer.Option(help="Folder to send with the job; the config's relative paths start there.")
    ] = Path(),
    exclude: Annotated[Optional[list[str]], typer.Option(help="Files not to send, as .gitignore patterns.")] = None,  # noqa: UP045
    shared: Annotated[Optional[list[str]], typer.Option(help="A folder that every node mounts.")] = None,  # noqa: UP045
    fresh: Fresh = False,
    verbose: Verbose = False,
    insecure: Insecure = False,
) -> None:
    """Submit a command as a job to a Ray cluster, after preflight. Ctrl-C detaches; its exit status becomes ours.

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
    say(f"submitted {job_id}")
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
