"""What the commands do for retrieval, top to bottom (docs/methods.md 5):

    corpus -> hits of BM25 and of an encoder -> labelled pairs -> cross-encoder
    hits -> candidates -> scores -> silver pairs -> dual encoder -> ranked lists -> P@N, MRR

A cross-encoder and the dual encoders that are compared are runs of their own beside the main one, made by the same functions.
All that are compared learn from the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.corpus.formats import open_additions
from raydist.errors import InputError
from raydist.files.stage import Made, encode_table
from raydist.files.storage import folder_digest, has_model
from raydist.models.folders import TOWERS, tower_folder
from raydist.models.located import Model, NamedModel, StoredModel, tokenizer_digest
from raydist.records import rejected_table
from raydist.retrieval import searcher
from raydist.retrieval.calibration import judge_pairs
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.evaluate import Ranked, ranked_lists, reranked, write_scores
from raydist.retrieval.hits import (
    NEGATIVES_DEPTH,
    Hits,
    find_hits,
    index_bm25,
    index_dense,
    mining_encoder,
    own_encoder,
    search_bm25,
    search_dense,
    trained_encoder,
)
from raydist.retrieval.index_stages import EncoderModel, TopHits
from raydist.retrieval.mining_stages import (
    Candidates,
    CandidateScores,
    CrossEncoderModel,
    GoldScores,
    HeldOutCosines,
    HeldOutScores,
    LabelledPairs,
    RerankScores,
    Silver,
)
from raydist.retrieval.negatives import count_sources, fallbacks
from raydist.retrieval.prepare import open_corpora, report_rejected
from raydist.retrieval.row_stages import CrossTrainingRows, DualTrainingRows
from raydist.retrieval.silver import example_table, write_selection
from raydist.retrieval.truth import count_right, known_answers
from raydist.runs import trackers
from raydist.runs.run import Run
from raydist.runs.training import train_rows
from raydist.terminal import say

OWN = "gold_silver_weighted"  # the run's own method among those that are compared


# --- commands --------------------------------------------------------------------------------------------------------


def run_all(run: Run, *, fresh: bool = False) -> None:
    """Everything: all corpora first, so that a bad file stops it before any model is loaded."""
    corpora = open_corpora(run)
    if "train" not in corpora:
        raise InputError("there is nothing to train on: set corpus.train")
    cross_encoder, retrievers = train_all(run, corpora["train"], fresh=fresh)
    score_methods(run, cross_encoder, retrievers, corpora)


def train(run: Run, *, fresh: bool = False) -> None:
    """Task cross_encoder or retriever: what comes before it is made where it is missing."""
    corpus = open_corpora(run, ["train"])["train"]
    if run.config.task == "retriever":
        train_all(run, corpus, fresh=fresh)
    else:
        train_cross_encoder(run, corpus, mining_encoder(run), fresh=fresh)


def mine(run: Run, *, fresh: bool = False) -> Path:
    """Candidates, scores and silver pairs of the training corpus, in as many rounds as a whole run has. What this needs (a
    cross-encoder, the retrievers of earlier rounds) is trained where there is none.
    """
    mine_rounds(run, open_corpora(run, ["train"])["train"], fresh=fresh)
    return Path(run.folder.path("mining", "silver.parquet"))


def evaluate(run: Run) -> None:
    """Scores of the test sets by what the run has trained so far."""
    names = list(run.config.corpus.test)
    if not names:
        raise InputError("there is nothing to evaluate on: set corpus.test")
    corpora = open_corpora(run, names)
    beside = {name: run.beside(f"{run.config.name}_{name}") for name in ("gold", "gold_silver", *_round_names(run))}
    retrievers = {name: other for name, other in beside.items() if has_model(other.folder)}
    if has_model(run.folder):
        retrievers[OWN] = run
    cross_encoder = run.beside(_cross_encoder_name(run))
    score_methods(run, cross_encoder if has_model(cross_encoder.folder) else None, retrievers, corpora)


def index(run: Run) -> Path:
    """An index of the training corpus (else of the first test set) in the run's folder, with the texts, for searching."""
    if not run.folder.is_local:
        raise InputError(f"an index is written to a disk, and storage is {run.config.storage}: set storage to a folder")
    name = "train" if run.config.corpus.train else next(iter(run.config.corpus.test), "train")
    corpus, settings = open_corpora(run, [name], with_questions=False)[name], run.config.index
    if settings.kind == "bm25":
        made = index_bm25(run, corpus)
    else:
        trained = run.config.task == "retriever" and has_model(run.folder)
        made = index_dense(run, corpus, trained_encoder(run) if trained else own_encoder(run))
    target = Path(run.folder.path("index"))
    table = corpus.sentences.folder.local_copy("") / "table"
    search = {"formula": settings.formula()} if settings.kind == "bm25" else {"search": settings.dense_search()}
    searcher.publish(target, made.folder.local_copy(""), table, search)
    source = run.config.corpus.train or run.config.corpus.test[name]
    run.folder.write_json("index/corpus.json", {"format": source.format, "columns": source.columns_of("corpus")})
    say(f"{settings.kind} index of {corpus.num_sentences:,} sentences")
    return target


