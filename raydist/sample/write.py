"""The sample world as files: reader sets in six languages, an adversarial copy, a second domain, a corpus for mining.

Passages are derived from (seed, number) and written as they come, so memory does not grow with the size.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from raydist.errors import InputError
from raydist.files.stage import WORLD
from raydist.files.storage import Storage, writing_to
from raydist.sample.corpus import CORPUS_FILES, num_documents, write_corpus
from raydist.sample.files import open_for_writing
from raydist.sample.languages.ar import ARABIC
from raydist.sample.languages.de import GERMAN
from raydist.sample.languages.en import ENGLISH
from raydist.sample.languages.es import SPANISH
from raydist.sample.languages.hi import HINDI
from raydist.sample.languages.vi import VIETNAMESE
from raydist.sample.languages.workshop import WORKSHOP_ENGLISH
from raydist.sample.reader_sets import write_reader_set
from raydist.sample.world import ENCYCLOPEDIA, WORKSHOP, World

VERSION = 2  # of the generator: another one may write other bytes for the same seed
SCALES = {"small": 1, "medium": 4, "large": 16}
SMALL_CORPUS = 6000
MIN_CORPUS = 100
TRAIN_PASSAGES, DEV_PASSAGES = 1200, 120  # of a small world, with five questions each
OTHER_LANGUAGES = (SPANISH, GERMAN, ARABIC, HINDI, VIETNAMESE)
OTHER_TRAIN_PASSAGES, OTHER_DEV_PASSAGES = 300, 60  # per language: the first ones of the English sets
SECOND_DOMAIN_TRAIN, SECOND_DOMAIN_DEV = 120, 80

README = """# A sample world

Invented people, towns, rivers, firms, festivals and bridges, written by `raydist sample` from a seed.
No name, number or sentence is taken from anywhere.

| file | what it is |
|---|---|
| `world.json` | version, size, seed and counts |
| `en/train.json`, `en/dev.json` | questions with answer spans, SQuAD v1.1 layout; no entity is in both |
| `en/dev_adversarial.json` | the dev set (id X), and each question again (id X-adv) with a misleading sentence in its passage |
| `{es,de,ar,hi,vi}/train.json`, `dev.json` | the first passages of the English sets: same facts, ids with `_es` and so on |
| `other_domain/train.json`, `dev.json` | ships, engines and trials, in English |
| `corpus.jsonl` | documents with `sentences`, their [start, end) in `text`; sentence n of document d is `d#n` |
| `queries.jsonl` | questions about the corpus, each with its split |
| `qrels/train.tsv`, `qrels/dev.tsv` | for train one sentence of those that answer, of its own document; for dev all of them |
| `restated.jsonl` | the sentences of other documents that answer, too, in other wordings; not in `qrels/train.tsv` |
"""


def write_sample(
    out: Path, size: str | int = "small", seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Write the sample world to the folder ``out``, replacing an earlier one, and return the number of its items.

    ``size`` is small, medium, large or a number of corpus sentences; ``progress`` gets (passages written, passages in all).
    """
    scale, num_sentences = _parse_size(size)
    out = Path(out)
    _check_replaceable(out)
    with writing_to(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp") as scratch:
            folder = Path(scratch) / "new"  # renamed when whole
            counts = _write_all(folder, scale, num_sentences, seed, progress or (lambda done, total: None))
            files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*.*")}
            about = {"raydist_sample": VERSION, "size": str(size), "seed": seed, "counts": counts}
            about["files"] = dict(sorted(files.items()))
            for name, text in {WORLD: json.dumps(about, indent=2) + "\n", "README.md": README}.items():
                with open_for_writing(folder / name) as file:
                    file.write(text)
            if out.exists():
                os.rename(out, Path(scratch) / "old")
            os.rename(folder, out)
    return counts


def is_whole(world: Storage) -> bool:
    """Whether a sample world has all its files, with their sizes where its world.json has them."""
    try:
        about = world.read_json(WORLD)
        files = about.get("files") or dict.fromkeys([f"{name}.json" for name in about["counts"] if "/" in name])
    except (OSError, ValueError, KeyError):
        return False
    above = Path(world.path())
    sizes = {Path(info.path).relative_to(above).as_posix(): info.size for info in world.tree()}
    names = dict.fromkeys(CORPUS_FILES) | files
    return all(name in sizes and size in (None, sizes[name]) for name, size in names.items())


def _parse_size(size: str | int) -> tuple[int, int]:
    """Scale of the reader sets, and number of sentences in the corpus."""
    if isinstance(size, str) and size in SCALES:
        return SCALES[size], SCALES[size] * SMALL_CORPUS
    text = str(size)
    if not (text.isascii() and text.isdigit() and int(text) >= MIN_CORPUS):
        raise InputError(
            f"sample size {size!r} is not known; give small, medium, large or a number of sentences from {MIN_CORPUS} on"
        )
    return 1, int(text)


def _check_replaceable(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} is a file, and the sample world is a folder; give another name")
    if not any(out.iterdir()):
        return
    try:
        known = "raydist_sample" in json.loads((out / WORLD).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        known = False
    if not known:
        raise InputError(f"{out} is not empty and holds no earlier sample world; give another folder or empty this one")


def _write_all(folder: Path, scale: int, num_sentences: int, seed: int, progress: Callable[[int, int], None]) -> dict[str, int]:
    world, second = World(ENCYCLOPEDIA, seed), World(WORKSHOP, seed)
    first_dev = TRAIN_PASSAGES * scale
    first_document = first_dev + DEV_PASSAGES * scale
    english_dev = range(first_dev, first_document)
    first_second_dev = SECOND_DOMAIN_TRAIN * scale
    sets = [  # name, world, language, numbers of the passages
        ("en/train", world, ENGLISH, range(first_dev)),
        ("en/dev", world, ENGLISH, english_dev),
        ("en/dev_adversarial", world, ENGLISH, english_dev),
        ("other_domain/train", second, WORKSHOP_ENGLISH, range(first_second_dev)),
        ("other_domain/dev", second, WORKSHOP_ENGLISH, range(first_second_dev, first_second_dev + SECOND_DOMAIN_DEV * scale)),
    ]
    for language in OTHER_LANGUAGES:
        sets.append((f"{language.code}/train", world, language, range(OTHER_TRAIN_PASSAGES * scale)))
        sets.append((f"{language.code}/dev", world, language, english_dev[: OTHER_DEV_PASSAGES * scale]))

    total = sum(len(numbers) for _, _, _, numbers in sets) + num_documents(num_sentences)
    counts: dict[str, int] = {}
    done = 0
    for name, of_world, language, numbers in sets:
        training, adversarial = name.endswith("train"), name.endswith("adversarial")
        counts[name] = write_reader_set(folder / f"{name}.json", of_world, language, numbers, training, adversarial)
        done += len(numbers)
        progress(done, total)
    return counts | write_corpus(folder, world, first_document, num_sentences, lambda written: progress(done + written, total))
