"""A run's configuration, and the rules between its sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from raydist.config.asking import AskingConfig
from raydist.config.documents import DocumentsConfig
from raydist.config.library import LibraryConfig
from raydist.config.machine import ClusterConfig, TrackConfig
from raydist.config.objectives import ObjectivesConfig
from raydist.config.reader import DataConfig, EvaluateConfig, PredictConfig, SourceConfig
from raydist.config.retrieval import CorpusConfig, CrossEncoderConfig, IndexConfig, MiningConfig, RetrieverConfig
from raydist.config.section import LONGEST_NAME, NOTHING, ROWS, WEIGHTS, Section, cut, key, section
from raydist.config.serving import ServingConfig
from raydist.config.training import ModelConfig, OptimConfig, SweepConfig, TrainConfig

READER = ("reader",)
RETRIEVAL = ("retriever", "cross_encoder")
DOCUMENTS = ("documents",)
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"


class Config(Section):
    """The complete config of a run, the same for every command."""

    name: str = key("reader", "Name of the run and of its folder; slashes separate folders", NOTHING, pattern=NAME)
    task: Literal["reader", "retriever", "cross_encoder", "documents"] = key(
        "reader", "What to train; documents: build an index of documents and answer questions", ROWS
    )
    storage: str = key("runs", "Folder of all runs, or a URI supported by pyarrow (s3://, gs://, hdfs://)", NOTHING)
    seed: int = key(
        0, "Seed of all random choices: initial weights, order of rows, dropout, negatives", WEIGHTS, shared=True, ge=0
    )
    data: DataConfig = section(DataConfig(), "Data sets of a reader and how they are cut into windows", shared=True)
    model: ModelConfig = section(ModelConfig(), "Pretrained encoder", shared=True)
    objectives: ObjectivesConfig = section(ObjectivesConfig(), "What a reader's training minimises", tasks=READER)
    train: TrainConfig = section(TrainConfig(), "Training loop")
    optim: OptimConfig = section(OptimConfig(), "Optimizer and schedule")
    predict: PredictConfig = section(PredictConfig(), "How a reader answers", tasks=READER)
    evaluate: EvaluateConfig = section(EvaluateConfig(), "How answers and ranked lists are scored")
    corpus: CorpusConfig = section(CorpusConfig(), "Corpora of retrieval", tasks=RETRIEVAL)
    index: IndexConfig = section(IndexConfig(), "How texts are indexed and searched", tasks=RETRIEVAL + DOCUMENTS)
    library: LibraryConfig = section(
        LibraryConfig(), "How passages of documents are indexed and searched", shared=False, tasks=DOCUMENTS
    )
    mining: MiningConfig = section(MiningConfig(), "Candidates, scores, silver pairs", tasks=RETRIEVAL)
    cross_encoder: CrossEncoderConfig = section(
        CrossEncoderConfig(), "Supervisor that scores candidates", shared=True, tasks=RETRIEVAL
    )
    retriever: RetrieverConfig = section(RetrieverConfig(), "Dual encoder and its loss", tasks=RETRIEVAL)
    documents: DocumentsConfig = section(DocumentsConfig(), "Documents to read", shared=False, tasks=DOCUMENTS)
    asking: AskingConfig = section(AskingConfig(), "Questions about documents", tasks=DOCUMENTS)
    serving: ServingConfig = section(ServingConfig(), "The service over an index of documents", tasks=DOCUMENTS)
    cluster: ClusterConfig = section(ClusterConfig(), "Where the work runs")
    track: TrackConfig = section(TrackConfig(), "Experiment trackers")
    sweep: SweepConfig | None = key(None, "Trials of this config, for `raydist sweep`", NOTHING)

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, value: str) -> str:
        if value.split("/")[0] == "stages":
            raise ValueError("'stages' is the folder of the stage cache: choose another name")
        if max(map(len, value.split("/"))) > LONGEST_NAME or len(value) > 5 * LONGEST_NAME:
            raise ValueError(f"should have at most {LONGEST_NAME} characters between slashes, got {cut(value)!r}")
        return value

    @property
    def _pass_rows(self) -> int:
        """Rows of one forward pass, over all workers."""
        return self.train.batch_size // self.train.accumulate

    def _problems(self) -> Iterator[str]:
        if self._pass_rows < (workers := self.cluster.max_workers):
            yield (
                f"{workers} workers cannot share {self._pass_rows} rows: train.batch_size / train.accumulate must reach "
                f"cluster.workers"
            )
        yield from self._objective_problems()
        yield from self._contrast_problems()
        yield from self._reader_problems() if self.task == "reader" else self._other_task_problems()
        yield from self._cross_encoder_problems()
        yield from self._retriever_problems()

    def _objective_problems(self) -> Iterator[str]:
        rows, pfa = self._pass_rows, self.objectives.pfa
        if self.objectives.infomax and rows < 2:
            yield (
                f"objectives.infomax draws negatives from the batch, and one forward pass has {rows} row: set train.batch_size "
                f"over train.accumulate to 2 or more"
            )
        if pfa and pfa.differentiates_twice and self.model.attention == "sdpa":
            yield (
                "objectives.pfa.penalty_at: embedding needs a second derivative, which model.attention: sdpa has not: "
                "use eager or auto, or penalty_at: representation"
            )
        hard, source = self.objectives.hard_learning, self.data.train
        if hard and hard.nbest_folds > 1 and source and source.leave_out:
            yield (
                f"objectives.hard_learning.nbest_folds {hard.nbest_folds} lets each base reader leave out a fold of its own, "
                f"and data.train.leave_out is {list(source.leave_out)}: leave one of the two out"
            )

    def _contrast_problems(self) -> Iterator[str]:
        contrast, rows, workers = self.objectives.answer_contrast, self._pass_rows, self.cluster.max_workers
        if not contrast:
            return
        if contrast.schedule == "sequential" and contrast.sequential_epochs >= self.train.epochs:
            yield (
                f"objectives.answer_contrast waits for sequential_epochs {contrast.sequential_epochs:g}, and train.epochs is "
                f"{self.train.epochs:g}: it would never act; lower the first or raise the second"
            )
        if contrast.negatives == "in_batch" and rows < 2:
            yield "objectives.answer_contrast.negatives: in_batch needs two rows or more in a pass: raise train.batch_size"
        elif contrast.negatives == "in_batch" and not contrast.gather and rows // workers < 2:
            yield (
                f"objectives.answer_contrast.negatives: in_batch needs two rows or more in a pass, and without gather each of "
                f"{workers} workers has {rows // workers}: raise train.batch_size, or set gather: true"
            )

    def _reader_problems(self) -> Iterator[str]:
        if self.train.early_stop and not self.data.dev:
            yield "train.early_stop needs a dev set: set data.dev"
        named = {"predict.split": self.predict.split, "evaluate.predictions": list(self.evaluate.predictions)}
        for name, sets in named.items():
            for wanted in sets:
                if wanted not in self.sets():
                    yield f"{name}: there is no data set {wanted!r}; there are {', '.join(self.sets()) or 'none'}"
        if self.train.metric not in ("f1", "em"):
            yield f"train.metric: a reader has f1 and em, not {self.train.metric}"

    def _other_task_problems(self) -> Iterator[str]:
        if on := [name for name, objective in self.objectives if objective and name != "span"]:
            yield f"objectives.{on[0]} is for readers, and task is {self.task}: leave it out"
        for wanted in self.evaluate.predictions:
            if wanted not in self.corpus.test:
                known = ", ".join(self.corpus.test) or "none"
                yield f"evaluate.predictions: there is no test set {wanted!r}; there are {known}"
        if self.task == "retriever":
            yield from self._retriever_training_problems()

    def _retriever_training_problems(self) -> Iterator[str]:
        train, usual = self.train, TrainConfig()
        if train.metric != usual.metric:
            yield "train.metric has no effect: a retriever is chosen by its MRR; leave it out"
        for name in ("early_stop", "evaluate_every", "dev_questions"):
            if getattr(train, name) and getattr(train, name) != getattr(usual, name) and not self.corpus.has_dev:
                yield (
                    f"train.{name} has no effect: this retriever has no questions that are held out; set corpus.dev_share or "
                    f"corpus.dev, or leave it out"
                )

    def _cross_encoder_problems(self) -> Iterator[str]:
        train = self.cross_encoder.train
        if train.metric == "em":
            yield "cross_encoder.train.metric: a cross-encoder has f1, average_precision and accuracy, not em"
        if train.dev_questions:
            yield (
                "cross_encoder.train.dev_questions has no effect: a cross-encoder is judged by all pairs of the questions that "
                "mining.dev_share holds out; leave it out"
            )

    def _retriever_problems(self) -> Iterator[str]:
        retriever = self.retriever
        if retriever.loss != "softmax" and not self.mining.hard_negatives:
            yield (
                f"retriever.loss: {retriever.loss} learns from scores of mined negatives: set mining.hard_negatives to 1 "
                f"or more"
            )
        if retriever.temperature != 1 and retriever.loss != "kl":
            yield (
                f"retriever.temperature is that of retriever.loss: kl, and the loss is {retriever.loss}: set retriever.scale "
                f"({1 / retriever.temperature:g} is this temperature), or leave it out"
            )
        for name, usual in (("objective", "log"), ("mask_known_positives", True)):
            if (value := getattr(retriever, name)) != usual and retriever.loss != "softmax":
                yield (
                    f"retriever.{name}: {str(value).lower()} is about the columns of retriever.loss: softmax, and the loss is "
                    f"{retriever.loss}: leave it out"
                )

    @property
    def dev_metric(self) -> str:
        """The dev score that selects the best model during training."""
        return "mrr" if self.task == "retriever" else self.train.metric

    @property
    def chooses_by_dev(self) -> bool:
        """Whether dev scores influence the trained model."""
        return bool(self.train.early_stop) or (self.train.choose == "best" and self.train.evaluate_every != 0)

    def sets(self) -> dict[str, SourceConfig]:
        """Every data set by name: train, dev and the configured test sets."""
        named = {"train": self.data.train, "dev": self.data.dev}
        return {name: source for name, source in named.items() if source} | self.data.test