def add_to_index(run: Run, files: list[Path]) -> int:
    """Add documents to the run's index, read as index/corpus.json says that its own were."""
    if not run.folder.exists("index/corpus.json"):
        raise InputError(
            f"{run.folder.path('index')} holds no index to add to; make one with `raydist index CONFIG`, without --add"
        )
    added = open_additions(files, **run.folder.read_json("index/corpus.json")).whole()
    if added.rejected:
        rejected = rejected_table(added.rejected)
        report_rejected(run, ", ".join(map(str, files)), "rejected/added.parquet", rejected, len(added.sentences))
    return searcher.add_sentences(Path(run.folder.path("index")), added.sentences, [added.passages])


# --- cross-encoder ---------------------------------------------------------------------------------------------------


def train_cross_encoder(run: Run, corpus: Corpus, encoder: EncoderModel, *, fresh: bool = False) -> Run:
    """Train the cross-encoder on gold pairs and 1:1:1 negatives, in a run of its own; judge and calibrate it on others. One
    that is trained already is only judged.
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
    beside = run.beside(_cross_encoder_name(run), changes)
    beside.begin()
    return beside


def _cross_encoder_name(run: Run) -> str:
    """A run beside the main one; trials of a sweep share theirs."""
    return run.base or f"{run.config.name}_cross_encoder"


def _cross_rows(beside: Run, corpus: Corpus, labelled: Made) -> dict[str, Made]:
    """Training and held-out rows of tokens."""
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
    """Put a cross-encoder that needs no training where one that was trained would be."""
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
    """The cross-encoder that a run holds, as this one uses it."""
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
    """cross_encoder/metrics.json and reliability.json of the main run: scores of held-out pairs, beside them what the encoder's
    vectors say of the same pairs, and both calibrations; and which sources the negatives of all pairs came from.
    """
    sources = count_sources(labelled.tables(["asked", "source"]))
    if replaced := fallbacks(sources):
        say(f"cross-encoder: {replaced}")
    scored = run.make(
        HeldOutScores(corpus, trained_cross_encoder(run, cross_encoder), labelled), f"held out scores of {corpus.name}"
    )
    cosines = run.make(HeldOutCosines(corpus, labelled, vectors, encoder), f"held out cosines of {corpus.name}")
    judged = judge_pairs(pa.concat_tables(scored.tables(["label", "logit"])), pa.concat_tables(cosines.tables()))
    scores = judged.scores | {f"negatives.{asked}.{source}": number for (asked, source), number in sources.items()}
    run.folder.write_json("cross_encoder/metrics.json", scores)
    run.folder.write_json("cross_encoder/reliability.json", judged.reliability)
    run.add_metrics({f"cross_encoder.{key}": value for key, value in scores.items()})
    say(
        f"cross-encoder on {scores['pairs']:,} held-out pairs: average precision {100 * scores['average_precision']:.1f}, F1 "
        f"{100 * scores['f1']:.1f}, accuracy {100 * scores['accuracy']:.1f} (majority {100 * scores['majority']:.1f})"
    )
    if scores["average_precision"] <= scores["dense_average_precision"]:
        say(
            f"the cross-encoder knows no more than mining.encoder, {run.config.mining.encoder}, whose products of two vectors "
            f"have an average precision of {100 * scores['dense_average_precision']:.1f} on the same pairs. Silver pairs are "
            "not likely to help; train it longer, on more questions, or from a larger model (cross_encoder.train, "
            "corpus.train, cross_encoder.model)"
        )


# --- silver pairs ----------------------------------------------------------------------------------------------------


def mine_rounds(run: Run, corpus: Corpus, *, fresh: bool = False) -> tuple[Run, Made, dict[str, Run]]:
    """The cross-encoder, the silver pairs of the last round, and the retrievers that each round before it has trained."""
    encoder = mining_encoder(run)
    cross_encoder = train_cross_encoder(run, corpus, encoder, fresh=fresh)
    silver = mine_round(run, corpus, encoder, cross_encoder)
    rounds: dict[str, Run] = {}
    for number, name in enumerate(_round_names(run), 1):
        rounds[name] = _begin_retriever(run, name, task="retriever")
        train_retriever(rounds[name], corpus, cross_encoder, silver, "silver", fresh=fresh)
        say(f"mining, round {number + 1}: the retriever of round {number} finds candidates")
        silver = mine_round(run, corpus, trained_encoder(rounds[name]), cross_encoder, number + 1)
    return cross_encoder, silver, rounds


def _round_names(run: Run) -> list[str]:
    """Of the rounds that train a retriever for the next one."""
    return [f"round{number}" for number in range(1, run.config.mining.rounds)]


def mine_round(run: Run, corpus: Corpus, encoder: EncoderModel, cross_encoder: Run, number: int = 1) -> Made:
    """Candidates -> scores -> silver pairs."""
    scores = score_candidates(run, corpus, encoder, cross_encoder)
    mining = run.config.mining
    stage = Silver(corpus, scores, mining.threshold, mining.power, mining.weighting, **_calibration(run))
    silver = run.make(stage, f"silver of {corpus.name}")
    _write_yield(run, corpus, silver, number)
    return silver


def score_candidates(run: Run, corpus: Corpus, encoder: EncoderModel, cross_encoder: Run) -> Made:
    """Hits -> candidates -> scores."""
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


def _write_yield(run: Run, corpus: Corpus, silver: Made, number: int) -> None:
    """mining/: yield.json, examples.parquet, and silver.parquet with every scored pair of the round. metrics.json keeps the
    yield of every round where there are several, and under the plain names that of the last.
    """
    mining, sentences = run.config.mining, corpus.sentence_table()
    with run.folder.writing("mining/silver.parquet") as file:
        selection = write_selection(
            file, silver.tables(), corpus.num_gold, sentences=sentences, threshold=mining.threshold, seed=run.config.seed
        )
    examples = example_table(selection.examples, corpus.read("questions"), corpus.read("gold"), sentences)
    run.folder.write_json("mining/yield.json", selection.curve)
    run.folder.write_bytes("mining/examples.parquet", encode_table(examples, "parquet", {}))
    share = selection.kept / max(1, corpus.num_gold)
    values = {"candidates": silver.rows, "silver": selection.kept, "yield": share}
    answers = known_answers(run, corpus)
    if answers is not None:
        values |= {
            "right": count_right(silver.tables(["question_id", "sentence_id", "kept"]), answers),
            "answers": len(answers),
        }
    names = ["mining.", *([f"mining.round{number}."] if mining.rounds > 1 else [])]
    run.add_metrics(
        {name + key: value for name in names for key, value in values.items()},
        instead_of="mining." if number == 1 else names[-1],
    )
    say(
        f"mined: {selection.kept:,} silver pairs of {silver.rows:,} candidates (p >= {mining.threshold}), {share:.1%} of "
        f"{corpus.num_gold:,} gold pairs; all of them in {run.folder.path('mining')}/silver.parquet"
    )
    if answers is not None:
        say(
            f"of these the sample world knows {values['right']:,} to be right, of {len(answers):,} unmarked answers that it has"
        )


# --- dual encoder ----------------------------------------------------------------------------------------------------


def train_all(run: Run, corpus: Corpus, *, fresh: bool = False) -> tuple[Run, dict[str, Run]]:
    """The cross-encoder, and the dual encoders that are compared by method, each trained."""
    _ = run.model_folder  # a wrong name is said before anything is trained
    if fresh:
        run.folder.delete("metrics.json")
    cross_encoder, silver, rounds = mine_rounds(run, corpus, fresh=fresh)
    variants: dict[str, Run] = {}
    for name in run.config.retriever.variants:
        variants[name] = _begin_retriever(run, name)
        train_retriever(variants[name], corpus, cross_encoder, silver, "gold" if name == "gold" else "none", fresh=fresh)
    train_retriever(run, corpus, cross_encoder, silver, "silver", fresh=fresh)
    return cross_encoder, variants | rounds | {OWN: run}


def _begin_retriever(run: Run, ending: str, **changes: Any) -> Run:
    beside = run.beside(f"{run.config.name}_{ending}", changes)
    beside.begin()
    return beside


def train_retriever(run: Run, corpus: Corpus, cross_encoder: Run, silver: Made, weighting: str, *, fresh: bool = False) -> None:
    """Train the run's dual encoder on gold pairs, with or without silver ones, weighted or not."""
    retriever, mining, model = run.config.retriever, run.config.mining, run.config.model
    prefixes = own_encoder(run).prefixes
    stage = DualTrainingRows(
        corpus,
        Model(NamedModel(model.name, model.revision), _one_tokenizer(run)),
        context=retriever.answer_context == "paragraph",
        max_question_length=retriever.max_question_length,
        max_answer_length=retriever.max_answer_length,
        question_prefix=prefixes["question"],
        answer_prefix=prefixes["answer"],
        weighting=weighting,
        hard_negatives=mining.hard_negatives,
        negative_p=mining.negative_p,
        silver=silver if weighting != "gold" or mining.hard_negatives else None,
        gold_scores=_gold_scores(run, corpus, cross_encoder) if retriever.loss != "softmax" else None,
    )
    rows = run.make(stage, f"pair rows of {corpus.name}")
    gold, mined = (sum(part.info[key] for part in rows.manifest.parts) for key in ("gold", "silver"))
    say(f"train: run {run.config.name}, {gold:,} gold and {mined:,} silver pairs")
    train_rows(run, {"train": rows}, fresh=fresh)


