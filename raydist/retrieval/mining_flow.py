"""Mining, top to bottom (docs/methods.md 5.2 to 5.5): labelled pairs -> cross-encoder; candidates -> scores -> silver pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa

from raydist.errors import InputError
from raydist.files.stage import Made, encode_table
from raydist.files.storage import folder_digest, has_model
from raydist.models.located import Model, NamedModel, StoredModel, tokenizer_digest
from raydist.records import MINED_SCHEMA
from raydist.retrieval.calibration import judge_pairs, reach_precision
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.cross_encoder import sigmoid
from raydist.retrieval.hits import (
    NEGATIVES_DEPTH,
    Hits,
    find_hits,
)
from raydist.retrieval.index_stages import EncoderModel
from raydist.retrieval.mining_stages import (
    Candidates,
    CandidateScores,
    CrossEncoderModel,
    HeldOutCosines,
    HeldOutScores,
    LabelledPairs,
    Silver,
)
from raydist.retrieval.negatives import count_sources, fallbacks
from raydist.retrieval.prepare import sample_answers
from raydist.retrieval.row_stages import CrossTrainingRows
from raydist.retrieval.silver import example_table, mined_table, write_selection
from raydist.runs.run import Run
from raydist.runs.training import train_rows
from raydist.terminal import say

# --- cross-encoder ---------------------------------------------------------------------------------------------------


def train_cross_encoder(run: Run, corpus: Corpus, encoder: EncoderModel, *, fresh: bool = False) -> Run:
    """Train the cross-encoder on gold pairs and 1:1:1 negatives, in a run of its own; judge and calibrate it on held-out
    pairs. An already trained one is only judged and calibrated.
    """
    settings = run.config.cross_encoder
    hits = find_hits(run, corpus, encoder, NEGATIVES_DEPTH)
    labelled = label_pairs(run, corpus, hits)
    beside = _begin_cross_encoder(run)
    if settings.trained:
        _take_trained(beside)
    else:
        train_rows(beside, _cross_rows(beside, corpus, labelled), fresh=fresh)
    judge_cross_encoder(run, beside, corpus, labelled, encoder, hits.vectors)
    return beside


def label_pairs(run: Run, corpus: Corpus, hits: Hits) -> Made:
    """Gold pairs and 1:1:1 negatives, some held out."""
    mining = run.config.mining
    stage = LabelledPairs(corpus, hits.bm25, hits.dense, run.config.seed, mining.negatives_per_source, mining.dev_share)
    labelled = run.make(stage, f"labelled pairs of {corpus.name}")
    held_out = sum(np.count_nonzero(table["is_dev"].to_numpy()) for table in labelled.tables(["is_dev"]))
    for_training = labelled.rows - held_out
    if not held_out or not (for_training or run.config.cross_encoder.trained):
        raise InputError(
            f"{corpus.num_questions} questions leave {for_training} pairs for training and {held_out} held out, by which a "
            "cross-encoder is judged: give more questions, or set mining.dev_share"
        )
    return labelled


def _begin_cross_encoder(run: Run) -> Run:
    """The cross-encoder's run."""
    settings = run.config.cross_encoder
    changes = {
        "task": "cross_encoder",
        "model": settings.model.model_dump(mode="json"),
        "train": settings.train.model_dump(mode="json"),
        "optim": settings.optim.model_dump(mode="json", exclude_none=True),
    }
    beside = run.beside(cross_encoder_name(run), changes)
    beside.begin()
    return beside


def cross_encoder_name(run: Run) -> str:
    """The name of its run, beside the main one; trials of a sweep share one."""
    return run.base or f"{run.config.name}_cross_encoder"


def _cross_rows(beside: Run, corpus: Corpus, labelled: Made) -> dict[str, Made]:
    """Tokenized training and held-out rows."""
    settings = beside.config.cross_encoder
    tokenizer = Model(NamedModel(settings.model.name, settings.model.revision), tokenizer_digest(beside.model_folder))
    stages = {
        name: (
            CrossTrainingRows(
                corpus,
                labelled,
                tokenizer,
                settings.max_question_length,
                settings.max_length,
                is_dev,
                settings.answer_context == "paragraph",
            ),
            f"cross rows of {corpus.name}" + ", held out" * is_dev,
        )
        for name, is_dev in (("train", False), ("dev", True))
    }
    return beside.make_all(stages, label="cross rows")


def _take_trained(beside: Run) -> None:
    """Install an already trained cross-encoder in place of a newly trained one."""
    if beside.folder.exists("training.json"):
        raise InputError(
            f"{beside.folder.path()} holds a cross-encoder that was trained there, and cross_encoder.trained would put another "
            "in its place: give this run another name (name=...)"
        )
    folder = beside.model_folder
    if not has_model(beside.folder) or folder_digest(beside.folder.local_copy("model")) != folder_digest(folder):
        beside.folder.upload(folder, "model")
    say(f"cross-encoder: {beside.config.model.name}, as it is")


