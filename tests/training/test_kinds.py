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


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "kl", "temperature": 2.5, "scale": 20.0, "normalise": "weight_sum"},
        {"loss": "margin_mse", "scale": 10.0},
        {"loss": "softmax", "objective": "prob", "mask_known_positives": False},
    ],
)
def test_the_loss_of_a_retriever_is_the_configs(tmp_path, given):
    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    keys = {"question_keys": [1], "bag_keys": [3], "positives": [[3]]}
    table = tokenize_pairs(tokenizer, ["Who?"], ["He."], **keys)
    (tmp_path / "part.arrow").write_bytes(encode_table(table, "arrow", {}))
    changes = {"task": "retriever", "model.name": "builtin:tiny", "mining.hard_negatives": 1}
    config = override(Config(), changes | {f"retriever.{key}": value for key, value in given.items()})
    kind = RetrieverKind(config, {"train": {"rows_folder": str(tmp_path), "parts": ["part.arrow"]}}, 0, 1)
    loss = kind.build_task(1).objective
    wanted = {name: getattr(config.retriever, name) for name in inspect.signature(Ranking).parameters}
    assert {name: getattr(loss, name) for name in wanted} == wanted
    assert wanted.items() >= given.items()


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
