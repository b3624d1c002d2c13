"""Inputs of objectives over pairs of texts: tokens, and batches of (question, sentence) pairs.

Shapes: B pairs of this rank, G pairs of the group over all ranks, K mined negatives (of this rank, or of the group), T tokens.

As with the reader's batches (base.py), every rank holds a few numbers about every pair of the step: weights, keys, known
positives. So masks and counts agree on all ranks without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Padded input of an encoder.

    >>> import torch, raydist
    >>> tokens = raydist.Tokens(torch.tensor([[1, 5, 2], [1, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]]))
    >>> sorted(tokens.inputs())                                  # for a model of transformers
    ['attention_mask', 'input_ids']
    """

    ids_BT: Tensor
    attention_BT: Tensor  # bool, real tokens
    types_BT: Tensor | None = None  # None if the model has no token types

    def __len__(self) -> int:
        return len(self.ids_BT)

    def take(self, rows: Tensor) -> Tokens:
        """Some of the rows, padded to their longest."""
        width = int(self.attention_BT[rows].sum(1).max()) if len(rows) else 1
        return self._changed(lambda part: part[rows][:, :width])

    def to(self, device: torch.device | str) -> Tokens:
        """The same with its tensors on a device."""
        return self._changed(lambda part: part.to(device, non_blocking=True))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        types_BT = None if self.types_BT is None else change(self.types_BT)
        return Tokens(change(self.ids_BT), change(self.attention_BT), types_BT)

    def inputs(self) -> dict[str, Tensor]:
        """Keyword arguments for a model of transformers."""
        given = {"input_ids": self.ids_BT, "attention_mask": self.attention_BT.long()}
        return given if self.types_BT is None else given | {"token_type_ids": self.types_BT}


def join_tokens(parts: Sequence[Tokens]) -> Tokens:
    """The rows of all inputs, concatenated."""
    widest = max(part.ids_BT.shape[1] for part in parts)

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        # padding is masked, so any id will do
        return torch.cat([torch.nn.functional.pad(tensor, (0, widest - tensor.shape[1])) for tensor in tensors])

    types = [part.types_BT for part in parts if part.types_BT is not None]
    return Tokens(
        joined([part.ids_BT for part in parts]),
        joined([part.attention_BT for part in parts]),
        joined(types) if len(types) == len(parts) else None,
    )


@dataclass(frozen=True, kw_only=True)
class GroupBatch:
    """One rank's rows of one group. A subclass adds the tensors."""

    rows_name: ClassVar[str] = "pairs"  # in messages

    groups: tuple[Any, ...]  # all groups of this step
    group: int  # index of this batch's group
    mine: Tensor  # int64 [B], positions of this rank's rows in the group
    seed: int = 0
    step: int = 0

    @property
    def world(self) -> Any:
        return self.groups[self.group]

    def count(self, of: Callable[[Any], int | float]) -> float:
        """A count over the whole step: all groups, all ranks."""
        return float(sum(of(rows) for rows in self.groups))

    def to(self, device: torch.device | str) -> Self:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in given.items() if isinstance(value, Tensor | Tokens)}
        return replace(self, **moved)


@dataclass(frozen=True)
class CrossGroup:
    """The facts about all pairs of one group of a cross-encoder's batch that every rank holds."""

    row: np.ndarray  # int64, the row's number in the training file

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, kw_only=True)
class CrossBatch(GroupBatch):
    """``[CLS] question [SEP] sentence [SEP]``, labelled by whether the sentence answers the question.

    >>> import torch, raydist
    >>> tokens = raydist.Tokens(torch.randint(5, 30, (3, 7)), torch.ones(3, 7, dtype=torch.bool))
    >>> len(raydist.CrossBatch.whole(tokens, labels=[1, 0, 0]).world)
    3
    """

    tokens: Tokens
    label_B: Tensor  # float, from 0 to 1

    @classmethod
    def whole(cls, tokens: Tokens, labels: Tensor | Sequence[float]) -> CrossBatch:
        """A whole step in one process."""
        rows, device = len(tokens), tokens.ids_BT.device
        label_B = torch.as_tensor(labels, device=device).float()
        groups = (CrossGroup(np.arange(rows)),)
        return cls(groups=groups, group=0, mine=torch.arange(rows, device=device), tokens=tokens, label_B=label_B)


