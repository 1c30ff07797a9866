"""A quick look at an array: has anything in it changed?"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def glance(value: Tensor | np.ndarray) -> str:
    """Type, shape and a hash of sums along and across lines of 512 bytes, faster than one of all bytes.

    NumPy adds in one thread: torch's own threads do not survive a fork, and a child would wait for them for ever.
    """
    shape = repr((type(value).__name__, str(value.dtype), tuple(value.shape))).encode()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return _shorten(shape + repr(value.tolist()).encode())
        plain = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    elif value.is_meta:
        return _shorten(shape)
    else:
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        plain = dense.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    even = len(plain) // 512 * 512
    lines = plain[:even].view(np.int64).reshape(-1, 64)
    whole = len(lines) // 4096 * 4096
    sums = lines.sum(1), lines[:whole].reshape(-1, 4096, 64).sum(1), lines[whole:].sum(0)
    return _shorten(shape + b"".join(one.tobytes() for one in (*sums, plain[even:])))


def _shorten(said: bytes) -> str:
    return hashlib.sha256(said).hexdigest()[:16]
