"""What happens on several nodes: scenarios for test_nodes.py, each in a process with a Ray cluster of its own.

python tests/helpers/nodes.py SCENARIO FOLDER        prints a line of JSON

Every node is a raylet of its own on this machine. A node has one CPU, so that workers cannot share one.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.5"
os.environ["RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S"] = "0.5"

STEPS = (
    "data.train.questions=200",
    "train.batch_size=16",
    "train.max_steps=20",
    "train.epochs=4",
    "train.checkpoint_every=5",
    "train.evaluate_every=0",
    "train.choose=last",
    "data.dev=null",
    "data.test={}",
    "model.dropout=0",
    "cluster.threads_per_worker=1",
)


class Holder:
    """Takes the head's CPUs."""

    def ready(self) -> bool:
        return True


@contextmanager
def nodes(count: int, head_cpus: int = 2):
    """A head without CPUs for work but its own needs, and `count` nodes of one CPU; the Ray cluster and ours on it. Elastic
    training counts CPUs that others hold as its own: there the head must have none.
    """
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    from raydist.cluster.connect import Cluster
    from raydist.config import ClusterConfig

    head = {"num_cpus": head_cpus, "resources": {"head": 1}}
    cluster = RayCluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)  # else only this thread adds nodes
    added = [cluster.add_node(num_cpus=1, resources={"node": 1}) for _ in range(count)]
    cluster.wait_for_nodes()
    try:
        with Cluster(ClusterConfig(address=cluster.address)) as ours:
            ours.start()
            holder = ray.remote(num_cpus=head_cpus, resources={"head": 1})(Holder).remote()  # so that the work is on the nodes
            ray.get(holder.ready.remote())
            yield cluster, added, ours
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_run(ours, folder: Path, name: str, *overrides: str, config: str = "debug_reader"):
    from raydist.cluster.machine import RayMachine
    from raydist.config import load_config
    from raydist.runs.run import Run

    run = Run(load_config(config, [f"storage={folder}", f"name={name}", *overrides]).config, RayMachine(ours))
    run.begin()
    return run


