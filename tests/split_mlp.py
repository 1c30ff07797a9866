"""The golden files' second network, `SplitMLP`: base = Linear and ReLU (here body), head = Linear; and tasks on it."""

from types import SimpleNamespace

import torch
from torch import nn

from support import FixedData, FixedFederation, PlannedTask
from unskew.base.batch import Batch
from unskew.base.settings import LocalSettings
from unskew.core.net import Net
from unskew.core.schedule import Constant
from unskew.models.base import Model


class Client(FixedData):
    """A client whose batches are given, for passes too."""

    def passes(self, batch):
        for x, y in self.given:
            yield Batch(x, y, torch.arange(len(y)))


def params_of(table):
    """A golden file's parameters under our names: base.* is the body."""
    return {name.replace("base.", "body."): torch.tensor(value, dtype=torch.float64) for name, value in table.items()}


def assert_params(actual, table, file):
    expected = params_of(table)
    assert expected
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=file.rtol, atol=file.atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def close(actual, expected, file):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), expected, rtol=file.rtol, atol=file.atol)


def split_task(method, dims, clients, initial, lr=0.1, plan=None, **settings):
    """A task on the network, with these clients' data."""
    i, h, c = (dims[key] for key in "ihc")
    return PlannedTask(
        method=method, federation=FixedFederation(clients, SimpleNamespace(num_classes=c)),
        net=Net(Model(nn.Sequential(nn.Linear(i, h), nn.ReLU()), nn.Linear(h, c)).double()),
        initial={"model": initial, "buffers": {}}, seed=0, local=LocalSettings(**{"lr": lr, "batch": 1, **settings}),
        schedule=Constant(), buffer_policy="average", cohort_size=1, plan=plan or [list(range(len(clients)))],
    )  # fmt: skip
