"""`raydist new`: a commented config for one's own files, from a look at them. Tokens are counted as MiniLM cuts them."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from raydist.config import load_config
from raydist.corpus.examples import plan_splits, read_split
from raydist.corpus.formats import open_corpus
from raydist.corpus.open_set import OpenSet
from raydist.corpus.rows import load_document
from raydist.documents.document import Block
from raydist.documents.formats import format_of
from raydist.documents.language import detected
from raydist.errors import InputError
from raydist.models.builtin import minilm_folder
from raydist.records import Example

LOOKED_AT = 1_000  # texts whose tokens are counted
FEW = 2_000  # questions
FITS = 0.95  # share of passages that should fit into one window
LENGTHS = (128, 192, 256, 384, 512)
ENGLISH, MULTILINGUAL = "builtin:minilm", "xlm-roberta-base"

Lines = Iterator[str]


def write_new(
    files: Sequence[str], out: Path, *, task: str | None = None, dev: Sequence[str] = (), test: Sequence[str] = ()
) -> list[str]:
    """Write a config for some files, and return what was seen of them."""
    if out.exists():
        raise InputError(f"{out} is there already: name another file with --out")
    for name in (*files, *dev, *test):
        if not glob.glob(name):
            raise InputError(f"there is no {name}")
    task = task or _task_of(files)
    if task != "reader" and dev:
        raise InputError(f"--dev is for readers, and this is a {task}: its questions are held out by corpus.dev_share")
    lines, seen = {"reader": _reader, "retriever": _retriever, "documents": _documents}[task](files, dev, test)
    text = "\n".join([f"# Written by `raydist new` after a look at {', '.join(files)}:", *(f"# {line}" for line in seen)])
    text += f"\n# Every key, with its meaning: raydist config explain\nname: {_run_name(out)}\n" + "\n".join(lines) + "\n"
    out.write_text(text, encoding="utf-8")
    load_config(str(out))  # what is written is right
    return seen


def _run_name(out: Path) -> str:
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in out.stem)
    return name.lstrip("._-") or "mine"


def _task_of(files: Sequence[str]) -> str:
    """What files are for: a corpus with judged questions, documents, or else questions about passages."""
    first = Path(files[0])
    if first.is_dir():
        return "retriever" if _beir(first) else "documents"
    if format_of(first.name) in ("markdown", "html", "text", "pdf", "docx"):
        return "documents"
    return "retriever" if _corpus_format(first) in ("reqa", "pairs") else "reader"


def _beir(folder: Path) -> bool:
    return any((folder / f"corpus.jsonl{end}").is_file() for end in ("", ".gz"))


def _corpus_format(file: Path) -> str:
    """The format of a corpus in one place, by its content."""
    if file.is_dir():
        return "beir"
    if ".json" not in file.name or ".jsonl" in file.name:
        return "squad"
    document = load_document(str(file))
    keys = document.keys() if isinstance(document, dict) else ()
    return "reqa" if {"questions", "candidates"} <= set(keys) else "pairs" if {"questions", "answers"} <= set(keys) else "squad"


def _quoted(files: Sequence[str]) -> str:
    return json.dumps(list(files) if len(files) > 1 else files[0], ensure_ascii=False)


def _tokens(texts: Sequence[str]) -> np.ndarray:
    """How many tokens some of these texts have, evenly spaced."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.model_max_length = 1 << 30
    chosen = [texts[row] for row in np.unique(np.linspace(0, len(texts) - 1, min(len(texts), LOOKED_AT)).astype(int))]
    return np.array([len(ids) for ids in tokenizer(chosen, add_special_tokens=False)["input_ids"]])


def _enough(lengths: np.ndarray, share: float, choices: Sequence[int]) -> int:
    """The smallest of these lengths that holds this share of texts; else the largest."""
    return next((length for length in choices if (lengths <= length).mean() >= share), choices[-1])


# --- readers ---------------------------------------------------------------------------------------------------------


@dataclass
class _Questions:
    """What was seen of files of questions."""

    formats: set[str] = field(default_factory=set)
    examples: list[Example] = field(default_factory=list)
    read: int = 0
    rejected: int = 0
    stated: bool = False  # whether rows or names state a language
    reasons: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, files: Sequence[str]) -> _Questions:
        seen = cls()
        for split in plan_splits(files, labelled=True):
            examples, _, counts = read_split(split)
            seen.formats.add(split.format)
            seen.examples += examples
            seen.read += counts.questions
            seen.rejected += counts.questions_rejected
            seen.stated |= counts.language_assumed < counts.questions
            seen.reasons.update(counts.reasons)
        if not seen.examples:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in seen.reasons.items())
            raise InputError(f"{', '.join(files)}: no question has a usable answer ({reasons})")
        return seen

    @cached_property
    def passages(self) -> list[str]:
        return list({example.passage_id: example.context for example in self.examples}.values())

    @cached_property
    def told(self) -> str:
        """The language by the words, where neither rows nor names state one."""
        return "" if self.stated else _told_language(self.passages)

    @cached_property
    def languages(self) -> Counter[str]:
        return Counter(self.told or example.language for example in self.examples)

    @cached_property
    def is_english(self) -> bool:
        return set(self.languages) == {"en"}

    @cached_property
    def asked(self) -> np.ndarray:
        """Tokens of questions."""
        return _tokens([example.question for example in self.examples])

    @cached_property
    def read_tokens(self) -> np.ndarray:
        """Tokens of passages."""
        return _tokens(self.passages)

    @cached_property
    def answers(self) -> np.ndarray:
        """Tokens of answers."""
        return _tokens([example.answers[0].text for example in self.examples if example.answers] or [""])


