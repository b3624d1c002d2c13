"""What a cluster shows of a run to those who watch it."""

import time
from urllib.request import urlopen

import pyarrow as pa
import pytest
from helpers.stages import Squares

from raydist.files.storage import Storage
from raydist.retrieval.prepare import report_rejected
from raydist.training.checkpoints import TrainState
from raydist.training.log import RunLog
from raydist.training.loop import StepReport

pytestmark = pytest.mark.ray


def test_progress_of_stages_and_of_training_and_rejected_rows_are_among_rays_metrics(machine, make_run, tmp_path):
    import ray

    stage = Squares("watched", 6, str(tmp_path / "log"))
    run = make_run("name=watched")
    run.make(stage, "squares of six", "squares")
    log = RunLog(Storage(str(tmp_path / "watched")), TrainState(), total=2, per_epoch=1, batch_size=8, show=machine.show)
    log.seen_step(StepReport(2.5, {"span": 2.5}, {"span": 8.0}, 1.0), {"span": 1.0})
    log.step(1, 1e-3)
    rejected = pa.table({"what": ["sentence"] * 3, "reason": ["empty text", "empty text", "invalid UTF-8"]})
    report_rejected(run, "corpus train", "rejected/corpus_train.parquet", rejected, sentences=1000)
    wanted = [
        ("ray_raydist_stage_parts", {"run": "watched", "stage": "squares", "state": "done"}, "6.0"),
        ("ray_raydist_stage_parts", {"run": "watched", "stage": "squares", "state": "total"}, "6.0"),
        ("ray_raydist_train", {"run": "watched", "value": "loss.span"}, "2.5"),
        ("ray_raydist_rejected_rows", {"run": "watched", "set": "corpus train"}, "3.0"),
    ]

    def missing() -> list:
        node = ray.nodes()[0]
        with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()

        def is_there(name: str, tags: dict[str, str], value: str) -> bool:
            parts = [f'{key}="{tag}"' for key, tag in tags.items()]
            found = [line for line in lines if line.startswith(name) and all(part in line for part in parts)]
            return any(line.endswith(f" {value}") for line in found)

        return [one for one in wanted if not is_there(*one)]

    ends = time.monotonic() + 60  # a process tells its node every few seconds
    while missing() and time.monotonic() < ends:
        time.sleep(0.5)
    assert missing() == []
