"""raydist: question answering trained on a Ray cluster.

What stands here is public and keeps its name; docs/api.md shows how each is used. A name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raydist.supported import check

check()

if TYPE_CHECKING:
    from raydist.api import Outcome as Outcome
    from raydist.api import evaluate as evaluate
    from raydist.api import index as index
    from raydist.api import load_config as load_config
    from raydist.api import mine as mine
    from raydist.api import predict as predict
    from raydist.api import run as run
    from raydist.api import run_sweep as run_sweep
    from raydist.api import train as train
    from raydist.asking.asker import Asker as Asker
    from raydist.errors import InputError as InputError
    from raydist.library.library import Library as Library
    from raydist.library.library import PassageHit as PassageHit
    from raydist.models.folders import model_folder as model_folder
    from raydist.objectives.answer_contrast import AnswerContrast as AnswerContrast
    from raydist.objectives.base import Batch as Batch
    from raydist.objectives.hard_learning import HardLearning as HardLearning
    from raydist.objectives.infomax import Infomax as Infomax
    from raydist.objectives.pairs import CrossBatch as CrossBatch
    from raydist.objectives.pairs import PairBatch as PairBatch
    from raydist.objectives.pairs import PairVectors as PairVectors
    from raydist.objectives.pairs import Tokens as Tokens
    from raydist.objectives.pfa import Pfa as Pfa
    from raydist.objectives.ranking import CrossEntropy as CrossEntropy
    from raydist.objectives.ranking import Ranking as Ranking
    from raydist.objectives.span import Span as Span
    from raydist.objectives.text_codes import piece_codes as piece_codes
    from raydist.reader.answers import Answer as Answer
    from raydist.reader.answers import Reader as Reader
    from raydist.reader.decode import top_spans as top_spans
    from raydist.reader.metrics import squad_scores as squad_scores
    from raydist.reader.model import SpanReader as SpanReader
    from raydist.retrieval.bm25_texts import BM25 as BM25
    from raydist.retrieval.encode import TextEncoder as TextEncoder
    from raydist.retrieval.metrics import retrieval_scores as retrieval_scores
    from raydist.retrieval.scoring import CrossScorer as CrossScorer
    from raydist.retrieval.searcher import Searcher as Searcher

__version__ = "0.1.0"

# The public names, by the module that each is in; the order is that of docs/api.md.
PUBLIC = {
    # what the commands do
    "load_config": "raydist.api",
    "run": "raydist.api",
    "train": "raydist.api",
    "predict": "raydist.api",
    "evaluate": "raydist.api",
    "mine": "raydist.api",
    "index": "raydist.api",
    "run_sweep": "raydist.api",
    "Outcome": "raydist.api",
    "InputError": "raydist.errors",
    # what was trained, in use
    "Reader": "raydist.reader.answers",
    "Answer": "raydist.reader.answers",
    "Library": "raydist.library.library",
    "PassageHit": "raydist.library.library",
    "Asker": "raydist.asking.asker",
    "Searcher": "raydist.retrieval.searcher",
    "BM25": "raydist.retrieval.bm25_texts",
    "TextEncoder": "raydist.retrieval.encode",
    "CrossScorer": "raydist.retrieval.scoring",
    # scores
    "squad_scores": "raydist.reader.metrics",
    "retrieval_scores": "raydist.retrieval.metrics",
    # objectives, for a loop of one's own
    "SpanReader": "raydist.reader.model",
    "Batch": "raydist.objectives.base",
    "Span": "raydist.objectives.span",
    "Infomax": "raydist.objectives.infomax",
    "Pfa": "raydist.objectives.pfa",
    "HardLearning": "raydist.objectives.hard_learning",
    "AnswerContrast": "raydist.objectives.answer_contrast",
    "top_spans": "raydist.reader.decode",
    "piece_codes": "raydist.objectives.text_codes",
    "Tokens": "raydist.objectives.pairs",
    "PairBatch": "raydist.objectives.pairs",
    "PairVectors": "raydist.objectives.pairs",
    "Ranking": "raydist.objectives.ranking",
    "CrossBatch": "raydist.objectives.pairs",
    "CrossEntropy": "raydist.objectives.ranking",
    "model_folder": "raydist.models.folders",
}

__all__ = [*PUBLIC, "__version__"]


if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name not in PUBLIC:
            raise AttributeError(f"module 'raydist' has no attribute {name!r}; docs/api.md lists what it has")
        value = getattr(import_module(PUBLIC[name]), name)
        globals()[name] = value  # from now on it is found at once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
