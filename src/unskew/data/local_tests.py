"""The test sets of clients; each depends on the seed and the client only, not on which was asked for first."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from unskew.base.errors import InputError
from unskew.data.partition.base import Ints


def choose_proportional(
    test_labels: ArrayLike, client_counts: ArrayLike, seed: int, client: int, limit: int = 1000
) -> Ints:
    """About `limit` samples of the common test set with the client's label shares; clients may share samples.

    `client_counts` holds the client's training samples per class. A class with too few test samples gives all of them.
    """
    labels, counts = np.asarray(test_labels), np.asarray(client_counts)
    wanted = (limit * (counts / max(1, counts.sum()))).astype(np.int64)
    rng = _rng(seed, client, 0)
    chosen = [np.empty(0, np.int64)]
    for label in np.flatnonzero(wanted):
        available = np.flatnonzero(labels == label)
        chosen.append(rng.permutation(available)[: wanted[label]])
    return np.concatenate(chosen)


def hold_out(indices: Ints, seed: int, client: int, share: float = 0.25) -> tuple[Ints, Ints]:
    """A random split of the client's own samples into (training, test); one sample always stays for training."""
    if not 0 <= share < 1:
        raise InputError(f"the share of a client's samples held out must be in [0, 1), got {share}")
    shuffled = _rng(seed, client, 1).permutation(np.array(indices))  # an empty read-only one it would not copy itself
    # the tolerance keeps (1 - 0.9) * 10 at one sample
    training = max(1, int((1 - share) * len(shuffled) + 1e-9))
    return shuffled[:training], shuffled[training:]


def _rng(seed: int, client: int, purpose: int) -> np.random.Generator:
    """A generator of its own for each client and purpose: SeedSequence hashes the three numbers."""
    return np.random.default_rng(np.random.SeedSequence([seed, client, purpose]))
