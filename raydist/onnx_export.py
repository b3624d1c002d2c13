"""A run's model as ONNX: model.onnx beside its tokenizer, for runtimes without torch (extra `onnx`)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raydist.errors import InputError
from raydist.models.encoders import takes_types
from raydist.models.folders import TOWERS, tower_folder
from raydist.models.loading import load_pretrained
from raydist.retrieval.pooling import resolve_pooling

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = {"reader": ("start_logits", "end_logits"), "cross_encoder": ("logits",), "retriever": ("sentence_embedding",)}
_CLASSES = {"reader": "QuestionAnswering", "cross_encoder": "SequenceClassification"}
PACKAGES = ("onnx", "onnxscript")  # what torch needs to write it
OPSET = 18


class _Outputs(nn.Module):
    """The named outputs of a model, for any number of texts of any length."""

    def __init__(self, model: Any, task: str, pooling: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.task, self.pooling, self.names = model, task, pooling, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.names, inputs))
        found = self.model(**given)
        if self.task != "retriever":
            return tuple(found[name] for name in OUTPUTS[self.task])
        hidden_BTH = found.last_hidden_state
        if self.pooling == "cls":
            return (F.normalize(hidden_BTH[:, 0], dim=1),)
        mask_BT1 = given["attention_mask"].unsqueeze(-1).to(hidden_BTH.dtype)
        return (F.normalize((hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1e-9), dim=1),)


def write_onnx(task: str, folder: Path, target: Path) -> None:
    """Write a model's folder as ONNX, with its tokenizer, card and settings; of two towers, a folder each."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise InputError(f"ONNX needs {' and '.join(missing)}: pip install 'raydist[onnx]'")
    shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors", "*.onnx"))
    for name in sorted({tower_folder(folder, tower).relative_to(folder) for tower in TOWERS}):
        _write(task, folder / name, target / name / "model.onnx")


def _write(task: str, folder: Path, file: Path) -> None:
    import transformers

    auto_class = getattr(transformers, f"AutoModelFor{_CLASSES[task]}" if task in _CLASSES else "AutoModel")
    model = load_pretrained(auto_class, folder, attention="eager").eval()
    names = INPUTS if takes_types(model) else INPUTS[:2]
    pooling = resolve_pooling("auto", folder) if task == "retriever" else ""
    ids_BT = torch.ones(2, 8, dtype=torch.long)
    example = (ids_BT, torch.ones_like(ids_BT), torch.zeros_like(ids_BT))[: len(names)]
    sizes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Outputs(model, task, pooling, names).eval(),
                example,
                str(file),
                input_names=list(names),
                output_names=list(OUTPUTS[task]),
                opset_version=OPSET,
                dynamo=True,
                dynamic_shapes=((sizes,) * len(names),),
                external_data=False,
            )
    except Exception as error:  # torch raises many kinds for what it cannot trace
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise InputError(f"a {model.config.model_type} model cannot be written as ONNX by this torch: {why}") from error
