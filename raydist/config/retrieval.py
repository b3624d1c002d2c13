"""Corpora, indexes, mining, and the encoders of retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, field_validator, model_validator

from raydist.config.section import NOTHING, ROWS, SCORES, WEIGHTS, OneOf, Section, is_plain_name, key, listed, section
from raydist.config.training import ModelConfig, OptimConfig, TrainConfig

CORPUS_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {  # of table formats: columns that may be mapped
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
    there are no questions about them, so they can be indexed and searched, and nothing else; msmarco: the published folder, or
    its three files without headers, where questions may be TREC topics. A BEIR set may be a ZIP archive.
    """

    files: Annotated[list[str], BeforeValidator(listed)] = key(
        ..., "Files or folder of the corpus; sample:NAME is in the embedded sample", ROWS
    )
    format: Annotated[str, OneOf("auto", table="raydist.corpus.formats:CORPUS_FORMATS")] = key(
        "auto", "Format of the files; auto: recognised from names and content", ROWS
    )
    split: str = key("train", "beir, msmarco: which file of qrels", ROWS)
    boundaries: str | None = key(None, "squad: file of MultiReQA sentence boundaries; null: cut by rule", ROWS)
    language: str | None = key(
        None, "Language of rows that state none, such as de; null: as file names have it, else English", ROWS, later=True
    )
    columns: dict[str, str | dict[str, str]] = key(
        {}, "tables, documents: names of the columns in the files, for all tables or {corpus: {text: its name}, ...}", ROWS
    )
    questions: int | None = key(None, "Size of a seeded sample of the questions; null: all", ROWS, unit="questions", ge=1)

    def columns_of(self, table: str) -> dict[str, Any]:
        """Our column name -> the file's."""
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
    def _questions_exist(self) -> Self:
        if self.questions and self.format == "documents":
            raise ValueError("questions: there are none about documents to choose from; leave it out")
        return self

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        tables = CORPUS_COLUMNS.get(self.format, {})
        if self.format == "auto":
            tables = CORPUS_COLUMNS["tables" if len(self.files) == 3 else "documents"]
        if self.columns and not tables:
            raise ValueError(f"columns: format {self.format} has fixed names; leave them out, or use tables or documents")
        if self._by_table and not all(isinstance(self.columns[name], dict) and name in tables for name in self.columns):
            raise ValueError(
                f"columns: wanted {{our name: the file's}}, or such a map for each of {', '.join(tables)}; got {self.columns}"
            )
        for table, own in tables.items():
            known = own if self._by_table else sorted({name for names in tables.values() for name in names})
            for name in self.columns_of(table):
                if name not in known:
                    raise ValueError(f"columns: unknown name {name!r}; known are {', '.join(known)}")
        return self


class CorpusConfig(Section):
    """What retrieval works on: pairs to train and mine with, and sets to test on."""

    train: CorpusSource | None = key(None, "Corpus for mining and training", ROWS)
    dev: CorpusSource | None = key(None, "Corpus whose questions choose the retriever during training", ROWS, later=True)
    dev_share: float = key(
        0.0, "Share of train's questions held out as dev, drawn by their text; 0: none", ROWS, later=True, ge=0, lt=1
    )
    judgements: Annotated[list[str], BeforeValidator(listed)] = key(
        [], "Files of judgements: accepted pairs of train are gold, rejected ones negatives (docs/judging.md)", ROWS, later=True
    )
    test: Annotated[dict[str, CorpusSource], BeforeValidator(lambda value: value or {})] = key({}, "Test corpora by name", ROWS)

    @property
    def has_dev(self) -> bool:
        return bool(self.dev or self.dev_share)

    def _problems(self) -> Iterator[str]:
        if self.dev and self.dev_share:
            yield f"dev is a corpus of its own, and dev_share {self.dev_share:g} holds out questions of train: keep one of them"
        if self.judgements and not self.train:
            yield "judgements are of pairs of train, and there is no train: set it, or leave them out"
        if self.has_dev and "dev" in self.test:
            yield "a test set is called dev, which is the name of the questions that models are chosen by: name it otherwise"

    @field_validator("test")
    @classmethod
    def _plain_names(cls, value: dict[str, CorpusSource]) -> dict[str, CorpusSource]:
        for name in value:
            if not is_plain_name(name):
                raise ValueError(f"a test set cannot be called {name!r}: use letters, digits, - and _")
        return value


