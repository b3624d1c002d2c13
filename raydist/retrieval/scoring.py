"""Scores of (question, sentence) pairs from a trained cross-encoder: each text is tokenized once, however many pairs it is in.

A pair is ``[CLS] question [SEP] sentence [SEP]``, or the tokenizer's own format (methods 5.3). The question is cut to
``max_question_length`` tokens, then the sentence to the rest of ``max_length``; special tokens count. With contexts it is
``[CLS] question [SEP] sentence [SEP] paragraph [SEP]``, and of the last two the longer is cut first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raydist.errors import InputError
from raydist.models.folders import model_folder
from raydist.models.packed import PackedEncoder, PairFormat, load_for_inference, tokenize
from raydist.retrieval.cross_encoder import sigmoid

MAX_NAMED = 5  # pairs in an error message


class CrossScorer:
    """A trained cross-encoder, ready to score (question, sentence) pairs.

    >>> import raydist
    >>> scorer = raydist.CrossScorer("runs/library_cross_encoder/model")        # a folder, or a Hugging Face name
    >>> pairs = [("Who built it?", "Mina Orlov built it."), ("Who built it?", "It fell in 1911.")]
    >>> scorer.probabilities(pairs).shape                                        # that the sentence answers the question
    (2,)

    `score` takes each text once and pairs as indices, for many pairs of few texts:

    >>> scorer.score(["Who built it?"], ["Mina Orlov built it.", "It fell in 1911."], [0, 0], [0, 1]).dtype
    dtype('float32')
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        max_question_length: int = 96,
        max_length: int = 480,
        token_budget: int | None = None,
        precision: str = "fp32",
        device: str | None = None,
    ) -> None:
        self.folder = model_folder(str(folder))
        model, self.tokenizer = load_for_inference("AutoModelForSequenceClassification", self.folder, device)
        if model.config.num_labels not in (1, 2):
            raise InputError(
                f"{self.folder} gives {model.config.num_labels} logits; a cross-encoder has one, or two for no and yes"
            )
        self.encoder = PackedEncoder(model, token_budget, precision)
        self.format = PairFormat(self.tokenizer)
        if max_length > self.encoder.max_tokens:
            raise InputError(
                f"max_length {max_length} is more than the {self.encoder.max_tokens} positions of {self.folder}; lower it"
            )
        if max_length <= max_question_length + self.format.num_special:
            raise InputError(
                f"a question of {max_question_length} tokens and {self.format.num_special} special tokens leave no room for a "
                f"sentence in max_length {max_length}; raise it"
            )
        self.max_question_length, self.max_length = max_question_length, max_length

    def probabilities(self, pairs: Sequence[tuple[str, str]], contexts: Sequence[str] | None = None) -> np.ndarray:
        """p of each (question, sentence) pair, float64: the sigmoid of its logit, without calibration.

        ``contexts`` are the paragraphs of the sentences, for a model that was trained with them.
        """
        places = np.arange(len(pairs))
        return sigmoid(self.score([pair[0] for pair in pairs], [pair[1] for pair in pairs], places, places, contexts))

    def score(
        self,
        questions: Sequence[str],
        sentences: Sequence[str],
        question_of: Sequence[int] | np.ndarray,
        sentence_of: Sequence[int] | np.ndarray,
        contexts: Sequence[str] | None = None,
    ) -> np.ndarray:
        """One float32 logit for each pair (questions[question_of[i]], sentences[sentence_of[i]]), in the order of the pairs.

        ``contexts`` are the paragraphs of the sentences, empty if there is none, for a model that was trained with them.
        """
        if len(question_of) != len(sentence_of):
            raise InputError(f"{len(question_of)} questions for {len(sentence_of)} sentences: a pair has one of each")
        if contexts is not None and len(contexts) != len(sentences):
            raise InputError(f"{len(contexts)} contexts for {len(sentences)} sentences: give one for each")
        question_ids = tokenize(self.tokenizer, questions, self.max_question_length)
        sentence_ids = tokenize(self.tokenizer, sentences, self.max_length)
        around = [""] * len(sentences) if contexts is None else contexts
        paragraphs = list(dict.fromkeys(around))  # many sentences share one
        paragraph_ids = dict(zip(paragraphs, tokenize(self.tokenizer, paragraphs, self.max_length)))
        rows = [
            self.format.triple(question_ids[question], sentence_ids[sentence], paragraph_ids[around[sentence]], self.max_length)
            for question, sentence in zip(question_of, sentence_of)
        ]
        logits = self.encoder.score(rows)
        logit = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]  # softmax of two is the sigmoid of that
        bad = np.flatnonzero(~np.isfinite(logit))
        if len(bad):
            named = [f"({questions[question_of[i]][:60]!r}, {sentences[sentence_of[i]][:60]!r})" for i in bad[:MAX_NAMED]]
            raise InputError(
                f"{self.folder} gives {len(bad)} of {len(logit)} pairs a score that is not finite: {', '.join(named)}"
                f"{' and others' * (len(bad) > MAX_NAMED)}; its weights are broken, train or copy it again"
            )
        return np.ascontiguousarray(logit)
