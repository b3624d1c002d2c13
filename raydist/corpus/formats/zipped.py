"""A zipped BEIR set, unpacked into a folder of its own."""

from __future__ import annotations

import re
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from raydist.corpus.messages import some
from raydist.errors import InputError

_WANTED = re.compile(r"(?:corpus|queries)\.jsonl(?:\.gz)?|qrels/[^/]+\.tsv(?:\.gz)?")


def unpack_beir(path: Path, folder: Path) -> None:
    """Write a set's corpus.jsonl, queries.jsonl and qrels/ into a folder, whatever folder of the archive they are in.

    An archive with a member that would lie outside of that folder, or is a link, is refused whole.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            for name, member in members.items():
                _check(path, name, member)
            base = next((name.removesuffix("corpus.jsonl") for name in members if _is_corpus(name)), None)
            if base is None:
                raise InputError(f"{path} has no corpus.jsonl, only {some(members)}; wanted a zipped BEIR set")
            for name, member in members.items():
                inside = name.removeprefix(base)
                if name.startswith(base) and _WANTED.fullmatch(inside):
                    target = folder / inside
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, target.open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path} is a damaged or encrypted ZIP archive ({error}); copy or download it again") from error


def _is_corpus(name: str) -> bool:
    return PurePosixPath(name).name == "corpus.jsonl" and "__MACOSX" not in name


def _check(path: Path, name: str, member: zipfile.ZipInfo) -> None:
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or re.match(r"[A-Za-z]:", name):
        raise InputError(f"{path}: the member {name!r} lies outside of the archive's own folder; nothing is unpacked")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise InputError(f"{path}: the member {name!r} is a link; nothing is unpacked")