class IvfConfig(Section):
    """Cells of each shard of a dense index of kind ivf or pq; null: a number that suits the shard's size."""

    nlist: int | None = key(None, "Cells of a shard; null: four times the root of its rows", ROWS, unit="cells", ge=1)
    nprobe: int | None = key(None, "Cells visited by a search; null: one in 32, but at least 16", ROWS, unit="cells", ge=1)

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.nlist and self.nprobe and self.nprobe > self.nlist:
            raise ValueError(f"nprobe {self.nprobe} is more than the {self.nlist} cells of nlist: lower it, or leave it out")
        return self


class HnswConfig(Section):
    """The graph of each shard of a dense index of kind hnsw."""

    m: int = key(32, "Neighbours of a row", ROWS, unit="rows", ge=2)
    ef_construction: int = key(200, "Candidate rows considered for a row's neighbours", ROWS, unit="rows", ge=1)
    ef_search: int = key(128, "Candidate rows kept during a search", ROWS, unit="rows", ge=1)


class PqConfig(Section):
    """Codes of a dense index of kind pq, whose cells are those of ivf."""

    m: int | None = key(
        None, "Parts of a vector; must divide its dimension; null: parts of about eight units", ROWS, unit="parts", ge=1
    )
    bits: int = key(8, "Size of a part's code", ROWS, unit="bits", ge=4, le=12)


class IndexConfig(Section):
    """How sentences are indexed. Results do not depend on shard_rows (with an approximate dense kind, their recall does)."""

    kind: Literal["bm25", "dense"] = key("bm25", "Index that `raydist index` builds", ROWS)
    k1: float = key(0.9, "BM25: saturation of a word's count", ROWS, ge=0)
    b: float = key(0.4, "BM25: share of the length normalisation", ROWS, ge=0, le=1)
    idf: Literal["lucene", "robertson", "atire"] = key("lucene", "BM25: weight of a rare word", ROWS)
    min_chars: int = key(2, "BM25: length of the shortest words", ROWS, unit="characters", ge=1)
    stop_words: Literal["none", "english"] | list[str] = key("none", "BM25: words that are left out; also a list", ROWS)
    stemmer: str = key("", "BM25: a Snowball language such as english; empty: no stemming", ROWS)
    dense: Literal["flat", "ivf", "hnsw", "pq"] = key(
        "flat", "Kind of dense index; flat is exact, the others have sections of their own", ROWS
    )
    ivf: IvfConfig = section(IvfConfig(), "Cells of kinds ivf and pq")
    hnsw: HnswConfig = section(HnswConfig(), "Graph of kind hnsw")
    pq: PqConfig = section(PqConfig(), "Codes of kind pq")
    shard_rows: int = key(250_000, "Sentences of a shard", ROWS, unit="rows", ge=1)
    precision: Literal["fp32", "bf16"] = key(
        "fp32", "Precision of products in the encoder; vectors are float32 in any case", ROWS
    )

    def formula(self) -> dict[str, Any]:
        """The parameters of BM25 search."""
        return {"k1": self.k1, "b": self.b, "idf": self.idf}

    def dense_settings(self) -> dict[str, Any]:
        """The settings that build a dense index: only parameters of its kind, so that others do not change the index."""
        cells = {"nlist": self.ivf.nlist}
        graph = {"hnsw_m": self.hnsw.m, "ef_construction": self.hnsw.ef_construction}
        codes = {"pq_m": self.pq.m, "pq_bits": self.pq.bits}
        of_kind: dict[str, dict[str, Any]] = {"flat": {}, "ivf": cells, "hnsw": graph, "pq": cells | codes}
        return {"kind": self.dense, **of_kind[self.dense]}

    def dense_search(self) -> dict[str, Any]:
        """The search parameters of a dense index of this kind."""
        probes, view = {"nprobe": self.ivf.nprobe}, {"ef_search": self.hnsw.ef_search}
        of_kind: dict[str, dict[str, Any]] = {"flat": {}, "ivf": probes, "hnsw": view, "pq": probes}
        return of_kind[self.dense]


