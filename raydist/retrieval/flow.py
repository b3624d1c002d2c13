"""The commands for retrieval, top to bottom (docs/methods.md 5):

    corpus -> hits of BM25 and of an encoder -> labelled pairs -> cross-encoder
    hits -> candidates -> scores -> silver pairs -> dual encoder -> ranked lists -> P@N, MRR

The cross-encoder and the compared dual encoders are runs of their own beside the main one, made by the same functions.
All compared encoders learn from the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.corpus.formats import open_additions
from raydist.errors import InputError
from raydist.files.stage import Made
from raydist.files.storage import has_model
from raydist.models.folders import TOWERS, tower_folder
from raydist.models.located import Model, NamedModel, tokenizer_digest
from raydist.records import rejected_table
from raydist.retrieval import searcher
from raydist.retrieval.candidates import Ranked, ranked_lists
from raydist.retrieval.check import say_corpora
from raydist.retrieval.corpus_stages import Corpus, DevQuestions
from raydist.retrieval.evaluate import Scores, gold_lists, mean_mrr, reranked, write_scores
from raydist.retrieval.foreign import score_foreign
from raydist.retrieval.fusion import Fusion, tune
from raydist.retrieval.hits import (
    check_models,
    index_bm25,
    index_dense,
    mining_encoder,
    own_encoder,
    search_bm25,
    search_dense,
    trained_encoder,
)
from raydist.retrieval.index_stages import EncoderModel, FusedHits, TopHits
from raydist.retrieval.mining_flow import cross_encoder_name, mine_round, train_cross_encoder, trained_cross_encoder
from raydist.retrieval.mining_stages import (
    GoldScores,
    RerankScores,
)
from raydist.retrieval.prepare import open_corpora, report_overlap, report_rejected
from raydist.retrieval.row_stages import DualTrainingRows
from raydist.runs import trackers
from raydist.runs.card import write_card
from raydist.runs.locate import SAMPLE
from raydist.runs.run import Run
from raydist.runs.training import train_rows
from raydist.terminal import say

ABOUT_INDEX = "index/corpus.json"  # beside an index: how its corpus was read
OWN = "gold_silver_weighted"  # the run's own method among the compared ones
EQUAL = "equal.json"  # the methods that would be the run's own over again, and have its scores


# --- commands --------------------------------------------------------------------------------------------------------


def run_all(run: Run, *, fresh: bool = False) -> None:
    """Run everything: all corpora first, so that a bad file stops it before any model is loaded."""
    if run.config.evaluate.predictions:
        raise InputError(
            "evaluate.predictions holds another tool's ranked lists, but `run` trains its own retriever: score them with "
            "raydist evaluate, under another name (name=...)"
        )
    check_models(run)
    corpora = open_corpora(run)
    if "train" not in corpora:
        raise InputError("there is nothing to train on: set corpus.train")
    report_overlap(run, corpora)
    say_corpora(run, corpora, fresh=fresh)
    cross_encoder, retrievers = train_all(run, corpora["train"], fresh=fresh)
    score_methods(run, cross_encoder, retrievers, corpora)
    index_own(run, corpora)


def train(run: Run, *, fresh: bool = False) -> None:
    """Train for task cross_encoder or retriever; make missing earlier stages first."""
    check_models(run)
    corpora = open_corpora(run, ["train"])
    say_corpora(run, corpora, fresh=fresh)
    corpus = corpora["train"]
    if run.config.task == "retriever":
        train_all(run, corpus, fresh=fresh)
    else:
        train_cross_encoder(run, corpus, mining_encoder(run), fresh=fresh)


def mine(run: Run, *, fresh: bool = False) -> Path:
    """Make candidates, scores and silver pairs of the training corpus, in as many rounds as a whole run has. Missing models
    (the cross-encoder, the retrievers of earlier rounds) are trained first.
    """
    check_models(run)
    mine_rounds(run, open_corpora(run, ["train"])["train"], fresh=fresh)
    return Path(run.folder.path("mining", "silver.parquet"))


def evaluate(run: Run) -> Scores:
    """Score the test sets with the models that the run has trained so far, or score another tool's ranked lists."""
    if foreign := list(run.config.evaluate.predictions):
        scores = score_foreign(run, open_corpora(run, foreign))
        trackers.tell_end(run.config, run.folder)
        return scores
    names = list(run.config.corpus.test)
    if not names:
        raise InputError("there is nothing to evaluate on: set corpus.test")
    check_models(run, to_train=False)
    corpora = open_corpora(run, names + ["train"] * bool(run.config.corpus.train and run.config.corpus.has_dev))
    beside = {name: run.beside(f"{run.config.name}_{name}") for name in ("gold", "gold_silver", *_round_names(run))}
    retrievers = {name: other for name, other in beside.items() if has_model(other.folder)}
    if has_model(run.folder):
        equal = run.folder.read_json(EQUAL) if run.folder.exists(EQUAL) else []
        retrievers |= dict.fromkeys(equal, run) | {OWN: run}
    cross_encoder = run.beside(cross_encoder_name(run))
    return score_methods(run, cross_encoder if has_model(cross_encoder.folder) else None, retrievers, corpora)


