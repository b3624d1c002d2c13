"""A training worker's view of a task: rows, module, evaluation, saving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from raydist.config import Config
from raydist.corpus.rules import choose_rule
from raydist.draws import choose_rows, text_hashes
from raydist.files.stage import Made
from raydist.models.folders import model_folder, tower_folder
from raydist.models.saving import write_settings
from raydist.objectives.base import world_size
from raydist.objectives.ranking import CrossEntropy, Ranking
from raydist.reader.answers import ReadingSettings
from raydist.reader.evaluate import examples_of, with_unique_ids
from raydist.reader.metrics import score_predictions
from raydist.reader.predict import length_batches, predict_examples
from raydist.reader.rows import WindowRows
from raydist.reader.stages import WindowSet
from raydist.retrieval.cross_encoder import classification_scores, load_cross_encoder
from raydist.retrieval.dual_encoder import load_dual_encoder
from raydist.retrieval.pooling import resolve_prefixes
from raydist.retrieval.rows import CrossRows, PairRows
from raydist.training.dev_search import DevSearch
from raydist.training.tasks import CrossEncoderTask, ReaderTask, RetrieverTask, build_reader_task, forces_eager

Evaluation = Callable[[Any], dict[str, float]]
TrainingSets = Mapping[str, Any]  # "train", optionally "dev": WindowSet of a reader, Made of rows of pairs, DevQuestions


class Trainable(ABC):
    """One of the tasks, on one rank."""

    rows: Any

    def __init__(self, config: Config, sets: TrainingSets, rank: int, ranks: int) -> None:
        self.config, self.sets, self.rank, self.ranks = config, sets, rank, ranks
        self.folder = model_folder(config.model.name, config.model.revision, towers=config.task == "retriever")
        self.tokenizer_folder = tower_folder(self.folder, "query")
        self.pad_id = AutoTokenizer.from_pretrained(self.tokenizer_folder).pad_token_id

    @abstractmethod
    def build_task(self, steps_per_epoch: int) -> Any:
        """The model and its objectives; same seed, same weights."""

    @abstractmethod
    def save(self, task: Any, folder: Path) -> None:
        """Save the model alone, in the layout that other libraries read."""

    def evaluation(self) -> Evaluation | None:
        """Scores of the dev set, from the task; None if it cannot be scored."""
        return None

    def remarks(self) -> list[str]:
        """Notes for the user on deviations of the built task from the config."""
        return []


def open_trainable(config: Config, sets: TrainingSets, rank: int, ranks: int) -> Trainable:
    """The trainable of the config's `task`."""
    tasks: dict[str, Callable[..., Trainable]] = {
        "reader": TrainableReader,
        "cross_encoder": TrainableCrossEncoder,
        "retriever": TrainableRetriever,
    }
    return tasks[config.task](config, sets, rank, ranks)


def name_questions(task: str, train: Any, rows: np.ndarray) -> str:
    """The questions of some training rows, for a message."""
    if task == "reader":
        ids = [id for number in range(len(train.groups)) for id in train.examples_of(number)["id"].to_pylist()]
        named = list(dict.fromkeys(ids[example] for example in open_windows(train).examples[rows]))
    else:
        named = [f"pair {row}" for row in rows]
    return ", ".join(named[:32]) + (", ..." if len(named) > 32 else "")


# --- reader ----------------------------------------------------------------------------------------------------------


def open_windows(windows: WindowSet) -> WindowRows:
    return WindowRows(windows.windows.files(), windows.nbest_sets.files() if windows.nbest_sets else [])


