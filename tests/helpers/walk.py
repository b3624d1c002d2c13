"""A page is walked: its files are written, its commands and Python are run in order, and what they print is compared.

- ```` ```sh ````: commands. `raydist` runs in this process, its work too (no Ray is started); others in a shell.
- ```` ```python ````: run in one namespace for the whole page.
- ```` ```text ````: what the block above prints, in this order; numbers may differ, and a line `...` stands for any lines. A
  command may fail only where a line of it begins with `error: `.
- A block below the line `` `NAME`: `` is the file NAME.
- Other blocks (drawings, what cannot be run here) are left alone.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from helpers.pages import Block, blocks
from helpers.submission import PYTHON, RAY, TOKEN, Dashboard

CHECKOUT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"\d[\d,.]*")


class Walk:
    """Walks through pages in the current folder; `instead` runs a command in place of the command line, by its first word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, instead: dict[str, Callable[[list[str]], int]] | None = None) -> None:
        monkeypatch.setattr("raydist.cli.opened", opened_here)
        self.instead = {"sweep": sweep_here, **(instead or {})}
        self.names: dict = {}
        self.printed = ""

    def page(self, text: str) -> None:
        for block, may_fail in in_order(text):
            self.block(block, may_fail)

    def block(self, block: Block, may_fail: bool) -> None:
        if block.file:
            path = Path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "sh":
            self.printed = "".join(self.command(line, may_fail) for line in command_lines(block.text))
        elif block.kind == "python":
            with captured() as out:
                exec(compile(block.text, f"line {block.line}", "exec"), self.names)
            self.printed = out.getvalue()
        elif block.kind == "text":
            missing = first_missing(block.text, self.printed)
            assert missing is None, f"line {block.line}: not printed: {missing!r}; printed:\n{self.printed}"

    def command(self, line: str, may_fail: bool) -> str:
        words = shlex.split(line, comments=True)
        if words[0] != "raydist":
            done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout
        with captured() as out:
            status = self.instead.get(words[1], run_command)(words[1:])
        assert status == 0 or (status == 2 and may_fail), f"{line}\n{out.getvalue()}"
        return out.getvalue()


def in_order(text: str) -> Iterator[tuple[Block, bool]]:
    """The blocks of a page, and whether each is to fail."""
    found = list(blocks(text))
    for block, following in zip(found, [*found[1:], None]):
        yield block, following is not None and following.kind == "text" and "error: " in following.text


def command_lines(text: str) -> Iterator[str]:
    """The commands of a block; a backslash at the end of a line joins it with the next."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.removeprefix("$ ")


def first_missing(shown: str, printed: str) -> str | None:
    """The first shown line that is not printed after those before it, numbers and blanks aside."""
    lines = iter([alike(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        if line.strip() not in ("", "...") and alike(line) not in lines:
            return line
    return None


def alike(line: str) -> str:
    for folder in (Path.cwd(), CHECKOUT):
        line = line.replace(str(folder), "...")
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip()


@contextmanager
def captured() -> Iterator[io.StringIO]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        yield out


def run_command(words: list[str]) -> int:
    from raydist.cli import job

    return job("", words)


@contextmanager
def opened_here(config: str, overrides: list[str] | None, verbose: bool = False) -> Iterator:
    """In place of `raydist.cli.opened`: the run, in this process."""
    from raydist.config import load_config
    from raydist.here import Here
    from raydist.runs.run import Run

    with Run(load_config(config, overrides or ()).config, Here()) as run:
        yield run


def sweep_here(words: list[str]) -> int:
    """`raydist sweep` with its trials in this process."""
    from raydist.config import load_config
    from raydist.exits import exit_status
    from raydist.sweep.driver import LocalTrials, run_sweep

    config, *overrides = [word for word in words[1:] if not word.startswith("--")]
    return exit_status(lambda: run_sweep(load_config(config, overrides).config, LocalTrials(), fresh="--fresh" in words))


@contextmanager
def only_preflight(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], int]]:
    """`raydist submit` as far as preflight, against a stand-in for a cluster's dashboard: nothing is sent."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    dashboard = Dashboard(version=RAY, python=PYTHON)
    parser = argparse.ArgumentParser()
    for name in ("submit", "command", "config"):
        parser.add_argument(name)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--shared", action="append", default=[])

    def submit(words: list[str]) -> int:
        from raydist.exits import exit_status
        from raydist.submission.preflight import prepare

        given = vars(parser.parse_intermixed_args(words))
        del given["submit"]
        return exit_status(lambda: print(f"{len(prepare(**given, address=dashboard.url).parcel.files)} files to send"))

    yield submit
    dashboard.close()
    assert dashboard.changes == []
