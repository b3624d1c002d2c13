"""What a run is made of: typed, closed sections, read from YAML, `extends:` and dotted overrides.

Command line over YAML, over the YAML it extends, over defaults. All problems are reported at once.
"""

from __future__ import annotations

import copy
import difflib
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from raydist.errors import InputError


class ConfigError(InputError):
    """The configuration is wrong; the message lists every problem."""


class Section(BaseModel):
    """A closed, immutable part of a run's configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def _problems(self) -> Iterator[str]:
        """What is wrong between keys that are right each by itself."""
        yield from ()

    @model_validator(mode="after")
    def _told_at_once(self) -> Self:
        problems: list[InitErrorDetails] = [
            {"type": "value_error", "input": None, "ctx": {"error": ValueError(text)}} for text in self._problems()
        ]
        if problems:  # a ValueError could carry but one of them
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


EXAMPLE_COLUMNS = ("id", "question", "context", "answer", "answers", "answer_start", "title", "language", "is_impossible")


class SourceConfig(Section):
    """A data set: files and globs (``sample:en/train.json`` is the embedded sample's), or a `datasets` name."""

    files: Annotated[list[str], BeforeValidator(_listed)] = []
    hub: str | None = None
    hub_config: str | None = None
    split: str = "train"
    format: Literal["auto", "squad", "mrqa", "hotpotqa", "qa", "qed", "parquet", "csv", "squad_v2"] = "auto"
    language: str | None = None
    columns: dict[str, str] = {}  # our name, of EXAMPLE_COLUMNS: the file's
    rule: Literal["auto", "squad", "mrqa", "mlqa"] = "auto"  # of scores; auto: by what the data are (docs/methods.md 2.5)
    adversarial: bool = False  # rows X and X-...: scored as AddSent (docs/methods.md 3.7) beside the plain mean
    questions: int | None = Field(None, ge=1)  # a seeded choice of this many; of originals in an adversarial set
    leave_out: tuple[int, int] | None = None  # [fold, folds]: questions drawn for this fold (0 to folds - 1) are left out

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"files": value} if isinstance(value, str | list) else value

    def _problems(self) -> Iterator[str]:
        if bool(self.files) == bool(self.hub):
            yield "give either files or hub"
        if self.leave_out and not 0 <= self.leave_out[0] < self.leave_out[1] > 1:
            yield f"leave_out is [fold, folds] with fold from 0 to folds - 1, got {list(self.leave_out)}"
        for name in self.columns:
            if name not in EXAMPLE_COLUMNS:
                near = difflib.get_close_matches(name, EXAMPLE_COLUMNS, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(EXAMPLE_COLUMNS)}"
                yield f"columns: there is no {name!r} to map; {hint}"


class SampleConfig(Section):
    """The embedded sample world, made on first use."""

    size: Annotated[int, Field(ge=100)] | Literal["small", "medium", "large"] = "small"  # or sentences of its corpus
    seed: int = 0


