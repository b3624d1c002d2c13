"""Small files for the report's pictures, written at the end of training: they need the trained task.

They show the last step's weights, whichever model is exported, since exported models lack the objectives' modules. Shapes: N
tokens, X units.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raydist.files.storage import Storage
from raydist.objectives.base import Batch
from raydist.objectives.pfa import Pfa, trace_row
from raydist.training.tasks import ReaderTask

MAX_TOKENS = 120  # in the picture, besides the answer; the axes use all tokens


def write_traces(task: nn.Module, batch: object, run: Storage) -> None:
    """Write ``trace/*.json`` from the rows of one batch, if the task has any traces; deletes those of an earlier training.

    Runs on a single rank, without collective calls. No dropout, no gradients, no draw from the common random state, and the
    task's mode is restored, so training could continue unaffected.
    """
    run.delete("trace")
    if not isinstance(task, ReaderTask) or not isinstance(batch, Batch):
        return
    pfa = dict(task.objectives.items()).get("pfa")
    if isinstance(pfa, Pfa) and batch.passage_BT.any():
        modes = {module: module.training for module in task.modules()}
        task.eval()
        try:
            trace = trace_pfa(pfa, task.reader, batch)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if trace:
            run.write_bytes("trace/pfa.json", json.dumps(trace).encode())


def trace_pfa(pfa: Pfa, reader: Any, batch: Batch) -> dict[str, Any] | None:
    """One passage, clean and perturbed, before and after the encoder, on two axes each; None if a number is not finite."""
    one = one_row(batch, fullest_row(batch)).to(next(reader.parameters()).device)
    clouds = trace_row(pfa, one, reader)
    if not all(np.isfinite(cloud_NX).all() for cloud_NX in clouds.values()):
        return None
    num_tokens = len(clouds["embeddings"])
    answer_N = one.answer_BT[pfa.acts_on(one)].cpu().numpy()
    spaced = np.linspace(0, num_tokens - 1, min(num_tokens, MAX_TOKENS)).round().astype(int)
    kept = np.union1d(spaced, np.flatnonzero(answer_N))
    trace: dict[str, Any] = {
        "step": batch.step + 1,
        "row": int(batch.world.row[int(one.mine[0])]),
        "tokens": num_tokens,
        "answer": answer_N[kept].tolist(),
    }
    for name in ("embeddings", "representations"):
        clean_NX, perturbed_NX = clouds[name], clouds[f"{name}_perturbed"]
        clean_N2, perturbed_N2, explained = project(clean_NX, perturbed_NX)
        trace[name] = {
            "explained": [round(float(share), 4) for share in explained],
            "moved": round(relative_move(clean_NX, perturbed_NX), 4),
            "clean": clean_N2[kept].round(4).tolist(),
            "perturbed": perturbed_N2[kept].round(4).tolist(),
        }
    return trace


def project(clean_NX: np.ndarray, perturbed_NX: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both clouds on the first two principal axes of their union, and the share of its variance on each axis.

    An axis points towards its farthest point, so that the same clouds give the same picture.
    """
    both_MX = np.concatenate([clean_NX, perturbed_NX]).astype(np.float64)
    both_MX -= both_MX.mean(0)
    left_MK, size_K, _ = np.linalg.svd(both_MX, full_matrices=False)
    if len(size_K) < 2:  # a single unit
        left_MK, size_K = np.pad(left_MK, ((0, 0), (0, 1))), np.append(size_K, 0.0)
    points_M2 = left_MK[:, :2] * size_K[:2]
    farthest_2 = points_M2[np.abs(points_M2).argmax(0), [0, 1]]
    points_M2 *= np.where(farthest_2 < 0, -1.0, 1.0)
    total = (size_K**2).sum()
    explained_2 = size_K[:2] ** 2 / total if total > 0 else np.zeros(2)
    return points_M2[: len(clean_NX)], points_M2[len(clean_NX) :], explained_2


def relative_move(clean_NX: np.ndarray, perturbed_NX: np.ndarray) -> float:
    """Distance that tokens move over distance of the clean tokens from their mean (root mean squares, over all units)."""
    spread = np.square(clean_NX - clean_NX.mean(0), dtype=np.float64).sum(1).mean()
    moved = np.square(perturbed_NX - clean_NX, dtype=np.float64).sum(1).mean()
    return float(np.sqrt(moved / spread)) if spread > 0 else 0.0


def fullest_row(batch: Batch) -> int:
    """The row with the most passage tokens, preferring rows with an answer."""
    size_B = batch.passage_BT.sum(1)
    return int((size_B + size_B.max() * batch.has_answer_B).argmax())


def one_row(batch: Batch, row: int) -> Batch:
    """A batch of one row, without padding."""
    length = int(batch.attention_BT[row].nonzero().max()) + 1

    def cut(name: str, value: Tensor) -> Tensor:
        return value[row : row + 1, :length] if name.endswith("_BT") else value[row : row + 1]

    tensors: dict[str, Any] = {name: cut(name, value) for name, value in vars(batch).items() if torch.is_tensor(value)}
    return replace(batch, **tensors, extras={name: cut(name, value) for name, value in batch.extras.items()})