def index(run: Run) -> Path:
    """Index the training corpus (else the first test set) in the run's folder, with the texts, for searching."""
    if not run.folder.is_local:
        raise InputError(f"an index is written to a disk, and storage is {run.config.storage}: set storage to a folder")
    name = "train" if run.config.corpus.train else next(iter(run.config.corpus.test), "train")
    settings = run.config.index
    if settings.kind == "dense":
        check_models(run, to_train=False)
    corpus = open_corpora(run, [name], with_questions=False)[name]
    about = _about(run, corpus)
    _refuse_another(run, about)
    if settings.kind == "bm25":
        made = index_bm25(run, corpus)
    else:
        trained = run.config.task == "retriever" and has_model(run.folder)
        made = index_dense(run, corpus, trained_encoder(run) if trained else own_encoder(run))
    search = {"formula": settings.formula()} if settings.kind == "bm25" else {"search": settings.dense_search()}
    return _publish(run, corpus, made, search, settings.kind, about)


def index_own(run: Run, corpora: dict[str, Corpus]) -> None:
    """Leave an index by the trained retriever in the run's folder, of the first corpus that was searched to score it.

    Its parts are there already, among the stages. An index that was asked for, or has added documents, stays as it is.
    """
    name = next(iter(run.config.corpus.test), "train")
    if not run.folder.is_local or searcher.has_additions(Path(run.folder.path("index"))):
        return
    if run.folder.exists(ABOUT_INDEX) and not run.folder.read_json(ABOUT_INDEX).get("by_run"):
        return
    made = index_dense(run, corpora[name], trained_encoder(run))
    about = _about(run, corpora[name]) | {"by_run": True}
    target = _publish(run, corpora[name], made, {"search": run.config.index.dense_search()}, "dense", about)
    say(f'ask the index of {name}: raydist search {target.parent} "..."')


def _about(run: Run, corpus: Corpus) -> dict[str, Any]:
    """How an index's corpus was read, and which files and sentences it has."""
    source = run.config.corpus.test.get(corpus.name) or run.config.corpus.train
    assert source is not None
    names = {"files": _full_names(run, source.files), "sentences": corpus.sentences.fingerprint}
    return {"format": corpus.tables.identity["format"], "columns": source.columns_of("corpus")} | names


def _publish(run: Run, corpus: Corpus, made: Made, search: dict[str, Any], kind: str, about: dict[str, Any]) -> Path:
    target = Path(run.folder.path("index"))
    table = corpus.sentences.folder.local_copy("") / "table"
    searcher.publish(target, made.folder.local_copy(""), table, search)
    run.folder.write_json(ABOUT_INDEX, about)
    say(f"{kind} index of {corpus.num_sentences:,} sentences")
    return target


def _full_names(run: Run, files: Sequence[str]) -> list[str]:
    """Files as they are named on this machine; of a sample world, which one."""
    sample = run.config.data.sample
    root = Path(run.config.data.root).expanduser()
    return [
        f"{file} of {sample.size}, seed {sample.seed}" if file.startswith(SAMPLE) else str((root / file).absolute())
        for file in files
    ]


def _refuse_another(run: Run, about: Mapping[str, Any]) -> None:
    """Refuse to replace the index of a corpus with other files and other sentences."""
    if not run.folder.exists(ABOUT_INDEX):
        return
    before = run.folder.read_json(ABOUT_INDEX)
    if before.get("by_run"):
        return
    if before.get("files", about["files"]) != about["files"] and before["sentences"] != about["sentences"]:
        raise InputError(
            f"{run.folder.path('index')} is of another corpus, {', '.join(before['files'])}: give this one another name "
            f"(name=...), or replace that with --fresh"
        )


def add_to_index(run: Run, files: list[Path]) -> int:
    """Add documents to the run's index, read with the settings in index/corpus.json."""
    if not run.folder.exists(ABOUT_INDEX):
        raise InputError(
            f"{run.folder.path('index')} holds no index to add to; make one with `raydist index CONFIG`, without --add"
        )
    about = run.folder.read_json(ABOUT_INDEX)
    added = open_additions(files, format=about["format"], columns=about["columns"]).whole()
    if added.rejected:
        rejected = rejected_table(added.rejected)
        report_rejected(run, ", ".join(map(str, files)), "rejected/added.parquet", rejected, len(added.sentences))
    return searcher.add_sentences(Path(run.folder.path("index")), added.sentences, [added.passages])


