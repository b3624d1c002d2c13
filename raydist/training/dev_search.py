"""Retrieval quality of a dual encoder on held-out questions during training (docs/methods.md 5.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from raydist.config import Config
from raydist.draws import choose_rows, text_hashes
from raydist.models.packed import PackedEncoder
from raydist.objectives.base import world_size
from raydist.retrieval.corpus_stages import DevQuestions, paragraphs
from raydist.retrieval.dual_encoder import DualEncoder
from raydist.retrieval.pooling import resolve_prefixes
from raydist.retrieval.rows import tokenize_texts

QUESTIONS_AT_ONCE = 256
EQUAL = 1e-6  # products of unit vectors this close are ties: the size of rounding errors


class DevSearch:
    """MRR, in percent, of dev questions over a corpus' sentences: each rank encodes its share, all get the score.

    A large corpus is reduced to a seeded choice of sentences plus all gold answers. A tie with the best gold answer counts as
    half a place, so that an encoder that maps all texts to one vector scores near zero.
    """

    def __init__(self, config: Config, dev: DevQuestions, folder: Path, tokenizer_folder: Path, rank: int, ranks: int) -> None:
        given, corpus = config.retriever, dev.corpus
        table = corpus.sentence_table()
        questions = _chosen(corpus.read("questions"), config.train.dev_questions, dev.seed)
        gold = corpus.read("gold")
        gold = gold.filter(pc.is_in(gold["question_id"], value_set=questions["question_id"].combine_chunks()))
        gold_rows = table.rows_of(gold["sentence_id"], "the gold sentence")
        rows = np.union1d(_drawn(len(table), given.dev_sentences, dev.seed), gold_rows)
        self.num_questions, self.sentences, self.of = questions.num_rows, len(rows), len(table)
        self.my_questions, mine = np.arange(self.num_questions)[rank::ranks], rows[rank::ranks]
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        before = resolve_prefixes(given.question_prefix, given.answer_prefix, folder)
        asked = [before["question"] + text for text in questions["text"].take(pa.array(self.my_questions)).to_pylist()]
        texts = [before["answer"] + text for text in table.texts(mine).to_pylist()]
        around = paragraphs(table, mine) if given.answer_context == "paragraph" else None
        self.question_tokens = tokenize_texts(tokenizer, asked, max_length=given.max_question_length)
        self.answer_tokens = tokenize_texts(tokenizer, texts, around, max_length=given.max_answer_length)
        of_question = pc.index_in(gold["question_id"], value_set=questions["question_id"].combine_chunks()).to_numpy()
        is_mine = np.isin(gold_rows, mine)
        self.gold = np.stack([of_question[is_mine], np.searchsorted(mine, gold_rows[is_mine])])

    def __call__(self, task: Any) -> dict[str, float]:
        encoder: DualEncoder = task.encoder
        device = next(task.parameters()).device
        was_training = task.training
        own = _encode(encoder.question_tower, self.question_tokens, encoder)
        answers_AD = _encode(encoder.answer_tower, self.answer_tokens, encoder)
        task.train(was_training)
        questions_QD = torch.zeros(self.num_questions, answers_AD.shape[1])
        questions_QD[torch.from_numpy(self.my_questions)] = torch.from_numpy(own)
        best_Q = np.full(self.num_questions, -np.inf, np.float32)
        found_QD = _over_ranks(questions_QD, device, "SUM").numpy()  # one rank filled each row
        of, place = self.gold
        np.maximum.at(best_Q, of, (found_QD[of] * answers_AD[place]).sum(1))
        best_Q = _over_ranks(torch.from_numpy(best_Q), device, "MAX").numpy()
        ahead_Q = _over_ranks(torch.from_numpy(self._ahead(found_QD, answers_AD, best_Q)), device, "SUM").numpy()
        return {"mrr": 100 * float((1 / (1 + ahead_Q)).mean())}

    def _ahead(self, questions_QD: np.ndarray, answers_AD: np.ndarray, best_Q: np.ndarray) -> np.ndarray:
        """Number of this rank's sentences ahead of each question's best gold answer; a tie counts one half."""
        ahead_Q = np.zeros(len(best_Q))
        for first in range(0, len(best_Q), QUESTIONS_AT_ONCE):
            part = slice(first, first + QUESTIONS_AT_ONCE)
            above_QA = questions_QD[part] @ answers_AD.T - best_Q[part, None]
            of, place = self.gold[:, (self.gold[0] >= first) & (self.gold[0] < first + QUESTIONS_AT_ONCE)]
            above_QA[of - first, place] = -np.inf
            ahead_Q[part] = (above_QA > EQUAL).sum(1) + (np.abs(above_QA) <= EQUAL).sum(1) / 2
        return ahead_Q


def _chosen(questions: pa.Table, count: int | None, seed: int) -> pa.Table:
    keys = text_hashes(questions["question_id"].to_pylist())
    return questions.take(pa.array(choose_rows(keys, count, seed, "dev")))


def _drawn(rows: int, count: int | None, seed: int) -> np.ndarray:
    """A seeded choice of row numbers; memory grows with the choice only."""
    if count is None or count >= rows:
        return np.arange(rows)
    return np.random.default_rng(seed).choice(rows, count, replace=False, shuffle=False)


def _encode(tower: Any, tokens: tuple[list[list[int]], list[list[int]]], encoder: DualEncoder) -> np.ndarray:
    ids, types = tokens
    return PackedEncoder(tower).encode(ids, types if any(types) else None, pooling=encoder.pooling)


def _over_ranks(values: torch.Tensor, device: torch.device, how: str) -> torch.Tensor:
    if world_size() == 1:
        return values
    values = values.to(device)
    dist.all_reduce(values, getattr(dist.ReduceOp, how))
    return values.cpu()
