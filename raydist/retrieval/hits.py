"""Encoders, indexes and hits, as a run's config sets them."""

from __future__ import annotations

from dataclasses import dataclass

from raydist.config import MiningConfig, RetrieverConfig
from raydist.files.stage import Made
from raydist.files.storage import folder_digest
from raydist.models.checked import check_model
from raydist.models.folders import model_folder
from raydist.models.located import Location, Model, NamedModel, StoredModel
from raydist.retrieval import bm25, dense
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.cross_encoder import check_cross_encoder
from raydist.retrieval.encode import ENCODE_ROWS
from raydist.retrieval.index_stages import Bm25Hits, Bm25Shards, DenseHits, EncoderModel, IndexStage, Vectors
from raydist.retrieval.pooling import resolve_prefixes
from raydist.runs.run import Run
from raydist.terminal import say

ANNOUNCED_ROWS = 100_000  # the size of a larger index is announced before it is built
NEGATIVES_DEPTH = 10  # docs/methods.md 5.2: negatives are drawn from this many hits of each source


def mining_encoder(run: Run) -> EncoderModel:
    """The encoder that finds candidates in the first round."""
    mining = run.config.mining
    return _encoder(run, NamedModel(mining.encoder), mining, mining.pooling, context=False)


def own_encoder(run: Run) -> EncoderModel:
    """The model that training starts from, untrained."""
    model, retriever = run.config.model, run.config.retriever
    location = NamedModel(model.name, model.revision)
    return _encoder(run, location, retriever, retriever.pooling, retriever.answer_context == "paragraph")


def trained_encoder(run: Run) -> EncoderModel:
    """The trained retriever of a run."""
    retriever = run.config.retriever
    return _encoder(run, StoredModel(run.folder.uri), retriever, "auto", retriever.answer_context == "paragraph")


def _encoder(run: Run, location: Location, used: RetrieverConfig | MiningConfig, pooling: str, context: bool) -> EncoderModel:
    folder, retriever = location.folder(), run.config.retriever
    lengths = {"question": retriever.max_question_length, "answer": retriever.max_answer_length}
    prefixes = resolve_prefixes(used.question_prefix, used.answer_prefix, folder)
    return EncoderModel(Model(location, folder_digest(folder)), pooling, context, lengths, prefixes, run.config.index.precision)


def check_models(run: Run, *, to_train: bool = True) -> None:
    """Reject models that cannot be opened, before any data is read: the run's own and, if something is to be trained, the
    encoder that mines and the cross-encoder.
    """
    model, cross_encoder, task = run.config.model, run.config.cross_encoder, run.config.task
    encoders = {run.config.mining.encoder} if to_train else set()
    if task == "retriever" or not to_train:
        encoders.add(model.name)
    for name in sorted(encoders):
        if not name.startswith("builtin:"):
            check_model(model_folder(name, model.revision if name == model.name else None, towers=True), "AutoModel")
    if to_train and not (name := cross_encoder.model.name).startswith("builtin:"):
        check_cross_encoder(model_folder(name, cross_encoder.model.revision), trained=cross_encoder.trained)


# --- indexes and hits ------------------------------------------------------------------------------------------------


def index_bm25(run: Run, corpus: Corpus) -> Made:
    """A BM25 index of a corpus, in shards that share the statistics of the whole."""
    settings, rows = run.config.index, corpus.num_sentences
    words = tuple(bm25.stop_words(settings.stop_words))
    stage = Bm25Shards(corpus.sentences, settings.shard_rows, rows, settings.min_chars, words, settings.stemmer)
    title = f"BM25 index of {corpus.name}"
    if rows > ANNOUNCED_ROWS and not _is_there(run, stage):
        files = corpus.sentences.folder.sizes("table")
        size = bm25.estimate_bytes(rows, files["texts_bytes.npy"], files["ids_bytes.npy"], stage.parts)
        say(f"{title}: {rows:,} sentences, about {size / 2**30:.1f} GiB")
    return run.make(stage, title, "index")


def index_dense(run: Run, corpus: Corpus, encoder: EncoderModel) -> Made:
    """Vectors of all sentences of a corpus."""
    settings, rows = run.config.index, corpus.num_sentences
    shard_rows = -(-settings.shard_rows // ENCODE_ROWS) * ENCODE_ROWS
    stage = Vectors(corpus.sentences, shard_rows, rows, encoder, settings.dense_settings())
    title = f"dense index of {corpus.name}"
    if (rows > ANNOUNCED_ROWS or settings.dense != "flat") and not _is_there(run, stage):
        wanted, units = dense.DenseSettings(**stage.settings), encoder.units()
        wanted.check(min(rows, shard_rows), units)  # now, not after everything is encoded
        if rows > ANNOUNCED_ROWS:
            size = dense.estimate_bytes(rows, units, wanted, shards=stage.parts)
            say(f"{title}: {rows:,} sentences, about {size / 2**30:.1f} GiB at {units} units")
    return run.make(stage, title, "encode")


def _is_there(run: Run, stage: IndexStage) -> bool:
    return run.storage.exists(f"{stage.folder}/manifest.json")


def search_bm25(run: Run, corpus: Corpus, index: Made, k: int, within: int = 0) -> Made:
    """The k best sentences for each question by BM25; if the best `within` are wanted as well, one search serves both."""
    formula = bm25.Formula(**run.config.index.formula())
    deeper = search_bm25(run, corpus, index, within) if within > k else None
    return run.make(Bm25Hits(corpus, index, formula, k, deeper), f"bm25 hits of {corpus.name}")


def search_dense(run: Run, corpus: Corpus, index: Made, encoder: EncoderModel, k: int, within: int = 0) -> Made:
    """The k best sentences for each question by a dense index, as in `search_bm25`."""
    settings = run.config.index
    is_exact = settings.dense == "flat"  # another kind may find other rows in a deeper search
    deeper = search_dense(run, corpus, index, encoder, within) if within > k and is_exact else None
    return run.make(DenseHits(corpus, index, encoder, settings.dense_search(), k, deeper), f"dense hits of {corpus.name}")


@dataclass(frozen=True)
class Hits:
    """Hits of both retrievers for the training questions."""

    bm25: Made
    dense: Made
    vectors: Made  # the index behind `dense`


def find_hits(run: Run, corpus: Corpus, encoder: EncoderModel, depth: int) -> Hits:
    """BM25 and dense results of the training questions. Negatives and candidates are drawn from one search, to the greater
    depth, but have fingerprints of their own, so that another number of candidates leaves the cross-encoder as it is.
    """
    within = max(NEGATIVES_DEPTH, run.config.mining.candidates)
    by_words = search_bm25(run, corpus, index_bm25(run, corpus), depth, within)
    vectors = index_dense(run, corpus, encoder)
    return Hits(by_words, search_dense(run, corpus, vectors, encoder, depth, within), vectors)