# --- rounds of mining ----------------------------------------------------------------------------------------------


def mine_rounds(run: Run, corpus: Corpus, *, fresh: bool = False) -> tuple[Run, Made, dict[str, Run]]:
    """The cross-encoder, the silver pairs of the last round, and the retrievers trained in the rounds before it."""
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
    """Names of the rounds that train a retriever for the next one."""
    return [f"round{number}" for number in range(1, run.config.mining.rounds)]


# --- dual encoder ----------------------------------------------------------------------------------------------------


def train_all(run: Run, corpus: Corpus, *, fresh: bool = False, callbacks: Sequence[Any] = ()) -> tuple[Run, dict[str, Run]]:
    """Train the cross-encoder and the compared dual encoders; return the latter by method."""
    _ = run.model_folder  # reports a wrong name before any training
    if fresh:
        run.folder.delete("metrics.json")
    cross_encoder, silver, rounds = mine_rounds(run, corpus, fresh=fresh)
    equal = _note_equal(run, silver)
    variants: dict[str, Run] = dict.fromkeys(equal, run)
    for name in run.config.retriever.variants:
        if name in equal:
            continue
        variants[name] = _begin_retriever(run, name)
        train_retriever(variants[name], corpus, cross_encoder, silver, "gold" if name == "gold" else "none", fresh=fresh)
    train_retriever(run, corpus, cross_encoder, silver, "silver", fresh=fresh, callbacks=callbacks)
    return cross_encoder, variants | rounds | {OWN: run}


def _note_equal(run: Run, silver: Made) -> list[str]:
    """The variants that would learn from the run's own pairs with the same weights; equal.json and a line say so."""
    weights = [table["weight"].filter(table["kept"]).to_numpy() for table in silver.tables(["kept", "weight"])]
    nothing, plain = not any(map(len, weights)), all((part == 1).all() for part in weights)
    equal: list[str] = [name for name in run.config.retriever.variants if nothing or (plain and name == "gold_silver")]
    run.folder.write_json(EQUAL, equal)
    if equal:
        why = "no silver pair was kept" if nothing else "every silver pair has weight 1"
        say(f"train: {why}, so {' and '.join(equal)} would equal {OWN}: not trained again, and scored as it is")
    return equal


def _begin_retriever(run: Run, ending: str, **changes: Any) -> Run:
    beside = run.beside(f"{run.config.name}_{ending}", changes)
    beside.begin()
    return beside


def train_retriever(
    run: Run,
    corpus: Corpus,
    cross_encoder: Run,
    silver: Made,
    weighting: str,
    *,
    fresh: bool = False,
    callbacks: Sequence[Any] = (),
) -> None:
    """Train the run's dual encoder on gold pairs, with or without silver ones, weighted or not."""
    rows = pair_rows(run, corpus, cross_encoder, silver, weighting)
    gold, mined = (sum(part.info[key] for part in rows.manifest.parts) for key in ("gold", "silver"))
    say(f"train: run {run.config.name}, {gold:,} gold and {mined:,} silver pairs")
    train_rows(run, {"train": rows, **_dev_questions(run, corpus)}, fresh=fresh, callbacks=callbacks)
    fitted = run.folder.read_json("training.json")["fitted"]
    if "dev.mrr" in fitted:
        run.add_metrics({"dev.mrr": fitted["dev.mrr"]})


def pair_rows(run: Run, corpus: Corpus, cross_encoder: Run, silver: Made, weighting: str) -> Made:
    """The training rows of the run's dual encoder."""
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
    return run.make(stage, f"pair rows of {corpus.name}")


def _dev_questions(run: Run, corpus: Corpus) -> dict[str, DevQuestions]:
    """The questions for selecting the best retriever."""
    if corpus.dev is None or run.config.train.evaluate_every == 0:
        return {}
    return {"dev": DevQuestions(corpus.dev, run.config.data.seed)}


def _one_tokenizer(run: Run) -> str:
    digests = {tokenizer_digest(tower_folder(run.model_folder, tower)) for tower in TOWERS}
    if len(digests) > 1:
        raise InputError(f"{run.model_folder}: its towers have two tokenizers, and training takes one: save the same in both")
    return digests.pop()


def _gold_scores(run: Run, corpus: Corpus, cross_encoder: Run) -> Made:
    return run.make(GoldScores(corpus, trained_cross_encoder(run, cross_encoder)), f"gold scores of {corpus.name}")


# --- scores ----------------------------------------------------------------------------------------------------------


