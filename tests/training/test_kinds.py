"""What the config says of a task reaches its module, and is known of it afterwards."""

import inspect

import pytest
from transformers import AutoTokenizer

from raydist.cluster.pipeline import RETRIEVER_LOSS
from raydist.config import Config, override
from raydist.models import model_folder
from raydist.objectives.ranking import Ranking
from raydist.retriever.rows import tokenize_pairs
from raydist.storage import encode_table
from raydist.training.kinds import ReaderKind, RetrieverKind


def retriever_kind(folder, changes: dict) -> RetrieverKind:
    """A retriever's, on one row."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    table = tokenize_pairs(tokenizer, ["Who?"], ["He."], question_keys=[1], bag_keys=[3], positives=[[3]])
    (folder / "part.arrow").write_bytes(encode_table(table, "arrow", {}))
    config = override(Config(), {"task": "retriever", "model.name": "builtin:tiny", "mining.hard_negatives": 1} | changes)
    return RetrieverKind(config, {"train": {"rows_folder": str(folder), "parts": ["part.arrow"]}}, 0, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "kl", "temperature": 2.5, "scale": 20.0, "normalise": "weight_sum"},
        {"loss": "margin_mse", "scale": 10.0},
        {"loss": "softmax", "objective": "prob", "mask_known_positives": False},
    ],
)
def test_the_loss_of_a_retriever_is_the_configs(tmp_path, given):
    kind = retriever_kind(tmp_path, {f"retriever.{key}": value for key, value in given.items()})
    loss, config = kind.build_task(1).objective, kind.config
    wanted = {name: getattr(config.retriever, name) for name in inspect.signature(Ranking).parameters}
    assert {name: getattr(loss, name) for name in wanted} == wanted
    assert wanted.items() >= given.items()


@pytest.mark.parametrize("choose", ["best", "last"])
def test_a_retriever_is_not_chosen_by_scores_and_says_so(tmp_path, choose):
    said = retriever_kind(tmp_path, {"train.choose": choose}).remarks()
    assert ["the last model is taken" in text for text in said] == [True] * (choose == "best")


def test_a_retriever_of_two_towers_is_trained_further(tmp_path):
    first = retriever_kind(tmp_path, {"retriever.towers": "separate"})
    encoder = first.build_task(1)
    first.save(encoder, tmp_path / "first")
    second = retriever_kind(tmp_path, {"model.name": str(tmp_path / "first")})
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
def test_a_penalty_at_the_embeddings_takes_eager_attention_and_says_so(attention, penalty_at, used, said):
    objectives = {"pfa": {"penalty_at": penalty_at, "bottleneck": 4, "critic_size": 4}}
    config = Config(model={"name": "builtin:tiny", "attention": attention}, objectives=objectives)
    kind = ReaderKind(config, {"train": {"windows_folder": ".", "windows": []}}, 0, 1)
    assert kind.build_task(1).reader.config._attn_implementation == used
    assert len(kind.remarks()) == bool(said)
    assert said in "".join(kind.remarks())


def test_all_that_a_retrievers_loss_depends_on_makes_another_run():
    assert set(inspect.signature(Ranking).parameters) <= set(RETRIEVER_LOSS)