class TrainableReader(Trainable):
    """Windows, a span reader, EM and F1."""

    def __init__(self, config: Config, sets: TrainingSets, rank: int, ranks: int) -> None:
        super().__init__(config, sets, rank, ranks)
        self.rows = open_windows(sets["train"])

    def build_task(self, steps_per_epoch: int) -> ReaderTask:
        return build_reader_task(self.config, self.folder, steps_per_epoch)

    def save(self, task: ReaderTask, folder: Path) -> None:
        task.reader.save(folder, self.folder)
        write_settings(folder, "reader", asdict(ReadingSettings.of_run(self.config.data, self.config.predict, 0.0)))

    def remarks(self) -> list[str]:
        if self.config.model.attention == "eager" or not forces_eager(self.config):
            return []
        return [
            f"model.attention is {self.config.model.attention} and eager is used: objectives.pfa.penalty_at: embedding needs a "
            f"second derivative, which faster kernels have not; penalty_at: representation does without"
        ]

    def evaluation(self) -> Evaluation | None:
        judge = DevEvaluation(self.config, self.sets["dev"], self.pad_id, self.rank, self.ranks)
        return judge if judge.has_labels else None


class DevEvaluation:
    """EM and F1 on the dev set during training: each rank reads its share, all get the scores."""

    def __init__(self, config: Config, dev: WindowSet, pad_id: int, rank: int, ranks: int) -> None:
        self.config, self.pad_id = config, pad_id
        self.rows = open_windows(dev)
        self.examples = with_unique_ids(pa.concat_tables(dev.examples_of(number) for number in range(len(dev.groups))))
        self.rule = choose_rule(config.data.dev.rule if config.data.dev else "auto", dev.identity["examples"])
        keys = text_hashes(self.examples["id"].to_pylist())
        asked = np.unique(self.rows.examples) if dev.is_choice else np.arange(self.examples.num_rows)
        self.mine = asked[choose_rows(keys[asked], config.train.dev_questions, config.data.seed, "dev")][rank::ranks]
        self.ranks = ranks

    @property
    def has_labels(self) -> bool:
        columns = zip(self.examples["golds"].to_pylist(), self.examples["is_impossible"].to_pylist())
        return any(golds or impossible for golds, impossible in columns)

    def __call__(self, task: ReaderTask) -> dict[str, float]:
        predict = self.config.predict
        table = predict_examples(
            task.reader,
            self.rows,
            self.examples,
            self.mine,
            k=1,
            max_answer_length=predict.max_answer_length,
            batch_tokens=predict.batch_tokens,
            pad_id=self.pad_id,
            precision=predict.precision,
        )
        rows = table.select(["id", "nbest", "null_score"]).to_pylist()
        v2 = any(self.examples["is_impossible"].to_pylist())  # then a question stays unanswered if the null span wins

        def answer(row: dict) -> str:
            spans = row["nbest"]
            return "" if not spans or (v2 and row["null_score"] > spans[0]["score"]) else spans[0]["text"]

        best = {row["id"]: answer(row) for row in rows}
        scores = score_predictions(best, examples_of(self.examples.take(self.mine)), self.rule)
        sums = torch.tensor([sum(s.em for s in scores), sum(s.f1 for s in scores), len(scores)], dtype=torch.float64)
        sums = sums.to(next(task.parameters()).device)
        if self.ranks > 1:
            dist.all_reduce(sums)
        count = max(1.0, float(sums[2]))
        return {"em": float(sums[0]) / count, "f1": float(sums[1]) / count}


# --- question-sentence pairs -----------------------------------------------------------------------------------------


class TrainableCrossEncoder(Trainable):
    """Labelled pairs, one logit, average precision."""

    def __init__(self, config: Config, sets: Mapping[str, Made], rank: int, ranks: int) -> None:
        super().__init__(config, sets, rank, ranks)
        self.rows = CrossRows(sets["train"].files())

    def build_task(self, steps_per_epoch: int) -> CrossEncoderTask:
        model = self.config.model
        cross_encoder = load_cross_encoder(self.folder, attention=model.attention, dropout=model.dropout, seed=self.config.seed)
        return CrossEncoderTask(cross_encoder, CrossEntropy())

    def save(self, task: CrossEncoderTask, folder: Path) -> None:
        given = self.config.cross_encoder
        task.cross_encoder.save(folder, self.folder, max_length=given.max_length)
        lengths = {"max_length": given.max_length, "max_question_length": given.max_question_length}
        write_settings(folder, "cross_encoder", lengths | {"answer_context": given.answer_context})

    def evaluation(self) -> Evaluation | None:
        rows = CrossRows(self.sets["dev"].files())
        return _PairScores(rows, self.pad_id, self.rank, self.ranks, self.config.predict.batch_tokens) if len(rows) else None