def score_methods(run: Run, cross_encoder: Run | None, retrievers: dict[str, Run], corpora: dict[str, Corpus]) -> Scores:
    """Score every method on every test set: metrics.json, ranked lists in TREC format, a table on the terminal. The fusion of
    two lists is chosen on the development questions, if any.
    """
    development = corpora["train"].dev if "train" in corpora else None
    scores: Scores = {}
    encoders = {"untrained": own_encoder(run)} | {method: trained_encoder(other) for method, other in retrievers.items()}
    best = OWN if OWN in encoders else "untrained"
    fusion = choose_fusion(run, encoders[best], development)
    reranks = _reranks(run, cross_encoder, development, encoders[best], best, fusion)
    for name in run.config.corpus.test:
        corpus, depth = corpora[name], run.config.retriever.search_depth
        hits = search_untrained(run, corpus)
        for method, encoder in encoders.items():
            if method not in hits:
                hits[method] = search_dense(run, corpus, index_dense(run, corpus, encoder), encoder, depth)
        hits["hybrid"] = run.make(FusedHits(corpus, hits["bm25"], hits[best], fusion, depth), f"fused hits of {name}")
        ranked: dict[str, Iterator[Ranked]] = {method: map(ranked_lists, made.tables()) for method, made in hits.items()}
        for method, first in reranks.items():
            assert cross_encoder
            ranked[method] = _rerank(run, cross_encoder, corpus, hits[first], first)
        scores[name] = write_scores(run, corpus, ranked)
    write_card(run)
    trackers.tell_end(run.config, run.folder)
    return scores


def choose_fusion(run: Run, encoder: EncoderModel, development: Corpus | None = None) -> Fusion:
    """The fusion of BM25's and an encoder's lists: as configured, or the best on development questions."""
    settings, depth = run.config.retriever.fusion, run.config.retriever.search_depth
    if settings.kind != "auto":
        return Fusion(settings.kind, settings.dense_weight)
    if development is None:
        return Fusion()
    by_words = search_bm25(run, development, index_bm25(run, development), depth)
    vectors = index_dense(run, development, encoder)
    by_vectors = search_dense(run, development, vectors, encoder, depth)
    words, meaning = (
        {id: hits for table in made.tables() for id, hits in ranked_lists(table).items()} for made in (by_words, by_vectors)
    )
    fusion = tune(words, meaning, gold_lists(development.read("gold")))
    say(f"hybrid: {fusion.kind}, dense_weight {fusion.dense_weight:g}, by {development.num_questions:,} development questions")
    return fusion


def search_untrained(run: Run, corpus: Corpus) -> dict[str, Made]:
    """Hits of BM25 and of the untrained encoder."""
    depth, encoder = run.config.retriever.search_depth, own_encoder(run)
    by_words = search_bm25(run, corpus, index_bm25(run, corpus), depth)
    return {"bm25": by_words, "untrained": search_dense(run, corpus, index_dense(run, corpus, encoder), encoder, depth)}


def _reranks(
    run: Run, cross_encoder: Run | None, development: Corpus | None, encoder: EncoderModel, best: str, fusion: Fusion
) -> dict[str, str]:
    """The lists to rank anew, by the method's name: without those that lose by it on development questions."""
    if cross_encoder is None or not run.config.retriever.rerank:
        return {}
    wanted = ({"reranked": OWN} if best == OWN else {}) | {"hybrid_reranked": "hybrid"}
    if development is None or run.config.cross_encoder.weak == "warn":
        return wanted
    depth = run.config.retriever.search_depth
    by_words = search_bm25(run, development, index_bm25(run, development), depth)
    by_vectors = search_dense(run, development, index_dense(run, development, encoder), encoder, depth)
    fused = run.make(FusedHits(development, by_words, by_vectors, fusion, depth), f"fused hits of {development.name}")
    kept = {}
    for method, first in wanted.items():
        hits = by_vectors if first == OWN else fused
        before = mean_mrr(development, map(ranked_lists, hits.tables()))
        after = mean_mrr(development, _rerank(run, cross_encoder, development, hits, first))
        if after >= before:
            kept[method] = first
            continue
        say(
            f"{method}: left out, for the cross-encoder's order has an MRR of {100 * after:.1f} on "
            f"{development.num_questions:,} development questions, and {first} {100 * before:.1f} "
            "(cross_encoder.weak=warn keeps it)"
        )
    return kept


def _rerank(run: Run, cross_encoder: Run, corpus: Corpus, hits: Made, method: str) -> Iterator[Ranked]:
    """Each list with its first hits in the cross-encoder's order, then the rest unchanged; block by block."""
    depth = run.config.retriever.rerank
    of = corpus.name if method == OWN else f"{corpus.name}, {method}"
    top = run.make(TopHits(corpus, hits, depth), f"top hits of {of}")
    scored = run.make(RerankScores(corpus, trained_cross_encoder(run, cross_encoder), top), f"rerank scores of {of}")
    return (
        reranked(ranked_lists(first, "logit"), ranked_lists(rest), depth) for first, rest in zip(scored.tables(), hits.tables())
    )
