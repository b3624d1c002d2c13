import copy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.tiny import on_ranks
from torch.nn.parallel import DistributedDataParallel

from raydist.config import Config, TrainConfig
from raydist.files.stage import encode_table
from raydist.models.folders import model_folder
from raydist.objectives.base import Term
from raydist.reader.features import make_windows
from raydist.reader.nbest_sets import make_sets
from raydist.reader.rows import WindowRows
from raydist.records import PREDICTION_SCHEMA, Example, GoldAnswer, examples_table
from raydist.training.loop import NonFiniteLoss, seed_step, total_loss, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import ReaderTask, build_reader_task


@cache
def make_rows(max_length: int = 96) -> WindowRows:
    """Windows of 37 questions with n-best sets of five spans; with a small max_length some windows are without the answer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    examples, predictions = [], []
    for i in range(37):
        year = str(1800 + i)
        context = f"The bridge of town {i} was built in {year}. " + "It is old and made of stone. " * (i % 5)
        examples.append(
            Example(f"q{i}", "When was the bridge built?", context, [GoldAnswer(year, context.index(year))], passage_id=f"p{i}")
        )
        texts = [f"in {year}", "The bridge", year, f"town {i}", "built"]
        nbest = [{"text": text, "start": (at := context.index(text)), "end": at + len(text)} for text in texts]
        predictions.append({"id": f"q{i}", "language": "en", "nbest": nbest})
    table = examples_table(examples)
    windows = make_windows(table, tokenizer, max_length=max_length, max_question_length=16, doc_stride=8)
    with TemporaryDirectory() as folder:
        file, sets = Path(folder) / "part.arrow", Path(folder) / "sets.arrow"
        file.write_bytes(encode_table(windows, "arrow", {"examples": 37}))
        found = make_sets(WindowRows([file]), table, pa.Table.from_pylist(predictions, schema=PREDICTION_SCHEMA), size=5)
        sets.write_bytes(encode_table(found, "arrow", {}))
        return WindowRows([file], [sets])  # mapped: what is open stays


@pytest.fixture
def rows() -> WindowRows:
    return make_rows()


def fresh(dropout=0.0, **settings) -> tuple[ReaderTask, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    config = Config(model={"name": "builtin:tiny", "dropout": dropout}, **settings)
    task = build_reader_task(config, model_folder("builtin:tiny"))
    optimizer = build_optimizer(task, config.optim)
    return task, optimizer, build_schedule(optimizer, config.optim, 10, 8)


def run(task, optimizer, schedule, rows, *, accumulate=1, first=0, last=6, rank=0, ranks=1):
    plan = {"seed": 0, "batch_size": 8, "accumulate": accumulate, "rank": rank, "ranks": ranks, "pad_id": 0}
    plain = task.module if isinstance(task, DistributedDataParallel) else task
    reports = []
    for step, batches in training_steps(rows, first=first, last=last, **plan):
        seed_step(0, step, rank)
        reports.append(train_step(task, batches, optimizer, schedule, plain.weights(step), clip_norm=1.0))
    return reports


def test_accumulated_groups_make_the_same_update_as_the_whole_batch(rows):
    found = []
    for accumulate in (1, 3):
        task, *_ = fresh()
        optimizer = torch.optim.SGD(task.parameters(), lr=0.1)  # AdamW would blow up what rounding leaves of a zero gradient
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        reports = run(task, optimizer, schedule, rows, accumulate=accumulate)
        found.append(([report.loss for report in reports], list(task.parameters())))
    (whole, after), (cut, after_cut) = found
    assert cut == pytest.approx(whole, abs=1e-5)
    for a, b in zip(after, after_cut):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_a_step_taken_later_sees_the_same_rows(rows):
    plan = {"seed": 3, "batch_size": 8, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": 0}
    through = {step: batches[0].world.row.tolist() for step, batches in training_steps(rows, first=0, last=12, **plan)}
    assert len(through) == 12  # more than two epochs of five batches
    later = {step: batches[0].world.row.tolist() for step, batches in training_steps(rows, first=7, last=12, **plan)}
    assert later == {step: through[step] for step in range(7, 12)}


def test_ranks_share_every_batch_and_know_all_of_it(rows):
    plan = {"seed": 0, "batch_size": 8, "accumulate": 1, "first": 0, "last": 3, "pad_id": 0, "ranks": 3}
    ranks = [list(training_steps(rows, rank=rank, **plan)) for rank in range(3)]
    for step in range(3):
        shares = [ranks[rank][step][1][0] for rank in range(3)]
        world = shares[0].world.row
        assert all(np.array_equal(share.world.row, world) for share in shares)
        assert sorted(np.concatenate([share.mine.numpy() for share in shares])) == list(range(len(world)))
        assert all(share.count(len) == len(world) for share in shares)


def test_the_loss_falls(rows):
    task, optimizer, schedule = fresh(optim={"lr": 3e-3, "warmup_steps": 1})
    reports = run(task, optimizer, schedule, rows, last=10)
    assert reports[-1].loss < reports[0].loss - 0.5
    assert set(reports[0].terms) == {"span"}


def test_a_term_that_is_not_finite_stops_before_the_update_and_is_named(rows):
    task, optimizer, schedule = fresh()
    before = copy.deepcopy(task.state_dict())

    class Broken(torch.nn.Module):
        total_scale = 1.0

        def weights(self, step):
            return {"loss": 0.1}

        def forward(self, batch, output, reader):
            return {"loss": Term(output.start_BT.sum() * float("nan"), 8)}

    task.objectives["broken"] = Broken()
    with pytest.raises(NonFiniteLoss, match=r"broken is nan at step 0, before the update; windows \d+, ") as error:
        run(task, optimizer, schedule, rows)
    assert len(str(error.value).split(". ")[0].split("windows ")[1].split(", ")) == 8
    for name, value in before.items():
        assert value.equal(task.state_dict()[name])


def test_a_critic_s_gradient_takes_nothing_from_the_step_of_the_reader(rows):
    batches = rows.step_batches([np.arange(8)], rank=0, ranks=1, pad_id=0, seed=0, step=0)
    after, norms = [], []
    for weight in (1.0, 1e6):
        task, *_ = fresh(objectives={"pfa": OBJECTIVES["pfa"]})
        optimizer = torch.optim.SGD(task.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        before = copy.deepcopy(task.state_dict())
        report = train_step(task, batches, optimizer, schedule, task.weights(0) | {"pfa.critic": weight}, clip_norm=0.1)
        norms.append(report.grad_norm)
        after.append(task.state_dict())
        moved = {name: (value - before[name]).square().sum() for name, value in after[-1].items()}
        critic = sum(value for name, value in moved.items() if "critic" in name)
        assert critic.sqrt() < 0.1 * 1.001  # it is clipped as well
        assert (sum(moved.values()) - critic).sqrt() == pytest.approx(0.1, rel=1e-3)
    assert norms[0] == norms[1] > 0.1
    for name, value in after[0].items():
        assert "critic" in name or value.equal(after[1][name]), name


def test_weights_act_in_the_total_alone():
    terms = {"span": Term(torch.tensor(6.0), 3), "aux": Term(torch.tensor(4.0), 2), "logged": Term(torch.tensor(9.0), 1)}
    # 1 * 6/3 + 0.5 * 4/2
    assert total_loss(terms, {"span": 1.0, "aux": 0.5}) == 3.0


@pytest.mark.parametrize(
    ("rows", "epochs", "limit", "steps"), [(100, 2, None, 14), (100, 0.5, None, 4), (100, 2, 5, 5), (3, 1, None, 1)]
)
def test_number_of_steps(rows, epochs, limit, steps):
    # 100 rows are 7 batches of 16
    assert TrainConfig(batch_size=16, epochs=epochs, max_steps=limit).num_steps(rows) == steps


OBJECTIVES = {
    "infomax": {},
    "pfa": {"bottleneck": 8, "critic_size": 16},
    "answer_contrast": {"top": 5},
    "hard_learning": {"mode": "learned"},
}


@pytest.mark.parametrize(
    "names", [("infomax",), ("pfa",), ("answer_contrast",), ("infomax", "pfa", "answer_contrast"), OBJECTIVES]
)
def test_objectives_train_alone_and_together(rows, names):
    task, optimizer, schedule = fresh(
        objectives={name: OBJECTIVES[name] for name in names}, optim={"lr": 3e-3, "warmup_steps": 1}
    )
    before = copy.deepcopy(task.state_dict())
    reports = run(task, optimizer, schedule, rows, last=10)
    base = "hard_learning" if "hard_learning" in names else "span"
    assert reports[-1].terms[base] < reports[0].terms[base]
    assert {name.split(".")[0] for name in reports[0].terms} == {base, *names}
    weights = task.weights(0)
    # the mean of start and end loss; hard learning gives their sum, and half of it counts
    assert weights[base] == (0.5 if "answer_contrast" in names else 1.0) * (0.5 if base == "hard_learning" else 1.0)
    assert reports[0].loss == pytest.approx(sum(weights[name] * mean for name, mean in reports[0].terms.items()))
    still = [name for name, value in task.state_dict().items() if value.equal(before[name]) and value.is_floating_point()]
    assert not still, "parameters that never moved"


def test_a_reader_trained_with_objectives_is_saved_as_a_plain_one(rows, tmp_path):
    from transformers import AutoModelForQuestionAnswering

    task, optimizer, schedule = fresh(objectives=OBJECTIVES)
    run(task, optimizer, schedule, rows, last=2)
    task.reader.save(tmp_path, model_folder("builtin:tiny"))
    plain, report = AutoModelForQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = rows.batch(np.arange(5), pad_id=0)
    task.eval(), plain.eval()
    with torch.inference_mode():
        ours = task.reader(batch)
        theirs = plain(batch.input_ids_BT, batch.attention_BT.long(), batch.token_types_BT)
    assert ours.start_BT.equal(theirs.start_logits)
    assert ours.end_BT.equal(theirs.end_logits)


EXACT = OBJECTIVES | {"pfa": OBJECTIVES["pfa"] | {"every": 2}}


def trained_by_sgd(accumulate: int, rank: int = 0, ranks: int = 1) -> dict:
    """Losses and parameters after three steps with all objectives; PFA acts in the first and the last of them."""
    plain = fresh(objectives=EXACT)[0].double()  # what is left between one process and two is rounding
    task = DistributedDataParallel(plain) if ranks > 1 else plain
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    reports = run(task, optimizer, schedule, make_rows(32), accumulate=accumulate, last=3, rank=rank, ranks=ranks)
    terms = [report.terms | {"loss": report.loss, "grad_norm": report.grad_norm} for report in reports]
    return {"terms": terms, "counts": [report.rows for report in reports], "parameters": plain.state_dict()}


GROUPS = {2: (1, 2), 4: (1,)}  # that a batch of eight rows is cut into, by ranks


def one_of_them(rank: int) -> dict:
    world = torch.distributed.get_world_size()
    return {str(accumulate): trained_by_sgd(accumulate, rank, world) for accumulate in GROUPS[world]}


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_train_with_all_objectives_as_one_does(tmp_path, world):
    assert not make_rows(32).column("has_answer").all()
    ranks = on_ranks(one_of_them, tmp_path, world)
    for accumulate in GROUPS[world]:
        alone = trained_by_sgd(accumulate)
        assert [counts["pfa.alignment"] > 0 for counts in alone["counts"]] == [True, False, True]
        for rank in ranks:
            found = rank[str(accumulate)]
            assert found["counts"] == alone["counts"]
            for terms, wanted in zip(found["terms"], alone["terms"], strict=True):
                assert terms == pytest.approx(wanted, rel=1e-10, abs=1e-10)
            for name, value in alone["parameters"].items():
                torch.testing.assert_close(found["parameters"][name], value, rtol=1e-10, atol=1e-10)


def test_a_group_of_one_row_adds_nothing_to_infomax(rows):
    # 37 rows are batches of 8 and of 7; in four groups the latter are 2 + 2 + 2 + 1, and the last row has no partner
    reports = run(*fresh(objectives={"infomax": {}}), rows, accumulate=4, last=5)
    assert sorted(report.rows["infomax.local"] for report in reports) == [6, 6, 6, 8, 8]
    assert sorted(report.rows["span"] for report in reports) == [7, 7, 7, 8, 8]
    assert all(report.terms["infomax.local"] > 0 for report in reports)


def test_a_resumed_run_with_objectives_ends_with_the_same_bits(rows):
    settings = {"dropout": 0.1, "objectives": {"infomax": {}, "pfa": OBJECTIVES["pfa"]}}
    whole = fresh(**settings)
    run(*whole, rows)
    first = fresh(**settings)
    run(*first, rows, last=3)
    resumed = fresh(**settings)
    for part, saved in zip(resumed, first):
        part.load_state_dict(copy.deepcopy(saved.state_dict()))
    run(*resumed, rows, first=3)
    expected = whole[0].state_dict()
    assert {"objectives.pfa.critic.inner.weight", "objectives.infomax.discriminators.local.weight"} <= expected.keys()
    for name, value in resumed[0].state_dict().items():
        assert torch.equal(value, expected[name]), name
    start = fresh(**settings)[0].state_dict()
    assert not torch.equal(start["objectives.pfa.critic.inner.weight"], expected["objectives.pfa.critic.inner.weight"])


def weights_at(step: int, steps_per_epoch: int = 1, reduction: str = "sum", **objectives) -> dict[str, float]:
    config = Config(model={"name": "builtin:tiny"}, objectives={"span": {"reduction": reduction}, **objectives})
    weights = build_reader_task(config, model_folder("builtin:tiny"), steps_per_epoch).weights(step)
    return {name: weight for name, weight in weights.items() if weight}  # a weight of 0 is for looking at


def test_the_presets_weigh_all_terms_as_published():
    assert weights_at(0, infomax={}) == pytest.approx({"span": 1, "infomax.local": 0.3, "infomax.global": 0.15})
    # (ls + le + 0.25 (LC + 0.5 GC)) / 3; all halves under the mean
    reference = {"span": 1 / 3, "infomax.local": 0.25 / 3, "infomax.global": 0.125 / 3}
    assert weights_at(0, infomax={"variant": "reference"}) == pytest.approx(reference)
    halved = {"span": 1 / 3, "infomax.local": 0.125 / 3, "infomax.global": 0.0625 / 3}
    assert weights_at(0, reduction="mean", infomax={"variant": "reference"}) == pytest.approx(halved)
    # SWEP is 1/2 (L_S + L_pert) + KL on the mean; with both, both factors are on everything
    swep = {"perturber": "gaussian"}
    assert weights_at(0, reduction="mean", pfa=swep) == pytest.approx({"span": 0.5, "pfa.perturbed_span": 0.5, "pfa.kl": 1})
    both = {name: weight / 2 for name, weight in halved.items()} | {"pfa.perturbed_span": 1 / 6, "pfa.kl": 1 / 3}
    assert weights_at(0, reduction="mean", infomax={"variant": "reference"}, pfa=swep) == pytest.approx(both)


def test_under_the_sequential_schedule_the_contrast_begins_after_its_epochs():
    contrast = {"alpha": 0.25, "schedule": "sequential", "sequential_epochs": 1.5}
    for step, expected in [(0, {"span": 1}), (14, {"span": 1}), (15, {"span": 0.75, "answer_contrast": 0.25})]:
        assert weights_at(step, steps_per_epoch=10, answer_contrast=contrast) == expected
    assert weights_at(0, answer_contrast={"alpha": 0.25}) == {"span": 0.75, "answer_contrast": 0.25}
    # of hard learning, the anchor of its prior goes along
    weights = weights_at(0, answer_contrast={"alpha": 0.25}, hard_learning={"mode": "learned", "eta": 2})
    assert weights == {"hard_learning": 0.75, "hard_learning.anchor": 1.5, "answer_contrast": 0.25}


def test_infomax_and_contrast_look_at_the_clean_pass(rows):
    batch = rows.batch(np.arange(8), pad_id=0)
    others = {name: OBJECTIVES[name] for name in ("infomax", "answer_contrast")}
    alone, beside = (fresh(objectives=others | more)[0].train()(batch) for more in ({}, {"pfa": OBJECTIVES["pfa"]}))
    assert beside["pfa.perturbed_span"].total != beside["span"].total  # the second pass is another one
    for name, term in alone.items():
        assert torch.equal(term.total, beside[name].total)
        assert term.count == beside[name].count
    names = {"infomax.local", "infomax.global", "answer_contrast", "answer_contrast.nearest", "span"}
    assert names <= alone.keys()
