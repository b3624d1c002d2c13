"""The command line. Exit status: 0 done, 2 the user's input is wrong, 1 it failed, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from raydist.errors import InputError

if TYPE_CHECKING:
    from raydist.cluster.pipeline import Run

app = typer.Typer(
    help="Question answering on a Ray cluster: mine, train, sweep, evaluate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
config_app = typer.Typer(help="Show, check or describe a config.", no_args_is_help=True)
app.add_typer(config_app, name="config")

ConfigArg = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a config that ships with raydist.")
]
Overrides = Annotated[Optional[list[str]], typer.Argument(metavar="[key=value ...]", help="Overrides of dotted keys.")]  # noqa: UP045
Fresh = Annotated[bool, typer.Option("--fresh", help="Start the run's training over.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Let Ray talk, too.")]


@contextmanager
def opened(config: str, overrides: list[str] | None, verbose: bool = False) -> Iterator[Run]:
    """The run that a config describes, on its cluster."""
    from raydist.cluster.connect import Cluster
    from raydist.cluster.pipeline import Run
    from raydist.config import load_config

    loaded = load_config(config, overrides or ())
    with Cluster(loaded.config.cluster, verbose=verbose) as cluster:
        run = Run(loaded.config, cluster)
        run.begin()
        yield run


@app.command()
def run(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """A whole pipeline, stage by stage. Interrupted, the same command goes on where it stopped.

    Example: raydist run quickstart
    """
    from raydist.cluster import pipeline

    with opened(config, overrides, verbose) as run:
        pipeline.run_all(run, fresh=fresh)


@app.command()
def train(config: ConfigArg, overrides: Overrides = None, fresh: Fresh = False, verbose: Verbose = False) -> None:
    """Train; the model is in RUN/model, in Hugging Face layout.

    Example: raydist train reader data.train=train.json data.dev=dev.json name=mine
    """
    from raydist.cluster import pipeline

    with opened(config, overrides, verbose) as run:
        pipeline.train(run, fresh=fresh)
        print(f"model in {run.folder.path('model')}")


@app.command()
def predict(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """n-best answers of the dev and test sets, as JSON and Parquet.

    Example: raydist predict quickstart predict.split=dev predict.n_best=5
    """
    from raydist.cluster import pipeline

    with opened(config, overrides, verbose) as run:
        tables = pipeline.predict(run)
        for name, table in tables.items():
            print(
                f"{name}: {table.num_rows:,} questions in {run.folder.path('predictions')}/{name}.json, .nbest.json, .parquet"
            )


@app.command()
def evaluate(config: ConfigArg, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """Scores of the dev and test sets, by the run's model or from another tool's predictions file.

    Example: raydist evaluate quickstart evaluate.predictions.dev=predictions.json
    """
    from raydist.cluster import pipeline

    with opened(config, overrides, verbose) as run:
        pipeline.evaluate(run)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: report.html of the first run.")] = None,
) -> None:
    """One HTML file about a run, or about several side by side.

    Example: raydist report runs/plain runs/infomax --out compare.html
    """
    from raydist.report.html import write_report

    for folder in runs:
        if not (folder / "config.yaml").is_file():
            raise InputError(
                f"{folder} is not a run: it has no config.yaml; runs are folders in `storage`, such as runs/quickstart"
            )
    print(f"report in {write_report(runs, out)}")


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    size: Annotated[str, typer.Option(help="small, medium, large, or a number of corpus sentences.")] = "small",
    seed: int = 0,
) -> None:
    """Write the sample world: an invented encyclopedia with questions, in six languages.

    Example: raydist sample world --size medium --seed 1
    """
    from raydist.progress import Progress
    from raydist.sample.write import write_sample

    bar: Progress | None = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = Progress("sample world", total, "sentences").__enter__()
        bar.update(done)

    counts = write_sample(out, size, seed, progress)
    if bar:
        bar.__exit__(None)
    print(f"{out}: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()))


@app.command()
def status(run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]) -> None:
    """How far a run is, and what it has reached.

    Example: raydist status runs/quickstart
    """
    from raydist.cluster.pipeline import describe_run

    print(describe_run(run))


@app.command()
def clean(
    storage: Annotated[str, typer.Argument(help="The storage folder or URI, which holds runs and stages.")] = "runs",
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would go.")] = False,
) -> None:
    """Delete cached stages that no run refers to.

    Example: raydist clean runs --yes
    """
    from raydist.cluster.pipeline import unused_stages
    from raydist.storage import Storage

    store = Storage(storage)
    unused = unused_stages(store)
    for name in unused:
        print(("deleted " if yes else "unused: ") + name)
        if yes:
            store.delete(name)
    if not unused:
        print("nothing to clean: every stage is used by a run")
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


@config_app.command("show")
def config_show(config: ConfigArg, overrides: Overrides = None) -> None:
    """Every value, and where it came from.

    Example: raydist config show quickstart optim.lr=2e-5
    """
    from raydist.config import flatten, load_config

    loaded = load_config(config, overrides or ())
    for key, value in flatten(loaded.config).items():
        steps = key.split(".")
        origin = next(
            (loaded.origins[name] for end in range(len(steps), 0, -1) if (name := ".".join(steps[:end])) in loaded.origins),
            "default",
        )
        print(f"{key} = {value!r}".ljust(60) + f"  # {origin}")


@config_app.command("check")
def config_check(config: ConfigArg, overrides: Overrides = None) -> None:
    """Say whether a config is right, or all that is wrong with it.

    Example: raydist config check my.yaml
    """
    from raydist.config import load_config

    load_config(config, overrides or ())
    print(f"{config}: no problem found")


@config_app.command("schema")
def config_schema() -> None:
    """The JSON schema of a config, for editors.

    Example: raydist config schema > raydist.schema.json
    """
    import json

    from raydist.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


def guarded(command: Callable[[], object]) -> int:
    """Call it; turn what goes wrong into one message and an exit status."""
    try:
        command()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception as error:
        from raydist.storage import StorageError

        expected = isinstance(error, StorageError) or type(error).__name__ == "TrainingFailed"
        if not expected:
            import traceback

            traceback.print_exc()
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


def job(command: str, arguments: list[str]) -> int:
    """A command with its arguments; the exit status."""

    def call() -> None:
        try:
            app([command, *arguments] if command else arguments, standalone_mode=False)
        except typer.Abort:
            raise KeyboardInterrupt from None
        except Exception as error:
            if not hasattr(error, "show"):  # else: typer's own, for a command line that it could not read
                raise
            error.show()
            raise SystemExit(2) from None

    return guarded(call)


def main() -> None:
    sys.exit(job("", sys.argv[1:]))


if __name__ == "__main__":
    main()
