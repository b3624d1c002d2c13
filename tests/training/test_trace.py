import copy
import json

import numpy as np
import pytest
import torch

from raydist.config import Config
from raydist.files.stage import encode_table
from raydist.files.storage import Storage
from raydist.models.folders import model_folder
from raydist.objectives.base import Batch
from raydist.objectives.pfa import trace_row
from raydist.reader.features import make_windows
from raydist.reader.rows import WindowRows
from raydist.records import Example, GoldAnswer, examples_table
from raydist.training.loop import train_step, training_steps
from raydist.training.optim import build_optimizer, build_schedule
from raydist.training.tasks import ReaderTask, build_reader_task
from raydist.training.trace import MAX_TOKENS, fullest_row, one_row, project, relative_move, write_traces

PLAN = {"seed": 0, "batch_size": 4, "accumulate": 1, "rank": 0, "ranks": 1, "pad_id": 0}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> WindowRows:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder("builtin:tiny"))
    examples = []
    for i in range(8):
        context = f"The bridge of town {i} was built in {1800 + i}. " + "It is old and made of stone. " * (i % 3)
        answer = GoldAnswer(str(1800 + i), context.index(str(1800 + i)))
        examples.append(Example(f"q{i}", "When was the bridge built?", context, [answer], passage_id=f"p{i}"))
    windows = make_windows(examples_table(examples), tokenizer, max_length=96, max_question_length=16, doc_stride=16)
    file = tmp_path_factory.mktemp("rows") / "part.arrow"
    file.write_bytes(encode_table(windows, "arrow", {"examples": 8}))
    return WindowRows([file])


def trained(rows: WindowRows, steps: int = 2, trace_into: Storage | None = None, **objectives) -> tuple[ReaderTask, Batch]:
    """A tiny reader after some steps, dropout on; with ``trace_into``, traces are written after every step."""
    config = Config(model={"name": "builtin:tiny", "dropout": 0.2}, objectives=objectives)
    task = build_reader_task(config, model_folder("builtin:tiny"))
    optimizer = build_optimizer(task, config.optim)
    schedule = build_schedule(optimizer, config.optim, 10, 4)
    task.train()
    torch.manual_seed(0)  # once: a draw in between would change what follows
    for step, batches in training_steps(rows, first=0, last=steps, **PLAN):
        train_step(task, batches, optimizer, schedule, task.weights(step), clip_norm=1.0)
        if trace_into:
            write_traces(task, batches[0], trace_into)
    return task, batches[0]


@pytest.mark.parametrize("perturber", ["mlp", "gaussian", "noise"])
def test_training_goes_on_as_if_nothing_had_been_traced(rows, tmp_path, perturber):
    pfa = {"perturber": perturber, "bottleneck": 8, "critic_size": 16}
    plain, _ = trained(rows, pfa=pfa)
    traced, _ = trained(rows, trace_into=Storage(str(tmp_path)), pfa=pfa)
    for (name, a), b in zip(plain.state_dict().items(), traced.state_dict().values()):
        assert a.equal(b), name
    assert all(module.training for module in traced.modules())
    assert all(parameter.grad is None for parameter in traced.parameters())


def test_the_file_tells_of_one_whole_passage(rows, tmp_path):
    task, batch = trained(rows, pfa={"bottleneck": 8, "critic_size": 16})
    write_traces(task, batch, Storage(str(tmp_path)))
    trace = json.loads((tmp_path / "trace" / "pfa.json").read_text())
    row = fullest_row(batch)
    among_others = trace_row(task.eval().objectives["pfa"], batch, task.reader, row)
    passage = int(batch.passage_BT[row].sum())
    assert trace["tokens"] == passage
    assert trace["step"] == batch.step + 1
    assert trace["row"] == batch.world.row[row]
    assert sum(trace["answer"]) == int(batch.end_B[row] - batch.start_B[row]) + 1
    for name in ("embeddings", "representations"):
        cloud = trace[name]
        assert np.array(cloud["clean"]).shape == np.array(cloud["perturbed"]).shape == (passage, 2)
        assert 0 < cloud["explained"][1] <= cloud["explained"][0] < 1
        expected = relative_move(among_others[name], among_others[f"{name}_perturbed"])
        assert cloud["moved"] == pytest.approx(expected, rel=1e-3)
        assert expected > 0


def test_what_does_not_move_is_not_shown_to_move(rows, tmp_path):
    task, batch = trained(rows, pfa={"perturber": "identity", "align": "cos"})
    write_traces(task, batch, Storage(str(tmp_path)))
    trace = json.loads((tmp_path / "trace" / "pfa.json").read_text())
    for name in ("embeddings", "representations"):
        assert trace[name]["moved"] == 0
        assert trace[name]["clean"] == trace[name]["perturbed"]


