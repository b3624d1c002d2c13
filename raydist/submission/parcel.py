"""The files of a job: one ZIP file that Ray unpacks on every node as the job's working directory."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pathspec import GitIgnoreSpec

from raydist.errors import InputError

EXCLUDES = (  # besides .gitignore and .rayignore, which Ray's own uploads respect, too
    *(".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", "*.egg-info"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
)
IGNORE_FILES = (".gitignore", ".rayignore")
MAX_BYTES = 100 << 20  # the limit of Ray's dashboard for one request
MAX_FILES = 20_000
CONFIGS = ".raydist"  # folder in the parcel
EPOCH = (1980, 1, 1, 0, 0, 0)  # timestamp of every file: the earliest that ZIP can hold

Rule = Callable[[Path], bool]


@dataclass
class Parcel:
    """Files under their names in the job's working directory, and the resolved config."""

    files: dict[str, Path]
    config: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def write(self, target: Path, name: str) -> None:
        """Write a ZIP file whose bytes depend on the content alone, so that Ray need not send an unchanged one again."""
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, path in sorted(self.files.items()):
                entry = zipfile.ZipInfo(inside, EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                with path.open("rb") as source, archive.open(entry, "w") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
            text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            archive.writestr(zipfile.ZipInfo(config_path(name), EPOCH), text)

    def check_size(self, base: Path) -> None:
        """Reject a parcel larger than Ray accepts; the error names the largest files."""
        if self.size > MAX_BYTES:
            sizes = sorted(((path.stat().st_size, name) for name, path in self.files.items()), reverse=True)
            largest = ", ".join(f"{name} ({mebibytes(size)})" for size, name in sizes[:5])
            raise InputError(
                f"working directory {base} has {mebibytes(self.size)} to send, and {mebibytes(MAX_BYTES)} is the most; the "
                f"largest files: {largest}; leave some out with --exclude PATTERN or a .rayignore, or put data where all "
                f"nodes see it (--shared)"
            )


def config_path(name: str) -> str:
    """The path of the config in the parcel."""
    return f"{CONFIGS}/{name}.yaml"


def mebibytes(size: int) -> str:
    """A human-readable size."""
    return f"{size / 2**20:,.1f} MiB" if size < 1 << 30 else f"{size / 2**30:,.1f} GiB"


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder, by their names alone."""
    return Path(os.path.normpath(path)).is_relative_to(folder)


def collect_files(base: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """The files of a folder that are not excluded. Linked folders are not followed."""
    files: dict[str, Path] = {}

    def enter(folder: Path, rules: list[Rule]) -> None:
        rules = rules + _ignore_rules(folder)
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if any(rule(path) for rule in rules):
                continue
            if entry.is_dir(follow_symlinks=False):
                enter(path, rules)
            elif entry.is_file():
                files[path.relative_to(base).as_posix()] = path
                if len(files) > MAX_FILES:
                    raise InputError(
                        f"working directory {base} has more than {MAX_FILES:,} files; give a smaller one with --working-dir, "
                        f"or leave some out with --exclude or a .rayignore"
                    )

    try:
        enter(base, [_rule(base, patterns)])
    except OSError as error:
        raise InputError(f"working directory {base} cannot be read ({error}); --exclude what is not yours") from None
    return files


def _ignore_rules(folder: Path) -> list[Rule]:
    """Rules from a folder's .gitignore and .rayignore."""
    files = [folder / name for name in IGNORE_FILES if (folder / name).is_file()]
    return [_rule(folder, file.read_text("utf-8", "surrogateescape").splitlines()) for file in files]


def _rule(base: Path, patterns: Sequence[str]) -> Rule:
    spec = GitIgnoreSpec.from_lines(patterns)
    return lambda path: spec.match_file(path.relative_to(base).as_posix())