def trained_cross_encoder(run: Run, cross_encoder: Run) -> CrossEncoderModel:
    """A run's cross-encoder, with the settings of this run."""
    settings, location = run.config.cross_encoder, StoredModel(cross_encoder.folder.uri)
    return CrossEncoderModel(
        Model(location, folder_digest(location.folder())),
        settings.max_question_length,
        settings.max_length,
        settings.batch_tokens,
        settings.precision,
        settings.answer_context == "paragraph",
    )


def judge_cross_encoder(
    run: Run, cross_encoder: Run, corpus: Corpus, labelled: Made, encoder: EncoderModel, vectors: Made
) -> None:
    """Write cross_encoder/metrics.json and reliability.json of the main run: scores of held-out pairs beside the encoder's
    cosines of the same pairs, both calibrations, and the sources of all negatives.
    """
    sources = count_sources(labelled.tables(["asked", "source"]))
    if replaced := fallbacks(sources):
        say(f"cross-encoder: {replaced}")
    scored = run.make(
        HeldOutScores(corpus, trained_cross_encoder(run, cross_encoder), labelled), f"held out scores of {corpus.name}"
    )
    cosines = run.make(HeldOutCosines(corpus, labelled, vectors, encoder), f"held out cosines of {corpus.name}")
    pairs = pa.concat_tables(scored.tables(["label", "logit", "source"]))
    judged = judge_pairs(pairs, pa.concat_tables(cosines.tables()))
    scores = judged.scores | {f"negatives.{asked}.{source}": number for (asked, source), number in sources.items()}
    run.folder.write_json("cross_encoder/metrics.json", scores)
    run.folder.write_json("cross_encoder/reliability.json", judged.reliability)
    if run.config.mining.precision is not None:
        _write_threshold(run, pairs, run.config.mining.precision)
    run.add_metrics({f"cross_encoder.{key}": value for key, value in scores.items()})
    say(
        f"cross-encoder on {scores['pairs']:,} held-out pairs: average precision {100 * scores['average_precision']:.1f}, F1 "
        f"{100 * scores['f1']:.1f}, accuracy {100 * scores['accuracy']:.1f} (majority {100 * scores['majority']:.1f})"
    )
    say_weak(run)


STRONGER = (
    "start it from a model that knows more (cross_encoder.model.name: a larger one, or a reader's folder), train it longer or "
    "on more questions (cross_encoder.train.epochs, corpus.train), or take one that is trained (cross_encoder.trained)"
)


def _weakness(run: Run) -> str | None:
    """What is wrong with a cross-encoder that ranks held-out pairs no better than the encoder it is to teach."""
    scores = run.folder.read_json("cross_encoder/metrics.json")
    for even, which in (("", ""), ("even_", ", without the negatives that the encoder itself ranked high,")):
        own, dense = (100 * scores[f"{even}{name}"] for name in ("average_precision", "dense_average_precision"))
        if own <= dense:
            return (
                f"the cross-encoder is no better than mining.encoder, {run.config.mining.encoder}: on {scores['pairs']:,} "
                f"held-out pairs{which} its average precision is {own:.1f}, and that of products of two vectors {dense:.1f}"
            )
    return None


def say_weak(run: Run) -> None:
    """Say that a cross-encoder has nothing to teach, where that does not stop the run."""
    if (weak := _weakness(run)) and (run.config.cross_encoder.weak == "warn" or run.config.task == "cross_encoder"):
        say(f"{weak}. Silver pairs are not likely to help: {STRONGER}")


def refuse_weak(run: Run) -> None:
    """Stop before mining with a cross-encoder that has nothing to teach, unless told to go on."""
    if run.config.cross_encoder.weak == "refuse" and (weak := _weakness(run)):
        raise InputError(
            f"{weak}. Its silver pairs are not likely to help, so nothing is mined: {STRONGER}; cross_encoder.weak=warn goes "
            "on all the same"
        )


def _write_threshold(run: Run, pairs: pa.Table, wanted: float) -> None:
    """Write cross_encoder/threshold.json: the lowest threshold of the wanted precision on held-out pairs, or refuse."""
    labels, logits = pairs["label"].to_numpy().astype(int), pairs["logit"].to_numpy()
    fitted = _calibration(run)
    temperature = fitted.pop("temperature")
    p = sigmoid(logits, *([] if temperature is None else [temperature, *fitted.values()])).astype(np.float32)
    reached = reach_precision(labels, p.astype(np.float64), wanted)
    if reached.precision < wanted:
        raise InputError(
            f"mining.precision is {wanted:g}, and on {len(labels):,} held-out pairs the cross-encoder reaches at most "
            f"{reached.precision:.3f} (p of {reached.threshold:.3f} or more, {reached.pairs:,} pairs): lower it, or {STRONGER}"
        )
    run.folder.write_json("cross_encoder/threshold.json", reached._asdict() | {"wanted": wanted})
    say(
        f"mining.precision {wanted:g}: p >= {reached.threshold:.3f}, where {100 * reached.precision:.1f} % of "
        f"{reached.pairs:,} held-out pairs are right"
    )