class MiningConfig(Section):
    """Candidates, scores, silver pairs (docs/methods.md 5.2 to 5.5). Trials share the scores and choose their own pairs."""

    encoder: str = key(
        "builtin:minilm", "Encoder of the dense source; later rounds use the retriever trained in the previous round", ROWS
    )
    pooling: Literal["auto", "cls", "mean"] = key("auto", "Pooling of this encoder; auto: as its folder declares", ROWS)
    question_prefix: str | None = key(None, "Text before each question; null: as the encoder's folder declares", ROWS)
    answer_prefix: str | None = key(None, "Text before each sentence; null: as the encoder's folder declares", ROWS)
    candidates: int = key(10, "Candidates per question from each source", ROWS, unit="sentences", ge=1)
    same_doc: int = key(0, "Additional candidates, drawn from a gold answer's document", ROWS, unit="sentences", ge=0)
    negatives_per_source: int = key(
        1, "Negatives per gold pair from each source, for training the cross-encoder", ROWS, unit="sentences", ge=1
    )
    dev_share: float = key(0.1, "Share of the questions held out to judge the cross-encoder", ROWS, gt=0, lt=1)
    threshold: float = key(0.5, "Minimum probability of a silver pair", ROWS, shared=False, ge=0, le=1)
    precision: float | None = key(
        None,
        "Take in place of threshold the lowest probability from which this share of the held-out pairs is right",
        ROWS,
        shared=False,
        later=True,
        gt=0,
        le=1,
    )
    power: float = key(2.0, "Exponent of the probability in a silver pair's weight", ROWS, shared=False, ge=0)
    weighting: Literal["power", "none", "binary"] = key(
        "power",
        "Weight of a silver pair: a power of its probability, always 1, or 1 if the probability is at least 0.5",
        ROWS,
        shared=False,
    )
    calibrate: Literal["none", "temperature", "platt"] = key(
        "none", "Calibration of the cross-encoder's probabilities on held-out pairs", ROWS, shared=False
    )
    hard_negatives: int = key(
        0, "Rejected candidates of a question used as additional negatives", ROWS, shared=False, unit="sentences", ge=0
    )
    negative_p: float = key(0.1, "Maximum probability of a hard negative", ROWS, shared=False, ge=0, le=1)
    rounds: int = key(
        1, "Rounds of mining, each with the retriever of the previous one", ROWS, shared=False, unit="rounds", ge=1
    )
    part_questions: int = key(500, "Questions in a block, the unit of work and resumption", ROWS, unit="questions", ge=1)

    def _problems(self) -> Iterator[str]:
        if self.precision is not None and self.threshold != 0.5:
            yield (
                f"precision {self.precision:g} chooses the threshold, and threshold {self.threshold:g} is given: leave one of "
                "them out"
            )


class FusionConfig(Section):
    """How the ranked lists of BM25 and of vectors are combined (retrieval/fusion.py)."""

    kind: Literal["auto", "rrf", "minmax", "z"] = key(
        "auto",
        "rrf: reciprocal ranks; minmax, z: scaled scores; auto: the best on the development questions, else rrf",
        SCORES,
        later=True,
    )
    dense_weight: float = key(
        0.5, "Weight of the vectors' scores in minmax and z; the rest is BM25's", SCORES, later=True, ge=0, le=1
    )


