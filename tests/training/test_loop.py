import copy

import numpy as np
import pytest
import torch

from raydist.config import Config
from raydist.models import model_folder
from raydist.objectives.base import Term
from raydist.reader.features import make_windows
from raydist.reader.rows import WindowRows
from raydist.records import Answer, Example, examples_table
from raydist.storage import encode_table
from raydist.training.loop import NonFiniteLoss, num_steps, seed_step, total_loss, train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import ReaderTask, build_reader_task


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> WindowRows:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    examples = []
    for i in range(37):
        context = f"The bridge of town {i} was built in {1800 + i}. " + "It is old and made of stone. " * (i % 5)
        answer = Answer(str(1800 + i), context.index(str(1800 + i)))
        examples.append(Example(f"q{i}", "When was the bridge built?", context, [answer], passage_id=f"p{i}"))
    windows = make_windows(examples_table(examples), tokenizer, max_length=96, max_question_length=16, doc_stride=16)
    file = tmp_path_factory.mktemp("rows") / "part.arrow"
    file.write_bytes(encode_table(windows, "arrow", {"examples": 37}))
    return WindowRows([file])


def fresh(**settings) -> tuple[ReaderTask, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    config = Config(model={"name": "builtin:tiny", "dropout": 0}, **settings)
    task = build_reader_task(config, model_folder("builtin:tiny"))
    optimizer = build_optimizer(task, config.optim)
    return task, optimizer, build_schedule(optimizer, config.optim, 10, 8)


def run(task, optimizer, schedule, rows, *, accumulate=1, first=0, last=6):
    plan = {"seed": 0, "batch_size": 8, "accumulate": accumulate, "rank": 0, "ranks": 1, "pad_id": 0}
    reports = []
    for step, batches in training_steps(rows, first=first, last=last, **plan):
        seed_step(0, step, 0)
        reports.append(train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0))
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


def test_weights_act_in_the_total_alone():
    terms = {"span": Term(torch.tensor(6.0), 3), "aux": Term(torch.tensor(4.0), 2), "logged": Term(torch.tensor(9.0), 1)}
    # 1 * 6/3 + 0.5 * 4/2
    assert total_loss(terms, {"span": 1.0, "aux": 0.5}) == 3.0


@pytest.mark.parametrize(
    ("rows", "epochs", "limit", "steps"), [(100, 2, None, 14), (100, 0.5, None, 4), (100, 2, 5, 5), (3, 1, None, 1)]
)
def test_number_of_steps(rows, epochs, limit, steps):
    # 100 rows are 7 batches of 16
    assert num_steps(rows, batch_size=16, epochs=epochs, max_steps=limit) == steps


OBJECTIVES = {"infomax": {}, "pfa": {"bottleneck": 8, "critic_size": 16}, "answer_contrast": {"top": 5}}


@pytest.mark.parametrize("names", [("infomax",), ("pfa",), ("answer_contrast",), ("infomax", "pfa", "answer_contrast")])
def test_objectives_train_alone_and_together(rows, names):
    task, optimizer, schedule = fresh(
        objectives={name: OBJECTIVES[name] for name in names}, optim={"lr": 3e-3, "warmup_steps": 1}
    )
    before = copy.deepcopy(task.state_dict())
    reports = run(task, optimizer, schedule, rows, last=10)
    assert reports[-1].terms["span"] < reports[0].terms["span"]
    assert {name.split(".")[0] for name in reports[0].terms} == {"span", *names}
    weights = task.weights(0)
    assert weights["span"] == (0.5 if "answer_contrast" in names else 1.0)
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
