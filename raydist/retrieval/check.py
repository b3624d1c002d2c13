"""One screen about the corpora of a retriever, before it trains: what there is, what is cut, and what to expect of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydist.models.folders import tower_folder
from raydist.retrieval.corpus_stages import Corpus
from raydist.runs.run import Run
from raydist.runs.training import is_trained
from raydist.terminal import said_if_long, say, say_table

SAMPLED = 500  # texts whose tokens are counted
FEW = 1_000  # questions below which a cross-encoder that starts from an encoder is not likely to know more than it
HEAD = ("corpus", "sentences", "questions", "gold each", "repeated", "question cut", "sentence cut")


@dataclass(frozen=True)
class CorpusFacts:
    """Counts of a corpus; shares of a sample of its texts."""

    sentences: int
    questions: int
    gold: int
    repeated: int  # sentences with the words of another
    question_cut: float
    sentence_cut: float


def say_corpora(run: Run, corpora: Mapping[str, Corpus], *, fresh: bool = False) -> None:
    """Show the corpora of a run that is about to train, and what to expect."""
    if is_trained(run) and not fresh:
        return
    dev = corpora["train"].dev
    with said_if_long("looking at the corpora"):
        tokenizer = _tokenizer(run)
        named = {**corpora, **({"dev": dev} if dev else {})}
        facts = {name: corpus_facts(run, corpus, tokenizer) for name, corpus in named.items()}
    say("")
    say_table(HEAD, [_row(name, found) for name, found in facts.items()])
    for line in expectations(run, facts):
        say(f"- {line}")
    say("")


def _row(name: str, found: CorpusFacts) -> tuple[str, ...]:
    shares = (f"{100 * share:.0f} %" if share else "0" for share in (found.question_cut, found.sentence_cut))
    each = f"{found.gold / max(1, found.questions):.1f}"
    return (name, f"{found.sentences:,}", f"{found.questions:,}", each, f"{found.repeated:,}", *shares)


def corpus_facts(run: Run, corpus: Corpus, tokenizer: Any) -> CorpusFacts:
    """Counts of a corpus, and how many of some texts, evenly spaced, the retriever would cut."""
    table, settings = corpus.sentence_table(), run.config.retriever
    asked = corpus.read("questions")["text"]
    questions = asked.take(_spaced(len(asked))).to_pylist()
    sentences = table.texts(_spaced(len(table))).to_pylist()
    return CorpusFacts(
        corpus.num_sentences,
        corpus.num_questions,
        corpus.num_gold,
        len(table) - len(np.unique(table.bag_keys)),
        _cut(tokenizer, questions, settings.max_question_length),
        _cut(tokenizer, sentences, settings.max_answer_length),
    )


def _spaced(number: int) -> np.ndarray:
    return np.unique(np.linspace(0, max(0, number - 1), min(number, SAMPLED)).astype(np.int64))


def _cut(tokenizer: Any, texts: list[str], longest: int) -> float:
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]] if texts else []
    return float(np.mean(np.array(lengths) > longest)) if lengths else 0.0


def _tokenizer(run: Run) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tower_folder(run.model_folder, "query"))
    tokenizer.model_max_length = 1 << 30  # lengths are compared, and nothing is to be said of them
    return tokenizer


def expectations(run: Run, facts: Mapping[str, CorpusFacts]) -> Iterator[str]:
    """What these corpora and settings let one expect, each with what to do about it."""
    config, train = run.config, facts["train"]
    if config.task == "retriever":
        steps = config.train.num_steps(train.gold)
        yield f"training: {steps:,} steps of {config.train.batch_size} for {train.gold:,} gold pairs alone"
    if not config.corpus.test and not config.corpus.has_dev:
        yield (
            "there is neither a dev nor a test set: nothing will tell how good this retriever is; set corpus.dev_share or "
            "corpus.test"
        )
    elif not config.corpus.has_dev and config.task == "retriever":
        yield (
            "no questions are held out: the last model is kept, and fusion and re-ranking are not judged; corpus.dev_share=0.1 "
            "holds some out"
        )
    if config.cross_encoder.model.name == config.mining.encoder and not config.cross_encoder.trained and train.questions < FEW:
        yield (
            f"the cross-encoder starts from the encoder that it is to teach, {config.mining.encoder}, with {train.questions:,} "
            "questions: it is not likely to know more; start it from a reader (cross_encoder.model.name, such as "
            "runs/quickstart/model), a larger model, or one that is trained (cross_encoder.trained)"
        )
    if config.mining.candidates >= train.sentences:
        yield f"mining.candidates {config.mining.candidates:,}: train has {train.sentences:,} sentences, and all are candidates"
    for name, found in facts.items():
        for share, key in ((found.question_cut, "max_question_length"), (found.sentence_cut, "max_answer_length")):
            if share > 0.05:
                limit = getattr(config.retriever, key)
                yield f"{name}: {100 * share:.0f} % of some {SAMPLED} texts are longer than retriever.{key}={limit}: raise it"