class DataConfig(Section):
    train: SourceConfig | None = None
    dev: SourceConfig | None = None
    test: Annotated[dict[str, SourceConfig], BeforeValidator(lambda value: value or {})] = {}
    sample: SampleConfig = SampleConfig()
    seed: int = Field(0, ge=0)  # of choices of questions: runs with other seeds see and are judged on the same ones
    root: str = ""  # relative file names start here
    max_length: int = Field(384, ge=16)
    max_question_length: int = Field(64, ge=4)
    doc_stride: int = Field(128, ge=1)
    no_answer_windows: Literal["cls", "drop"] = "cls"
    passage_first: bool = False  # the passage before the question in every window; the model must then be asked so, too
    max_rejected: float = Field(0.01, ge=0, le=1)
    repair_offsets: bool = False
    part_rows: int = Field(1000, ge=1)  # examples per part file of a stage

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if self.max_question_length + self.doc_stride + 8 > self.max_length:
            raise ValueError(
                f"max_length {self.max_length} leaves no room for a passage beside max_question_length "
                f"{self.max_question_length} and doc_stride {self.doc_stride}: raise the first or lower the others"
            )
        return self

    @field_validator("test")
    @classmethod
    def _plain_names(cls, value: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        for name in value:
            if name in ("train", "dev") or not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(
                    f"a test set cannot be called {name!r}: use letters, digits, - and _, and neither train nor dev"
                )
        return value


class ModelConfig(Section):
    name: str = "builtin:minilm"  # also builtin:minilm_new, builtin:tiny, a Hugging Face name, or a folder
    revision: str | None = None
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    dropout: float | None = Field(None, ge=0, lt=1)  # None: what the model's own config says


class SpanConfig(Section):
    """The task itself: start and end cross-entropy (docs/methods.md 2.2, 2.3)."""

    reduction: Literal["mean", "sum"] = "mean"
    mask_non_passage: bool = True


class InfomaxConfig(Section):
    """QAInfomax: an answer stays informative of its context (docs/methods.md 3). Nothing of it is left at inference."""

    weight: float | None = Field(None, ge=0)  # lambda, on the sum of start and end loss; None: the variant's own, 0.3 or 0.25
    alpha: float = Field(1.0, ge=0)  # local constraint
    beta: float = Field(0.5, ge=0)  # global constraint
    context: int = Field(5, ge=0)  # words around the answer
    summary: Literal["mean", "max", "sample"] = "mean"
    variant: Literal["paper", "reference"] = "paper"
    dropout: float = Field(0.5, ge=0, lt=1)
    lr: float | None = Field(None, gt=0)  # of the discriminators; None: optim.lr, as published

    def _problems(self) -> Iterator[str]:
        if self.alpha == self.beta == 0:
            yield "alpha and beta are both 0, which leaves nothing: set one, or leave infomax out"


class PfaConfig(Section):
    """Perturbation for alignment (methods 4): a second pass over perturbed embeddings, and both readings brought together."""

    perturber: Literal["mlp", "noise", "dropout", "gaussian", "identity"] = "mlp"
    bottleneck: int = Field(500, ge=1)
    start: Literal["random", "projection"] = "projection"  # of mlp: keeps the main `bottleneck` / 2 directions of the words
    delta: float = Field(0.5, gt=0)
    align: Literal["cos", "fro", "kl", "js", "w1", "sinkhorn"] = "w1"
    lambda1: float = Field(1.0, ge=0)  # loss of the perturbed reading
    lambda2: float = Field(1.0, ge=0)  # alignment
    gamma: float = Field(1.0, gt=0)
    alpha: float = Field(0.5, ge=0, le=1)
    every: int = Field(1, ge=1)  # acts in one step of so many
    scope: Literal["passage", "all"] = "passage"
    penalty: Literal["squared", "one_sided", "two_sided"] = "squared"
    penalty_at: Literal["representation", "embedding"] = "representation"
    critic_sees: Literal["scaled", "raw"] = "scaled"  # representations over the root of their size, or as they are
    critic_size: int | None = Field(None, ge=1)  # None: 8/3 of the hidden units, so 2048 for a base encoder
    critic_steps: int = Field(0, ge=0)
    critic_lr: float = Field(1e-4, gt=0)
    beta_kl: float = Field(1.0, ge=0)
    prior_dropout: float = Field(0.1, gt=0, lt=1)
    sinkhorn_tokens: int = Field(256, ge=2)
    sinkhorn_epsilon: float = Field(0.05, gt=0)
    sinkhorn_iterations: int = Field(20, ge=1)

    def _problems(self) -> Iterator[str]:
        if self.lambda1 == self.lambda2 == 0 and self.perturber != "gaussian":
            yield "lambda1 and lambda2 are both 0, which leaves nothing: set one, or leave pfa out"
        if self.perturber == "gaussian" and self.every > 1:
            yield f"every {self.every} does not go with perturber: gaussian, the mean of both readings: leave it out"
        if self.perturber == "dropout" and self.delta >= 1:
            yield f"delta is the rate of perturber: dropout, and should be below 1, got {self.delta:g}"
        if self.critic_steps and self.penalty_at == "embedding":
            yield "critic_steps works on finished representations: leave it out, or set penalty_at to representation"

    @property
    def has_critic(self) -> bool:
        return self.perturber != "gaussian" and self.align == "w1" and self.lambda2 > 0


class HardLearningConfig(Section):
    """Hard learning (methods 6.4), in place of the span loss: n-best spans of a base reader, weighed by closeness to gold."""

    mode: Literal["posterior", "mml", "hard_em", "learned", "ce"] = "posterior"
    size: int = Field(20, ge=1)  # |Z|
    kappa: float = Field(4.0, ge=0)  # how much the prior prefers overlap with gold
    rho: float = Field(0.5, ge=0, le=1)  # the floor under gold
    temperature: float = Field(1.0, gt=0)
    hard_em_steps: int = Field(4000, ge=1)
    eta: float = Field(1.0, gt=0)  # anchor of the learned prior
    sets: str | None = None  # lists of `raydist predict ... predict.split=train`, a file or URI; None: a base reader is trained
    nbest_folds: int = Field(1, ge=1)  # base readers, each of which makes the lists of questions that it was not trained on

    @model_validator(mode="after")
    def _folds_of_own(self) -> Self:
        if self.sets and self.nbest_folds > 1:
            raise ValueError("nbest_folds is about base readers that this run trains: leave it out where sets are given")
        return self

    @property
    def needs_sets(self) -> bool:
        """`ce` looks at gold alone."""
        return self.mode != "ce"

    @property
    def has_base(self) -> bool:
        """Whether base readers are trained for it."""
        return self.needs_sets and not self.sets


class AnswerContrastConfig(Section):
    """Answer-aware contrast (methods 6.5): the gold span against its nearest rivals; alpha of it, 1 - alpha of span loss."""

    alpha: float = Field(0.5, ge=0, lt=1)  # at 1 nothing would teach the span head
    tau: float = Field(10.0, gt=0)
    top: int = Field(50, ge=1)
    theta: int = Field(1, ge=1)
    select: Literal["nearest", "top1", "random"] = "nearest"
    negatives: Literal["hard", "in_batch", "both"] = "both"
    hard_from_others: bool = False
    question: Literal["mean", "cls"] = "mean"
    gather: bool = True
    schedule: Literal["joint", "sequential"] = "joint"
    sequential_epochs: float = Field(1.0, ge=0)  # alpha is 0 for so long, under `sequential`

    def _problems(self) -> Iterator[str]:
        if self.theta > self.top:
            yield f"theta {self.theta} is more than the top {self.top} spans that rivals are chosen from: lower it or raise top"
        if self.hard_from_others and self.negatives == "in_batch":
            yield "hard_from_others needs hard negatives: set negatives to hard or both, or leave it out"


CORPUS_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {  # of formats that are tables: what may be mapped
    "tables": {
        "corpus": ("sentence_id", "text", "title", "document_id", "language"),
        "questions": ("question_id", "text", "language"),
        "gold": ("question_id", "sentence_id", "relevance"),
    },
    "documents": {"corpus": ("document_id", "text", "title", "language")},
}


class CorpusSource(Section):
    """A corpus of sentences with questions and gold answers. `sample:` is the embedded sample's.

    beir: a folder {corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv}, whose documents may name the places of their `sentences`;
    reqa: a file {questions, candidates, ground_truths}; pairs: a file {questions, answers, question_ids}; squad: any reader
    files, cut into sentences by rule or by a file of MultiReQA `boundaries`; tables: three files, corpus, questions and gold,
    whose `columns` are {our name: the file's} for all three, or such a map for each: {corpus: {...}, questions: {...}, ...};
    documents: files of rows with `document_id` or `_id`, `text`, and maybe `title` and `language`, cut into sentences by rule;
    there are no questions about them, so they can be indexed and searched, and nothing else.
    """

    files: Annotated[list[str], BeforeValidator(_listed)]
    format: Literal["beir", "reqa", "pairs", "squad", "tables", "documents"] = "beir"
    split: str = "train"  # beir: which file of qrels
    boundaries: str | None = None  # squad
    columns: dict[str, str | dict[str, str]] = {}  # tables, documents
    questions: int | None = Field(None, ge=1)  # a seeded choice of this many

    def columns_of(self, table: str) -> dict[str, Any]:
        """Our name -> the file's."""
        own = self.columns.get(table, {}) if self._by_table else self.columns
        return dict(own) if isinstance(own, dict) else {}

    @property
    def _by_table(self) -> bool:
        return any(isinstance(names, dict) for names in self.columns.values())

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"files": value} if isinstance(value, str | list) else value

    @model_validator(mode="after")
    def _as_many_files(self) -> Self:
        wanted = {"beir": 1, "reqa": 1, "pairs": 1, "tables": 3}.get(self.format)
        if not self.files or (wanted and len(self.files) != wanted):
            raise ValueError(f"format {self.format} takes {wanted or 'one or more'} in files, got {len(self.files)}")
        return self

    @model_validator(mode="after")
    def _questions_of_some(self) -> Self:
        if self.questions and self.format == "documents":
            raise ValueError("questions: there are none about documents to choose from; leave it out")
        return self

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        tables = CORPUS_COLUMNS.get(self.format, {})
        if self.columns and not tables:
            raise ValueError(f"columns: format {self.format} has names of its own; leave them out, or take tables or documents")
        if self._by_table and not all(isinstance(self.columns[key], dict) and key in tables for key in self.columns):
            raise ValueError(
                f"columns: wanted {{our name: the file's}}, or such a map for each of {', '.join(tables)}; got {self.columns}"
            )
        for table, own in tables.items():
            known = own if self._by_table else sorted({name for names in tables.values() for name in names})
            for name in self.columns_of(table):
                if name not in known:
                    raise ValueError(f"columns: there is no {name!r} to map; there are {', '.join(known)}")
        return self