def _one_tokenizer(run: Run) -> str:
    digests = {tokenizer_digest(tower_folder(run.model_folder, tower)) for tower in TOWERS}
    if len(digests) > 1:
        raise InputError(f"{run.model_folder}: its towers have two tokenizers, and training takes one: save the same in both")
    return digests.pop()


def _gold_scores(run: Run, corpus: Corpus, cross_encoder: Run) -> Made:
    return run.make(GoldScores(corpus, trained_cross_encoder(run, cross_encoder)), f"gold scores of {corpus.name}")


# --- scores ----------------------------------------------------------------------------------------------------------


def score_methods(run: Run, cross_encoder: Run | None, retrievers: dict[str, Run], corpora: dict[str, Corpus]) -> None:
    """Every method on every test set: metrics.json, ranked lists in TREC format, a table on the terminal."""
    for name in run.config.corpus.test:
        hits = search_untrained(run, corpora[name])
        for method, encoder in {method: trained_encoder(other) for method, other in retrievers.items()}.items():
            vectors = index_dense(run, corpora[name], encoder)
            hits[method] = search_dense(run, corpora[name], vectors, encoder, run.config.retriever.search_depth)
        ranked: dict[str, Iterator[Ranked]] = {method: map(ranked_lists, made.tables()) for method, made in hits.items()}
        if cross_encoder and run.config.retriever.rerank and OWN in hits:
            ranked["reranked"] = _rerank(run, cross_encoder, corpora[name], hits[OWN])
        write_scores(run, corpora[name], ranked)
    trackers.tell_end(run.config, run.folder)


def search_untrained(run: Run, corpus: Corpus) -> dict[str, Made]:
    """What BM25 and the encoder find before training."""
    depth, encoder = run.config.retriever.search_depth, own_encoder(run)
    by_words = search_bm25(run, corpus, index_bm25(run, corpus), depth)
    return {"bm25": by_words, "untrained": search_dense(run, corpus, index_dense(run, corpus, encoder), encoder, depth)}


def _rerank(run: Run, cross_encoder: Run, corpus: Corpus, hits: Made) -> Iterator[Ranked]:
    """The first hits of each list in the cross-encoder's order, then the rest in theirs; block by block."""
    depth = run.config.retriever.rerank
    top = run.make(TopHits(corpus, hits, depth), f"top hits of {corpus.name}")
    scored = run.make(RerankScores(corpus, trained_cross_encoder(run, cross_encoder), top), f"rerank scores of {corpus.name}")
    return (
        reranked(ranked_lists(first, "logit"), ranked_lists(rest), depth) for first, rest in zip(scored.tables(), hits.tables())
    )
