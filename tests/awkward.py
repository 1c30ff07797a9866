"""Short runs on five awkward clients: one sample in all, a last batch of one sample, missing classes; BatchNorm."""

import copy

import torch
from torch import nn

from unskew.data.dataset import Dataset, Samples
from unskew.models import architectures
from unskew.models.user_module import GivenModule
from unskew.runs import engine
from unskew.runs.config import from_table


def tiny_data(groups=None, classes=3, seed=0):
    """Three classes of 2x4x4 images that a small net can tell apart."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % classes
    x = torch.randint(0, 100, (60, 2, 4, 4), generator=rng, dtype=torch.uint8) + (60 * y).to(torch.uint8).view(
        -1, 1, 1, 1
    )
    samples = Samples(x, y)
    names = tuple(str(group) for group in range(int(groups.max()) + 1)) if groups is not None else ()
    return Dataset("tiny", samples, samples, tuple("abc"), (0.5, 0.5), (0.5, 0.5), groups=groups, group_names=names)


def awkward_groups():
    """Five clients: one with a single sample, one whose last batch is one sample, one that misses two classes."""
    groups = torch.zeros(60, dtype=torch.int64)
    groups[0] = 1  # one sample in all
    groups[torch.arange(3, 60, 3)[:9]] = 2  # class 0 only; nine samples: with batch 8 the last batch is one sample
    groups[40:50], groups[50:] = 3, 4
    return groups


def config(spec, **options):
    """A run on tiny data: two rounds, all five clients."""
    base = {
        "method": spec, "model": "cnn8(norm=batch)", "split": "natural", "rounds": 2, "seed": 3,
        "local": {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.5}, "execution": {"checkpoint_every": 1},
    }  # fmt: skip
    return from_table({**base, **options})


DATA = tiny_data(awkward_groups())


class DoubleBody(nn.Sequential):
    """Takes its inputs to double precision."""

    def forward(self, x):
        return super().forward(x.double())


def in_double(name, data=DATA):
    """The network in double precision, with the same names: where rounding is a billion times smaller, faults stay."""
    torch.manual_seed(0)
    model = architectures.build(name).build(data.shape, data.num_classes).double()
    model.body = DoubleBody(*model.body)
    return GivenModule.of(model)


def play(spec, out=None, **options):
    return engine.run(config(spec, **options), out, dataset=DATA)


def rows_without_times(result):
    rows = copy.deepcopy(result.rounds)
    for row in rows:
        row.pop("seconds")
    return rows


QUICK = {
    **{name: f"{name}(steps=3, server_epochs=2, ipc=2)" for name in ("fedaf", "feddm")},
    "local": "local(epochs=3)", "fedbabu": "fedbabu(finetune=2)",
}  # fmt: skip
"""Methods whose defaults, the paper's, take hours: the shortest form of them that does all of their work."""


def quick(spec):
    """The method as tests run it."""
    return QUICK.get(spec, spec)