class CorpusConfig(Section):
    """What retrieval works on: pairs to train and mine with, and sets to test on."""

    train: CorpusSource | None = None
    test: Annotated[dict[str, CorpusSource], BeforeValidator(lambda value: value or {})] = {}

    @field_validator("test")
    @classmethod
    def _plain_names(cls, value: dict[str, CorpusSource]) -> dict[str, CorpusSource]:
        for name in value:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"a test set cannot be called {name!r}: use letters, digits, - and _")
        return value


class IvfConfig(Section):
    """Cells of each shard of a dense index of kind ivf or pq; None: a number that suits the shard's size."""

    nlist: int | None = Field(None, ge=1)  # cells; None: four times the root of the rows
    nprobe: int | None = Field(None, ge=1)  # cells that a search looks into; None: one in 32, and 16 or more

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.nlist and self.nprobe and self.nprobe > self.nlist:
            raise ValueError(f"nprobe {self.nprobe} is more than the {self.nlist} cells of nlist: lower it, or leave it out")
        return self


class HnswConfig(Section):
    """The graph of each shard of a dense index of kind hnsw."""

    m: int = Field(32, ge=2)  # neighbours of a row
    ef_construction: int = Field(200, ge=1)  # rows looked at for them
    ef_search: int = Field(128, ge=1)  # rows that a search keeps in view


class PqConfig(Section):
    """Codes of a dense index of kind pq, whose cells are those of ivf."""

    m: int | None = Field(None, ge=1)  # parts of a vector, which must divide its units; None: of eight units, or nearly so
    bits: int = Field(8, ge=4, le=12)  # of the code of a part