class _PairScores:
    """docs/methods.md 5.3's scores of held-out pairs: each rank scores its share, all get the result."""

    def __init__(self, rows: Any, pad_id: int, rank: int, ranks: int, batch_tokens: int) -> None:
        self.rows, self.pad_id, self.batch_tokens = rows, pad_id, batch_tokens
        self.mine = np.arange(rank, len(rows), ranks)

    @torch.inference_mode()
    def __call__(self, task: CrossEncoderTask) -> dict[str, float]:
        device = next(task.parameters()).device
        logits = torch.zeros(len(self.rows), dtype=torch.float64)
        was_training = task.training
        task.eval()
        for picked in length_batches(self.rows.lengths[self.mine], self.batch_tokens):
            rows = self.mine[picked]
            batch = self.rows.batch(rows, pad_id=self.pad_id).to(device)
            logits[torch.from_numpy(rows)] = task.cross_encoder(batch.tokens).double().cpu()
        task.train(was_training)
        if world_size() > 1:
            logits = logits.to(device)
            dist.all_reduce(logits)  # one rank filled each
        scores = classification_scores(self.rows.labels.astype(int), logits.cpu().numpy())
        return {name: 100 * value for name, value in scores.items()}


class TrainableRetriever(Trainable):
    """Weighted pairs, two towers, MRR of held-out questions."""

    def __init__(self, config: Config, sets: Mapping[str, Made], rank: int, ranks: int) -> None:
        super().__init__(config, sets, rank, ranks)
        self.rows = PairRows(sets["train"].files(), bucket_by_length=config.retriever.bucket_by_length)

    def build_task(self, steps_per_epoch: int) -> RetrieverTask:
        model, given = self.config.model, self.config.retriever
        encoder = load_dual_encoder(
            self.folder,
            towers=given.towers,
            pooling=given.pooling,
            attention=model.attention,
            dropout=model.dropout,
            seed=self.config.seed,
        )
        loss = Ranking(**given.model_dump())
        return RetrieverTask(encoder, loss, chunk_rows=given.chunk_rows, cached=given.cached)

    @cached_property
    def dev_search(self) -> DevSearch | None:
        if "dev" not in self.sets or self.config.train.evaluate_every == 0:
            return None
        return DevSearch(self.config, self.sets["dev"], self.folder, self.tokenizer_folder, self.rank, self.ranks)

    def evaluation(self) -> Evaluation | None:
        return self.dev_search

    def remarks(self) -> list[str]:
        if search := self.dev_search:
            of = f" of {search.of:,}" if search.sentences < search.of else ""
            return [f"dev: {search.num_questions:,} questions among {search.sentences:,}{of} sentences"]
        if self.config.train.choose == "last":
            return []
        return ["train.choose is best, and no questions are held out (corpus.dev_share, corpus.dev): the last model is taken"]

    def save(self, task: RetrieverTask, folder: Path) -> None:
        given = self.config.retriever
        lengths = {"max_question_length": given.max_question_length, "max_answer_length": given.max_answer_length}
        prefixes = resolve_prefixes(given.question_prefix, given.answer_prefix, self.folder)
        task.encoder.save(folder, self.tokenizer_folder, **lengths, prefixes=prefixes)
        write_settings(folder, "retriever", lengths | {"answer_context": given.answer_context, "prefixes": dict(prefixes)})