def losses(run) -> list[float]:
    lines = [json.loads(line) for line in Path(run.folder.path("metrics.jsonl")).read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def wait_for(what, seconds: float = 120) -> None:
    ends = time.monotonic() + seconds
    while not what():
        if time.monotonic() > ends:
            raise TimeoutError("it did not happen")
        time.sleep(0.1)


def makes_parts(node) -> bool:
    """Whether a worker of this node's raylet is at a part of a stage."""
    import psutil

    (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
    workers = psutil.Process(raylet).children(recursive=True)
    with suppress(psutil.Error):
        return any("write_parts" in " ".join(worker.cmdline()) for worker in workers)
    return False


def step_of(run) -> int:
    try:
        return run.folder.read_json("progress.json")["step"]
    except (OSError, ValueError):
        return 0


def two_workers(folder: Path) -> dict:
    """DDP over two nodes against one worker."""
    from raydist.reader import flow

    with nodes(2) as (_, _, ours):
        one, two = make_run(ours, folder, "one", *STEPS), make_run(ours, folder, "two", *STEPS, "cluster.workers=2")
        flow.train(one)
        flow.train(two)
        return {"one": losses(one), "two": losses(two), "attempts": two.folder.read_json("workers.json")}


def a_node_leaves_and_comes_back(folder: Path) -> dict:
    """Elastic training: two workers, then one, then two again; and the steps of an undisturbed one."""
    from raydist.reader import flow
    from raydist.reader.prepare import prepare

    steps = [*STEPS, "train.max_steps=2000", "train.epochs=200", "train.log_every=1", "optim.lr=1e-5"]
    with nodes(2, head_cpus=0) as (cluster, added, ours):
        run = make_run(ours, folder, "elastic", *steps, "cluster.workers=[1, 2]")
        prepare(run, ["train"])
        seen: dict[str, int] = {}

        def disturb() -> None:
            wait_for(lambda: step_of(run) >= 12)
            seen["left_at"] = step_of(run)
            cluster.remove_node(added[0], allow_graceful=False)
            wait_for(lambda: run.folder.read_json("progress.json")["first"] > 0)
            wait_for(lambda: step_of(run) >= seen["left_at"] + 5)
            cluster.add_node(num_cpus=1, resources={"node": 1})
            seen["back_at"] = step_of(run)

        thread = threading.Thread(target=disturb, daemon=True)
        thread.start()
        flow.train(run)
        thread.join(1)
        calm = make_run(ours, folder, "calm", *steps)
        flow.train(calm)
        found = {"losses": losses(run), "calm": losses(calm), "attempts": run.folder.read_json("workers.json")}
        return found | {"seen": seen, "steps": run.folder.read_json("fitted.json")["steps"]}


def notice(folder: Path) -> dict:
    """A node is to be taken away: a checkpoint is there before it goes."""
    from raydist.reader import flow
    from raydist.reader.prepare import prepare

    steps = [
        *STEPS,
        "train.max_steps=4000",  # the notice comes through a command, which takes seconds
        "train.epochs=400",
        "train.checkpoint_every=10000",
        "train.log_every=1",
        "cluster.workers=1",
    ]
    with nodes(2) as (cluster, added, ours):
        import ray.util.state

        run = make_run(ours, folder, "noticed", *steps)
        prepare(run, ["train"])
        seen: dict[str, int] = {}

        def disturb() -> None:
            wait_for(lambda: step_of(run) >= 5)
            actors = ray.util.state.list_actors(filters=[("class_name", "=", "RayTrainWorker"), ("state", "=", "ALIVE")])
            node = next(node for node in added if node.node_id == actors[0].node_id)
            seen["drained_at"] = step_of(run)
            told = {"--address": cluster.address, "--node-id": node.node_id, "--reason": "DRAIN_NODE_REASON_PREEMPTION"}
            told |= {"--reason-message": "spot", "--deadline-remaining-seconds": "20"}
            options = [part for pair in told.items() for part in pair]
            subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "drain-node", *options], check=True)
            time.sleep(8)
            seen["killed_at"] = step_of(run)
            cluster.remove_node(node, allow_graceful=False)

        thread = threading.Thread(target=disturb, daemon=True)
        thread.start()
        flow.train(run)
        thread.join(1)
        first = run.folder.read_json("progress.json")["first"]
        return {"seen": seen, "resumed_from": first, "steps": run.folder.read_json("fitted.json")["steps"]}


def scoring(folder: Path) -> dict:
    """Mining and scoring spread over two nodes; then again, and one of them dies."""
    from raydist.retrieval import flow

    settings = ("mining.part_questions=5", "cluster.actors=2", "cluster.threads_per_worker=1")
    with nodes(2) as (cluster, added, ours):
        calm = make_run(ours, folder / "calm", "mined", *settings, config="debug_retrieval")
        at_work: set[int] = set()
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                at_work.update(number for number, node in enumerate(added) if makes_parts(node))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        flow.mine(calm)
        over.set()
        looking.join()
        disturbed = make_run(ours, folder / "disturbed", "mined", *settings, config="debug_retrieval")
        scored: dict[str, list] = {}

        def parts_of(name: str) -> list[Path]:
            return list((folder / name).glob("stages/scores-*/part-*"))

        def disturb() -> None:
            wait_for(lambda: parts_of("disturbed"), 300)
            cluster.remove_node(added[0], allow_graceful=False)
            scored["then"] = parts_of("disturbed")

        thread = threading.Thread(target=disturb, daemon=True)
        thread.start()
        flow.mine(disturbed)
        thread.join(30)
        then = len(scored.get("then", []))
        return {"at_work": sorted(at_work), "killed": not thread.is_alive(), "parts": then, "of": len(parts_of("calm"))}


if __name__ == "__main__":
    scenario, folder = sys.argv[1:]
    print(json.dumps(globals()[scenario](Path(folder))), flush=True)
    os._exit(0)
