"""Training as a part of a run: done once, refused under other settings, and started over without a trace."""

from pathlib import Path

import pytest

from raydist.config import load_config
from raydist.errors import InputError
from raydist.here import Here
from raydist.reader import flow
from raydist.runs.run import Run

SMALL = (
    "data.sample.size=200",
    "data.train.questions=60",
    "data.dev=null",
    "train.max_steps=4",
    "train.choose=last",
    "cluster.threads_per_worker=1",
)


def test_a_finished_run_is_left_alone_and_another_config_is_refused(tmp_path, capsys):
    def run(*overrides: str) -> Run:
        config = load_config("debug_reader", [f"storage={tmp_path}", "name=finished", *SMALL, *overrides]).config
        run = Run(config, Here())
        run.begin()
        return run

    first = run()
    flow.train(first)
    model = Path(first.folder.path("model", "model.safetensors"))
    before = model.stat().st_mtime_ns
    flow.train(run())
    assert "train: already done (4 steps)" in capsys.readouterr().out
    with pytest.raises(InputError, match="was trained with other settings") as error:
        flow.train(run("optim.lr=2e-3", "seed=1"))
    assert "optim.lr: was 0.001, now 0.002" in str(error.value)
    assert "seed: was 0, now 1" in str(error.value)
    assert "--fresh" in str(error.value)
    dev = "data.dev=sample:en/dev.json"
    with pytest.raises(InputError) as error:
        flow.train(run(dev, "data.dev.questions=9", "optim.lr=2e-3"))
    assert [line.split(";")[0].strip() for line in str(error.value).splitlines()[1:-1]] == [
        *("optim.lr: was 0.001, now 0.002", "data.dev: was not set")
    ], "and not its twelve properties"
    assert "use data.test.NAME instead" in str(error.value)
    assert model.stat().st_mtime_ns == before


def test_started_over_nothing_of_the_old_model_is_left_to_be_taken_for_the_new_ones(tmp_path):
    class Stopped(Here):
        def fit(self, *_):
            raise KeyboardInterrupt

    run = Run(load_config("debug_reader", [f"storage={tmp_path}", "data.sample.size=200"]).config, Stopped())
    run.begin()
    left = {"config.yaml", "stages.json", "training.json"}
    old = "predictions/dev.json evaluation/dev.parquet trace/pfa.json report.html metrics.json metrics.jsonl progress.json"
    for name in old.split():
        run.folder.write_json(name, {"dev.f1": 12.5})
    run.folder.write_json("training.json", {"identity": {}, "done": True})
    with pytest.raises(KeyboardInterrupt):
        flow.train(run, fresh=True)
    assert {file.name for file in Path(run.folder.path()).rglob("*") if file.is_file()} == left
    assert not run.folder.read_json("training.json")["done"]