@dataclass(frozen=True)
class PairGroup:
    """The facts about all pairs of one group of a dual encoder's batch that every rank holds. G pairs, K negatives."""

    row: np.ndarray  # int64 [G], the row's number in the training file
    question: np.ndarray  # int64 [G], key of the question
    bag_key: np.ndarray  # int64 [G], of the answer: equal for sentences of the same words, in any order
    weight: np.ndarray  # float64 [G]
    positives: np.ndarray  # int64, bag keys: the known positives of all questions, in row order
    positives_of: np.ndarray  # int64, the row (of G) of each
    negative_bag_key: np.ndarray  # int64 [K], of the mined negatives, in row order
    negative_of: np.ndarray  # int64 [K], the row (of G) of each
    has_teacher: np.ndarray  # bool [G], has a negative, and logits for it and for the positive

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, kw_only=True)
class PairBatch(GroupBatch):
    """Questions and their answers, optionally with mined negatives and a teacher's logits.

    >>> import torch, raydist
    >>> questions, answers = (raydist.Tokens(torch.randint(5, 30, (4, 6)), torch.ones(4, 6).bool()) for _ in range(2))
    >>> batch = raydist.PairBatch.whole(questions, answers, weights=[1, 1, 0.5, 1], question_keys=[0, 0, 1, 2])
    >>> batch.world.weight.tolist()
    [1.0, 1.0, 0.5, 1.0]
    """

    questions: Tokens
    answers: Tokens
    negatives: Tokens | None  # [K, T], this rank's; None if it has none
    negatives_mine: Tensor  # int64 [K], positions of this rank's negatives among the group's
    negative_row_K: Tensor  # int64 [K], the row (of this rank's B) of each; ascending
    teacher_B: Tensor  # float, the teacher's logit of the pair itself; 0 if unknown
    teacher_K: Tensor  # float, of each negative

    @classmethod
    def whole(
        cls,
        questions: Tokens,
        answers: Tokens,
        *,
        weights: Sequence[float] | None = None,
        question_keys: Sequence[int] | None = None,
        answer_keys: Sequence[int] | None = None,
    ) -> PairBatch:
        """A whole step in one process, without mined negatives: each row's negatives are the other rows' answers.

        By default weights are 1, and questions and answers all differ. Rows with equal `question_keys` (the same question) or
        equal `answer_keys` (answers of the same words) are no negatives of each other.
        """
        rows, device = len(questions), questions.ids_BT.device
        nothing = np.zeros(0, np.int64)
        group = PairGroup(
            row=np.arange(rows),
            question=np.arange(rows) if question_keys is None else np.asarray(question_keys),
            bag_key=np.arange(rows) if answer_keys is None else np.asarray(answer_keys),
            weight=np.ones(rows) if weights is None else np.asarray(weights, np.float64),
            positives=nothing,
            positives_of=nothing,
            negative_bag_key=nothing,
            negative_of=nothing,
            has_teacher=np.zeros(rows, bool),
        )
        none = torch.zeros(0, dtype=torch.long, device=device)
        return cls(
            groups=(group,),
            group=0,
            mine=torch.arange(rows, device=device),
            questions=questions,
            answers=answers,
            negatives=None,
            negatives_mine=none,
            negative_row_K=none,
            teacher_B=torch.zeros(rows, device=device),
            teacher_K=none.float(),
        )


class PairVectors(NamedTuple):
    """A dual encoder's output for a batch: unit vectors. Zero rows of negatives if there are none.

    >>> import torch, raydist
    >>> vectors = torch.nn.functional.normalize(torch.randn(2, 4, 8), dim=2)
    >>> raydist.PairVectors(vectors[0], vectors[1], torch.zeros(0, 8)).answer_BD.shape
    torch.Size([4, 8])
    """

    question_BD: Tensor
    answer_BD: Tensor
    negative_KD: Tensor