class IndexConfig(Section):
    """How sentences are indexed. Results do not depend on shard_rows (with an approximate dense kind, their recall does)."""

    kind: Literal["bm25", "dense"] = "bm25"  # what `raydist index` builds
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)
    idf: Literal["lucene", "robertson", "atire"] = "lucene"
    min_chars: int = Field(2, ge=1)
    stop_words: Literal["none", "english"] | list[str] = "none"  # or words of your own
    stemmer: str = ""  # a Snowball language such as english
    dense: Literal["flat", "ivf", "hnsw", "pq"] = "flat"  # flat is exact; ivf, hnsw and pq have sections of their own
    ivf: IvfConfig = IvfConfig()
    hnsw: HnswConfig = HnswConfig()
    pq: PqConfig = PqConfig()
    shard_rows: int = Field(250_000, ge=1)
    precision: Literal["fp32", "bf16"] = "fp32"  # of the encoder that makes vectors; those are float32 in any case

    def formula(self) -> dict[str, Any]:
        """How BM25 searches."""
        return {"k1": self.k1, "b": self.b, "idf": self.idf}

    def dense_settings(self) -> dict[str, Any]:
        """What is built of a dense index; of the parameters those of its kind alone, so that others make no other index."""
        cells = {"nlist": self.ivf.nlist}
        graph = {"hnsw_m": self.hnsw.m, "ef_construction": self.hnsw.ef_construction}
        codes = {"pq_m": self.pq.m, "pq_bits": self.pq.bits}
        of_kind: dict[str, dict[str, Any]] = {"flat": {}, "ivf": cells, "hnsw": graph, "pq": cells | codes}
        return {"kind": self.dense, **of_kind[self.dense]}

    def dense_search(self) -> dict[str, Any]:
        """How a dense index of this kind is searched."""
        probes, view = {"nprobe": self.ivf.nprobe}, {"ef_search": self.hnsw.ef_search}
        of_kind: dict[str, dict[str, Any]] = {"flat": {}, "ivf": probes, "hnsw": view, "pq": probes}
        return of_kind[self.dense]


class MiningConfig(Section):
    """Candidates, scores, silver pairs (docs/methods.md 5.2 to 5.5)."""

    encoder: str = "builtin:minilm"  # of the dense source; in later rounds the retriever trained before takes its place
    pooling: Literal["auto", "cls", "mean"] = "auto"
    question_prefix: str | None = None  # before what the encoder is given, as in retriever
    answer_prefix: str | None = None
    candidates: int = Field(10, ge=1)  # of each source, for each question
    same_doc: int = Field(0, ge=0)  # sentences of a gold answer's document, drawn by the seed, as further candidates
    negatives_per_source: int = Field(1, ge=1)
    dev_share: float = Field(0.1, gt=0, lt=1)  # of the questions, held out to judge the cross-encoder
    threshold: float = Field(0.5, ge=0, le=1)
    power: float = Field(2.0, ge=0)
    weighting: Literal["power", "none", "binary"] = "power"
    calibrate: Literal["none", "temperature", "platt"] = "none"
    hard_negatives: int = Field(0, ge=0)  # rejected candidates of a question, as further columns
    negative_p: float = Field(0.1, ge=0, le=1)  # the most that one may have
    rounds: int = Field(1, ge=1)
    part_questions: int = Field(500, ge=1)


class RetrieverConfig(Section):
    """The dual encoder and its loss (docs/methods.md 5.5 to 5.7)."""

    pooling: Literal["auto", "cls", "mean"] = "auto"
    question_prefix: str | None = None  # before each question ("query: "); None: what the model's folder says, else nothing
    answer_prefix: str | None = None  # before each answer ("passage: ")
    towers: Literal["auto", "shared", "separate"] = "auto"
    answer_context: Literal["paragraph", "none"] = "paragraph"
    max_question_length: int = Field(96, ge=4)
    max_answer_length: int = Field(384, ge=8)
    loss: Literal["softmax", "margin_mse", "kl"] = "softmax"
    objective: Literal["log", "prob"] = "log"
    normalise: Literal["count", "weight_sum"] = "count"
    scale: float = Field(100.0, gt=0)  # of the products that all losses take as scores
    temperature: float = Field(1.0, gt=0)  # kl: divides the scores of both, of encoder and cross-encoder
    mask_known_positives: bool = True
    bucket_by_length: bool = True
    chunk_rows: int | None = Field(None, ge=1)  # texts embedded at once; None: all of a batch, 16 if cached
    cached: bool = False  # two passes, so that only one chunk's activations are in memory
    variants: list[Literal["gold", "gold_silver"]] = ["gold", "gold_silver"]  # trained beside it, to compare with
    search_depth: int = 100  # of an evaluation's ranked lists
    rerank: int = Field(20, ge=0)  # of these, how many the cross-encoder ranks anew as the ceiling; 0: none

    @field_validator("search_depth")
    @classmethod
    def _as_deep_as_its_metrics(cls, value: int) -> int:
        if value < 100:
            raise ValueError(f"MRR@100 and recall@100 are of the first 100 of a list: give 100 or more, got {value}")
        return value


class ObjectivesConfig(Section):
    """What training minimizes. An objective is on when its section is present."""

    span: SpanConfig = SpanConfig()
    infomax: InfomaxConfig | None = None
    pfa: PfaConfig | None = None
    hard_learning: HardLearningConfig | None = None
    answer_contrast: AnswerContrastConfig | None = None


class TrainConfig(Section):
    epochs: float = Field(2, gt=0)
    max_steps: int | None = Field(None, ge=1)
    batch_size: int = Field(16, ge=1)  # global: over all workers
    accumulate: int = Field(1, ge=1)  # groups a global batch is cut into, one forward pass each
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpoint_every: int = Field(200, ge=1)  # steps
    keep_checkpoints: int = Field(2, ge=1)
    evaluate_every: int | None = Field(None, ge=0)  # steps; None: after each epoch; 0: never
    dev_questions: int | None = Field(None, ge=1)  # a seeded choice of the dev set, for evaluation during training
    choose: Literal["best", "last"] = "best"
    metric: Literal["f1", "em", "average_precision", "accuracy"] = "f1"  # the last two: of a cross-encoder
    early_stop: int | None = Field(None, ge=1)  # evaluations without a better score
    log_every: int = Field(10, ge=1)

    def _problems(self) -> Iterator[str]:
        if self.accumulate > self.batch_size:
            yield f"cannot cut a batch of {self.batch_size} into {self.accumulate} groups: lower accumulate"
        if self.evaluate_every == 0 and (self.choose == "best" or self.early_stop):
            yield "choosing the best or stopping early needs evaluations: set evaluate_every, or choose: last"


