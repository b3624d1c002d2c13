"""What `raydist serve` is set up with: the section `serving` of the index's run, and what the command says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from raydist.config import ConfigError
from raydist.config.explain import checked_section
from raydist.config.serving import ServingConfig

PREFIX = "serving."


def serving_settings(index: str, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> ServingConfig:
    """Options over overrides (`serving.rate=5`), over the config of the run that holds the index."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    return checked_section(ServingConfig, "serving", _of_run(index) | dict(map(_override, overrides)) | given)


def _of_run(index: str) -> dict[str, Any]:
    folder = Path(index).expanduser()
    run = next((place for place in (folder, folder.absolute().parent) if (place / "config.yaml").is_file()), None)
    try:
        found = yaml.safe_load((run / "config.yaml").read_bytes()) if run else {}
        return dict((found or {}).get("serving") or {})
    except (yaml.YAMLError, ValueError, AttributeError, TypeError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{run}/config.yaml: its section serving cannot be read ({why})") from None


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith(PREFIX):
        raise ConfigError(f"{text!r} is no setting of the service; wanted serving.KEY=VALUE, such as serving.rate=20")
    try:
        return name.removeprefix(PREFIX), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"{name}: not YAML: {value!r}") from None
