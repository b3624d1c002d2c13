import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from helpers.tiny import on_ranks
from torch.nn.parallel import DistributedDataParallel

from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.objectives.base import world_size
from raydist.objectives.pairs import Tokens
from raydist.objectives.ranking import Ranking
from raydist.retrieval.dual_encoder import load_dual_encoder
from raydist.retrieval.rows import Negative, PairRows, tokenize_pairs
from raydist.training.cached import embed_in_chunks
from raydist.training.loop import NonFiniteLoss, seed_step, total_loss, train_step, training_steps
from raydist.training.tasks import RetrieverTask

TOWNS = ["north", "south", "old", "new", "great", "small", "first", "last", "red", "green", "white"]


@cache
def make_rows() -> PairRows:
    """Eleven pairs of various lengths, two of the same question; some with negatives and a teacher."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    table = tokenize_pairs(
        tokenizer,
        [f"Where is the {town} bridge?" for town in TOWNS],
        [f"The {town} bridge {'is old and ' * (i % 4)} is in a town." for i, town in enumerate(TOWNS)],
        contexts=[f"The {town} bridge is old." if i % 3 else "" for i, town in enumerate(TOWNS)],
        weights=[1.0 if i % 2 else 0.36 for i in range(11)],
        question_keys=[0, 0, *range(2, 11)],
        bag_keys=list(range(40, 51)),
        positives=[[40 + i] for i in range(11)],
        negatives=[[Negative(f"The {TOWNS[i - 1]} road.", 80 + i, logit=-1.0 * i)] * (i % 3) for i in range(11)],
        logits=[2.0] * 11,
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.arrow"
        file.write_bytes(encode_table(table, "arrow", {}))
        return PairRows([file])  # mapped: what is open stays


def make_task(*, towers="shared", dropout=0.0, loss="softmax", **settings) -> RetrieverTask:
    encoder = load_dual_encoder(model_folder("builtin:tiny"), towers=towers, dropout=dropout, pooling="mean")
    return RetrieverTask(encoder, Ranking(loss=loss, scale=20), **settings).train()


def gradients(task, batch, seed=0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    plain = task.module if isinstance(task, DistributedDataParallel) else task
    terms = task(batch)
    (total_loss(terms, plain.weights(0)) * world_size()).backward()
    found = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    return found | {"loss": terms["ranking"].mean.detach()}


def assert_same(found, expected, rtol=1e-4):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[name], value, atol=1e-5 * scale + 1e-8, rtol=rtol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("loss", ["softmax", "margin_mse", "kl"])
def test_cached_gradients_are_the_direct_ones(towers, loss):
    batch = make_rows().batch(np.arange(11), pad_id=0)
    direct = gradients(make_task(towers=towers, loss=loss), batch)
    assert direct["loss"] > 0
    assert_same(gradients(make_task(towers=towers, loss=loss, chunk_rows=3, cached=True), batch), direct)


def test_the_second_pass_sees_the_same_dropout():
    batch = make_rows().batch(np.arange(11), pad_id=0)
    direct = gradients(make_task(dropout=0.3, chunk_rows=4), batch, seed=5)
    cached = gradients(make_task(dropout=0.3, chunk_rows=4, cached=True), batch, seed=5)
    assert_same(cached, direct)
    other = gradients(make_task(dropout=0.3, chunk_rows=4, cached=True), batch, seed=6)
    assert abs(other["loss"] - direct["loss"]) > 1e-3


def test_the_second_pass_of_a_training_step_sees_the_same_dropout():
    """It runs during the backward pass."""
    batch = make_rows().batch(np.arange(11), pad_id=0)

    def updated(cached: bool) -> dict[str, torch.Tensor]:
        task = make_task(dropout=0.3, chunk_rows=3, cached=cached)
        optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        torch.manual_seed(0)
        train_step(task, [batch], optimizer, schedule, task.weights(0), clip_norm=1e9)
        return task.state_dict()

    assert_same(updated(cached=True), updated(cached=False))


def test_between_the_passes_no_activations_are_kept():
    batch = make_rows().batch(np.arange(11), pad_id=0)
    kept = []
    for cached in (False, True):
        task, sizes = make_task(chunk_rows=4, cached=cached), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x):
            task(batch)
        kept.append(sum(sizes))
    assert kept[1] < 0.1 * kept[0]


@pytest.mark.parametrize(("cached", "seen"), [(True, [16, 16, 8]), (False, [40])])
def test_a_cached_batch_is_never_one_chunk_by_default(cached, seen):
    tokens = Tokens(torch.ones(40, 3, dtype=torch.long), torch.ones(40, 3, dtype=torch.bool), None)
    sizes: list[int] = []

    def embed(chunk: Tokens) -> torch.Tensor:
        sizes.append(len(chunk))
        return chunk.ids_BT.float()

    assert embed_in_chunks(embed, tokens, chunk_rows=None, cached=cached).shape == (40, 3)
    assert sizes == seen


def one_rank(rank: int) -> dict:
    world = torch.distributed.get_world_size()
    found = {}
    for cached in (False, True):
        task = DistributedDataParallel(make_task(chunk_rows=2, cached=cached))
        (batch,) = make_rows().step_batches([np.arange(11)], rank=rank, ranks=world, pad_id=0, seed=0, step=0)
        for _ in range(2):  # DDP complains in the second step of what went wrong in the first
            task.zero_grad()
            found[str(cached)] = gradients(task, batch)
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_equal_one_under_ddp(tmp_path, ranks):
    whole = gradients(make_task(), make_rows().batch(np.arange(11), pad_id=0))
    found = on_ranks(one_rank, tmp_path, ranks)
    for cached in ("False", "True"):
        loss = sum(part[cached]["loss"] for part in found)  # each rank has its own rows' share
        for part in found:  # DDP leaves the same gradient everywhere
            assert_same(part[cached] | {"loss": loss}, whole)


def run(task, last, batch_size=4, **plan):
    optimizer = torch.optim.AdamW(task.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    reports = []
    plan = {"seed": 0, "batch_size": batch_size, "accumulate": 1, "first": 0, "rank": 0, "ranks": 1, "pad_id": 0, **plan}
    for step, batches in training_steps(make_rows(), last=last, **plan):
        seed_step(0, step, 0)
        reports.append(train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0))
    return reports


@pytest.mark.parametrize("loss", ["softmax", "kl"])
def test_a_retriever_learns_and_moves_every_parameter(loss):
    task = make_task(loss=loss, towers="separate", chunk_rows=4, cached=True)
    before = copy.deepcopy(task.state_dict())
    reports = run(task, last=12, batch_size=11)
    assert reports[-1].loss < 0.5 * reports[0].loss
    trained = {name for name, parameter in task.named_parameters() if parameter.requires_grad}
    still = {name for name, value in task.state_dict().items() if value.equal(before[name])}
    # no text has more than a few dozen tokens, but every table has a row that is used
    assert not trained & still
    assert all("pooler" in name for name in set(before) - trained)


def test_bf16_and_fp32_agree_roughly():
    batch = make_rows().batch(np.arange(11), pad_id=0)
    exact = gradients(make_task(chunk_rows=4, cached=True), batch)["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rough = gradients(make_task(chunk_rows=4, cached=True), batch)["loss"]
    assert rough.dtype == torch.float32
    assert float(rough) == pytest.approx(float(exact), rel=0.1)


def test_a_loss_that_is_not_finite_names_the_pairs():
    task = make_task()
    with torch.no_grad():
        next(task.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteLoss, match=r"ranking is nan at step 0, before the update; pairs \d+, ") as error:
        run(task, last=1)
    assert len(error.value.rows) == 4
