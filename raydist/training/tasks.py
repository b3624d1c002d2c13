"""A model and its objectives as one module, so that one wrapper sees every parameter and one call is one step."""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from raydist.config import Config
from raydist.objectives.base import Batch, Objective, Term
from raydist.objectives.span import Span
from raydist.reader.model import SpanReader, load_reader


class ReaderTask(nn.Module):
    """A reader and the objectives it is trained with."""

    def __init__(self, reader: SpanReader, objectives: dict[str, Objective]) -> None:
        super().__init__()
        self.reader = reader
        self.objectives = nn.ModuleDict(objectives)

    def forward(self, batch: Batch) -> dict[str, Term]:
        """Every part of every objective, unweighted, under its config name."""
        output = self.reader(batch)
        return {
            _name(name, part): term
            for name, objective in self.objectives.items()
            for part, term in objective(batch, output, self.reader).items()
        }

    def weights(self, step: int) -> dict[str, float]:
        """What each part counts in a step. Weights act in the loop alone; a part without one is only logged."""
        scale = math.prod(objective.total_scale for objective in self.objectives.values())  # type: ignore[misc]
        return {
            _name(name, part): scale * weight
            for name, objective in self.objectives.items()
            for part, weight in objective.weights(step).items()  # type: ignore[operator]
        }


def _name(objective: str, part: str) -> str:
    return objective if part == "loss" else f"{objective}.{part}"


def build_objectives(config: Config) -> dict[str, Objective]:
    """One line per objective; an objective is on when its section is present."""
    given = config.objectives
    objectives: dict[str, Objective] = {
        "span": Span(span_reduction=given.span.reduction, mask_non_passage=given.span.mask_non_passage)
    }
    return objectives


def build_reader_task(config: Config, folder: Path) -> ReaderTask:
    """The reader over the encoder in a folder, with the config's objectives; the same weights for the same seed."""
    reader = load_reader(folder, attention=config.model.attention, dropout=config.model.dropout, seed=config.seed)
    return ReaderTask(reader, build_objectives(config))