def _threshold(run: Run) -> float:
    """The probability from which a candidate is kept: as configured, or by the wanted precision."""
    if run.config.mining.precision is None:
        return run.config.mining.threshold
    return run.folder.read_json("cross_encoder/threshold.json")["threshold"]


# --- silver pairs ----------------------------------------------------------------------------------------------------


def mine_round(run: Run, corpus: Corpus, encoder: EncoderModel, cross_encoder: Run, number: int = 1) -> Made:
    """Candidates -> scores -> silver pairs."""
    scores = score_candidates(run, corpus, encoder, cross_encoder)
    mining = run.config.mining
    stage = Silver(corpus, scores, _threshold(run), mining.power, mining.weighting, **_calibration(run))
    silver = run.make(stage, f"silver of {corpus.name}")
    _write_yield(run, corpus, silver, number)
    return silver


def score_candidates(run: Run, corpus: Corpus, encoder: EncoderModel, cross_encoder: Run) -> Made:
    """Hits -> candidates -> scores, by a cross-encoder that has something to teach."""
    refuse_weak(run)
    mining = run.config.mining
    hits = find_hits(run, corpus, encoder, mining.candidates)
    stage = Candidates(corpus, hits.bm25, hits.dense, mining.candidates, mining.same_doc, run.config.seed)
    candidates = run.make(stage, f"candidates of {corpus.name}")
    return run.make(CandidateScores(corpus, trained_cross_encoder(run, cross_encoder), candidates), f"scores of {corpus.name}")


def _calibration(run: Run) -> dict[str, Any]:
    if run.config.mining.calibrate == "none":
        return {"temperature": None}
    fitted = run.folder.read_json("cross_encoder/reliability.json")
    if run.config.mining.calibrate == "platt":
        return {name: fitted["platt"][name] for name in ("temperature", "shift")}
    return {"temperature": fitted["temperature"]}


def _with_kept_lines(mined: Iterable[pa.Table], corpus: Corpus, lines: IO[bytes]) -> Iterator[pa.Table]:
    """The same tables; the kept pairs of each become lines with texts, and with places in the user's files."""
    for block, table in enumerate(mined):
        places = {row["question_id"]: {"file": row["file"], "line": row["line"]} for row in corpus.questions(block).to_pylist()}
        for row in table.filter(table["kept"]).to_pylist():
            shown = {name: row[name] for name in ("question_id", "question", "sentence_id", "sentence", "p", "weight")}
            lines.write((json.dumps({**places[row["question_id"]], **shown}, ensure_ascii=False) + "\n").encode())
        yield table


def _write_yield(run: Run, corpus: Corpus, silver: Made, number: int) -> None:
    """Write mining/: yield.json, examples.parquet, silver.parquet with every scored pair of the round, and silver.jsonl with
    the kept ones. With several rounds, metrics.json keeps the yield of each, and that of the last under the plain names.
    """
    mining, sentences, threshold = run.config.mining, corpus.sentence_table(), _threshold(run)
    answers = sample_answers(run, corpus)
    rows = (mined_table(table, corpus.questions(block), sentences, answers) for block, table in enumerate(silver.tables()))
    with run.folder.writing("mining/silver.parquet") as file, run.folder.writing("mining/silver.jsonl") as lines:
        selection = write_selection(
            file,
            _with_kept_lines(rows, corpus, lines),
            corpus.num_gold,
            sentences=sentences,
            threshold=threshold,
            seed=run.config.seed,
            schema=MINED_SCHEMA,
        )
    examples = example_table(selection.examples, corpus.read("gold"), sentences)
    run.folder.write_json("mining/yield.json", selection.curve)
    run.folder.write_bytes("mining/examples.parquet", encode_table(examples, "parquet", {}))
    share = selection.kept / max(1, corpus.num_gold)
    values: dict[str, float] = {"candidates": silver.rows, "silver": selection.kept, "yield": share}
    if mining.precision is not None:
        values["threshold"] = threshold
    if answers is not None:
        values |= {"right": selection.right, "answers": len(answers)}
    names = ["mining.", *([f"mining.round{number}."] if mining.rounds > 1 else [])]
    run.add_metrics(
        {name + key: value for name in names for key, value in values.items()},
        instead_of="mining." if number == 1 else names[-1],
    )
    say(
        f"mined: {selection.kept:,} silver pairs of {silver.rows:,} candidates (p >= {threshold:.3g}), {share:.1%} of "
        f"{corpus.num_gold:,} gold pairs; all of them in {run.folder.path('mining')}/silver.parquet"
    )
    if answers is not None:
        say(f"mined: {selection.right:,} of them are right, of {len(answers):,} answers that the sample has besides gold")
