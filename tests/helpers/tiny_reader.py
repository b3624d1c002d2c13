"""Trained readers and pair scorers that need no training: small models with random heads, as folders."""

from pathlib import Path

import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

from raydist.models.folders import model_folder


def write_reader(folder: Path, seed: int = 0) -> Path:
    """A reader whose scores differ well from token to token."""
    return _write(AutoModelForQuestionAnswering, "qa_outputs", folder, seed)


def write_cross_encoder(folder: Path, seed: int = 0) -> Path:
    return _write(AutoModelForSequenceClassification, "classifier", folder, seed, num_labels=1)


def _write(auto_class, head: str, folder: Path, seed: int, **settings) -> Path:
    torch.manual_seed(seed)
    model = auto_class.from_pretrained(model_folder("builtin:tiny"), **settings)
    torch.nn.init.normal_(getattr(model, head).weight, std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("builtin:tiny")).save_pretrained(folder)
    return folder
