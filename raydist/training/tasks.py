"""A model and its objectives as one module, so that one wrapper sees every parameter and one call is one step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from raydist.config import Config
from raydist.objectives.answer_contrast import AnswerContrast
from raydist.objectives.base import Batch, Objective, Term
from raydist.objectives.hard_learning import HardLearning
from raydist.objectives.infomax import Infomax
from raydist.objectives.pairs import CrossBatch, PairBatch, PairVectors, join_tokens
from raydist.objectives.pfa import Pfa
from raydist.objectives.ranking import CrossEntropy, Ranking
from raydist.objectives.span import Span
from raydist.objectives.text_codes import piece_codes
from raydist.reader.decode import top_spans
from raydist.reader.model import SpanReader, load_reader
from raydist.retrieval.cross_encoder import CrossEncoder
from raydist.retrieval.dual_encoder import DualEncoder
from raydist.training.cached import embed_in_chunks


class ReaderTask(nn.Module):
    """A reader and its training objectives."""

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
        """The weight of each part in a step. Only the loop applies weights; a part without one is only logged."""
        objectives = cast(dict[str, Objective], dict(self.objectives.items()))
        scale = math.prod(objective.total_scale for objective in objectives.values())
        weights = {
            _name(name, part): scale * weight
            for name, objective in objectives.items()
            for part, weight in objective.weights(step).items()
        }
        contrast = objectives.get("answer_contrast")
        if isinstance(contrast, AnswerContrast):  # docs/methods.md 6.5: alpha of the contrast, 1 - alpha of the task's own loss
            base = "hard_learning" if "hard_learning" in objectives else "span"
            for name in [name for name in weights if name.split(".")[0] == base]:
                weights[name] *= contrast.base_weight(step)
        return weights


class CrossEncoderTask(nn.Module):
    """A cross-encoder and its loss."""

    def __init__(self, cross_encoder: CrossEncoder, objective: CrossEntropy) -> None:
        super().__init__()
        self.cross_encoder, self.objective = cross_encoder, objective

    def forward(self, batch: CrossBatch) -> dict[str, Term]:
        parts = self.objective(batch, self.cross_encoder(batch.tokens), self.cross_encoder)
        return {_name("cross_entropy", part): term for part, term in parts.items()}

    def weights(self, step: int) -> dict[str, float]:
        return {_name("cross_entropy", part): weight for part, weight in self.objective.weights(step).items()}


class RetrieverTask(nn.Module):
    """A dual encoder and its loss.

    Texts are embedded ``chunk_rows`` at a time, similar lengths together (None: all at once). With ``cached``, memory holds one
    chunk's activations at a time, at the cost of a second forward pass (training/cached.py).
    """

    def __init__(
        self, encoder: DualEncoder, objective: Ranking, *, chunk_rows: int | None = None, cached: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.objective = encoder, objective
        self.chunk_rows, self.cached = chunk_rows, cached

    def forward(self, batch: PairBatch) -> dict[str, Term]:
        how: dict[str, Any] = {"chunk_rows": self.chunk_rows, "cached": self.cached}
        answers = batch.answers if batch.negatives is None else join_tokens([batch.answers, batch.negatives])
        question_BD = embed_in_chunks(self.encoder.embed_questions, batch.questions, **how)
        answer_XD = embed_in_chunks(self.encoder.embed_answers, answers, **how)
        rows = len(batch.answers)
        output = PairVectors(question_BD, answer_XD[:rows], answer_XD[rows:])
        return {_name("ranking", part): term for part, term in self.objective(batch, output, self.encoder).items()}

    def weights(self, step: int) -> dict[str, float]:
        return {_name("ranking", part): weight for part, weight in self.objective.weights(step).items()}


def _name(objective: str, part: str) -> str:
    return objective if part == "loss" else f"{objective}.{part}"


def build_objectives(config: Config, reader: SpanReader, folder: Path, steps_per_epoch: int) -> dict[str, Objective]:
    """The objectives, in order; each is on if its section is present."""
    given = config.objectives
    span: dict[str, Any] = {"span_reduction": given.span.reduction, "mask_non_passage": given.span.mask_non_passage}
    scale = given.span.reduction
    hidden_size = reader.config.hidden_size
    objectives: dict[str, Objective] = {}
    if given.hard_learning:  # the task's own loss, in place of the plain one
        objectives["hard_learning"] = HardLearning(
            **span, **given.hard_learning.model_dump(exclude={"size", "sets", "nbest_folds"})
        )
    else:
        objectives["span"] = Span(**span)
    if given.infomax:
        objectives["infomax"] = Infomax(hidden_size, span_reduction=scale, **given.infomax.model_dump())
    if given.pfa:
        words_VE = reader.question_answering.get_input_embeddings().weight
        objectives["pfa"] = Pfa(hidden_size, words_VE=words_VE, **span, **given.pfa.model_dump())
    if given.answer_contrast:
        from transformers import AutoTokenizer

        settings = given.answer_contrast.model_dump()
        epochs, schedule = settings.pop("sequential_epochs"), settings.pop("schedule")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        objectives["answer_contrast"] = AnswerContrast(
            top_spans,
            piece_codes(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))),
            max_answer_length=config.predict.max_answer_length,
            first_step=round(epochs * steps_per_epoch) if schedule == "sequential" else 0,
            span_reduction=scale,
            **settings,
        )
    return objectives


def forces_eager(config: Config) -> bool:
    """A penalty at the embeddings needs second derivatives of attention, which fused kernels lack (methods 4.5)."""
    pfa = config.objectives.pfa
    return pfa is not None and pfa.differentiates_twice


def build_reader_task(config: Config, folder: Path, steps_per_epoch: int = 1) -> ReaderTask:
    """The reader over a folder's encoder, with the config's objectives; same seed, same weights."""
    attention = "eager" if forces_eager(config) else config.model.attention
    reader = load_reader(folder, attention=attention, dropout=config.model.dropout, seed=config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ReaderTask(reader, build_objectives(config, reader, folder, steps_per_epoch))
