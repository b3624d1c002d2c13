"""One screen about the data of a reader, before it trains: what there is, what is cut, and what to expect of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.draws import Choice, text_hashes
from raydist.files.mapped import MappedRows
from raydist.models.encoders import longest_input
from raydist.models.loading import open_config
from raydist.reader.prepare import choose_questions, set_key
from raydist.reader.stages import WindowSet
from raydist.runs.run import Run
from raydist.runs.training import is_trained
from raydist.terminal import said_if_long, say, say_table

FEW = 2_000  # questions below which an encoder that has not learned to read learns little
HEAD = ("data", "questions", "languages", "gold each", "windows each", "in several", "question cut", "answer cut", "repeated")


@dataclass
class SetFacts:
    """Counts of a data set as it is used."""

    questions: int = 0
    golds: int = 0
    repeated: int = 0  # questions asked before about the same passage
    languages: Counter[str] = field(default_factory=Counter)
    windows: int = 0
    long: int = 0  # questions whose passage takes several windows
    question_cut: int = 0  # questions as long as data.max_question_length, and so perhaps longer
    labelled: int = 0  # questions with a labelled answer
    answer_cut: int = 0  # of those, answers in no window, or longer than predict.max_answer_length


def say_data(run: Run, sets: Mapping[str, WindowSet], *, fresh: bool = False) -> None:
    """Show the sets of a run that is about to train, and what to expect; not of an object store, since they are read whole."""
    if not run.storage.is_local or (is_trained(run) and not fresh):
        return
    with said_if_long("looking at the data"):
        facts = {name: set_facts(run, rows, choose_questions(run, name, rows.examples)) for name, rows in sets.items()}
    say("")
    say_table(HEAD, [_row(name, found) for name, found in facts.items()])
    for line in expectations(run, facts, sets["train"].rows):
        say(f"- {line}")
    say("")


def _row(name: str, found: SetFacts) -> tuple[str, ...]:
    *most, last = sorted(found.languages, key=lambda language: -found.languages[language])[:6] or [""]

    def share(part: int, whole: int) -> str:
        return f"{100 * part / max(1, whole):.1f} %" if part else "0"

    return (
        name,
        f"{found.questions:,}",
        " ".join([*most, last]) + " ..." * (len(found.languages) > 6),
        f"{found.golds / max(1, found.questions):.1f}",
        f"{found.windows / max(1, found.questions):.2f}",
        share(found.long, found.questions),
        share(found.question_cut, found.questions),
        share(found.answer_cut, found.labelled),
        f"{found.repeated:,}",
    )


def set_facts(run: Run, rows: WindowSet, choice: Choice | None) -> SetFacts:
    """Counts of a set's examples and windows."""
    facts, keys = SetFacts(), []
    for table in rows.examples.tables(["id", "question", "passage_id", "language", "golds"]):
        if choice:
            table = table.filter(pa.array(choice.takes(table["id"].to_pylist())))
        facts.questions += table.num_rows
        facts.golds += pc.sum(pc.list_value_length(table["golds"])).as_py() or 0
        counts = table["language"].value_counts()
        facts.languages.update({count["values"]: count["counts"] for count in counts.to_pylist()})
        asked = pc.binary_join_element_wise(table["question"], table["passage_id"], "\0")
        keys.append(text_hashes(asked.to_pylist()))
    facts.repeated = facts.questions - len(np.unique(np.concatenate(keys)))
    _add_windows(run, rows, facts)
    return facts


def _add_windows(run: Run, rows: WindowSet, facts: SetFacts) -> None:
    longest, longest_answer = run.config.data.max_question_length, run.config.predict.max_answer_length
    for table in MappedRows(rows.windows.files()).tables:
        if not table.num_rows:
            continue
        names = ("example", "question_start", "question_end", "start", "end", "has_answer", "answer")
        column = {name: table[name].to_numpy() for name in names}
        questions, first, times = np.unique(column["example"], return_index=True, return_counts=True)
        facts.windows += table.num_rows
        facts.long += int((times > 1).sum())
        facts.question_cut += int(((column["question_end"] - column["question_start"])[first] >= longest).sum())
        fits = column["has_answer"] & (column["end"] - column["start"] < longest_answer)
        found = np.zeros(len(questions), bool)
        np.logical_or.at(found, np.searchsorted(questions, column["example"]), fits)
        has_label = column["answer"][first] != text_hashes([""])[0]
        facts.labelled += int(has_label.sum())
        facts.answer_cut += int((has_label & ~found).sum())


def expectations(run: Run, facts: Mapping[str, SetFacts], windows: int) -> Iterator[str]:
    """What these data and settings let one expect, each with what to do about it."""
    config, train = run.config, facts["train"]
    yield f"training: {config.train.num_steps(windows):,} steps of {config.train.batch_size} windows, of {windows:,}"
    if not config.data.dev and not config.data.test:
        yield "there is neither a dev nor a test set: nothing will tell how good this reader is; set data.dev or data.test"
    elif not config.data.dev:
        yield "there is no dev set: the last model is kept, and nothing should be chosen by the test sets; set data.dev"
    if train.questions < FEW and not _has_read(run):
        yield (
            f"{train.questions:,} questions and an encoder that has not learned to read ({config.model.name}): expect little; "
            "start from a reader (model.name: runs/quickstart/model, or a question answering model), or give more"
        )
    if config.model.name.startswith("builtin:minilm") and (foreign := [name for name in train.languages if name != "en"]):
        listed = ", ".join(foreign[:6])
        yield f"{config.model.name} was made for English, and train is in {listed}: take a multilingual model.name"
    for name, found in facts.items():
        yield from _of_set(run, name, found)


def _of_set(run: Run, name: str, found: SetFacts) -> Iterator[str]:
    data, source = run.config.data, run.config.sets()[name]
    if found.answer_cut > found.labelled / 100:
        yield (
            f"{name}: {found.answer_cut:,} of {found.labelled:,} answers are in no window or longer than "
            f"predict.max_answer_length ({run.config.predict.max_answer_length} tokens): they cannot be found; raise it"
        )
    if found.long > found.questions / 2 and (most := longest_input(open_config(run.model_folder))) and most > data.max_length:
        yield f"{name}: most passages are cut into several windows; {run.config.model.name} takes data.max_length={most}"
    if found.question_cut > found.questions / 20:
        yield f"{name}: {found.question_cut:,} questions are as long as data.max_question_length allows, or longer: raise it"
    if name == "train" and found.repeated > found.questions / 100:
        yield f"train: {found.repeated:,} questions are asked again about the same passage, and count as often"
    if source.questions and source.questions > found.questions:
        yield f"{set_key(name)}.questions {source.questions:,}: there are {found.questions:,}"


def _has_read(run: Run) -> bool:
    """Whether the model's folder is a reader's, whose head has been trained."""
    names = getattr(open_config(run.model_folder), "architectures", None) or []
    return any(name.endswith("ForQuestionAnswering") for name in names)
