"""What many tests share: golden files, the tiny network they are computed on, and tasks over fixed batches."""

import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from unskew.base.batch import Batch
from unskew.base.settings import LocalSettings
from unskew.core.net import Net
from unskew.core.task import Task
from unskew.data.batches import LocalData, Pipeline
from unskew.data.transforms import transforms
from unskew.executors.serial import Serial
from unskew.models.base import Model
from unskew.runs import building
from unskew.runs.client_store import StateStore

GOLDEN = Path(os.environ.get("UNSKEW_GOLDEN") or Path(__file__).parent / "golden")
RENAMED = {"fc1": "body.fc1", "classifier": "head"}


def golden(name):
    """A golden file: an object with `hyper`, `inputs`, `expected`, `rtol`, `atol`."""
    return SimpleNamespace(**json.loads((GOLDEN / f"{name}.json").read_text()))


def golden_names(pattern):
    found = sorted(path.stem for path in GOLDEN.glob(f"{pattern}.json"))
    assert found, f"no golden file {pattern} in {GOLDEN}"
    return found


def to_tree(params):
    """Parameters of a golden file under the names they have here."""
    return {rename(name): torch.tensor(value, dtype=torch.float64) for name, value in params.items()}


def rename(name):
    module, _, kind = name.rpartition(".")
    return f"{RENAMED.get(module, module)}.{kind}"


def assert_tree(actual, expected, file):
    for name, value in to_tree(expected).items():
        torch.testing.assert_close(
            actual[name], value, rtol=file.rtol, atol=file.atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def tiny_mlp(i, h, c):
    """The golden files' network: fc1, ReLU (features), classifier."""
    return Model(nn.Sequential(OrderedDict(fc1=nn.Linear(i, h), relu=nn.ReLU())), nn.Linear(h, c)).double()


class FixedData(LocalData):
    """A client whose batches are given."""

    def __init__(self, batches, num_classes, size=None):
        self.given = [(torch.tensor(b["x"], dtype=torch.float64), torch.tensor(b["y"])) for b in batches]
        self.size = size if size is not None else sum(len(y) for _, y in self.given)
        self.pipeline = Pipeline(num_classes, (), (), transforms.build("none"))
        self.y = torch.cat([y for _, y in self.given])

    def __len__(self):
        return self.size

    def batches(self, settings, order, noise, skip_single):
        for _ in range(settings.epochs):
            for x, y in self.given:
                yield Batch(x, y, torch.arange(len(y)))


@dataclass(frozen=True)
class FixedFederation:
    clients: list
    dataset: SimpleNamespace

    def __len__(self):
        return len(self.clients)

    def train(self, client):
        return self.clients[client]

    def size(self, client):
        return len(self.clients[client])


@dataclass(frozen=True)
class PlannedTask(Task):
    """A task whose cohorts are given."""

    plan: list = field(default_factory=list)

    def sample_cohort(self, round_):
        return tuple(self.plan[round_ - 1])


def golden_task(method, file, clients, plan, num_clients=None):
    """A task on the golden network with these clients' batches, lr, momentum and decay from the file."""
    net = Net(tiny_mlp(**file.inputs["dims"]))
    hyper = file.hyper
    return PlannedTask(
        method=method,
        federation=FixedFederation(
            clients + [None] * ((num_clients or len(clients)) - len(clients)),
            SimpleNamespace(num_classes=file.inputs["dims"]["c"]),
        ),
        net=net,
        initial={"model": to_tree(file.inputs["params_global"]), "buffers": {}},
        seed=0,
        local=LocalSettings(
            lr=hyper["lr"], batch=1, momentum=hyper.get("momentum", 0.0), weight_decay=hyper.get("weight_decay", 0.0)
        ),
        lr_decay=1.0,
        buffer_policy="average",
        cohort_size=1,
        plan=plan,
    )


class Recording(Serial):
    """A serial executor that keeps the replies."""

    def run(self, jobs):
        self.replies = []
        for reply in super().run(jobs):
            self.replies.append(reply)
            yield reply


def memory_store(tmp_path):
    return StateStore(tmp_path / "states")


STACKED_TOLERANCE = 1e-3
"""`stacked` against `serial`: the distance of their models as a share of the distance moved from the initial model.

Typical is 1e-6. Rounding can flip a max-pool's choice or a ReLU's side, whose gradients jump; hence the wide margin.
"""


def gap(result, reference, start):
    """How far two runs' models lie apart, as a share of how far the reference moved."""

    def flat(model):
        return torch.cat([model[name].double().flatten() for name in start])

    moved = (flat(reference.server["model"]) - flat(start)).norm()
    return float((flat(result.server["model"]) - flat(reference.server["model"])).norm() / moved)


def initial_model(run, dataset=None):
    return building.prepare(run, dataset=dataset).task.initial["model"]
