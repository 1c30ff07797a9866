"""What many tests share: golden files, the tiny network they are computed on, and tasks over fixed batches."""

import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from unskew.base.batch import Batch
from unskew.base.registry import validated
from unskew.base.settings import LocalSettings
from unskew.core.jobs import Job
from unskew.core.net import Net
from unskew.core.round_loop import rounds
from unskew.core.schedule import Constant
from unskew.core.task import Task
from unskew.core.tolerance import USUAL
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
        self.source = SimpleNamespace(x=torch.cat([x for x, _ in self.given]), y=self.y)

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
        schedule=Constant(),
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


def survey(task, server, message, client=0):
    """What the server adds to a client's message after a survey of this client alone."""
    s, method = task.server_context(1, (client,)), task.method
    reply = task.work(Job("survey", 1, client, message))
    merged = {name: how(s) for name, how in method.survey_reducers.items()}
    for name, reducer in merged.items():
        reducer.add(reply.groups[name], reply)
    surveyed = method.digest(s, server, {name: reducer.result() for name, reducer in merged.items()})
    return method.brief(s, surveyed, client)


def memory_store(tmp_path):
    return StateStore(tmp_path / "states")


STACKED_TOLERANCE = USUAL
"""`stacked` against `serial`: the distance of their models as a share of the distance moved from the initial model."""


SHOWN = ("fedavg", "scaffold", "flfa", "fedblade", "fedas", "fedsol", "fedaf", "fedper", "feddyn", "fedetf")
"""Methods whose longest checks are part of `make test`; the others' are for `make test-all`."""


def mark_slow(specs):
    """The specs as parameters of a test; of methods that are not in `SHOWN` they are slow."""
    return [
        spec if spec.partition("(")[0] in SHOWN else pytest.param(spec, marks=pytest.mark.slow)
        for spec in dict.fromkeys(specs)
    ]


def gap(result, reference, start):
    """How far two runs' models lie apart, as a share of how far the reference moved."""

    def flat(model):
        return torch.cat([model[name].double().flatten() for name in start])

    moved = (flat(reference.server["model"]) - flat(start)).norm()
    apart = (flat(result.server["model"]) - flat(reference.server["model"])).norm()
    return float(apart / moved) if apart else 0.0  # a server that trains nothing does not move


def initial_model(run, dataset=None):
    return building.prepare(run, dataset=dataset).task.initial["model"]


class Vector(nn.Module):
    """Some parameters, whatever the input."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), -1)


def play_vectors(kind, options, start, move, counts, tmp_path):
    """Rounds of a method whose model is one vector and whose clients end where `move(round, client, received)` says.

    `counts`: samples of each client. Gives what was sent and the server's state after each round.
    """
    sent = []

    @validated
    class Planted(kind):
        def train(self, c, params):
            sent.append(c.message["model"]["head.w"])
            there = move(c.round - 1, c.client, c.message["model"]["head.w"])
            return {"head.w": torch.as_tensor(there, dtype=torch.float64)}

    clients = [FixedData([{"x": [[0.0]], "y": [0]}], 2, size) for size in counts]
    task = PlannedTask(
        method=Planted(**options), federation=FixedFederation(clients, SimpleNamespace(num_classes=2)),
        net=Net(Model(nn.Identity(), Vector(len(start)))), seed=0, schedule=Constant(), buffer_policy="average",
        cohort_size=1, initial={"model": {"head.w": torch.tensor(start, dtype=torch.float64)}, "buffers": {}},
        local=LocalSettings(lr=0.1, batch=1), plan=[list(range(len(clients)))] * 1000,
    )  # fmt: skip
    server = task.method.init(task.server_context(0))
    for done in rounds(task, Serial(task), memory_store(tmp_path), server, 1, 1000):
        yield sent[-1], done.server
