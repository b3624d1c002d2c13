"""The service over an index of documents: where it listens, who may ask, how much, and what works behind it."""

from __future__ import annotations

from collections.abc import Iterator

from raydist.config.section import NOTHING, Section, key


class ServingConfig(Section):
    """`raydist serve`: one HTTP API over an index of documents (docs/serving.md)."""

    host: str = key("127.0.0.1", "Address to listen on; any but a loopback address needs tokens", NOTHING, later=True)
    port: int = key(8100, "Port to listen on; 0: a free one", NOTHING, unit="port number", later=True, ge=0, le=65535)
    token_file: str | None = key(None, "File of bearer tokens, one on each line", NOTHING, later=True)
    token_env: str = key("RAYDIST_TOKEN", "Environment variable with a bearer token, if it is set", NOTHING, later=True)
    max_bytes: int = key(65536, "Largest body of a request", NOTHING, unit="bytes", later=True, ge=256)
    max_question: int = key(2000, "Longest question, and longest condition", NOTHING, unit="characters", later=True, ge=1)
    max_k: int = key(100, "Most passages that a request may ask for", NOTHING, unit="passages", later=True, ge=1)
    rate: float | None = key(
        100.0, "Requests of one client, on average; null: no limit", NOTHING, unit="requests/second", later=True, gt=0
    )
    burst: int = key(200, "Requests of one client at once, before its rate counts", NOTHING, unit="requests", later=True, ge=1)
    queue: int = key(256, "Requests that are worked on or wait; more are refused", NOTHING, unit="requests", later=True, ge=1)
    timeout: float = key(30.0, "Longest time for an answer", NOTHING, unit="seconds", later=True, gt=0)
    slow: float = key(
        10.0, "Longest time for a client to send the head of a request, and its body", NOTHING, unit="seconds", later=True, gt=0
    )
    connections: int = key(
        512,
        "Open connections; beyond, those that wait longest for a request are closed",
        NOTHING,
        unit="connections",
        later=True,
        ge=2,
    )
    batch: int = key(32, "Questions that share a call of the models", NOTHING, unit="questions", later=True, ge=1)
    batch_wait: float = key(
        0.005, "How long a busy service waits for more questions before such a call", NOTHING, unit="seconds", later=True, ge=0
    )
    refresh: float = key(
        5.0, "How often a new version of the index or of a model is looked for", NOTHING, unit="seconds", later=True, gt=0
    )
    drain: float = key(
        20.0, "Time for accepted requests when a replica or the service ends", NOTHING, unit="seconds", later=True, ge=0
    )
    replicas: int = key(1, "Replicas on Ray Serve; of each deployment", NOTHING, unit="replicas", later=True, ge=1)
    max_replicas: int | None = key(
        None, "Replicas to grow to under load; null: no autoscaling", NOTHING, unit="replicas", later=True, ge=1
    )
    ongoing: int = key(16, "Requests per replica that autoscaling aims at", NOTHING, unit="requests", later=True, ge=1)
    separate: bool = key(
        False,
        "Retriever, cross-encoder and reader as deployments of their own; false: replicas with all of them",
        NOTHING,
        later=True,
    )
    cpus: float = key(1.0, "CPUs that Ray reserves for a replica", NOTHING, later=True, ge=0)
    gpus: float = key(0.0, "GPUs that Ray reserves for a replica with a model", NOTHING, later=True, ge=0)
    judgements: str | None = key(
        None,
        "File that verdicts of the page are added to; null: judgements.jsonl beside an index on a disk, none by serve deploy",
        NOTHING,
        later=True,
    )
    mined: str | None = key(None, "Run of retrieval whose mined pairs are judged at /judge", NOTHING, later=True)
    log_questions: bool = key(False, "Write questions to the log", NOTHING, later=True)

    def _problems(self) -> Iterator[str]:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            yield f"max_replicas {self.max_replicas} is less than replicas {self.replicas}: raise it, or leave it out"
