"""Networks whose forward pass changes attributes, inputs or weights, skips layers, or draws."""

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from small_runs import SKEWED, SMALL, equal, play, said
from unskew.base import once
from unskew.base.errors import InputError

# ------------------------------------------------------------------------------- attributes and what is made on the way


class Net(nn.Module):
    """A small network."""

    def __init__(self):
        super().__init__()
        self.hidden, self.fc, self.scale, self.seen = nn.Linear(64, 8), nn.Linear(8, 10), torch.ones(8), []

    def forward(self, x):
        return self.fc(self.look(x.flatten(1)) * self.scale)

    def look(self, x):
        return self.hidden(x).relu()


class Scales(Net):
    def look(self, x):
        if self.training:
            self.scale = self.scale * 0.9
        return super().look(x)


class ScalesInPlace(Net):
    def look(self, x):
        if self.training:
            self.scale.mul_(0.9)
        return super().look(x)


class Remembers(Net):
    def look(self, x):
        self.seen.append(len(x))
        return super().look(x)


class MakesCache(Net):
    def look(self, x):
        if not hasattr(self, "cache"):
            self.cache = torch.zeros(8)
        return super().look(x) + self.cache


class MakesParameter(Net):
    def look(self, x):
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones(8))
        return super().look(x) * self.gain


class MakesBuffer(Net):
    def look(self, x):
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(8))
        return super().look(x) - self.mean


@pytest.mark.parametrize(("kind", "name"), [(Scales, "scale"), (ScalesInPlace, "scale"), (Remembers, "seen")])
def test_state_in_attributes_is_said(kind, name, caplog):
    once.warn_once.cache_clear()
    play(model=kind(), head="fc", rounds=1)
    assert f"{kind.__name__} changes its attribute 'body.{name}' in forward" in caplog.text


@pytest.mark.parametrize("kind", [Net, MakesCache])
def test_an_attribute_that_stays_is_not_said(kind, caplog):
    once.warn_once.cache_clear()
    play(model=kind(), head="fc", rounds=1)
    assert "in forward" not in caplog.text


@pytest.mark.parametrize(
    ("kind", "what"), [(MakesParameter, "parameter 'body.gain'"), (MakesBuffer, "buffer 'body.mean'")]
)
def test_what_forward_makes_is_refused(kind, what):
    with pytest.raises(InputError, match=f"{kind.__name__} makes its {what} in forward"):
        play(model=kind(), head="fc")


# --------------------------------------------------------------------------------------------------------------- inputs


class ChangesMany(Net):
    def forward(self, x):
        return super().forward(x.mul_(0.5) if len(x) > 3 else x)


class ChangesInTraining(Net):
    def forward(self, x):
        return super().forward(x.mul_(0.5) if self.training else x)


@pytest.mark.parametrize("kind", [ChangesMany, ChangesInTraining])
def test_a_network_that_changes_its_input_at_times_is_refused(kind):
    with pytest.raises(InputError, match=f"{kind.__name__} changes its input in place"):
        play(model=kind(), head="fc")


def test_a_network_that_draws_from_numpy_is_told_so_and_not_that_its_head_is_another():
    class Draws(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.fc(x.flatten(1) + 0.01 * float(np.random.rand()))

    with pytest.raises(InputError, match="gives another output for the same inputs when it is asked again"):
        unskew.run("fedavg", **{**SKEWED, "model": Draws(), "head": "fc"})


# -------------------------------------------------------------------------------------------------------------- weights


class Constrained(nn.Linear):
    """Max-norm in the forward pass, as in EEGNet; the initial rows are within the bound."""

    __module__ = "mine"

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.75)
        return super().forward(x)


class Shrinking(nn.Linear):
    """The same in place, once it is needed."""

    __module__ = "mine"

    def forward(self, x):
        with torch.no_grad():
            norm = self.weight.norm()
            if norm > 3.4:
                self.weight.mul_(3.4 / norm)
        return super().forward(x)


@pytest.mark.parametrize("layer", [Constrained, Shrinking])
@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "finetuned(fedavg)"])
def test_a_network_that_constrains_its_weights_is_the_same_everywhere(layer, method):
    """A test of the model does not change the server's: neither the executor nor how often is tested matters."""

    def run(**options):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), layer(64, 32), nn.ReLU(), nn.Linear(32, 10))
        plain = {**SMALL, "rounds": 4, "epochs": 2, "batch": 16, "lr": 0.2, "seed": 3, "local_test": "proportional"}
        return play(method=method, **{**plain, "model": net, "head": "3", **options})

    whole = run(executor="serial")
    assert equal(whole, run(executor="pool", workers=2))
    assert equal(whole, run(executor="serial", eval_every=4))
    assert equal(whole, run(executor="serial", measure=["separability", "fisher"]))


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x):
        hidden = self.first(x.flatten(1)).relu()
        if not self.training or torch.rand(()) < 0.3:
            hidden = hidden + self.second(hidden).relu()
        return self.fc(hidden)


class Unused(StochasticDepth):
    def forward(self, x):
        return self.fc(self.first(x.flatten(1)).relu())


@pytest.mark.parametrize(("network", "warned"), [(StochasticDepth, False), (Unused, True)])
def test_a_layer_that_is_skipped_at_random_is_no_unused_one(network, warned, caplog):
    for seed in range(4):
        torch.manual_seed(seed)
        unskew.run(**{**SMALL, "model": network(), "head": "fc", "rounds": 1})
    assert ("does not depend on body.second" in said(caplog)) is warned
