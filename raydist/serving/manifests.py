"""The service as a file: for `serve deploy`, and for KubeRay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import raydist
from raydist.config.roles import plain_settings
from raydist.config.serving import ServingConfig
from raydist.errors import InputError
from raydist.serving.answering import Opening

BUILDER = "raydist.cluster.serve:app_builder"
NAME = "raydist"
PLACES = ("reader", "cross_encoder", "calibration")  # settings that may be paths
FILES = ("token_file", "judgements", "mined")  # settings of the service that are paths
DEPLOY_HEAD = """\
# {index} as an application of Ray Serve:  serve deploy {file}
# The index, the models and the token file are read on the nodes of the cluster, at the places named here.
# A new version of the index or of a model needs no new deployment; a changed file, deployed again, replaces replicas.
"""
SERVICE = """\
# {index} as a service on Kubernetes, with KubeRay 1.6 or newer. Lines marked ADAPT are yours to change.
#
#   kubectl create secret generic {name}-tokens --from-literal=token="$(openssl rand -hex 32)"
#   kubectl apply -f {file}
#   kubectl port-forward service/{name}-serve-svc {port}:{port}
#
# The image: FROM rayproject/ray:2.60.0-py311-cpu, then COPY of the checkout and pip install -c constraints.txt ".[cpu]".
apiVersion: ray.io/v1
kind: RayService
metadata: {{name: {name}, namespace: default}}
spec:
  serveConfigV2: |
{config}
  rayClusterConfig:
    rayVersion: "2.60.0"               # as in constraints.txt and in the image
    enableInTreeAutoscaling: true
    headGroupSpec:
      rayStartParams: {{num-cpus: "0", dashboard-host: "0.0.0.0"}}
      template:
        spec:
          containers:
            - name: ray-head
              image: {image}          # ADAPT, here and below
              ports:
                - {{containerPort: 6379, name: gcs-server}}
                - {{containerPort: 8265, name: dashboard}}
                - {{containerPort: {port}, name: serve}}
              env: [{{name: {token_env}, valueFrom: {{secretKeyRef: {{name: {name}-tokens, key: token}}}}}}]
              resources: {{requests: {{cpu: "2", memory: 8Gi}}, limits: {{cpu: "2", memory: 8Gi}}}}
              volumeMounts: [{{name: raydist, mountPath: {mount}}}]
          volumes: [{{name: raydist, persistentVolumeClaim: {{claimName: raydist}}}}]
    workerGroupSpecs:
      - groupName: replicas
        replicas: 1
        minReplicas: 1
        maxReplicas: 4                 # ADAPT: the most that you want to pay for
        rayStartParams: {{}}
        template:
          spec:
            containers:
              - name: ray-worker
                image: {image}
                env: [{{name: {token_env}, valueFrom: {{secretKeyRef: {{name: {name}-tokens, key: token}}}}}}]
                resources: {{requests: {{cpu: "4", memory: 16Gi}}, limits: {{cpu: "4", memory: 16Gi}}}}   # ADAPT
                volumeMounts: [{{name: raydist, mountPath: {mount}}}]
            volumes: [{{name: raydist, persistentVolumeClaim: {{claimName: raydist}}}}]   # ADAPT: of the index and the models
"""


def write_manifest(path: Path, opening: Opening, settings: ServingConfig) -> None:
    """Write the file that the name asks for: rayservice*.yaml for KubeRay, another for `serve deploy`."""
    text = (
        ray_service(path.name, opening, settings)
        if path.name.startswith("rayservice")
        else deploy_file(path.name, opening, settings)
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def deploy_file(file: str, opening: Opening, settings: ServingConfig) -> str:
    http = {"host": settings.host, "port": settings.port}
    config = {"proxy_location": "HeadOnly", "http_options": http, "applications": [application(opening, settings)]}
    return DEPLOY_HEAD.format(index=opening.name, file=file) + _yaml(config)


def ray_service(file: str, opening: Opening, settings: ServingConfig) -> str:
    http = {"host": "0.0.0.0", "port": settings.port}
    config = {"proxy_location": "EveryNode", "http_options": http, "applications": [application(opening, settings)]}
    indented = "".join(f"    {line}\n" for line in _yaml(config).splitlines())
    mount = Path(opening.index).parts[:3] if opening.index.startswith("/") else ("/mnt", "raydist")
    return SERVICE.format(
        index=opening.name,
        file=file,
        name=NAME,
        port=settings.port,
        config=indented.rstrip(),
        image=f"registry.example/raydist:{raydist.__version__}",
        token_env=settings.token_env,
        mount=str(Path(*mount)),
    )


def application(opening: Opening, settings: ServingConfig) -> dict[str, Any]:
    """The application as Ray Serve's config has it."""
    given = {name: value for name, value in opening.settings.items() if value is not None}
    asking = {name: _placed(value) if name in PLACES else value for name, value in given.items()}
    named = {name: value for name in FILES if (value := getattr(settings, name))}
    files = {name: value if "://" in value else str(Path(value).absolute()) for name, value in named.items()}
    args = {"index": _placed(opening.index), "asking": asking, "serving": plain_settings(settings) | files}
    return {"name": NAME, "route_prefix": "/", "import_path": BUILDER, "args": args}


def _placed(value: str) -> str:
    """A path of a file that is there as an absolute one: replicas have another working folder."""
    return str(Path(value).absolute()) if Path(value).exists() else value


def _yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
