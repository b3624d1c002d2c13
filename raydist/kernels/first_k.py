"""The k best of each row in a fully determined order, which ``torch.topk`` does not guarantee for equal scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def first_k(score_BN: Tensor, k: int) -> Tensor:
    """Positions of the k best scores of each row; ties go to the lower position. Scores hold no minus zero."""
    n = score_BN.shape[1]
    bits_BN = score_BN.view(torch.int32)
    rising_BN = (bits_BN >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits_BN)  # integers in the order of the floats
    key_BN = torch.add(torch.arange(n - 1, -1, -1, device=score_BN.device), rising_BN, alpha=1 << 32)  # no two are equal
    if k >= n or score_BN.device.type != "cpu":
        return key_BN.topk(min(k, n)).indices
    keys = np.partition(key_BN.numpy(), n - k)[:, n - k :]  # a third of topk's time on a CPU
    keys.sort()
    return torch.from_numpy(n - 1 - (keys[:, ::-1] & 0xFFFFFFFF))