def _reader(files: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str]]:
    found = _Questions.of(files)
    language = "" if found.stated or found.is_english else f", language: {found.told}"
    lines = [
        "task: reader",
        *_reader_model(found),
        "data:",
        *_reader_data(files, dev, test, language),
        *_reader_lengths(found),
        "train:",
        f"  epochs: {4 if len(found.examples) < FEW else 2}",
        "  batch_size: 16",
        "optim:",
        "  lr: 1.0e-4              # for a small encoder"
        if found.is_english
        else "  lr: 3.0e-5              # for a base-sized one",
    ]
    if (longest := int(np.quantile(found.answers, 0.99))) > 30:
        lines.append(f"predict: {{max_answer_length: {longest}}}   # tokens; one answer in a hundred is longer")
    return lines, list(_seen_of(found))


def _seen_of(found: _Questions) -> Lines:
    """What is said of questions."""
    listed = " ".join(f"{name} {number:,}" for name, number in found.languages.most_common(6))
    formats = ", ".join(sorted(found.formats))
    yield f"{len(found.examples):,} questions about {len(found.passages):,} passages ({formats}), in {listed}"
    yield (
        f"passages of {np.median(found.read_tokens):.0f} tokens (the longest {found.read_tokens.max():,}), answers of "
        f"{np.median(found.answers):.0f} (the longest {found.answers.max():,})"
    )
    if impossible := sum(example.is_impossible for example in found.examples):
        yield f"{impossible:,} questions have no answer in their passage: scored as SQuAD v2"
    if found.rejected:
        why = ", ".join(f"{number:,} {reason}" for reason, number in found.reasons.most_common(3))
        yield f"{found.rejected:,} of {found.read:,} questions cannot be trained on ({why}); the run names each"
    if not found.stated:
        taken = f"by the words it is {found.told}" if found.told else "taken for English"
        yield f"neither rows nor file names state a language: {taken}"


def _reader_model(found: _Questions) -> Lines:
    yield "model:"
    if found.is_english:
        yield f"  name: {ENGLISH}        # small and on board; a larger one of Hugging Face, such as roberta-base, reads better"
    else:
        yield f"  name: {MULTILINGUAL}      # {', '.join(found.languages)}: a multilingual encoder, from Hugging Face"
    if (number := len(found.examples)) < FEW:
        yield f"  # {number:,} questions are few: start from a reader (a run's model, or a question answering model)"