class RetrieverConfig(Section):
    """The dual encoder and its loss (docs/methods.md 5.5 to 5.7)."""

    pooling: Literal["auto", "cls", "mean"] = key(  # shared: the encoder also searches before training
        "auto", "How token vectors are pooled into a text's vector; auto: as the model's folder declares", WEIGHTS, shared=True
    )
    question_prefix: str | None = key(
        None, 'Text before each question, such as "query: "; null: as the model\'s folder declares, else none', ROWS
    )
    answer_prefix: str | None = key(
        None, 'Text before each answer, such as "passage: "; null: as the model\'s folder declares, else none', ROWS
    )
    towers: Literal["auto", "shared", "separate"] = key(
        "auto", "One encoder for questions and answers, or two; auto: as many as the model's folder has", WEIGHTS
    )
    answer_context: Literal["paragraph", "none"] = key(
        "paragraph", "Text that follows a sentence: its paragraph, or none", ROWS
    )
    max_question_length: int = key(96, "Maximum length of a question", ROWS, unit="tokens", ge=4)
    max_answer_length: int = key(384, "Maximum length of a sentence with its context", ROWS, unit="tokens", ge=8)
    loss: Literal["softmax", "margin_mse", "kl"] = key(
        "softmax", "Weighted in-batch softmax, or distillation of the cross-encoder", WEIGHTS
    )
    objective: Literal["log", "prob"] = key("log", "softmax: log-probabilities, or the published sum of probabilities", WEIGHTS)
    normalise: Literal["count", "weight_sum"] = key(
        "count", "Divide the loss by the number of rows, or by the sum of their weights", WEIGHTS
    )
    scale: float = key(100.0, "Factor on the dot products that the losses use as scores", WEIGHTS, gt=0)
    temperature: float = key(1.0, "kl: divides the scores of encoder and cross-encoder", WEIGHTS, gt=0)
    mask_known_positives: bool = key(True, "softmax: do not use a question's other known answers as negatives", WEIGHTS)
    bucket_by_length: bool = key(True, "Batch pairs of similar length together, which saves padding", WEIGHTS)
    chunk_rows: int | None = key(
        None, "Texts encoded at once; null: the whole batch, or 16 if cached", NOTHING, unit="texts", ge=1
    )
    cached: bool = key(False, "Train in two passes, so that only one chunk's activations are in memory", NOTHING)
    variants: list[Literal["gold", "gold_silver"]] = key(
        ["gold", "gold_silver"], "Additional retrievers to train for comparison", SCORES
    )
    search_depth: int = key(100, "Length of the ranked lists in an evaluation", SCORES, shared=True, unit="sentences")
    dev_sentences: int | None = key(
        10_000,
        "Sentences to search for dev questions during training: a seeded sample plus all gold answers; null: all",
        WEIGHTS,
        later=True,
        unit="sentences",
        ge=1,
    )
    rerank: int = key(
        20, "Sentences of a list that the cross-encoder reranks, as an upper bound; 0: none", SCORES, unit="sentences", ge=0
    )
    fusion: FusionConfig = section(FusionConfig(), "How BM25's and the encoder's lists are combined in the method hybrid")

    @field_validator("search_depth")
    @classmethod
    def _as_deep_as_its_metrics(cls, value: int) -> int:
        if value < 100:
            raise ValueError(f"MRR@100 and recall@100 need lists of at least 100: give 100 or more, got {value}")
        return value


class CrossEncoderConfig(Section):
    """The supervisor (docs/methods.md 5.3): one logit for a question and a sentence."""

    model: ModelConfig = section(ModelConfig(), "Pretrained encoder to start from")
    trained: bool = key(False, "The model is a trained cross-encoder: evaluate and use it without training", WEIGHTS)
    train: TrainConfig = section(TrainConfig(), "Its training loop")
    optim: OptimConfig = section(OptimConfig(), "Its optimizer and schedule")
    answer_context: Literal["paragraph", "none"] = key("none", "Text that follows a sentence: its paragraph, or none", ROWS)
    max_question_length: int = key(96, "Length to which questions are truncated", ROWS, unit="tokens", ge=4)
    max_length: int = key(480, "Maximum length of question and sentence together", ROWS, unit="tokens", ge=16)
    weak: Literal["refuse", "warn"] = key(
        "refuse",
        "If it is no better than mining.encoder: stop before mining, or warn and go on",
        NOTHING,
        later=True,
    )
    batch_tokens: int | None = key(
        None, "Tokens scored together by each thread; null: chosen for the device", SCORES, unit="tokens", ge=16
    )
    precision: Literal["fp32", "bf16"] = key(
        "fp32", "Precision of matrix products in scoring; for training, see cross_encoder.train.precision", SCORES
    )
