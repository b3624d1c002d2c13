"""Optimizer, warm-up and decay."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from raydist.config import OptimConfig


def own_groups(task: nn.Module) -> list[dict[str, Any]]:
    """The parameter groups that modules define themselves (`parameter_groups`)."""
    asking: list[Any] = [module for module in task.modules() if hasattr(module, "parameter_groups")]
    return [group for module in asking for group in module.parameter_groups()]


def build_optimizer(task: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, fused; no decay on biases and normalisation. Modules may define their own groups."""
    own = own_groups(task)
    taken = {id(p) for group in own for p in group["params"]}
    rest = [p for p in task.parameters() if p.requires_grad and id(p) not in taken]
    decayed, plain = [p for p in rest if p.dim() >= 2], [p for p in rest if p.dim() < 2]
    shared: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in shared + own if group["params"]]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay, fused=True)


def lr_share(step: int, *, warmup: int, total: int, schedule: str, final: float) -> float:
    """The learning rate of a step (counted from 0) as a share of the peak."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    left = 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return final + (1 - final) * left


def build_schedule(optimizer: torch.optim.Optimizer, optim: OptimConfig, total_steps: int, batch_size: int) -> LambdaLR:
    warmup = optim.num_warmup_steps(total_steps, batch_size)

    def share(step: int) -> float:
        return lr_share(step, warmup=warmup, total=total_steps, schedule=optim.schedule, final=optim.final_lr_share)

    return LambdaLR(optimizer, share)
