"""Commands on an index: search it, ask it, serve it, judge what was mined from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from raydist.cli_options import Verbose
from raydist.errors import InputError
from raydist.files.given import check_regular
from raydist.terminal import plain, say, shown_json


def search(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="A folder or URI written by `raydist index`, or its run.")],
    question: Annotated[str, typer.Argument(help="What to look for.")],
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    kind: Annotated[Optional[str], typer.Option(help="hybrid, bm25 or dense (indexes of documents).")] = None,  # noqa: UP045
    where: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CONDITION", help="On metadata (indexes of documents): \"year >= 2020 and language = 'de'\"."),
    ] = None,
    rerank: Annotated[int, typer.Option(metavar="N", help="Number of passages to rerank (indexes of documents).")] = 0,
    cross_encoder: Annotated[Optional[str], typer.Option(metavar="MODEL", help="Cross-encoder for --rerank.")] = None,  # noqa: UP045
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list with all details.")] = False,
) -> None:
    """Search an index: the best passages or sentences for a question.

    Example: raydist search runs/docs "How is an index updated?" -k 3 --where "language = 'en'"
    """
    from raydist.library.asked import search_index

    print(search_index(index, question, k, as_json, kind=kind, where=where, rerank=rerank, cross_encoder=cross_encoder))


def ask(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="A run or index of documents; with --passage, a reader.")],
    question: Annotated[Optional[str], typer.Argument(help="The question; without it, a prompt opens.")] = None,  # noqa: UP045
    passage: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read this text, of any length, instead of an index; - is standard input."),
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="RUN", help="A reader's run, its model's folder, or a Hugging Face name.")
    ] = None,
    rerank: Annotated[str | None, typer.Option(metavar="MODEL", help="A cross-encoder that reranks passages.")] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Search only passages with this metadata.")] = None,
    kind: Annotated[str | None, typer.Option(help="hybrid, bm25 or dense.")] = None,
    k: Annotated[int | None, typer.Option("-k", "--k", help="Number of passages to read.")] = None,
    n_best: Annotated[int, typer.Option(metavar="K", help="Number of answers.")] = 1,
    calibration: Annotated[
        str | None, typer.Option(metavar="FILE", help="Calibration of another run with the same models.")
    ] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="P", help="Withhold unsure answers, so that this share of those given is correct.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(metavar="P", help="Withhold answers below this probability.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with scores.")] = False,
) -> None:
    """Answer a question from documents, with the source, or report that no answer was found; without a question, open a prompt.

    Example: raydist ask runs/docs "Who built the bridge?" --reader runs/quickstart
    """
    if passage is not None:
        if question is None:
            raise InputError("--passage needs a question: raydist ask READER QUESTION --passage FILE")
        ask_passage(index, question, read_text(passage), n_best, as_json)
        return
    from raydist.asking.session import Showing, ask_library

    models = {"reader": reader, "cross_encoder": rerank, "calibration": calibration}
    settings = {"kind": kind, "k": k, "precision": precision, "threshold": threshold}
    ask_library(index, question, {**models, **settings}, Showing(where, n_best, as_json))


def serve(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The run or index of documents.")],
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[serving.KEY=value ...]", help="Settings of the service: raydist config explain serving."),
    ] = None,
    reader: Annotated[
        str | None, typer.Option(metavar="RUN", help="A reader's run, its model's folder, or a Hugging Face name.")
    ] = None,
    rerank: Annotated[str | None, typer.Option(metavar="MODEL", help="A cross-encoder that ranks passages anew.")] = None,
    kind: Annotated[str | None, typer.Option(help="hybrid, bm25 or dense.")] = None,
    k: Annotated[int | None, typer.Option("-k", "--k", help="How many passages are read.")] = None,
    calibration: Annotated[str | None, typer.Option(metavar="FILE", help="Of another run with the same models.")] = None,
    precision: Annotated[float | None, typer.Option(metavar="P", help="Wanted share of right answers.")] = None,
    threshold: Annotated[float | None, typer.Option(metavar="P", help="Withhold answers below this probability.")] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Default: 8100.")] = None,
    token_file: Annotated[str | None, typer.Option(metavar="FILE", help="Bearer tokens, one on each line.")] = None,
    ray: Annotated[
        bool, typer.Option("--ray/--local", help="On Ray Serve, with replicas; or all in this process (the default).")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write deploy.yaml (serve deploy) or rayservice.yaml (KubeRay).")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """An HTTP API over an index of documents: questions, searches, metrics.

    Example: raydist serve runs/docs --reader runs/quickstart
    """
    from raydist.serving.settings import serving_settings

    settings = serving_settings(index, overrides or (), {"host": host, "port": port, "token_file": token_file})

    from raydist.serving.answering import Opening

    models = {"reader": reader, "cross_encoder": rerank, "calibration": calibration}
    opening = Opening(index, {**models, "kind": kind, "k": k, "precision": precision, "threshold": threshold})
    if write:
        from raydist.serving.manifests import write_manifest

        write_manifest(write, opening, settings)
        say(f"the service is described in {write}")
    elif ray:
        from raydist.cluster.serve import serve_on_ray

        serve_on_ray(opening, settings, verbose=verbose)
    else:
        from raydist.serving.flow import serve_here

        serve_here(opening, settings)


def judge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of retrieval that has mined.")],
    port: Annotated[int, typer.Option(help="Of this machine; 0: a free one.")] = 8101,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="For verdicts; default: RUN/judgements.jsonl.")] = None,
) -> None:
    """Mined pairs in a browser: accept, reject, skip, undo. `corpus.judgements` takes the file (docs/judging.md).

    Example: raydist judge runs/retrieval
    """
    from raydist.config.serving import ServingConfig
    from raydist.serving.views import judge_here

    judge_here(run, ServingConfig(port=port), to)


def ask_passage(reader: str, question: str, text: str, n_best: int, as_json: bool) -> None:
    """Print a passage's answers to a question: rank, probability, first and last character, text."""
    from raydist.reader.answers import Reader

    answer = Reader.load(reader).ask(question, text, n_best=n_best)
    if as_json:
        from dataclasses import asdict

        print(shown_json(asdict(answer)))
        return
    if not answer.answered:
        say(f"the passage does not seem to say (p {answer.null_probability:.4f}); its best spans:")
    for rank, span in enumerate(answer.nbest, 1):
        say(f"{rank:3}  {span.probability:6.4f}  {span.start}-{span.end}  {plain(span.text)}")


def read_text(name: str) -> str:
    """A text file; - is standard input."""
    try:
        if name != "-":
            check_regular(name)
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start}); convert it first, for example with iconv") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
