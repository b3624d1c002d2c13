"""What trials of a sweep over retrieval share, and what each makes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.config import Config, flatten
from raydist.retrieval import flow
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.prepare import open_corpora
from raydist.runs.run import Run

OF_A_TRIAL = (  # what changes nothing of what trials share
    *("name", "storage", "cluster.", "sweep", "train.", "optim.", "objectives.", "predict.", "evaluate.", "track."),
    *("mining.threshold", "mining.power", "mining.weighting", "mining.calibrate", "mining.rounds"),
    *("mining.hard_negatives", "mining.negative_p"),
    *("retriever.towers", "retriever.loss", "retriever.objective", "retriever.normalise", "retriever.scale"),
    "retriever.temperature",
    *("retriever.mask_known_positives", "retriever.bucket_by_length", "retriever.chunk_rows", "retriever.cached"),
    *("retriever.variants", "retriever.rerank"),
)
NOT_OF_THE_CROSS_ENCODER = ("corpus.test", "model.", "mining.candidates", "mining.same_doc", "retriever.search_depth")


def shared_settings(config: Config, *, cross_encoder: bool = False) -> dict[str, Any]:
    """The settings that decide what trials share: all stages up to the scores, or the cross-encoder alone."""
    left_out = OF_A_TRIAL + (NOT_OF_THE_CROSS_ENCODER if cross_encoder else ())
    return {key: value for key, value in flatten(config).items() if not key.startswith(left_out)}


def prepare_trials(run: Run) -> dict[str, str]:
    """Make all that does not depend on a trial's own settings; the fingerprints of its corpora."""
    corpora = open_corpora(run)
    corpus, encoder = corpora["train"], flow.mining_encoder(run)
    flow.score_candidates(run, corpus, encoder, flow.train_cross_encoder(run, corpus, encoder))
    for name in run.config.corpus.test:
        flow.search_untrained(run, corpora[name])
    return fingerprints(corpora)


def run_trial(run: Run) -> dict[str, str]:
    """Train and score one trial; the fingerprints of its corpora. Retrievers of earlier rounds are deleted."""
    corpora = open_corpora(run)
    cross_encoder, retrievers = flow.train_all(run, corpora["train"])
    flow.score_methods(run, cross_encoder, retrievers, corpora)
    for other in retrievers.values():
        if other is not run:
            other.folder.delete("")
    return fingerprints(corpora)


def fingerprints(corpora: Mapping[str, Corpus]) -> dict[str, str]:
    return {name: corpus.tables.fingerprint for name, corpus in corpora.items()}
