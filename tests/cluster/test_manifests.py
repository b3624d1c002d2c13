"""The Kubernetes manifests. KubeRay's CRDs come with no package, so they are checked by Ray's own autoscaler, which reads a
RayCluster in every round, and against the field names of KubeRay 1.6's `ray.io/v1`, listed here."""

import re
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

CHECKOUT = Path(__file__).resolve().parents[2]
GROUP = {"rayStartParams", "template", "resources", "labels"}
FIELDS = {
    "RayCluster": {"headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"}
    | {"authOptions", "headServiceAnnotations", "gcsFaultToleranceOptions", "suspend", "managedBy", "upgradeStrategy"},
    "RayJob": {"entrypoint", "rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished"}
    | {"backoffLimit", "activeDeadlineSeconds", "submissionMode", "submitterPodTemplate", "submitterConfig", "clusterSelector"}
    | {"metadata", "suspend", "jobId", "managedBy", "deletionStrategy", "entrypointNumCpus", "entrypointNumGpus"},
    "head": GROUP | {"serviceType", "headService", "enableIngress"},
    "worker": GROUP
    | {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "scaleStrategy", "idleTimeoutSeconds"},
    "auth": {"mode", "secretName", "enableK8sTokenAuth"},
    "autoscaler": {"idleTimeoutSeconds", "upscalingMode", "resources", "image", "imagePullPolicy", "env", "envFrom", "version"},
}
KINDS = {
    int: {"ttlSecondsAfterFinished", "backoffLimit", "activeDeadlineSeconds", "idleTimeoutSeconds", "numOfHosts"}
    | {"replicas", "minReplicas", "maxReplicas"},
    bool: {"shutdownAfterJobFinishes", "suspend", "enableInTreeAutoscaling", "enableIngress", "enableK8sTokenAuth"},
    str: {"entrypoint", "rayVersion", "runtimeEnvYAML", "groupName", "secretName", "jobId", "image"},
}
VALUES = {
    "submissionMode": {"K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"},
    "upscalingMode": {"Default", "Aggressive", "Conservative"},
    "mode": {"disabled", "token"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
}


def wrong_values(value, name: str = "") -> list[str]:
    """Fields anywhere in a manifest whose value KubeRay would refuse by its kind."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in wrong_values(inner, key)]
    if isinstance(value, list):
        return [found for inner in value for found in wrong_values(inner, name)]
    wanted = next((kind for kind, names in KINDS.items() if name in names), type(value))
    return [] if type(value) is wanted and value in VALUES.get(name, {value}) else [f"{name}: {value!r}"]


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((CHECKOUT / "configs/cluster" / name).read_text()))


def cluster_spec(name: str) -> dict:
    """The RayCluster of a manifest, alone or inside a RayJob."""
    found = [document["spec"] for document in documents(name) if document["apiVersion"] == "ray.io/v1"]
    return found[0].get("rayClusterSpec", found[0])


def pods(spec: dict) -> list[dict]:
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


manifests = pytest.mark.parametrize("name", ["kuberay.yaml", "kuberay_job.yaml"])


@manifests
def test_rays_autoscaler_reads_the_groups(name):
    spec = cluster_spec(name)
    config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "raydist", "namespace": "default"}, "spec": spec})
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    assert types["cpu"]["resources"]["CPU"] > 0
    assert "GPU" not in types["cpu"]["resources"]
    assert types["gpu"]["resources"]["GPU"] == 1
    assert all(types[group]["min_workers"] == 0 < types[group]["max_workers"] for group in ("cpu", "gpu"))
    assert spec["enableInTreeAutoscaling"] is True
    broken = spec | {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head"}]}}}}
    with pytest.raises(ValueError, match="failed to detect `CPU`"):  # the check can fail
        _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "raydist", "namespace": "default"}, "spec": broken})


@manifests
def test_no_value_is_of_another_kind(name):
    assert wrong_values(documents(name)) == []


def test_a_value_of_another_kind_is_seen():
    wrong = {"spec": {"ttlSecondsAfterFinished": "60", "authOptions": {"mode": "tokn"}, "groups": [{"replicas": True}]}}
    assert wrong_values(wrong) == ["ttlSecondsAfterFinished: '60'", "mode: 'tokn'", "replicas: True"]


@manifests
def test_no_field_is_misspelt(name):
    for document in documents(name):
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
        if document["kind"] in FIELDS:
            assert document["spec"].keys() <= FIELDS[document["kind"]]
    spec = cluster_spec(name)
    assert spec.keys() <= FIELDS["RayCluster"]
    assert spec["headGroupSpec"].keys() <= FIELDS["head"]
    assert spec["autoscalerOptions"].keys() <= FIELDS["autoscaler"]
    assert spec["authOptions"].keys() <= FIELDS["auth"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # the CRD takes strings alone
    for group in spec["workerGroupSpecs"]:
        assert group.keys() <= FIELDS["worker"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


@manifests
def test_every_pod_asks_for_the_token_and_mounts_the_shared_volume(name):
    spec = cluster_spec(name)
    assert spec["authOptions"] == {"mode": "token", "secretName": "raydist-token"}
    (claim,) = [document for document in documents("kuberay.yaml") if document["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(spec):
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/mnt/raydist"}]
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_entrypoint_is_a_command_whose_storage_is_on_the_shared_volume():
    (document,) = documents("kuberay_job.yaml")
    program, command, config, *overrides = document["spec"]["entrypoint"].split()
    from raydist.cli import app
    from raydist.config import load_config

    assert program == "raydist"
    assert command in {info.name or info.callback.__name__ for info in app.registered_commands}
    assert load_config(config, overrides).config.storage.startswith("/mnt/raydist/")


def test_the_versions_are_those_of_the_constraints():
    pinned = re.search(r"^ray(?:\[.*\])?==(\S+)$", (CHECKOUT / "constraints.txt").read_text(), re.MULTILINE)[1]
    for name in ("kuberay.yaml", "kuberay_job.yaml"):
        assert cluster_spec(name)["rayVersion"] == pinned
    for path in ("cluster.yaml", "configs/cluster/kuberay.yaml"):
        images = re.findall(r"rayproject/ray:(\S+?)-py(\d+)", (CHECKOUT / path).read_text())
        assert images
        assert set(images) == {(pinned, "311")}


def test_the_launcher_starts_ray_with_a_token_and_grows_cpu_and_gpu_groups_from_spot_nodes():
    config = yaml.safe_load((CHECKOUT / "cluster.yaml").read_text())
    starts = [
        command for key in ("head", "worker") for command in config[f"{key}_start_ray_commands"] if "ray start" in command
    ]
    assert len(starts) == 2
    assert all(command.startswith("RAY_AUTH_MODE=token ") for command in starts)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    types = config["available_node_types"]
    for name in ("cpu_worker", "gpu_worker"):
        assert types[name]["min_workers"] == 0 < types[name]["max_workers"]
        assert types[name]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in types["head"]["node_config"]
