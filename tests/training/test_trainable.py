"""What the config says of a task reaches its module, and is known of it afterwards."""

import inspect
from typing import Literal, get_args, get_origin

import pytest
import torch
from helpers.made_stage import made_stage
from transformers import AutoTokenizer

from raydist.config import (
    AnswerContrastConfig,
    Config,
    ConfigError,
    HardLearningConfig,
    InfomaxConfig,
    PfaConfig,
    RetrieverConfig,
    SpanConfig,
    override,
)
from raydist.config.roles import settings_of_weights
from raydist.models.folders import model_folder
from raydist.objectives.answer_contrast import AnswerContrast
from raydist.objectives.hard_learning import HardLearning
from raydist.objectives.infomax import Infomax
from raydist.objectives.pfa import Pfa
from raydist.objectives.ranking import Ranking
from raydist.objectives.span import Span
from raydist.reader.stages import WindowSet
from raydist.retrieval.rows import tokenize_pairs
from raydist.training.trainable import TrainableReader, TrainableRetriever


def retriever(folder, changes: dict) -> TrainableRetriever:
    """One that trains on one row."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    table = tokenize_pairs(tokenizer, ["Who?"], ["He."], question_keys=[1], bag_keys=[3], positives=[[3]])
    config = override(Config(), {"task": "retriever", "model.name": "builtin:tiny", "mining.hard_negatives": 1} | changes)
    return TrainableRetriever(config, {"train": made_stage(folder / "rows", table)}, 0, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "kl", "temperature": 2.5, "scale": 20.0, "normalise": "weight_sum"},
        {"loss": "margin_mse", "scale": 10.0},
        {"loss": "softmax", "objective": "prob", "mask_known_positives": False},
    ],
)
def test_the_loss_of_a_retriever_is_the_configs(tmp_path, given):
    trainable = retriever(tmp_path, {f"retriever.{key}": value for key, value in given.items()})
    loss, config = trainable.build_task(1).objective, trainable.config
    wanted = {name: getattr(config.retriever, name) for name in LOSS_SETTINGS}
    assert {name: getattr(loss, name) for name in wanted} == wanted
    assert wanted.items() >= given.items()


@pytest.mark.parametrize("choose", ["best", "last"])
def test_a_retriever_without_dev_is_not_chosen_by_scores_and_says_so(tmp_path, choose):
    said = retriever(tmp_path, {"train.choose": choose}).remarks()
    assert ["the last model is taken" in text for text in said] == [True] * (choose == "best")


def test_a_retriever_of_two_towers_is_trained_further(tmp_path):
    first = retriever(tmp_path, {"retriever.towers": "separate"})
    encoder = first.build_task(1)
    first.save(encoder, tmp_path / "first")
    second = retriever(tmp_path, {"model.name": str(tmp_path / "first")})
    assert second.pad_id == first.pad_id
    task = second.build_task(1)
    assert not task.encoder.is_shared
    second.save(task, tmp_path / "second")
    for name in ("query/model.safetensors", "answer/model.safetensors", "answer/tokenizer.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.parametrize(
    ("attention", "penalty_at", "used", "said"),
    [
        ("auto", "embedding", "eager", "model.attention is auto and eager is used: objectives.pfa.penalty_at: embedding needs"),
        ("eager", "embedding", "eager", ""),
        ("auto", "representation", "sdpa", ""),
    ],
)
def test_a_penalty_at_the_embeddings_takes_eager_attention_and_says_so(tmp_path, attention, penalty_at, used, said):
    objectives = {"pfa": {"penalty_at": penalty_at, "bottleneck": 4, "critic_size": 4}}
    config = Config(model={"name": "builtin:tiny", "attention": attention}, objectives=objectives)
    nothing = made_stage(tmp_path)
    trainable = TrainableReader(config, {"train": WindowSet(nothing, nothing)}, 0, 1)
    assert trainable.build_task(1).reader.config._attn_implementation == used
    assert len(trainable.remarks()) == bool(said)
    assert said in "".join(trainable.remarks())


LOSS_SETTINGS = ("loss", "objective", "normalise", "scale", "temperature", "mask_known_positives")


def test_all_that_a_retrievers_loss_depends_on_makes_another_run():
    known = settings_of_weights(Config(task="retriever"))
    assert {f"retriever.{name}" for name in LOSS_SETTINGS} <= known.keys()


BUILD = {
    InfomaxConfig: lambda **settings: Infomax(8, **settings),
    PfaConfig: lambda **settings: Pfa(8, **settings),
    HardLearningConfig: HardLearning,
    AnswerContrastConfig: lambda **settings: AnswerContrast(None, torch.zeros(4, 3), **settings),
    RetrieverConfig: Ranking,
}


@pytest.mark.parametrize("section", BUILD)
def test_an_objective_takes_the_keys_of_its_section_and_refuses_what_the_section_refuses(section):
    build = BUILD[section]
    for name, info in section.model_fields.items():
        for value in get_args(info.annotation) if get_origin(info.annotation) is Literal else ():
            build(**{name: value})
    build(**section().model_dump())
    with pytest.raises(ConfigError, match="scael: unknown key"):
        build(scael=1)


def test_the_defaults_of_the_span_loss_are_those_of_all_that_follow_it():
    wanted = {"span_reduction": SpanConfig().reduction, "mask_non_passage": SpanConfig().mask_non_passage}
    for objective in (Span, Infomax, Pfa, HardLearning, AnswerContrast):
        own = inspect.signature(objective).parameters
        shared = wanted.keys() & own.keys()
        assert {name: own[name].default for name in shared} == {name: wanted[name] for name in shared}
        assert "span_reduction" in shared
