"""The commands for a reader, top to bottom: data -> training -> predictions -> scores -> report.

Each function makes one thing, from the results of the one before it, and reuses what exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydist.corpus.rules import choose_rule
from raydist.draws import Fold
from raydist.errors import InputError
from raydist.files.stage import Made, encode_table
from raydist.files.storage import folder_digest
from raydist.models.checked import check_model
from raydist.models.folders import model_folder
from raydist.models.located import Location, Model, NamedModel, StoredModel, tokenizer_digest
from raydist.reader import two_stage
from raydist.reader.check import say_data
from raydist.reader.evaluate import evaluate_set, examples_of, with_unique_ids
from raydist.reader.lists import write_answers
from raydist.reader.metrics import null_differences, read_predictions
from raydist.reader.model import check_reader
from raydist.reader.prepare import choose_questions, make_examples, prepare, report_overlap
from raydist.reader.stages import Predictions, WindowSet
from raydist.runs import trackers
from raydist.runs.card import write_card
from raydist.runs.locate import locate
from raydist.runs.run import Run
from raydist.runs.training import train_rows
from raydist.terminal import said_if_long, say, say_table


def run_all(run: Run, *, fresh: bool = False) -> None:
    """The whole pipeline; data first, so that a bad file stops it before any model is loaded."""
    if run.config.evaluate.predictions:
        raise InputError(
            "evaluate.predictions holds another tool's answers, but `run` trains its own reader: score them with "
            "raydist evaluate, under another name (name=...)"
        )
    prepare(run, run.config.sets())
    report_overlap(run, run.config.sets())
    train(run, fresh=fresh)
    if run.config.objectives.hard_learning:
        two_stage.evaluate_base(run)
    score_sets(run)


# --- training --------------------------------------------------------------------------------------------------------


def train(run: Run, *, fresh: bool = False) -> None:
    """Show the data, then train the run's reader, or resume it."""
    if run.config.data.train is None:
        raise InputError("there is nothing to train on: set data.train")
    prepare(run, ["train"] + ["dev"] * (run.config.data.dev is not None))
    say_data(run, {name: run.prepared[name] for name in run.config.sets() if name in run.prepared}, fresh=fresh)
    train_reader(run, fresh=fresh)


def train_reader(run: Run, *, fresh: bool = False, callbacks: Sequence[Any] = ()) -> None:
    """Train the run's reader, or resume it; first the base readers, if hard learning needs them."""
    sets = prepare(run, ["train"] + ["dev"] * (run.config.data.dev is not None))
    check_contrast(run, sets["train"].rows)
    if run.config.objectives.hard_learning:
        sets["train"] = two_stage.with_nbest_sets(run, sets["train"], fresh=fresh)
    train_rows(run, sets, fresh=fresh, callbacks=callbacks)


