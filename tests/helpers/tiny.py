"""A batch and a reader small enough to check by hand, and a way to run a function on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from raydist.objectives.base import Batch, GroupRows, ReaderOutput

VOCABULARY = 40


def make_batch(
    rows: int = 5,
    *,
    seed: int = 0,
    step: int = 3,
    padding: int = 2,
    has_answer: list[bool] | None = None,
    passage: list[int] | None = None,
    answer: list[int] | None = None,
) -> Batch:
    """A whole group on one rank: ``[CLS] question [SEP] passage [SEP] padding``, lengths and answers drawn from the seed.

    The longest row is followed by ``padding`` columns. Every row has its own passage and answer unless told.
    """
    random = np.random.default_rng(seed)
    question, text = random.integers(2, 5, rows), random.integers(5, 12, rows)
    length = 3 + question + text
    position_T = np.arange(length.max() + padding)
    first = question + 2  # first passage token
    start = first + random.integers(0, text - 2)
    end = np.minimum(start + random.integers(0, 4, rows), first + text - 1)
    has = np.array([True] * rows if has_answer is None else has_answer)
    real_BT = position_T < length[:, None]
    question_BT = (position_T >= 1) & (position_T <= question[:, None])
    passage_BT = (position_T >= first[:, None]) & (position_T < (first + text)[:, None])
    world = GroupRows(
        row=100 + random.permutation(rows),
        has_answer=has,
        passage=np.arange(rows) if passage is None else np.array(passage),
        answer=np.arange(rows) if answer is None else np.array(answer),
        tokens=length,
        passage_tokens=text,
    )
    return Batch(
        input_ids_BT=torch.from_numpy(np.where(real_BT, random.integers(1, VOCABULARY, real_BT.shape), 0)),
        attention_BT=torch.from_numpy(real_BT),
        question_BT=torch.from_numpy(question_BT),
        passage_BT=torch.from_numpy(passage_BT),
        start_B=torch.from_numpy(np.where(has, start, 0)),
        end_B=torch.from_numpy(np.where(has, end, 0)),
        has_answer_B=torch.from_numpy(has),
        token_types_BT=None,
        groups=(world,),
        group=0,
        mine=torch.arange(rows),
        seed=7,
        step=step,
    )


def share(batch: Batch, rows: list[int], *, trim: bool = True) -> Batch:
    """One rank's rows of a group, padded (``trim``) to the longest of them only."""
    width = int(batch.attention_BT[rows].sum(1).max()) if trim else batch.input_ids_BT.shape[1]
    cut = {
        name: value[rows][:, :width] if name.endswith("_BT") else value[rows]
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return replace(batch, **cut, extras={name: value[rows] for name, value in batch.extras.items()})


class TinyReader(nn.Module):
    """Lookup, position, one attention layer written out (so it can be differentiated twice), a span head. No dropout."""

    def __init__(self, hidden_size: int = 6, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, hidden_size, dtype=dtype)
        self.positions = nn.Embedding(64, hidden_size, dtype=dtype)
        self.query = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.value = nn.Linear(hidden_size, hidden_size, dtype=dtype)
        self.head = nn.Linear(hidden_size, 2, dtype=dtype)

    def embed(self, batch: Batch) -> Tensor:
        return self.words(batch.input_ids_BT)

    def forward(self, batch: Batch, embeddings_BTH: Tensor | None = None) -> ReaderOutput:
        words_BTH = self.embed(batch) if embeddings_BTH is None else embeddings_BTH
        x_BTH = words_BTH + self.positions.weight[: words_BTH.shape[1]]
        score_BTT = (self.query(x_BTH) @ x_BTH.transpose(1, 2)).masked_fill(~batch.attention_BT[:, None], -1e9)
        hidden_BTH = x_BTH + torch.tanh(score_BTT.softmax(-1) @ self.value(x_BTH))
        start_BT, end_BT = self.head(hidden_BTH).unbind(-1)
        return ReaderOutput(hidden_BTH, start_BT, end_BT)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The module with parameters drawn from a seed, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double()


def _rank(rank: int, world: int, worker: Callable, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    torch.save(worker(rank), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def on_ranks(worker: Callable[[int], dict], folder: Path, world: int = 2) -> list[dict]:
    """What ``worker(rank)`` (a function of a test module: tensors, numbers, dicts) gives on each rank of a gloo group."""
    mp.spawn(_rank, (world, worker, str(folder)), nprocs=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


def choices(section: type, key: str) -> tuple[str, ...]:
    """What a key of a section may be."""
    return get_args(section.model_fields[key].annotation)
