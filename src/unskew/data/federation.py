"""The data of all clients: one data set in memory, a partition of it, and each client's test set."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.data.batches import LocalData, Pipeline
from unskew.data.dataset import Dataset, Samples
from unskew.data.local_tests import choose_proportional, hold_out
from unskew.data.partition.base import Ints, Partition
from unskew.data.transforms import Augment, Transform

LocalTest = Literal["none", "proportional", "common", "holdout"]
"""A client's test set: none; test samples in its label shares; all test samples (of its domain), the same for all
clients; or a part of its own samples, kept out of training."""

KNOWN_CLIENTS, KNOWN_SAMPLES = 256, 1000
"""So many clients of at most so many samples are kept: finding a tiny client's samples takes as long as a step."""


@dataclass(frozen=True)
class Federation:
    """Who holds which samples. Clients are index lists, looked up or computed; nothing is kept per client."""

    dataset: Dataset
    partition: Partition
    augment: Transform
    local_tests: LocalTest = "none"
    test_share: float = 0.25
    test_limit: int = 1000
    seed: int = 0

    def __len__(self) -> int:
        return len(self.partition)

    def size(self, client: int) -> int:
        """How many samples a client holds, those kept for its tests included."""
        return int(self.partition.sizes_of([client])[0])

    def train(self, client: int) -> LocalData:
        """A client's training data."""
        known = self._known.get(client)
        if known is None:
            known = self._view(self.dataset.train, self.train_indices(client), self._training)
            if len(self._known) >= KNOWN_CLIENTS:
                self._known.clear()
            if len(known) <= KNOWN_SAMPLES:
                self._known[client] = known
        return known

    @cached_property
    def _known(self) -> dict[int, LocalData]:
        return {}

    def shorten(self, lengths: Mapping[int, int]) -> Federation:
        """The same, some of whose clients train on so many of their samples only, the first ones."""
        short = copy(self)
        parts = {client: self.train(client) for client in lengths}
        short.__dict__["_known"] = {
            client: LocalData(data.source, data.index[: lengths[client]], data.pipeline)
            for client, data in parts.items()
        }
        return short

    def local_test(self, client: int) -> LocalData:
        """A client's own test data."""
        if self.local_tests == "none":
            raise InputError("this run has no local test sets; set evaluation.local_test to proportional or holdout")
        samples = self.dataset.train if self.local_tests == "holdout" else self.dataset.test
        return self._view(samples, self.local_test_indices(client), self._testing)

    def local_test_indices(self, client: int) -> Ints:
        """The positions of a client's test samples: in the test set, or (`holdout`) among the training samples."""
        if self.local_tests == "holdout":
            return self._hold_out(client)[1]
        labels, own = self.dataset.test.y.cpu().numpy(), self.partition[client]
        eligible = np.arange(len(labels))
        if self.dataset.groups is not None and self.dataset.test_groups is not None:
            # a client of one domain is tested on that domain
            eligible = np.flatnonzero(np.isin(self.dataset.test_groups, self.dataset.groups[torch.tensor(own)]))
        if self.local_tests == "common":
            return eligible
        counts = np.bincount(self.dataset.train.y.cpu().numpy()[own], minlength=self.dataset.num_classes)
        return eligible[choose_proportional(labels[eligible], counts, self.seed, client, self.test_limit)]

    def common(self, kind: str, start: int, stop: int) -> LocalData:
        """A part of the test set that all clients share, or of the validation set (kind `validate`)."""
        known = self._common.get((kind, start, stop))
        if known is None:
            samples = self.dataset.validation if kind == "validate" else self.dataset.test
            assert samples is not None
            known = LocalData(Samples(samples.x[start:stop], samples.y[start:stop]), None, self._testing)
            self._common[kind, start, stop] = known
        return known

    def as_tests(self, samples: Samples) -> LocalData:
        """Other samples, made inputs of the model as those of the test set are."""
        return LocalData(samples, None, self._testing)

    @cached_property
    def _common(self) -> dict[tuple[str, int, int], LocalData]:
        return {}

    def train_indices(self, client: int) -> Ints:
        """The positions of a client's training samples in the data set."""
        return self._hold_out(client)[0] if self.local_tests == "holdout" else self.partition[client]

    def _hold_out(self, client: int) -> tuple[Ints, Ints]:
        return hold_out(self.partition[client], self.seed, client, self.test_share)

    def _view(self, samples: Samples, indices: Ints, pipeline: Pipeline) -> LocalData:
        return LocalData(samples, torch.from_numpy(np.array(indices)).to(samples.y.device), pipeline)

    @cached_property
    def _training(self) -> Pipeline:
        return Pipeline(self.dataset.num_classes, self.dataset.mean, self.dataset.std, self.augment)

    @cached_property
    def _testing(self) -> Pipeline:
        return replace(self._training, augment=Augment())


def pool_train_and_test(dataset: Dataset) -> Dataset:
    """Makes training samples of the test samples, too, as FedAS does; the test set stays as it is."""
    groups = None
    if dataset.groups is not None and dataset.test_groups is not None:
        groups = torch.cat([dataset.groups, dataset.test_groups])
    train = Samples(torch.cat([dataset.train.x, dataset.test.x]), torch.cat([dataset.train.y, dataset.test.y]))
    return replace(dataset, train=train, groups=groups)


def hold_out_validation(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Holds a random share of the training samples out as validation data, unless the data set brings its own."""
    if share == 0 or dataset.validation is not None:
        return dataset
    order = torch.randperm(len(dataset.train), generator=seeds.generator(seed, "validation"))
    cut = max(1, int(share * len(order)))
    held, left = order[:cut], order[cut:].sort().values
    if len(left) == 0:
        raise InputError(f"a validation share of {share} leaves no training samples; choose a smaller one")
    groups = None if dataset.groups is None else dataset.groups[left]
    return replace(dataset, train=dataset.train.take(left), validation=dataset.train.take(held), groups=groups)
