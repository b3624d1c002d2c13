"""Question-sentence pairs as training rows: texts -> tokens -> memory-mapped Arrow files -> batches.

``tokenize_cross_pairs`` and ``tokenize_pairs`` are functions of one block, so that Ray Data can map them over any number of
pairs. ``CrossRows`` and ``PairRows`` read their output and serve the training loop as ``WindowRows`` does for a reader.

Memory: a few numbers per row are read into arrays (24 to 48 bytes a row); tokens and lists stay on disk, mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from raydist.errors import InputError
from raydist.files.mapped import MappedRows, pad_tokens
from raydist.models.packed import PairFormat, tokenize
from raydist.objectives.pairs import CrossBatch, CrossGroup, PairBatch, PairGroup, Tokens
from raydist.reader.features import cut_questions

CROSS_SCHEMA = pa.schema(
    [
        ("question", pa.int64()),  # key of the question
        ("sentence", pa.int64()),  # key of the sentence
        ("label", pa.float32()),  # 1 where the sentence answers the question, else 0
        ("input_ids", pa.list_(pa.int32())),
        ("token_types", pa.list_(pa.int8())),  # empty where the model has none
    ]
)

PAIR_SCHEMA = pa.schema(
    [
        ("question", pa.int64()),  # key of the question
        ("bag_key", pa.int64()),  # of the answer: equal for sentences of the same words, in any order
        ("weight", pa.float32()),  # 1 for gold
        ("positives", pa.list_(pa.int64())),  # bag keys of all known answers: gold and kept silver
        ("question_ids", pa.list_(pa.int32())),
        ("question_types", pa.list_(pa.int8())),
        ("answer_ids", pa.list_(pa.int32())),
        ("answer_types", pa.list_(pa.int8())),
        ("negative_bag_key", pa.list_(pa.int64())),  # of the mined negatives
        ("negative_lengths", pa.list_(pa.int32())),  # tokens of each
        ("negative_ids", pa.list_(pa.int32())),  # of all negatives, concatenated
        ("negative_types", pa.list_(pa.int8())),
        ("teacher", pa.list_(pa.float32())),  # a cross-encoder's logits of the pair, then of its negatives; or empty
    ]
)


class Negative(NamedTuple):
    """A mined sentence that does not answer the question."""

    text: str
    bag_key: int
    context: str = ""  # its paragraph
    logit: float | None = None  # a cross-encoder's


# --- texts -> tokens -------------------------------------------------------------------------------------------------


def tokenize_cross_pairs(
    tokenizer: Any,
    questions: Sequence[str],
    sentences: Sequence[str],
    *,
    contexts: Sequence[str] | None = None,
    labels: Sequence[float] | None = None,
    question_keys: Sequence[int] | None = None,
    sentence_keys: Sequence[int] | None = None,
    max_question_length: int = 96,
    max_length: int = 480,
) -> pa.Table:
    """``[CLS] question [SEP] sentence [SEP]``: the question's first tokens, and as much of the sentence as fits.

    Unless the question is cut, this equals the input of sentence-transformers' CrossEncoder.
    With ``contexts`` (``cross_encoder.answer_context: paragraph``), the sentences' paragraphs, empty if there is none, it is
    ``[CLS] question [SEP] sentence [SEP] paragraph [SEP]``; of the last two the longer is cut first.
    """
    _check_equal(
        questions=questions,
        sentences=sentences,
        contexts=contexts,
        labels=labels,
        question_keys=question_keys,
        sentence_keys=sentence_keys,
    )
    if max_question_length + tokenizer.num_special_tokens_to_add(pair=True) >= max_length:
        raise InputError(
            f"max_length {max_length} leaves no room for a sentence beside a question of max_question_length "
            f"{max_question_length}; raise the first or lower the second"
        )
    _check_length(tokenizer, max_length)
    if not len(questions):
        return CROSS_SCHEMA.empty_table()
    if contexts is None:
        cut = cut_questions(list(questions), tokenizer, max_question_length)
        ids, types = _tokenize(tokenizer, cut, list(sentences), truncation="only_second", max_length=max_length)
    else:
        ids, types = _tokenize_triples(tokenizer, questions, sentences, contexts, max_question_length, max_length)
    nothing = [0] * len(ids)
    columns = {
        "question": nothing if question_keys is None else question_keys,
        "sentence": nothing if sentence_keys is None else sentence_keys,
        "label": nothing if labels is None else labels,
        "input_ids": ids,
        "token_types": types,
    }
    return pa.Table.from_pydict(columns, schema=CROSS_SCHEMA)


def _tokenize_triples(
    tokenizer: Any,
    questions: Sequence[str],
    sentences: Sequence[str],
    contexts: Sequence[str],
    max_question_length: int,
    max_length: int,
) -> tuple[list[list[int]], list[list[int]]]:
    """Triples as ``CrossScorer`` makes them: training and scoring see the same input."""
    format = PairFormat(tokenizer)
    parts = [
        tokenize(tokenizer, texts, longest)
        for texts, longest in ((questions, max_question_length), (sentences, max_length), (contexts, max_length))
    ]
    rows = [format.triple(question, sentence, context, max_length) for question, sentence, context in zip(*parts)]
    has_types = "token_type_ids" in tokenizer.model_input_names
    return [ids for ids, _ in rows], [types if has_types else [] for _, types in rows]


def tokenize_pairs(
    tokenizer: Any,
    questions: Sequence[str],
    sentences: Sequence[str],
    *,
    contexts: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
    question_keys: Sequence[int],
    bag_keys: Sequence[int],
    positives: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[Negative]] | None = None,
    logits: Sequence[float | None] | None = None,
    max_question_length: int = 96,
    max_answer_length: int = 384,
) -> pa.Table:
    """Questions and answers for a dual encoder. Lengths are in tokens, specials included.

    ``contexts`` (``answer_context: paragraph``) are the sentences' paragraphs, empty if there is none; without contexts an
    answer, and a negative, is its sentence alone.
    ``logits`` are a cross-encoder's for the pairs, for distillation; ``negatives`` carry their own.
    """
    _check_equal(
        questions=questions,
        sentences=sentences,
        contexts=contexts,
        weights=weights,
        question_keys=question_keys,
        bag_keys=bag_keys,
        positives=positives,
        negatives=negatives,
        logits=logits,
    )
    _check_length(tokenizer, max(max_question_length, max_answer_length))
    if not len(questions):
        return PAIR_SCHEMA.empty_table()
    weights = [1.0] * len(questions) if weights is None else weights
    wrong = [place for place, weight in enumerate(weights) if not (weight >= 0 and np.isfinite(weight))]
    if wrong:
        raise InputError(f"pair {wrong[0]} has weight {weights[wrong[0]]}; a weight is a number from 0 up")
    question_ids, question_types = tokenize_texts(tokenizer, questions, max_length=max_question_length)
    answer_ids, answer_types = tokenize_texts(tokenizer, sentences, contexts, max_length=max_answer_length)
    mined: Sequence[Sequence[Negative]] = [[]] * len(questions) if negatives is None else negatives
    flat = [negative for row in mined for negative in row]
    flat_ids, flat_types = tokenize_texts(
        tokenizer,
        [negative.text for negative in flat],
        None if contexts is None else [negative.context for negative in flat],
        max_length=max_answer_length,
    )
    starts = np.concatenate([[0], np.cumsum([len(row) for row in mined])]).astype(int)
    spans = list(pairwise(starts))
    teacher: list[list[float]] = []
    for place, row in enumerate(mined):
        values = [None if logits is None else logits[place], *(negative.logit for negative in row)]
        known = [float(value) for value in values if value is not None and np.isfinite(value)]
        teacher.append(known if row and len(known) == len(values) else [])
    columns = {
        "question": question_keys,
        "bag_key": bag_keys,
        "weight": weights,
        "positives": positives,
        "question_ids": question_ids,
        "question_types": question_types,
        "answer_ids": answer_ids,
        "answer_types": answer_types,
        "negative_bag_key": [[negative.bag_key for negative in row] for row in mined],
        "negative_lengths": [[len(ids) for ids in flat_ids[start:end]] for start, end in spans],
        "negative_ids": [[token for ids in flat_ids[start:end] for token in ids] for start, end in spans],
        "negative_types": [[kind for types in flat_types[start:end] for kind in types] for start, end in spans],
        "teacher": teacher,
    }
    return pa.Table.from_pydict(columns, schema=PAIR_SCHEMA)


def tokenize_texts(
    tokenizer: Any, texts: Sequence[str], contexts: Sequence[str] | None = None, *, max_length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and types (empty if the model has none) of texts, or of texts with their paragraphs as second segment.

    The longer segment is cut first, as SentenceTransformer does with a pair (text, paragraph): a paragraph loses its end long
    before its sentence does. A text whose paragraph is empty is a text alone.
    """
    ids: list[list[int]] = [[] for _ in texts]
    types: list[list[int]] = [[] for _ in texts]
    around = [""] * len(texts) if contexts is None else contexts
    for paired in (False, True):
        places = [place for place, context in enumerate(around) if bool(context) == paired]
        if places:
            seconds = [around[place] for place in places] if paired else None
            found = _tokenize(tokenizer, [texts[place] for place in places], seconds, truncation=True, max_length=max_length)
            for place, row_ids, row_types in zip(places, *found):
                ids[place], types[place] = row_ids, row_types
    return ids, types