def test_a_task_without_pictures_leaves_no_file_and_an_older_one_goes(rows, tmp_path):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "pfa.json").write_text("{}")
    task, batch = trained(rows, steps=1, infomax={})
    write_traces(task, batch, Storage(str(tmp_path)))
    assert not (tmp_path / "trace").exists()


def test_weights_that_are_not_finite_leave_no_file(rows, tmp_path):
    task, batch = trained(rows, steps=1, pfa={"bottleneck": 8, "critic_size": 16})
    with torch.no_grad():
        next(task.reader.parameters()).fill_(float("nan"))
    write_traces(task, batch, Storage(str(tmp_path)))
    assert not (tmp_path / "trace").exists()


def test_one_row_reads_as_it_does_among_others(rows):
    task, batch = trained(rows, steps=1)
    task.eval()
    with torch.no_grad():
        for row in range(len(batch.start_B)):
            alone = one_row(batch, row)
            length = alone.input_ids_BT.shape[1]
            assert alone.attention_BT.all()
            torch.testing.assert_close(
                task.reader(alone).hidden_BTH[0], task.reader(batch).hidden_BTH[row, :length], atol=1e-5, rtol=1e-4
            )


def test_a_row_with_an_answer_comes_before_a_longer_one_without(rows):
    _, batch = trained(rows, steps=1)
    longest = int(batch.passage_BT.sum(1).argmax())
    batch = copy.copy(batch)
    object.__setattr__(batch, "has_answer_B", batch.has_answer_B.clone())
    batch.has_answer_B[longest] = False
    assert fullest_row(batch) != longest
    batch.has_answer_B[:] = False
    assert fullest_row(batch) == longest


def test_axes_by_hand():
    # along (3, 4) / 5 the points lie at -5, 5 (clean) and -10, 10 (perturbed); across it all but none
    clean, perturbed = np.array([[-3.0, -4.0], [3.0, 4.0]]), np.array([[-6.0, -8.0], [6.0, 8.0]])
    flat, flat_perturbed, explained = project(clean, perturbed)
    sign = np.sign(flat_perturbed[1, 0])
    np.testing.assert_allclose(sign * flat[:, 0], [-5, 5], atol=1e-9)
    np.testing.assert_allclose(sign * flat_perturbed[:, 0], [-10, 10], atol=1e-9)
    np.testing.assert_allclose(np.abs(flat[:, 1]), 0, atol=1e-9)
    np.testing.assert_allclose(explained, [1, 0], atol=1e-12)
    # moved by 5 each; the clean ones lie 5 from their mean
    assert relative_move(clean, perturbed) == pytest.approx(1.0)


def test_distances_survive_where_two_axes_hold_everything_and_turning_changes_nothing():
    draw = np.random.default_rng(0)
    clean, perturbed = draw.normal(size=(2, 30, 2)) * [3, 1]
    turn, _ = np.linalg.qr(draw.normal(size=(16, 16)))
    flat, flat_perturbed, explained = project(clean @ turn[:2], perturbed @ turn[:2])
    np.testing.assert_allclose(
        np.linalg.norm(flat - flat_perturbed, axis=1), np.linalg.norm(clean - perturbed, axis=1), atol=1e-9
    )
    assert explained.sum() == pytest.approx(1)
    again, _, _ = project(clean @ turn[2:4], perturbed @ turn[2:4])
    np.testing.assert_allclose(flat, again, atol=1e-9)


def test_a_cloud_of_equal_points_and_one_of_a_single_unit_have_axes_too():
    same = np.ones((3, 4))
    flat, _, explained = project(same, same)
    assert not flat.any()
    assert explained.tolist() == [0, 0]
    assert relative_move(same, same) == 0
    line = np.arange(3.0)[:, None]
    assert project(line, line)[0].shape == (3, 2)


def test_a_long_passage_is_thinned_but_for_its_answer(rows, tmp_path, monkeypatch):
    assert MAX_TOKENS <= 200  # two clouds of two pictures: a few hundred points
    monkeypatch.setattr("raydist.training.trace.MAX_TOKENS", 5)
    task, batch = trained(rows, steps=1, pfa={"bottleneck": 8, "critic_size": 16})
    write_traces(task, batch, Storage(str(tmp_path)))
    trace = json.loads((tmp_path / "trace" / "pfa.json").read_text())
    row = fullest_row(batch)
    answer = int(batch.end_B[row] - batch.start_B[row]) + 1
    assert sum(trace["answer"]) == answer  # none of it is left out
    assert 5 <= len(trace["answer"]) <= 5 + answer < trace["tokens"]
    assert len(trace["embeddings"]["clean"]) == len(trace["answer"])
