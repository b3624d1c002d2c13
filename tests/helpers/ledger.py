"""Entries of a sweep's ledger."""

from raydist.sweep.plan import Trial


def entry(trial: Trial, value: float | None, status: str = "done") -> dict:
    metrics = {} if value is None else {"dev.f1": value}
    return {"id": trial.id, "choice": dict(trial.choice), "seed": trial.seed, "status": status, "metrics": metrics}