def _tokenize(tokenizer: Any, texts: list[str], seconds: list[str] | None, **how: Any) -> tuple[list, list]:
    encoded = tokenizer(texts, seconds, return_token_type_ids="token_type_ids" in tokenizer.model_input_names, **how)
    return encoded["input_ids"], encoded.get("token_type_ids", [[]] * len(texts))


def _check_equal(**columns: Sequence | None) -> None:
    lengths = {name: len(values) for name, values in columns.items() if values is not None}
    if len(set(lengths.values())) > 1:
        raise InputError(f"wanted as many of each, saw {', '.join(f'{number} {name}' for name, number in lengths.items())}")


def _check_length(tokenizer: Any, longest: int) -> None:
    if longest > tokenizer.model_max_length:
        raise InputError(f"{longest} tokens are more than this model takes; lower the lengths to {tokenizer.model_max_length}")


# --- tokens -> batches -----------------------------------------------------------------------------------------------


class CrossRows(MappedRows):
    """The training pairs of a cross-encoder."""

    @cached_property
    def labels(self) -> np.ndarray:
        return self.column("label")

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return self.list_lengths("input_ids")

    def group(self, rows: np.ndarray) -> CrossGroup:
        """The facts about some rows that all ranks share."""
        return CrossGroup(rows)

    def batch(
        self, rows: np.ndarray, *, pad_id: int, groups: tuple[CrossGroup, ...] = (), group: int = 0, mine=None, seed=0, step=0
    ) -> CrossBatch:
        """Padded tensors of some rows."""
        return CrossBatch(
            tokens=_tokens(self, "input_ids", "token_types", rows, pad_id),
            label_B=torch.from_numpy(self.labels[rows]),
            groups=groups or (self.group(rows),),
            group=group,
            mine=torch.arange(len(rows)) if mine is None else torch.from_numpy(mine),
            seed=seed,
            step=step,
        )


