"""Trials of a retrieval sweep: shared stages, and each trial's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydist.config import Config, roles
from raydist.retrieval import flow
from raydist.retrieval.corpus_stages import Corpus
from raydist.retrieval.mining_flow import score_candidates, train_cross_encoder
from raydist.retrieval.prepare import open_corpora, report_overlap
from raydist.runs.run import Run


def shared_settings(config: Config, *, all_stages: bool = True) -> dict[str, Any]:
    """The settings that determine the shared stages: all up to the scores."""
    return roles.shared_settings(config)


def base_settings(config: Config) -> dict[str, Any]:
    """The settings that determine the cross-encoder."""
    return roles.shared_settings(config, cross_encoder=True)


def prepare_trials(run: Run, *, all_stages: bool = True) -> dict[str, str]:
    """Make everything that does not depend on a trial's own settings; return the fingerprints of its corpora."""
    corpora = open_corpora(run)
    report_overlap(run, corpora, is_ranked=True)
    corpus, encoder = corpora["train"], flow.mining_encoder(run)
    score_candidates(run, corpus, encoder, train_cross_encoder(run, corpus, encoder))
    for name in run.config.corpus.test:
        flow.search_untrained(run, corpora[name])
    return fingerprints(corpora)


def run_trial(run: Run, *, callbacks: Sequence[Any] = ()) -> dict[str, str]:
    """Train and score one trial; return the fingerprints of its corpora. Retrievers of earlier rounds are deleted."""
    corpora = open_corpora(run)
    cross_encoder, retrievers = flow.train_all(run, corpora["train"], callbacks=callbacks)
    flow.score_methods(run, cross_encoder, retrievers, corpora)
    for other in retrievers.values():
        if other is not run:
            other.folder.delete("")
    return fingerprints(corpora)


def fingerprints(corpora: Mapping[str, Corpus]) -> dict[str, str]:
    judged = {f"{name}, judged": corpus.judged.fingerprint for name, corpus in corpora.items() if corpus.judged}
    return {name: corpus.tables.fingerprint for name, corpus in corpora.items()} | judged
