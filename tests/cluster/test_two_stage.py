"""Base reader, n-best sets, final reader on Ray: one command, resumable between and within its stages."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from raydist.reader import flow

SMALL = (
    "data.train.questions=60",
    "data.dev.questions=10",
    "data.test={}",
    "train.batch_size=20",
    "train.max_steps=3",
    "train.evaluate_every=0",
    "train.choose=last",
    "evaluate.bootstrap=0",
)
BOTH = ("objectives.hard_learning.size=5", "objectives.answer_contrast={}")


@pytest.mark.slow
def test_killed_in_each_training_it_ends_at_the_weights_of_an_undisturbed_run(make_run, storage):
    """kill -9 of the driver within the base reader, and within the final one; each time the same command again."""
    settings = (*SMALL, *BOTH, "train.max_steps=24", "train.epochs=20", "train.checkpoint_every=3")
    uncut = make_run("name=uncut", *settings)
    flow.run_all(uncut)
    command = [sys.executable, "-m", "raydist", "run", "debug_reader", f"storage={storage}", "name=cut", *settings]
    for folder in ("cut_base", "cut"):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while len(list(Path(storage, folder, "checkpoints").glob("checkpoint_2*"))) < 2:
            assert driver.poll() is None, f"it ended before {folder} had two checkpoints"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        driver.kill()
        driver.wait()
        assert not Path(storage, folder, "fitted.json").exists(), "killed too late: it was already trained"
    subprocess.run(command, check=True, capture_output=True)
    for ending in ("_base", ""):
        ours, theirs = (load_file(Path(storage, f"{name}{ending}", "model/model.safetensors")) for name in ("cut", "uncut"))
        assert all(value.equal(theirs[key]) for key, value in ours.items())
