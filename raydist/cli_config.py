"""`raydist config`: the values of a config, and the meaning of its keys."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from raydist.cli_options import ConfigArg, Overrides
from raydist.terminal import say

config_app = typer.Typer(help="Show, check or explain a config.", no_args_is_help=True)


@config_app.command("show")
def config_show(
    config: ConfigArg,
    words: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[KEY | key=value ...]", help="Keys and sections to show, default: all; overrides."),
    ] = None,
) -> None:
    """Show every value and its origin.

    Example: raydist config show quickstart optim.lr=2e-5

    Example: raydist config show quickstart optim data.max_length
    """
    from raydist.config import flatten, load_config
    from raydist.config.keys import known_key

    wanted = [known_key(word).name for word in words or () if "=" not in word]
    loaded = load_config(config, [word for word in words or () if "=" in word])
    for key, value in flatten(loaded.config).items():
        if wanted and not any(f"{key}.".startswith(f"{name}.") or f"{name}.".startswith(f"{key}.") for name in wanted):
            continue
        plain = key.removesuffix(".files")  # `dev: a.json` sets dev.files alone; the source's other keys are defaults
        origin = loaded.origins.get(key) or loaded.origins.get(plain, "default")
        say(f"{key} = {value!r}".ljust(60) + f"  # {origin}")


@config_app.command("explain")
def config_explain(
    keys: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[KEY ...]", help="Dotted keys or sections; default: the list of sections."),
    ] = None,
) -> None:
    """Explain a key: its default, values and unit, and what it affects (nothing, rows, weights or scores).

    Example: raydist config explain optim.lr

    Example: raydist config explain objectives.infomax data.test.NAME.files
    """
    from raydist.config.explain import explain_key

    say("\n\n".join([explain_key(key) for key in keys or [""]]))


@config_app.command("check")
def config_check(config: ConfigArg, overrides: Overrides = None) -> None:
    """Check a config, and list all its problems.

    Example: raydist config check my.yaml
    """
    from raydist.config import load_config

    loaded = load_config(config, overrides or ())
    if loaded.config.sweep:
        from raydist.sweep.plan import plan_sweep

        plan_sweep(loaded.config)
    say(f"{config}: no problem found")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a config, for editors: descriptions, limits, units, and what each key affects.

    Example: raydist config schema > raydist.schema.json
    """
    import json

    from raydist.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
