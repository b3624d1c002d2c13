"""The card of a run's model: README.md in its folder, in the layout of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from raydist.config import Config, CorpusSource, SourceConfig
from raydist.files.storage import MODEL_SETTINGS, has_model
from raydist.models.folders import is_folder
from raydist.runs.run import Run

_KINDS = {  # task -> pipeline of the hub, its library, what it is
    "reader": ("question-answering", "transformers", "finds the answer to a question as a span of a passage"),
    "cross_encoder": ("text-ranking", "sentence-transformers", "scores whether a sentence answers a question"),
    "retriever": ("sentence-similarity", "sentence-transformers", "embeds questions and sentences, so that answers are near"),
}

_READER = """import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained(FOLDER), AutoModelForQuestionAnswering.from_pretrained(FOLDER)
question, passage = "When was it built?", "The bridge was built in 1894."
inputs = tokenizer(question, passage, truncation="only_second", max_length={max_length}, return_tensors="pt")
with torch.inference_mode():
    found = model(**inputs)
inside = torch.tensor([part == 1 for part in inputs.sequence_ids()])  # tokens of the passage
spans = (inside[:, None] & inside).triu().tril({max_answer_length} - 1)
scores = (found.start_logits[0][:, None] + found.end_logits[0]).where(spans, -torch.inf)
start, end = divmod(int(scores.argmax()), len(inside))
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))"""

_CROSS_ENCODER = """from sentence_transformers import CrossEncoder

model = CrossEncoder(FOLDER)
print(model.predict([("When was it built?", "The bridge was built in 1894.")]))  # probabilities"""

_RETRIEVER = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer(FOLDER)
questions = model.encode_query(["When was it built?"])
sentences = model.encode_document(["The bridge was built in 1894.", "It is long."])
print(model.similarity(questions, sentences))"""

_TOWERS = """from sentence_transformers import SentenceTransformer

of_questions, of_sentences = SentenceTransformer(f"{FOLDER}/query"), SentenceTransformer(f"{FOLDER}/answer")
questions = of_questions.encode(["When was it built?"])
sentences = of_sentences.encode(["The bridge was built in 1894.", "It is long."])
print(of_questions.similarity(questions, sentences))"""

_LIMITS = {
    "reader": (
        "Answers are pieces of the passage: it computes nothing and says neither yes nor no.",
        "Passages longer than the window above are read in windows that overlap; plain transformers, as above, cuts them off.",
        "Probabilities compare the spans of one passage, and are not calibrated.",
    ),
    "cross_encoder": ("Its probabilities were learned from negatives of one corpus; elsewhere its threshold may be another.",),
    "retriever": ("Texts are cut off at the lengths above; a similarity is a rank, and no probability.",),
}


def write_card(run: Run) -> None:
    """Write, or renew with the latest scores, the card of the run's model; for a reader, its threshold, too.

    A model of a version that wrote no settings stays as it is: a card would make it another one (`folder_digest`).
    """
    if not (has_model(run.folder) and run.folder.exists(f"model/{MODEL_SETTINGS}")):
        return
    metrics = metrics_of(run)
    run.folder.write_bytes("model/README.md", card(run, metrics).encode())
    threshold = metrics.get("dev.null_threshold")
    if threshold is not None:
        settings = run.folder.read_json(f"model/{MODEL_SETTINGS}")
        run.folder.write_json(f"model/{MODEL_SETTINGS}", settings | {"null_threshold": threshold})


def metrics_of(run: Run) -> dict[str, Any]:
    return run.folder.read_json("metrics.json") if run.folder.exists("metrics.json") else {}


def card(run: Run, metrics: Mapping[str, Any]) -> str:
    config = run.config
    pipeline, library, does = _KINDS[config.task]
    two_towers = not run.folder.exists("model/config.json")
    about: dict[str, Any] = {"library_name": library, "pipeline_tag": pipeline, "license": "unknown"}
    about["tags"] = ["raydist", config.task.replace("_", "-")]
    if "/" in _name_of(config):
        about["base_model"] = config.model.name
    parts = [
        f"---\n{yaml.safe_dump(about, sort_keys=False)}---",
        f"# {config.name}\n\nA {config.task.replace('_', '-')} that {does}. Trained by raydist from `{_name_of(config)}`.",
        "## Data\n\n" + _table(("set", "data"), _sets(config)),
        "## Settings\n\n" + _table(("setting", "value"), _settings(run)),
        "## Scores\n\n" + (_scores(metrics) or "Not scored yet: `raydist evaluate` writes them here."),
        _LICENCE,
        "## Use\n\n```python\n" + _use(config, two_towers) + "\n```\n\n" + _own_use(config),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in (*_LIMITS[config.task], _OF_DATA)),
    ]
    return "\n\n".join(parts) + "\n"


_LICENCE = """## Licence