def check_contrast(run: Run, rows: int) -> None:
    """Refuse a contrast scheduled to start after training ends, before base readers are trained."""
    contrast, given = run.config.objectives.answer_contrast, run.config.train
    if not contrast or contrast.schedule != "sequential":
        return
    wait = round(contrast.sequential_epochs * -(-rows // given.batch_size))
    steps = given.num_steps(rows)
    if wait >= steps:
        raise InputError(
            f"objectives.answer_contrast waits for sequential_epochs {contrast.sequential_epochs:g}, here {wait:,} steps, and "
            f"training has {steps:,}: it would never act; raise train.max_steps or train.epochs, or lower sequential_epochs"
        )


# --- prediction ------------------------------------------------------------------------------------------------------


def predict(run: Run, names: Sequence[str] = ()) -> dict[str, pa.Table]:
    """n-best lists of the dev and test sets (or of predict.split), as Parquet and JSON in the run's folder.

    With hard learning, the lists of train are those it trains on: by the base readers, cross-fitted under nbest_folds. Not if
    `names` are given, since an evaluation is about the run's own reader; nor if a reader or a file is configured.
    """
    config, hard = run.config, run.config.objectives.hard_learning
    by_bases = not names and hard is not None and hard.has_base
    names = list(names) or config.predict.split or [name for name in config.sets() if name != "train"]
    if not names:
        raise InputError("there is nothing to predict: set data.dev or data.test")
    if by_bases and hard and "train" in names and config.predict.model:
        if hard.nbest_folds > 1:
            raise InputError(
                "predict.model names one reader, and objectives.hard_learning.nbest_folds wants the lists of train from "
                "readers that were not trained on the question: leave one of the two out"
            )
        by_bases = False
    if not by_bases or set(names) != {"train"}:
        reader_location(run)  # report a missing one before making all windows
    sets = dict(prepare(run, names))
    made: dict[str, list[Made]] = {}
    if by_bases and "train" in sets:
        made["train"] = two_stage.base_lists(run, sets.pop("train"), k=config.predict.n_best)
    if sets:
        own = make_predictions(run, sets, k=config.predict.n_best)
        made |= {name: [lists] for name, lists in own.items()}
    return {name: _write_lists(run, name, made[name]) for name in names}


def reader_location(run: Run) -> Location:
    """The reader that predicts: predict.model, else the run's own."""
    config = run.config
    if config.predict.model:
        folder = model_folder(config.predict.model)
        check_model(folder, "AutoModelForQuestionAnswering", trained_head=True)
        check_reader(folder)
        if tokenizer_digest(folder) != tokenizer_digest(run.model_folder):
            raise InputError(
                f"predict.model {config.predict.model} has another tokenizer than model.name {config.model.name}; "
                f"set model.name to the same folder"
            )
        return NamedModel(config.predict.model)
    if run.folder.exists("model/config.json"):
        return StoredModel(run.folder.uri)
    raise InputError(
        f"run {config.name!r} has no model yet: train it first (raydist train), or set predict.model to a reader's folder"
    )


def make_predictions(run: Run, sets: Mapping[str, WindowSet], *, k: int, fold: Fold | None = None) -> dict[str, Made]:
    """n-best lists of some data sets by the run's reader. With `fold`, only of that fold's questions."""
    location, given = reader_location(run), run.config.predict
    model = Model(location, folder_digest(location.folder()))
    stages = {
        name: (
            Predictions(
                windows, model, k, given.max_answer_length, given.nbest_compat, given.batch_tokens, given.precision, fold
            ),
            f"predictions for {name}",
        )
        for name, windows in sets.items()
    }
    return run.make_all(stages, label="predict")


def _write_lists(run: Run, name: str, made: Sequence[Made]) -> pa.Table:
    """predictions/NAME.parquet, and as JSON: the best text per question (SQuAD layout), and n-best lists, also with texts."""
    table = with_unique_ids(pa.concat_tables([table for lists in made for table in lists.tables()]))
    table = table.replace_schema_metadata(None)
    about = {
        "tokenizer": tokenizer_digest(run.model_folder),
        "n_best": run.config.predict.n_best,
        "max_answer_length": run.config.predict.max_answer_length,
        "model": ", ".join(lists.manifest.identity["model"] for lists in made),
        "examples": run.prepared[name].examples.fingerprint,
    }
    run.folder.write_bytes(f"predictions/{name}.parquet", encode_table(table, "parquet", about))
    lists = dict(zip(table["id"].to_pylist(), table["nbest"].to_pylist()))
    write_answers(run, name, run.prepared[name].examples, lists)
    run.folder.write_bytes(f"predictions/{name}.nbest.json", (json.dumps(lists, ensure_ascii=False) + "\n").encode())
    return table


# --- scores ----------------------------------------------------------------------------------------------------------


def evaluate(run: Run) -> dict[str, dict[str, Any]]:
    """Scores of every dev and test set, and the overlap of dev with the test sets."""
    if not run.config.evaluate.predictions:
        names = run.config.predict.split or [name for name in run.config.sets() if name != "train"]
        prepare(run, names)
        report_overlap(run, names)
    return score_sets(run)


def score_sets(run: Run) -> dict[str, dict[str, Any]]:
    """Scores of every dev and test set, by the run's model, or from predictions that another tool made."""
    config, foreign = run.config, run.config.evaluate.predictions
    names = list(foreign) or config.predict.split or [name for name in config.sets() if name != "train"]
    if not names:
        say("evaluate: no dev or test set is given")
        return {}
    read = {name: read_predictions(locate(run, path).fetch()) for name, path in foreign.items()}
    names = names if foreign else _with_dev(run, names)
    tables = {} if foreign else predict(run, names)
    made = {name: run.prepared[name].examples for name in names} if tables else make_examples(run, names)
    threshold: float | None = None
    scores: dict[str, dict[str, Any]] = {}
    for name in sorted(names, key=lambda name: name != "dev"):  # dev first: its no-answer threshold serves the others
        answers = NbestLists(read[name]) if name in read else NbestLists.of(tables[name])
        found = _score_set(run, name, made[name], answers, threshold)
        if found is None:
            continue
        scores[name] = found
        if name == "dev":
            threshold = found.get("null_threshold")
        elif found.get("null_threshold_from") == "this set":
            say(
                f"{name}: its no-answer threshold was tuned on its own answers, which flatters the scores: there is no "
                f"data.dev with questions that have no answer to tune it on"
            )
    _say_scores(scores)
    if not foreign:
        write_card(run)
    trackers.tell_end(config, run.folder)
    return scores


class NbestLists:
    """n-best lists of a data set by question; the run's own lists come with their questions."""

    def __init__(self, nbest: Mapping[str, Sequence[Mapping]], table: pa.Table | None = None) -> None:
        self.nbest, self.table = nbest, table

    @classmethod
    def of(cls, table: pa.Table) -> NbestLists:
        return cls(dict(zip(table["id"].to_pylist(), table["nbest"].to_pylist())), table)


def _score_set(run: Run, name: str, made: Made, answers: NbestLists, threshold: float | None) -> dict[str, Any] | None:
    """Scores of one data set, written to the run; None if no question can be scored."""
    source, given = run.config.sets()[name], run.config.evaluate
    table = _asked(run, name, made, answers)
    examples = examples_of(table)
    if not examples:
        say(f"{name}: no question has a gold answer to compare with; see predictions/{name}.json")
        return None
    if answers.table is None and not any(example.id in answers.nbest for example in examples):
        raise InputError(
            f"{given.predictions[name]} has no prediction for any question of {name}; its ids look like "
            f"{next(iter(answers.nbest), None)!r}, those of the set like {examples[0].id!r}"
        )
    differences = None if answers.table is None else null_differences(answers.table)
    with said_if_long(f"{name}: scoring {len(examples):,} questions"):
        scores, by_question = evaluate_set(
            examples,
            answers.nbest,
            rule=choose_rule(source.rule, made.manifest.identity),
            adversarial=source.adversarial,
            at_k=given.at_k,
            bootstrap=given.bootstrap,
            null_differences=differences,
            null_threshold=threshold,
        )
    if unlabelled := table.num_rows - len(examples):
        scores["unlabelled"] = unlabelled
    if differences and "null_threshold" in scores:  # write again: only now is the threshold known
        unanswered = {id for id, by in differences.items() if by > scores["null_threshold"]}
        write_answers(run, name, made, answers.nbest, unanswered)
    if scores["missing"]:
        say(f"{name}: {scores['missing']:,} questions have no prediction and score 0")
    run.folder.write_bytes(f"evaluation/{name}.parquet", encode_table(by_question, "parquet", {}))
    rounded = {key: round(value, 6) if isinstance(value, float) else value for key, value in scores.items()}
    run.add_metrics({f"{name}.{key}": value for key, value in rounded.items()})
    return scores


def _asked(run: Run, name: str, made: Made, answers: NbestLists) -> pa.Table:
    """The scored examples: the questions predicted, or for another tool's answers the config's choice."""
    table = pa.concat_tables(made.tables())
    if answers.table is None:
        if choice := choose_questions(run, name, made):
            table = table.filter(pa.array(choice.takes(table["id"].to_pylist())))
        return with_unique_ids(table)
    table = with_unique_ids(table)
    return table.filter(pc.is_in(table["id"], answers.table["id"]))


def _with_dev(run: Run, names: list[str]) -> list[str]:
    """The requested sets, plus dev if one of them needs its no-answer threshold (SQuAD v2)."""

    def has_unanswerable(name: str) -> bool:
        tables = prepare(run, [name])[name].examples.tables(["is_impossible"])
        return any(pc.any(table["is_impossible"]).as_py() for table in tables)

    if "dev" in names or "dev" not in run.config.sets() or not any(map(has_unanswerable, names)) or not has_unanswerable("dev"):
        return names
    say("dev: scored as well, since the no-answer threshold is tuned on it")
    return ["dev", *names]


def _say_scores(scores: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [row for name, found in scores.items() for row in _score_rows(name, found)]
    say_table(("test set", "EM", "F1", "95 % interval", "questions", "rule"), rows)


def _score_rows(name: str, scores: Mapping[str, Any]) -> list[tuple[str, ...]]:
    def between(key: str) -> str:
        return f"{scores[f'{key}.low']:.1f} - {scores[f'{key}.high']:.1f}" if f"{key}.low" in scores else ""

    rule = scores["rule"]
    if "addsent_f1" not in scores:
        return [(name, f"{scores['em']:.1f}", f"{scores['f1']:.1f}", between("f1"), str(scores["questions"]), rule)]
    originals, em, f1 = str(scores["originals"]), f"{scores['addsent_em']:.1f}", f"{scores['addsent_f1']:.1f}"
    return [
        (f"{name} (original questions)", "", f"{scores['original_f1']:.1f}", "", originals, rule),
        (f"{name} (worst copy of each)", em, f1, between("addsent_f1"), originals, rule),
    ]