class OptimConfig(Section):
    lr: float = Field(3e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    clip_norm: float = Field(1.0, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    final_lr_share: float = Field(0.0, ge=0, le=1)  # of lr, at the last step
    warmup_share: float | None = Field(None, ge=0, le=1)  # of all steps; 0.1 where no warm-up is given
    warmup_steps: int | None = Field(None, ge=0)
    warmup_examples: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        given = [key for key in ("warmup_share", "warmup_steps", "warmup_examples") if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given: keep one")
        return self


class CrossEncoderConfig(Section):
    """The supervisor (docs/methods.md 5.3): one logit for a question and a sentence."""

    model: ModelConfig = ModelConfig()
    trained: bool = False  # the model is a cross-encoder already: judged and used as it is
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    answer_context: Literal["paragraph", "none"] = "none"  # paragraph: it reads a sentence with its paragraph behind it
    max_question_length: int = Field(96, ge=4)
    max_length: int = Field(480, ge=16)
    batch_tokens: int | None = Field(None, ge=16)  # tokens scored together, by each thread; None: what suits the device
    precision: Literal["fp32", "bf16"] = "fp32"  # of scoring; of its training: cross_encoder.train.precision


class PredictConfig(Section):
    split: Annotated[list[str], BeforeValidator(_listed)] = []  # which sets; empty: dev and every test set
    model: str | None = None  # a reader's folder; None: the run's own
    n_best: int = Field(20, ge=1)
    max_answer_length: int = Field(30, ge=1)  # tokens
    nbest_compat: Literal["exact", "top_n_product"] = "exact"
    batch_tokens: int = Field(4096, ge=16)  # padded tokens in one forward pass
    precision: Literal["fp32", "bf16"] = "fp32"


class EvaluateConfig(Section):
    predictions: dict[str, str] = {}  # test set -> another tool's predictions file in the SQuAD layout
    at_k: list[Annotated[int, Field(ge=1)]] = [1, 3, 5, 10, 20]
    bootstrap: int = Field(1000, ge=0)
    ties: Literal["id", "pessimistic"] = "id"  # candidates with equal scores: by their ids, or the wrong ones first


class ClusterConfig(Section):
    """Where the work runs. Nothing here changes a result, but for dropout, which is drawn per worker, and rounding: sums depend
    on train workers and on threads. With threads_per_worker set, the number of actors changes no bit.
    """

    address: str | None = None  # a running cluster; None: RAY_ADDRESS, else a local one
    local_cpus: int | None = Field(None, ge=1)  # logical CPUs of a local cluster; None: enough for workers and Ray Data
    workers: Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = 1
    threads_per_worker: int | None = Field(None, ge=1)  # or actor; None: this machine's cores divided among them
    gpus_per_worker: float = Field(0, ge=0)
    actors: int = Field(1, ge=1)  # model replicas of a Ray Data stage
    max_failures: int = Field(3, ge=-1)  # of train workers, before the run gives up; -1: never

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if isinstance(self.workers, tuple) and self.workers[0] > self.workers[1]:
            raise ValueError(f"workers [min, max] should not fall, got {list(self.workers)}")
        return self

    @property
    def max_workers(self) -> int:
        return self.workers[1] if isinstance(self.workers, tuple) else self.workers


class TrackConfig(Section):
    """Trackers that a training is logged to, beside the run's own files. Nothing here changes a result."""

    mlflow: str | None = None  # a tracking URI: http://HOST:5000, sqlite:///runs/mlflow.db
    wandb: str | None = None  # a project, or TEAM/PROJECT
    experiment: str = "raydist"  # MLflow's
    group: str | None = None  # runs to be shown together; trials get the name of their sweep

    @field_validator("mlflow")
    @classmethod
    def _no_folder_no_password(cls, value: str | None) -> str | None:
        if value and (value.startswith("file:") or not ("://" in value or value.startswith("databricks"))):
            raise ValueError(f"MLflow no longer keeps runs in folders: give a server or sqlite:///mlflow.db, got {value!r}")
        if value and value.startswith("http") and "@" in value.split("/")[2]:
            raise ValueError(
                "an address in a config is shown in reports: leave user and password out of it, and put them into "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return value

    @property
    def on(self) -> list[str]:
        """The trackers that are asked for; each is a package and an extra of the same name."""
        return [name for name in ("mlflow", "wandb") if getattr(self, name)]


class SweepConfig(Section):
    """Trials of one config (`raydist sweep`): dotted keys take values of `space`, which training/search.py checks."""

    space: dict[str, Any] = Field(min_length=1)  # key: [values], or {choice: [...]}, {uniform: [low, high]}, loguniform, int
    search: Literal["grid", "random", "optuna"] = "grid"
    trials: int | None = Field(None, ge=1)  # settings to try, each with all seeds; 20 for random and optuna; grid tries all
    seeds: list[Annotated[int, Field(ge=0)]] = []  # every setting with each of them; empty: the config's own seed
    metric: str = Field("dev.f1", pattern=r"^[A-Za-z0-9_-]+\..+$")  # a key of metrics.json, which settings are ranked by
    mode: Literal["max", "min"] = "max"
    at_once: int | None = Field(None, ge=1)  # trials; None: as many as the CPUs (or GPUs) hold
    keep: int = Field(1, ge=0)  # models of so many of the best trials; other trials keep their numbers alone
    scheduler: Literal["none", "asha", "median"] = "none"  # stops trials early, by the dev score during training
    grace_steps: int | None = Field(None, ge=1)  # no trial is stopped before; None: train.evaluate_every
    reduction: float = Field(3.0, gt=1)  # asha: of the trials at a rung, one in so many goes on

    @field_validator("scheduler", mode="before")
    @classmethod
    def _no_pbt(cls, value: Any) -> Any:
        if value == "pbt":
            raise ValueError(
                "population-based training is left out: it changes settings while it trains, so no config could make the best "
                "model again; use asha or median"
            )
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError(f"a seed is given twice: {value}")
        return value


class Config(Section):
    """Everything a run is made of; the same for every command."""

    name: str = Field("reader", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")  # slashes: folders
    task: Literal["reader", "retriever", "cross_encoder"] = "reader"
    storage: str = "runs"  # a folder, or a URI that pyarrow opens (s3://, gs://, hdfs://)
    seed: int = Field(0, ge=0)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    objectives: ObjectivesConfig = ObjectivesConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    predict: PredictConfig = PredictConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    corpus: CorpusConfig = CorpusConfig()
    index: IndexConfig = IndexConfig()
    mining: MiningConfig = MiningConfig()
    cross_encoder: CrossEncoderConfig = CrossEncoderConfig()
    retriever: RetrieverConfig = RetrieverConfig()
    cluster: ClusterConfig = ClusterConfig()
    track: TrackConfig = TrackConfig()
    sweep: SweepConfig | None = None

    @field_validator("name")
    @classmethod
    def _not_stages(cls, value: str) -> str:
        if value.split("/")[0] == "stages":
            raise ValueError("'stages' is the folder of the stage cache: choose another name")
        return value

    def _problems(self) -> Iterator[str]:
        rows, workers = self.train.batch_size // self.train.accumulate, self.cluster.max_workers
        if rows < workers:
            yield f"{workers} workers cannot share {rows} rows: train.batch_size / train.accumulate must reach cluster.workers"
        if self.train.early_stop and not self.data.dev and self.task == "reader":
            yield "train.early_stop needs a dev set: set data.dev"
        if self.objectives.infomax and rows < 2:
            yield (
                f"objectives.infomax draws negatives from the batch, and one forward pass has {rows} row: set train.batch_size "
                f"over train.accumulate to 2 or more"
            )
        pfa = self.objectives.pfa
        if pfa and pfa.has_critic and pfa.penalty_at == "embedding" and self.model.attention == "sdpa":
            yield (
                "objectives.pfa.penalty_at: embedding needs a second derivative, which model.attention: sdpa has not: "
                "use eager or auto, or penalty_at: representation"
            )
        contrast = self.objectives.answer_contrast
        if contrast and contrast.schedule == "sequential" and contrast.sequential_epochs >= self.train.epochs:
            yield (
                f"objectives.answer_contrast waits for sequential_epochs {contrast.sequential_epochs:g}, and train.epochs is "
                f"{self.train.epochs:g}: it would never act; lower the first or raise the second"
            )
        if contrast and contrast.negatives == "in_batch" and rows < 2:
            yield "objectives.answer_contrast.negatives: in_batch needs two rows or more in a pass: raise train.batch_size"
        elif contrast and contrast.negatives == "in_batch" and not contrast.gather and rows // workers < 2:
            yield (
                f"objectives.answer_contrast.negatives: in_batch needs two rows or more in a pass, and without gather each of "
                f"{workers} workers has {rows // workers}: raise train.batch_size, or set gather: true"
            )
        hard, source = self.objectives.hard_learning, self.data.train
        if hard and hard.nbest_folds > 1 and source and source.leave_out:
            yield (
                f"objectives.hard_learning.nbest_folds {hard.nbest_folds} lets each base reader leave out a fold of its own, "
                f"and data.train.leave_out is {list(source.leave_out)}: leave one of the two out"
            )
        if self.task != "reader" and (named := [name for name, section in self.objectives if section and name != "span"]):
            yield f"objectives.{named[0]} is for readers, and task is {self.task}: leave it out"
        asked = {"predict.split": self.predict.split, "evaluate.predictions": list(self.evaluate.predictions)}
        for key, names in asked.items() if self.task == "reader" else ():
            for name in names:
                if name not in self.sets():
                    yield f"{key}: there is no data set {name!r}; there are {', '.join(self.sets()) or 'none'}"
        if self.task == "reader" and self.train.metric not in ("f1", "em"):
            yield f"train.metric: a reader has f1 and em, not {self.train.metric}"
        if self.cross_encoder.train.metric == "em":
            yield "cross_encoder.train.metric: a cross-encoder has f1, average_precision and accuracy, not em"
        if self.cross_encoder.train.dev_questions:
            yield (
                "cross_encoder.train.dev_questions has no effect: a cross-encoder is judged by all pairs of the questions that "
                "mining.dev_share holds out; leave it out"
            )
        if self.task == "retriever":
            yield from self._without_dev_set()
        if self.retriever.loss != "softmax" and not self.mining.hard_negatives:
            yield (
                f"retriever.loss: {self.retriever.loss} learns from scores of mined negatives: set mining.hard_negatives to 1 "
                f"or more"
            )
        given = self.retriever
        if given.temperature != 1 and given.loss != "kl":
            yield (
                f"retriever.temperature is that of retriever.loss: kl, and the loss is {given.loss}: set retriever.scale "
                f"({1 / given.temperature:g} is this temperature), or leave it out"
            )
        for key, usual in (("objective", "log"), ("mask_known_positives", True)):
            if (value := getattr(given, key)) != usual and given.loss != "softmax":
                yield (
                    f"retriever.{key}: {str(value).lower()} is about the columns of retriever.loss: softmax, and the loss is "
                    f"{given.loss}: leave it out"
                )

    def _without_dev_set(self) -> Iterator[str]:
        """What a retriever would pass over: it is judged by searching, after training."""
        train, usual = self.train, TrainConfig()
        for key in ("early_stop", "evaluate_every", "dev_questions", "metric"):
            if getattr(train, key) and getattr(train, key) != getattr(usual, key):
                yield (
                    f"train.{key} has no effect: a retriever is judged after training, by the scores of corpus.test, and has "
                    f"no dev set; leave it out"
                )

    def sets(self) -> dict[str, SourceConfig]:
        """Every data set by name: train, dev and the test sets that are given."""
        named = {"train": self.data.train, "dev": self.data.dev}
        return {name: source for name, source in named.items() if source} | self.data.test


# --- reading ---------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key given twice is an error, not a silent choice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    pairs = [(loader.construct_object(key, deep=True), key) for key, _ in node.value]
    seen: set = set()
    for key, at in pairs:
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, f"a key should be a plain value, got {key!r}", at.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", at.start_mark)
        seen.add(key)
    return {key: loader.construct_object(value, deep=True) for (key, _), (_, value) in zip(pairs, node.value)}


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def shipped_configs() -> Path:
    """The folder of the configs that come with the package."""
    packed = Path(__file__).parent / "configs"
    return packed if packed.is_dir() else Path(__file__).parents[1] / "configs"


def find_config(name: str) -> Path:
    """A file by its path, or a shipped config by its name (`quickstart`, `paper/infomax`)."""
    path = Path(name)
    if path.is_file():
        return path
    folder = shipped_configs()
    shipped = folder / (name.removeprefix("configs/").removesuffix(".yaml") + ".yaml")
    if shipped.is_file() and shipped.resolve().is_relative_to(folder.resolve()):
        return shipped
    known = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml") if "cluster" not in p.parts)
    near = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "give a file, or one of these that ship with raydist: " + ", ".join(known)
    what = "is a folder, not a YAML file" if path.is_dir() else "no such config"
    raise ConfigError(f"{name}: {what}; {hint}")


@dataclass(frozen=True)
class Loaded:
    """A config and, for each dotted key that was set, where its value came from."""

    config: Config
    origins: dict[str, str]


def load_config(name: str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a config, apply what it extends and the overrides, check all of it."""
    path = find_config(name)
    values, origins = _read(path, ())
    problems: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(f"{override}: an override is key=value")
            continue
        try:
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError) as error:  # a ValueError: a value such as 2026-02-31
            problems.append(f"{key}: not YAML: {text!r} ({_first_line(error)})")
            continue
        if isinstance(value, dict) and not text.lstrip().startswith("{"):
            value = text  # `prefix=query: ` is a text; on a command line a mapping is written in braces
        if blocked := _set(values, key.split("."), value):
            problems.append(blocked)
            continue
        origins = {k: v for k, v in origins.items() if k != key and not k.startswith(key + ".")}
        origins |= dict.fromkeys((".".join(leaf) for leaf, _ in _leaves(value, tuple(key.split(".")))), "command line")
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += _explained(error) + _problems_beside(values, error)
    if problems:
        problems = sorted(set(problems))
        count = f"{len(problems)} problem" + "s" * (len(problems) > 1)
        given = f" with {len(overrides)} override" + "s" * (len(overrides) > 1) if overrides else ""
        raise ConfigError(f"{path}{given}: {count}\n  " + "\n  ".join(problems))
    return Loaded(config, origins)


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """The same config with some dotted keys changed, checked again."""
    values = config.model_dump(mode="json", exclude_unset=True)
    problems = [blocked for key, value in changes.items() if (blocked := _set(values, key.split("."), value))]
    try:
        changed = Config.model_validate(values)
    except ValidationError as error:
        problems += _explained(error)
    if problems:
        raise ConfigError("; ".join(problems))
    return changed


def to_yaml(config: Config) -> str:
    """Complete and plain: runs again as it is."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flatten(config: Config) -> dict[str, Any]:
    """Every leaf under its dotted key."""
    return {".".join(path): value for path, value in _leaves(config.model_dump(mode="json"), ())}


def _read(path: Path, chain: tuple[Path, ...]) -> tuple[dict, dict[str, str]]:
    if path.resolve() in chain:
        raise ConfigError(f"{path} extends itself: " + " -> ".join(map(str, (*chain, path))))
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {_first_line(error)}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections, got {type(values).__name__}")
    base: dict = {}
    origins: dict[str, str] = {}
    extends = values.pop("extends", None)
    parents = [] if extends is None else _listed(extends)  # `extends:` with nothing behind it is as if left out
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: extends should be the name of a config or a list of names, got {extends!r}")
    for parent in parents:
        beside = path.parent / parent
        parent_values, parent_origins = _read(beside if beside.is_file() else find_config(parent), (*chain, path.resolve()))
        base, origins = _merge(base, parent_values), origins | parent_origins
    own = {".".join(leaf): str(path) for leaf, _ in _leaves(values, ())}
    merged = _merge(base, values)
    kept = {".".join(leaf) for leaf, _ in _leaves(merged, ())}
    return merged, {key: origin for key, origin in (origins | own).items() if key in kept}


def _merge(base: Any, over: Any) -> Any:
    whole = isinstance(over, dict) and over.keys() & {"files", "hub"}  # a data set replaces the one it is named like
    if isinstance(base, dict) and isinstance(over, dict) and not whole:
        return base | {key: _merge(base.get(key), value) for key, value in over.items()}
    return over


def _set(values: dict, path: list[str], value: Any) -> str | None:
    """What is wrong where the path leads through a plain value; files of a data set may stand there, in short."""
    for depth, key in enumerate(path[:-1], 1):
        if isinstance(values.get(key), str | list) and path[0] in ("data", "corpus"):
            values[key] = {"files": values[key]}
        elif values.get(key) is None:
            values[key] = {}
        elif not isinstance(values[key], dict):
            parent = ".".join(path[:depth])
            return f"{'.'.join(path)}: {parent} is {values[key]!r}, which has no keys; set {parent} itself"
        values = values[key]
    values[path[-1]] = value
    return None


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {text}" if mark else text


# --- explaining ------------------------------------------------------------------------------------------------------


# in the place of a problem: which alternative it is of
SHAPES = ("function-", "tuple[", "constrained-", "literal[", "list[", "dict[")


def _path(problem: Any) -> list[str]:
    path = [str(part) for part in problem["loc"] if not str(part).startswith(SHAPES)]
    return path[:-1] if problem["type"] == "string_type" and path[-1:] == ["str"] else path  # `str` is an alternative as well


def _problems_beside(values: dict, error: ValidationError) -> list[str]:
    """What is wrong between keys, where others that are wrong by themselves keep it from being looked at: the same values are
    checked without these. A problem that names one of them may come from its absence, and waits until it is mended.
    """
    found = {tuple(_known_part(values, _path(problem))): problem["type"] for problem in error.errors()}
    wrong = {path: kind for path, kind in found.items() if path and kind != "value_error"}
    values = copy.deepcopy(values)
    for path in sorted(wrong, key=len, reverse=True):
        section = values
        for key in path[:-1]:
            section = section[key]
        del section[path[-1]]
    names = [path[-1] for path, kind in wrong.items() if kind != "extra_forbidden"]
    try:
        Config.model_validate(values)
    except ValidationError as left:
        told = [_explain(problem) for problem in left.errors() if problem["type"] == "value_error"]
        return [text for text in told if not any(name in text for name in names)]
    return []


def _known_part(values: Any, path: list[str]) -> Iterator[str]:
    """The keys of a path that are there."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return
        yield key
        values = values[key]


def _explained(error: ValidationError) -> list[str]:
    """A line for each problem. Where alternatives are allowed, each has its own: those of another shape than the value's are
    left out, if one has its shape."""
    found = [(tuple(_path(problem)), problem) for problem in error.errors()]

    def is_of_shape(problem: Any) -> bool:
        return not problem["type"].endswith(("_type", "literal_error"))

    def is_told_better(path: tuple[str, ...]) -> bool:
        return any(other[: len(path)] == path and (len(other) > len(path) or is_of_shape(problem)) for other, problem in found)

    return [_explain(problem) for path, problem in found if is_of_shape(problem) or not is_told_better(path)]


def _explain(problem: Any) -> str:
    """One line of a validation error: the full key, what was wanted, what was seen."""
    path = _path(problem)
    key = ".".join(path) or "the config"
    if problem["type"] == "extra_forbidden":
        near = _nearest(path)
        return f"{key}: unknown key" + (f"; did you mean {near}?" if near else "")
    if problem["type"] == "value_error":
        return f"{key}: {problem['ctx']['error']}"
    message = problem["msg"].replace("Input should", "should")
    return f"{key}: {message[0].lower() + message[1:]}, got {problem['input']!r}"


def _nearest(path: list[str]) -> str | None:
    """The known dotted key closest to an unknown one: among its siblings, else anywhere."""
    known = list(_known_keys(Config, (), path))
    parent, name = ".".join(path[:-1]), path[-1]
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == parent}
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)  # by its own name: what stands before is the same
    if near:
        return siblings[near[0]]
    same_name = [key for key in known if key.rpartition(".")[2] == name]
    if same_name:
        return min(same_name, key=lambda key: key.count("."))
    return next(iter(difflib.get_close_matches(".".join(path), known, n=1, cutoff=0.75)), None)


def _known_keys(section: type[BaseModel], path: tuple[str, ...], asked: Sequence[str]) -> Iterator[str]:
    """Dotted keys of a section; of sections by name, such as test sets, those of the name that was asked for."""
    for name, info in section.model_fields.items():
        here = (*path, name)
        yield ".".join(here)
        for inner in _sections(info.annotation):
            yield from _known_keys(inner, here, asked)
        if get_origin(info.annotation) is dict and tuple(asked[: len(here)]) == here and len(asked) > len(here):
            for inner in _sections(get_args(info.annotation)[1]):
                yield from _known_keys(inner, (*here, asked[len(here)]), asked)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated):
        for part in get_args(annotation):
            yield from _sections(part)
