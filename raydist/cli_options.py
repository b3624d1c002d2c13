"""Arguments and options shared by several commands."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

ConfigArg = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a config that ships with raydist.")
]
Overrides = Annotated[Optional[list[str]], typer.Argument(metavar="[key=value ...]", help="Overrides by dotted key.")]  # noqa: UP045
Fresh = Annotated[bool, typer.Option("--fresh", help="Discard this run's training and start again.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also show Ray's own output.")]
Address = Annotated[
    str | None, typer.Option(metavar="URL", help="The cluster's dashboard; default: RAY_ADDRESS, else http://127.0.0.1:8265.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow a remote cluster that requires no token.")]
JobId = Annotated[str | None, typer.Argument(metavar="[ID]", help="Job id, as shown by `raydist jobs list`.")]