Not stated. Before you publish this model, set `license` above to one that the model it started from and its data allow."""
_OF_DATA = "It has learned from the data above, in their languages and with their mistakes; on others, score it first."


def _name_of(config: Config) -> str:
    """The name of the model that training started from; of a folder its own name, without the path."""
    name = config.model.name
    return Path(name).name if is_folder(name) else name


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sets(config: Config) -> Iterator[tuple[str, str]]:
    if config.task == "reader":
        named: dict[str, SourceConfig | CorpusSource | None] = {"train": config.data.train, "dev": config.data.dev}
        named |= config.data.test
    else:
        named = {"train": config.corpus.train, "dev": config.corpus.dev}
        named |= config.corpus.test
    for name, source in named.items():
        if source is None:
            continue
        hub = getattr(source, "hub", None)
        files = hub or ", ".join(file.rstrip("/").rpartition("/")[2] for file in source.files)  # names: no paths of a machine
        yield name, f"`{files}`" + (f", {source.questions:,} questions" if source.questions else "")


def _settings(run: Run) -> Iterator[tuple[str, str]]:
    config = run.config
    shown: dict[str, Any] = {"seed": config.seed}
    if run.folder.exists("fitted.json"):
        fitted = run.folder.read_json("fitted.json")
        shown |= {name: fitted[name] for name in ("steps", "model") if name in fitted}
    shown |= {f"train.{name}": getattr(config.train, name) for name in ("epochs", "max_steps", "batch_size", "precision")}
    shown |= {"optim.lr": config.optim.lr}
    if config.task == "reader":
        shown |= {f"data.{name}": getattr(config.data, name) for name in ("max_length", "max_question_length", "doc_stride")}
        shown["predict.max_answer_length"] = config.predict.max_answer_length
        shown["objectives"] = [name for name, value in config.objectives if name != "span" and value] or ["span"]
    elif config.task == "retriever":
        names = ("max_question_length", "max_answer_length", "loss", "towers", "pooling")
        shown |= {f"retriever.{name}": getattr(config.retriever, name) for name in names}
    else:
        shown["cross_encoder.max_length"] = config.cross_encoder.max_length
    for name, value in shown.items():
        if value is not None:
            yield name, f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _scores(metrics: Mapping[str, Any]) -> str:
    wanted = ("em", "f1", "P@1", "MRR@100", "recall@10", "nDCG@10", "average_precision", "accuracy", "mrr", "questions")
    found = [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in metrics.items()
        if name.rpartition(".")[2] in wanted and isinstance(value, int | float) and not name.startswith("train.")
    ]
    return _table(("score", "value"), iter(found)) if found else ""


def _use(config: Config, two_towers: bool) -> str:
    reader = _READER.replace("{max_length}", str(config.data.max_length))
    reader = reader.replace("{max_answer_length}", str(config.predict.max_answer_length))
    of_task = {"reader": reader, "cross_encoder": _CROSS_ENCODER}
    code = of_task.get(config.task) or (_TOWERS if two_towers else _RETRIEVER)
    return 'FOLDER = "."  # or its name on the hub\n' + code


def _own_use(config: Config) -> str:
    if config.task == "reader":
        return "With raydist: `raydist.Reader.load(FOLDER).ask(question, passage)`, with the lengths above."
    return "With raydist: `model.name=FOLDER` in a config" + (" of a retriever." if config.task == "retriever" else ".")