def _reader_lengths(found: _Questions) -> Lines:
    """Windows, questions, and the rows that are too many to be rejected in silence."""
    whole = found.read_tokens + int(np.quantile(found.asked, 0.95)) + 3
    length = _enough(whole, FITS, LENGTHS)
    in_one, stride = float((whole <= length).mean()), min(128, length // 3)
    note = f"{100 * in_one:.0f} % of the passages fit into one window" if in_one < 1 else "every passage fits into one window"
    yield f"  max_length: {length}          # tokens; {note}"
    yield f"  doc_stride: {stride}           # tokens that windows of a longer passage share"
    if (cut := _enough(found.asked, 0.999, (24, 32, 48, 64, 96))) + stride + 8 <= length:
        yield f"  max_question_length: {cut}"
    if (share := found.rejected / found.read) > 0.01:
        yield f"  max_rejected: {min(1.0, round(share + 0.01, 2)):g}      # of the questions: see above"
        yield "  # repair_offsets: true    # moves an offset to where its answer stands, if that is one place"


def _told_language(passages: Sequence[str]) -> str:
    """The language of most of some passages, if it can be told; else nothing."""
    chosen = passages[:: max(1, len(passages) // 20)]
    try:
        told = Counter(detected([Block(text)]) for text in chosen)
    except InputError:  # the package that tells languages apart is an extra
        return ""
    language, number = told.most_common(1)[0]
    return language if number > len(chosen) / 2 else ""


def _reader_data(files: Sequence[str], dev: Sequence[str], test: Sequence[str], more: str) -> Lines:
    if dev:
        yield f"  train: {{files: {_quoted(files)}{more}}}"
        yield f"  dev: {{files: {_quoted(dev)}{more}}}      # the best model is chosen by it"
    else:
        yield f"  train: {{files: {_quoted(files)}{more}, leave_out: [0, 10]}}"
        yield "  # a tenth of the questions is held out: the best model is chosen by it"
        yield f"  dev: {{files: {_quoted(files)}{more}, only: [0, 10]}}"
    if test:
        yield "  test:"
        names = [_run_name(Path(name.removesuffix(".gz"))).replace(".", "_") for name in test]
        for number, (name, file) in enumerate(zip(names, test)):
            name = f"{name}_{number}" if names.count(name) > 1 or name in ("train", "dev") else name
            yield f"    {name}: {{files: {_quoted([file])}{more}}}"
    else:
        yield "  # test: {NAME: {files: ...}}    # nothing may be chosen by it"


# --- retrievers ------------------------------------------------------------------------------------------------------


def _retriever(files: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str]]:
    place = Path(files[0])
    format = _corpus_format(place)
    split = "train"
    splits = sorted({path.name.split(".")[0] for path in (place / "qrels").glob("*.tsv*")}) if format == "beir" else []
    if splits and split not in splits:
        split = splits[0]
    opened = open_corpus(format, [Path(name) for name in files], split=split)
    sentences = 0
    texts: list[str] = []
    for block, _ in opened.blocks():
        sentences += block.num_rows
        texts += block["text"].slice(0, max(0, 10 * LOOKED_AT - len(texts))).to_pylist()
    questions, gold = opened.questions_and_gold()
    assert isinstance(opened, OpenSet) or opened.sentences.num_rows == sentences
    asked, lengths = _tokens(questions["text"].to_pylist()), _tokens(texts)
    seen = [
        f"{sentences:,} sentences or passages, {questions.num_rows:,} questions, {gold.num_rows:,} gold pairs ({format})",
        f"texts of {np.median(lengths):.0f} tokens (the longest seen {lengths.max():,}), questions of {np.median(asked):.0f}",
    ]
    if splits:
        seen.append(f"splits: {', '.join(splits)}")
    if opened.rejected:
        why = ", ".join(
            f"{number:,} {reason}" for reason, number in Counter(row.reason for row in opened.rejected).most_common(3)
        )
        seen.append(f"{len(opened.rejected):,} rows are rejected ({why}); the run names each")
    answer_length = _enough(lengths + 2, FITS, (64, 96, 128, 192, 256, 384))
    held = float((lengths + 2 <= answer_length).mean())
    question_length = _enough(asked + 2, 0.99, (32, 48, 64, 96))
    lines = ["extends: retriever          # candidates, cross-encoder, silver pairs, dual encoder", "corpus:"]
    source = f"files: {_quoted(files)}, format: {format}" + (f", split: {split}" if splits else "")
    lines += [
        f"  train: {{{source}}}",
        "  dev_share: 0.1            # of its questions, held out: the best model is chosen by their MRR",
    ]
    tests = [f"{{files: {_quoted([name])}, format: {_corpus_format(Path(name))}}}" for name in test]
    tests += [f"{{files: {_quoted(files)}, format: beir, split: {name}}}" for name in splits if name not in (split, "dev")]
    if tests:
        lines += ["  test:", *(f"    test{number or ''}: {source}" for number, source in enumerate(tests))]
    else:
        lines.append("  # test: {NAME: {files: ..., format: ...}}    # nothing may be chosen by it")
    lines += [
        "cross_encoder:",
        "  # it must know more than the encoder that it teaches, or the run stops: a reader's folder, a larger model, or",
        "  # trained: true with a cross-encoder that is one already",
        f"  model: {{name: {ENGLISH}}}",
        f"  max_question_length: {question_length}",
        f"  max_length: {min(480, answer_length + question_length)}",
        "retriever:",
        f"  max_question_length: {question_length}",
        f"  max_answer_length: {answer_length}      # tokens; {100 * held:.0f} % of the texts are no longer",
        "mining:",
        "  threshold: 0.5            # or precision: 0.8, the share of held-out pairs that is right from there on",
    ]
    return lines, seen


# --- documents -------------------------------------------------------------------------------------------------------


def _documents(files: Sequence[str], dev: Sequence[str], test: Sequence[str]) -> tuple[list[str], list[str]]:
    def below(name: str) -> Iterator[Path]:
        return (path for path in Path(name).rglob("*") if path.is_file()) if Path(name).is_dir() else iter([Path(name)])

    paths = [path for name in files for path in islice(below(name), 100_000)]
    kinds = Counter(format_of(path.name) or "of no known format" for path in paths)
    if not kinds.keys() - {"of no known format"}:
        raise InputError(f"{', '.join(files)}: no document that raydist reads ({len(paths):,} files)")
    seen = [f"{len(paths):,} files: " + ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())]
    return ["extends: documents", "documents:", f"  files: {_quoted(files)}"], seen


def next_steps(out: Path) -> list[str]:
    """What to do with a config that was written."""
    task = load_config(str(out)).config.task
    if task == "documents":
        return [f"raydist index {out}", f'raydist ask runs/{_run_name(out)} "..."']
    return [f"raydist config check {out}", f"raydist run {out}"]
