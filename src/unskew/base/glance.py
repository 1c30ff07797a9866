"""A quick look at an array: has anything in it changed?"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def glance(value: Tensor | np.ndarray) -> str:
    """Type, shape and a hash of sums along and across lines of 512 bytes, faster than one of all bytes."""
    shape = repr((type(value).__name__, str(value.dtype), tuple(value.shape))).encode()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return hashlib.sha256(shape + repr(value.tolist()).encode()).hexdigest()[:16]
        value = torch.from_numpy(np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8).copy())
    if value.is_meta:
        return hashlib.sha256(shape).hexdigest()[:16]
    dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    plain = dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    even = plain.numel() // 512 * 512
    lines = plain[:even].view(torch.int64).view(-1, 64)
    whole = len(lines) // 4096 * 4096
    sums = lines.sum(1), lines[:whole].view(-1, 4096, 64).sum(1), lines[whole:].sum(0)
    said = b"".join(one.cpu().numpy().tobytes() for one in (*sums, plain[even:]))
    return hashlib.sha256(shape + said).hexdigest()[:16]