class PairRows(MappedRows):
    """The training pairs of a dual encoder, with at most ``num_negatives`` mined negatives each (all if None).

    With ``bucket_by_length`` pairs of similar length share a batch, which saves padding; the other answers of a batch are
    then of similar length, too. Without it batches are drawn from all pairs.
    """

    def __init__(self, files: Sequence[Path], *, num_negatives: int | None = None, bucket_by_length: bool = True) -> None:
        super().__init__(files)
        self.num_negatives, self.bucket_by_length = num_negatives, bucket_by_length

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each question and its answer; all equal if batches ignore length."""
        if not self.bucket_by_length:
            return np.zeros(len(self), np.int64)
        return self.list_lengths("question_ids") + self.list_lengths("answer_ids")

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        return {name: self.column(name) for name in ("question", "bag_key", "weight")}

    def _negatives(self, name: str, row: int) -> np.ndarray:
        return self.values(name, row)[: self.num_negatives]

    def group(self, rows: np.ndarray) -> PairGroup:
        """The facts about some rows that all ranks share."""
        numbers = {name: values[rows] for name, values in self._numbers.items()}
        positives = [self.values("positives", row) for row in rows]
        negatives = [self._negatives("negative_bag_key", row) for row in rows]
        has_teacher = [len(mined) > 0 and len(self.values("teacher", row)) > 0 for mined, row in zip(negatives, rows)]
        return PairGroup(
            row=rows,
            question=numbers["question"],
            bag_key=numbers["bag_key"],
            weight=numbers["weight"].astype(np.float64),
            positives=_joined(positives),
            positives_of=_owners(positives),
            negative_bag_key=_joined(negatives),
            negative_of=_owners(negatives),
            has_teacher=np.array(has_teacher, bool),
        )

    def batch(
        self, rows: np.ndarray, *, pad_id: int, groups: tuple[PairGroup, ...] = (), group: int = 0, mine=None, seed=0, step=0
    ) -> PairBatch:
        """Padded tensors of some rows."""
        groups = groups or (self.group(rows),)
        mine = np.arange(len(rows)) if mine is None else mine
        negative_of = groups[group].negative_of
        own = [np.flatnonzero(negative_of == place) for place in mine]
        teacher = [self.values("teacher", row) for row in rows]
        teacher_K = [
            logits[1 : 1 + len(places)] if len(logits) else np.zeros(len(places)) for logits, places in zip(teacher, own)
        ]
        return PairBatch(
            questions=_tokens(self, "question_ids", "question_types", rows, pad_id),
            answers=_tokens(self, "answer_ids", "answer_types", rows, pad_id),
            negatives=self._negative_tokens(rows, pad_id) if sum(map(len, own)) else None,
            negatives_mine=torch.from_numpy(_joined(own)),
            negative_row_K=torch.from_numpy(_owners(own)),
            teacher_B=torch.tensor([float(logits[0]) if len(logits) else 0.0 for logits in teacher]),
            teacher_K=torch.from_numpy(np.concatenate([*teacher_K, np.empty(0)]).astype(np.float32)),
            groups=groups,
            group=group,
            mine=torch.from_numpy(mine),
            seed=seed,
            step=step,
        )

    def _negative_tokens(self, rows: np.ndarray, pad_id: int) -> Tokens:
        ids: list[np.ndarray] = []
        types: list[np.ndarray] = []
        for row in rows:
            all_ids, all_types = self.values("negative_ids", row), self.values("negative_types", row)
            ends = np.cumsum(self.values("negative_lengths", row))[: self.num_negatives]
            starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
            ids += [all_ids[start:end] for start, end in zip(starts, ends)]
            types += [all_types[start:end] for start, end in zip(starts, ends)]
        return _as_tokens(ids, types, pad_id)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)


def _owners(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The part that each value of all parts belongs to."""
    return np.repeat(np.arange(len(parts)), np.array([len(part) for part in parts], np.int64))


def _tokens(mapped: MappedRows, ids: str, types: str, rows: np.ndarray, pad_id: int) -> Tokens:
    return _as_tokens([mapped.values(ids, row) for row in rows], [mapped.values(types, row) for row in rows], pad_id)


def _as_tokens(ids: Sequence[np.ndarray], types: Sequence[np.ndarray], pad_id: int) -> Tokens:
    padded, real, kinds = pad_tokens(ids, types, pad_id)
    return Tokens(torch.from_numpy(padded), torch.from_numpy(real), None if kinds is None else torch.from_numpy(kinds))
