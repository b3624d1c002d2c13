"""Two hosts with addresses of their own: network namespaces, joined by a cable that the test makes. The second host sees
neither the folder that the command is started in nor the first one's temporary files: only the storage is shared.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 6399


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts():
    """Names of two namespaces that reach each other and nothing else."""
    names = [f"raydist-{os.getpid()}-{letter}" for letter in "ab"]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(lambda name=name: subprocess.run(["ip", "netns", "delete", name], capture_output=True))
            ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
            for name, address in zip(names, ADDRESSES):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
        yield names


@pytest.fixture
def cluster_of_hosts(hosts, tmp_path):
    """Start Ray on both hosts; a function that runs a command on the first."""
    here = tmp_path / "here"
    here.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    scratch = Path(tempfile.mkdtemp(prefix="rd", dir="/tmp"))  # sockets live in it: short paths
    environment = kept | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 32, "OMP_NUM_THREADS": "1"}
    environment |= {"RAYDIST_CACHE": str(here / "cache")}  # a folder of each host's own, as ~/.cache is
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1", "--object-store-memory=100000000"]
    first = [
        *start,
        "--head",
        f"--port={PORT}",
        f"--node-ip-address={ADDRESSES[0]}",
        "--include-dashboard=false",
    ]
    first += [f"--temp-dir={scratch}"]
    second = [*start, f"--address={ADDRESSES[0]}:{PORT}", f"--node-ip-address={ADDRESSES[1]}"]
    hidden = f"mount -t tmpfs none {here} && mount -t tmpfs none {scratch} && exec "
    nodes = []

    def on(host: int, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", hosts[host], *command]

    def run(*command: str) -> subprocess.CompletedProcess:
        own = environment | {"RAY_ADDRESS": f"{ADDRESSES[0]}:{PORT}"}
        return subprocess.run(on(0, list(command)), cwd=here, env=own, capture_output=True, text=True, timeout=400)

    try:
        for host, command in enumerate((first, ["unshare", "--mount", "sh", "-c", f'{hidden} "$@"', "sh", *second])):
            log = (tmp_path / f"host{host}.log").open("w")
            nodes.append(subprocess.Popen(on(host, command), env=environment, stdout=log, stderr=log, cwd="/"))
            wait_for("will now block", tmp_path / f"host{host}.log", nodes[-1])
        yield run
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(20)
            node.kill()


def wait_for(text: str, log: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


SEEN = """
import json, ray
ray.init(logging_level="error", log_to_driver=False)
print(json.dumps(sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])))
"""


@pytest.mark.slow
def test_a_run_spreads_over_hosts_with_addresses_of_their_own(cluster_of_hosts, tmp_path):
    seen = cluster_of_hosts(sys.executable, "-c", SEEN)
    assert json.loads(seen.stdout.strip().splitlines()[-1]) == list(ADDRESSES), seen.stderr
    settings = ["name=wide", f"storage={tmp_path}/runs", "train.max_steps=6", "train.checkpoint_every=3"]
    settings += ["cluster.workers=2", "data.train.questions=60", "evaluate.bootstrap=0"]
    done = cluster_of_hosts(sys.executable, "-m", "raydist", "run", "debug_reader", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "wide"
    assert json.loads((folder / "workers.json").read_text()) == [{"step": 0, "workers": 2, "nodes": 2}]
    assert (folder / "model" / "config.json").is_file()
    assert "dev.f1" in json.loads((folder / "metrics.json").read_text())


def test_the_interface_of_an_address_is_found():
    from raydist.cluster.network import interface_of

    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("::1") is None
