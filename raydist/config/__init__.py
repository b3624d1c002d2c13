"""The config of a run: typed, closed sections, read from YAML, `extends:` and dotted overrides.

The sections by subject: reader, training, objectives, retrieval, machine; run.py has the whole and the rules between them.
"""

from raydist.config.documents import DocumentsConfig
from raydist.config.library import LibraryConfig
from raydist.config.load import (
    Loaded,
    find_config,
    flatten,
    load_config,
    override,
    shipped_configs,
    to_yaml,
)
from raydist.config.machine import ClusterConfig, TrackConfig
from raydist.config.objectives import (
    AnswerContrastConfig,
    HardLearningConfig,
    InfomaxConfig,
    ObjectivesConfig,
    PfaConfig,
    SpanConfig,
)
from raydist.config.reader import (
    EXAMPLE_COLUMNS,
    DataConfig,
    EvaluateConfig,
    PredictConfig,
    SampleConfig,
    SourceConfig,
)
from raydist.config.retrieval import (
    CORPUS_COLUMNS,
    CorpusConfig,
    CorpusSource,
    CrossEncoderConfig,
    FusionConfig,
    HnswConfig,
    IndexConfig,
    IvfConfig,
    MiningConfig,
    PqConfig,
    RetrieverConfig,
)
from raydist.config.run import Config
from raydist.config.section import Affects, ConfigError, Section
from raydist.config.serving import ServingConfig
from raydist.config.training import ModelConfig, OptimConfig, SweepConfig, TrainConfig

__all__ = [
    "CORPUS_COLUMNS",
    "EXAMPLE_COLUMNS",
    "Affects",
    "AnswerContrastConfig",
    "ClusterConfig",
    "Config",
    "ConfigError",
    "CorpusConfig",
    "CorpusSource",
    "CrossEncoderConfig",
    "DataConfig",
    "DocumentsConfig",
    "EvaluateConfig",
    "FusionConfig",
    "HardLearningConfig",
    "HnswConfig",
    "IndexConfig",
    "InfomaxConfig",
    "IvfConfig",
    "LibraryConfig",
    "Loaded",
    "MiningConfig",
    "ModelConfig",
    "ObjectivesConfig",
    "OptimConfig",
    "PfaConfig",
    "PqConfig",
    "PredictConfig",
    "RetrieverConfig",
    "SampleConfig",
    "Section",
    "ServingConfig",
    "SourceConfig",
    "SpanConfig",
    "SweepConfig",
    "TrackConfig",
    "TrainConfig",
    "find_config",
    "flatten",
    "load_config",
    "override",
    "shipped_configs",
    "to_yaml",
]
