"""What is read back of checkpoints: all of one, or the one before it; and the best model of steps that were lost."""

from pathlib import Path

import pytest
import torch
from pyarrow.fs import LocalFileSystem
from safetensors.torch import load_file

from raydist.cluster.fit import checkpoints_of, saved_checkpoint
from raydist.errors import InputError
from raydist.files.storage import Storage
from raydist.training.checkpoints import TrainState, forget_lost_best, keep_best, restore, write_checkpoint
from raydist.training.train import Alone


def small_training():
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    return module, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def damage(file: Path, left: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * left)])


def of_ray(run: Path) -> list:
    return [saved_checkpoint(found) for found in checkpoints_of(str(run / "checkpoints"), LocalFileSystem())]


def of_one_process(run: Path) -> list:
    return Alone(Storage(str(run))).checkpoints()[0]


@pytest.mark.parametrize("checkpoints", [of_ray, of_one_process])
@pytest.mark.parametrize("file", ["task.safetensors", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("left", [0, 0.6])
def test_a_checkpoint_that_was_cut_off_is_passed_over_for_the_one_before(tmp_path, checkpoints, file, left):
    module, optimizer, schedule = small_training()
    folders = {step: tmp_path / "checkpoints" / f"checkpoint_2026-01-01_00-00-0{step}" for step in (3, 6)}
    for step, folder in folders.items():
        folder.mkdir(parents=True)
        module(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        schedule.last_epoch = step
        write_checkpoint(folder, module, optimizer, schedule, TrainState(step))
    found = checkpoints(tmp_path)
    assert restore(found, *small_training(), needed=True) == (TrainState(step=6), [])

    damage(folders[6] / file, left)
    fresh = small_training()
    assert restore(found, *fresh, needed=True) == (TrainState(step=3), ["checkpoint_2026-01-01_00-00-06"])
    wanted = load_file(folders[3] / "task.safetensors")
    assert fresh[0].state_dict().keys() == wanted.keys()
    assert all(value.equal(wanted[name]) for name, value in fresh[0].state_dict().items())
    assert fresh[2].last_epoch == 3

    damage(folders[3] / file, left)
    with pytest.raises(InputError, match=r"no checkpoint can be read .*; start over with --fresh"):
        restore(found, *small_training(), needed=True)
    state, _ = restore(found, *small_training(), needed=False)
    assert state == TrainState()
    assert state.step == 0


def test_what_a_checkpoint_says_of_the_training_comes_back(tmp_path):
    kept = TrainState(step=6, best=41.5, best_step=4, waited=1, over=True, log={"seconds": 60.0, "untold": [[1.5, {}]]})
    folder = tmp_path / "checkpoints" / "checkpoint_1"
    folder.mkdir(parents=True)
    write_checkpoint(folder, *small_training(), kept)
    assert restore(of_ray(tmp_path), *small_training(), needed=True) == (kept, [])


def test_the_best_model_of_steps_that_were_lost_is_not_taken_for_the_best(tmp_path):
    run = Storage(str(tmp_path))
    for step in (6, 12):  # 12 came after the last checkpoint
        run.write_json(f"best/{step}/config.json", {})
    state = TrainState(best=40.0, best_step=6)
    forget_lost_best(run, state)
    assert state == TrainState(best=40.0, best_step=6)
    keep_best(run, state)
    assert run.folders("best") == ["6"]
    earlier = TrainState(best=30.0, best_step=3)  # the checkpoint of step 6 could not be read
    forget_lost_best(run, earlier)
    assert earlier == TrainState(best=-1.0, best_step=0)
