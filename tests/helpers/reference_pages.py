"""The pages of docs/reference that are made of the code: every key, every command. `make docs` writes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helpers.pages import anchor_of

from raydist.config.explain import describe_values
from raydist.config.keys import Key, find_key, known_key, known_names
from raydist.config.run import Config

DOCS = Path(__file__).resolve().parents[2] / "docs"
KEYS_INTRO = """# Configuration keys

Every key of a config, made of its declaration. The same in a terminal: `raydist config explain KEY`; the values of a config and
where each came from: `raydist config show CONFIG`. `NAME` is a name that you choose. What *affects* means is said in
[concepts](../concepts.md#what-a-key-affects); *methods* names the section of [methods](../methods.md) that has the equation.
Keys of data sets are listed once, under `data.train`; `data.dev` and each `data.test.NAME` take the same.
"""
COMMANDS_INTRO = """# Commands

Every command with its options and an example, made of the command line itself. `CONFIG` is a YAML file, or the name of a
config that ships with raydist; overrides are dotted keys (`optim.lr=3e-4`), all of them in [configuration keys](config.md).
A command is interrupted by Ctrl-C at any time, and the same command goes on where it stopped.

Exit status: 0 done, 2 the input is wrong (one message), 1 it failed, 130 interrupted, 143 told to end (SIGTERM).
"""


# --- keys ------------------------------------------------------------------------------------------------------------


def keys_page() -> str:
    parts = [KEYS_INTRO]
    top = [name for name in Config.model_fields if known_key(name).section is None and not known_key(name).is_mapping]
    parts += ["## The run itself\n", *(entry(known_key(name)) for name in top)]
    for name in Config.model_fields:
        if name not in top:
            parts.append(section(name))
    return "\n".join(parts) + "\n"


def section(name: str) -> str:
    key = known_key(name)
    tasks = f" (task: {', '.join(key.tasks)})" if key.tasks else ""
    entries = [entry(inner) for inner in keys_in(name)]
    return f"\n## `{name}`\n\n{key.description}{tasks}.\n\n" + "\n".join(entries)


def keys_in(name: str) -> Iterator[Key]:
    """The keys below a section, those of equal sections once."""
    for inner in every_key():
        if inner.name.startswith(f"{name}."):
            yield inner


@cache
def every_key() -> tuple[Key, ...]:
    """Every key, those below a user's name as NAME; the keys of one data set stand for all."""
    names: dict[str, None] = {}
    mappings = [name for name in known_names(Config) if (key := find_key(name)) and key.is_mapping]
    for asked in ([], *([*name.split("."), "NAME"] for name in mappings)):
        names.update(dict.fromkeys(known_names(Config, asked=asked)))
    keys = [known_key(name) for name in names]
    copies = ("data.dev.", "data.test.NAME.", "sweep.base.")
    return tuple(key for key in sorted(keys, key=lambda key: order(key.name)) if not key.name.startswith(copies))


@cache
def declared() -> dict[str, int]:
    return {name: place for place, name in enumerate(known_names(Config))}


def order(name: str) -> tuple[int, str]:
    """As declared; what is below a user's name comes after its mapping."""
    known = declared()
    outer = name
    while outer not in known:
        outer = outer.rpartition(".")[0]
    return known[outer], "" if outer == name else name


def entry(key: Key) -> str:
    """A key as a list item with its facts."""
    facts = []
    if not key.is_always_there and not key.is_required:
        facts.append(f"default `{yaml_of(key.default)}`")
    if key.section is None:
        facts.append(describe_values(key.annotation, key.info.metadata))
    if key.unit:
        facts.append(f"in {key.unit}")
    if key.affects:
        facts.append(f"affects {key.affects.value}")
    if found := methods_of(key.name):
        facts.append("methods " + ", ".join(found))
    text = escaped(key.description)
    return (
        f"- **`{key.name}`**: {text}  \n  {'; '.join(map(escaped_outside, facts))}" if facts else f"- **`{key.name}`**: {text}"
    )


def yaml_of(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def escaped(text: str) -> str:
    """Plain text as Markdown: nothing in it is markup."""
    return re.sub(r"([*_<>\[\]$|{}\\])", r"\\\1", text)


def escaped_outside(text: str) -> str:
    """Escaped, but for code and links."""
    parts = re.split(r"(`[^`]+`|\[[^\]]+\]\([^)]+\))", text)
    return "".join(part if part.startswith("`") or (part.endswith(")") and "](" in part) else escaped(part) for part in parts)


def methods_of(name: str) -> list[str]:
    """Links to the sections of docs/methods.md that name the key, or else the section that it is in."""
    by_name = methods_by_key()
    while name:
        if name in by_name:
            return by_name[name]
        name = name.rpartition(".")[0]
    return []


@cache
def methods_by_key() -> dict[str, list[str]]:
    text = re.sub(r"```.*?```", "", (DOCS / "methods.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    for part in re.split(r"^(?=##+ \d)", text, flags=re.MULTILINE)[1:]:
        title = part.splitlines()[0].lstrip("# ")
        number = title.split()[0].rstrip(".")
        link = f"[{number}](../methods.md#{anchor_of(title)})"
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)*)", part):
            if ("." in name or part.startswith(f"## {title}")) and (key := find_key(name)) and key.name == name:
                links = found.setdefault(name, [])
                if link not in links:
                    links.append(link)
    return found


# --- commands --------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    import typer

    from raydist.cli import app

    parts = [COMMANDS_INTRO]
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            parts.append(command_section(name, command))
        else:
            parts += [command_section(f"{name} {each}", inner[each]) for each in inner]
    return "\n".join(parts)


def command_section(name: str, command: Any) -> str:
    text, *examples = re.split(r"\n\s*Example: ", command.callback.__doc__.strip())
    lines = [f"## `raydist {name}`\n", *(" ".join(part.split()) + "\n" for part in escaped(text).split("\n\n"))]
    taken = [row for parameter in command.params if (row := option_row(parameter))]
    if taken:
        lines += ["| | |", "|---|---|", *taken, ""]
    lines += ["```sh", *(" ".join(example.split()) for example in examples), "```", ""]
    return "\n".join(lines)


def option_row(parameter: Any) -> str:
    """A line of the table of a command; '' for --help."""
    options = getattr(parameter, "opts", [])
    if "--help" in options:
        return ""
    named = [option for option in options if option.startswith("-")]
    metavar = parameter.metavar or ("" if getattr(parameter, "is_flag", False) else parameter.name.upper())
    shown = f"`{', '.join(named)}{' ' + metavar if metavar else ''}`" if named else f"`{metavar}`"
    default = parameter.default
    is_shown = bool(named) and default not in (None, False, "", ()) and not callable(default)
    usual = f" (default: `{shlex.quote(str(default))}`)" if is_shown else ""
    return f"| {shown.replace('|', chr(92) + '|')} | {escaped(parameter.help or '')}{usual} |"


PAGES = {"reference/config.md": keys_page, "reference/commands.md": commands_page}
