"""Several nodes, for real: raylets of their own. The scenarios are in helpers/nodes.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


@pytest.fixture
def on_nodes(tmp_path):
    def on_nodes(scenario: str) -> dict:
        command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "nodes.py"), scenario, str(tmp_path)]
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}  # not of the shared cluster
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    return on_nodes


def test_two_workers_on_two_nodes_make_the_steps_of_one(on_nodes):
    found = on_nodes("two_workers")
    assert len(found["one"]) == 20
    assert found["two"] == pytest.approx(found["one"], abs=1e-5)
    assert found["attempts"] == [{"step": 0, "workers": 2, "nodes": 2}]


@pytest.mark.slow
def test_training_goes_on_with_fewer_workers_and_grows_again(on_nodes):
    found = on_nodes("a_node_leaves_and_comes_back")
    assert found["steps"] == 2000  # Ray asks once a minute whether to grow
    assert found["losses"] == pytest.approx(found["calm"], abs=1e-5), "each step once, and none another than it would have been"
    counts = [attempt["workers"] for attempt in found["attempts"]]
    assert counts[0] == 2
    assert 1 in counts, "it went on with one worker"
    assert counts[-1] == 2, "it grew again"


@pytest.mark.slow
def test_a_checkpoint_is_taken_before_a_node_goes(on_nodes):
    found = on_nodes("notice")
    assert found["steps"] == 4000
    assert found["resumed_from"] >= found["seen"]["drained_at"], "no step before the notice was lost"


@pytest.mark.slow
def test_a_node_lost_while_scoring_changes_no_byte(on_nodes, tmp_path):
    found = on_nodes("scoring")
    assert found["at_work"] == [0, 1], "parts are made on both nodes"
    assert found["killed"]
    assert 0 < found["parts"] < found["of"], "the node went while parts were missing"
    calm, disturbed = (
        {str(file.relative_to(tmp_path / name)): file.read_bytes()
         for pattern in ("stages/*/part-*", "stages/vectors-*/*/*.npy", "stages/bm25-*/*/*.npy", "mined/mining/silver.parquet")
         for file in (tmp_path / name).glob(pattern)}
        for name in ("calm", "disturbed")
    )  # fmt: skip
    assert calm.keys() == disturbed.keys()
    assert [name for name in calm if calm[name] != disturbed[name]] == []
