"""One module for all: aliases, buffers, modes, chosen layers."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import unskew
from unskew.base import storage
from unskew.base.tree import copy
from unskew.core.net import Net
from unskew.models.base import Model


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 4, bias=False)
        self.down = nn.Linear(4, 3, bias=False)
        self.down.weight = nn.Parameter(torch.ones(3, 4))
        self.again = nn.Linear(3, 4, bias=False)
        self.again.weight = self.up.weight
        self.register_buffer("constant", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.again(self.down(self.up(x + self.constant)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn, self.drop, self.ln = nn.BatchNorm1d(3), nn.Dropout(0.5), nn.LayerNorm(3)

    def forward(self, x):
        return self.ln(self.drop(self.bn(x)))


def test_tied_weights_are_one_parameter_and_constants_are_no_state():
    net = Net(Model(Tied(), nn.Linear(4, 2)))
    params, buffers = net.trees()
    assert list(params) == ["body.up.weight", "body.down.weight", "head.weight", "head.bias"] and buffers == {}
    changed = copy(params)
    changed["body.up.weight"].zero_()
    out = net(changed, buffers, torch.ones(2, 3), "train")
    assert out.features.abs().sum() == 0  # both places see the change


def test_extra_names_are_passed_over_and_missing_ones_are_an_error():
    net = Net(Model(nn.Identity(), nn.Linear(3, 2)))
    params, buffers = net.trees()
    net({**params, "other": torch.ones(1)}, buffers, torch.ones(2, 3), "train")
    with pytest.raises(KeyError, match=r"head\.bias"):
        net({"head.weight": params["head.weight"]}, buffers, torch.ones(2, 3), "train")


def test_modes():
    net = Net(Model(Normed(), nn.Linear(3, 2)))
    params, buffers = net.trees()
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) + 5
    start = copy(buffers)

    def unchanged():
        return all(torch.equal(buffers[name], start[name]) for name in start)

    twice = [net(params, buffers, x, "eval_batch").features for _ in range(2)]
    assert torch.equal(*twice) and unchanged()  # no dropout, nothing updated
    running = net(params, buffers, x, "eval").features
    assert not torch.allclose(running, twice[0]) and unchanged()  # other statistics
    net(params, buffers, x, "batch")
    assert unchanged()
    net(params, buffers, x, "train")
    assert not unchanged() and buffers["body.bn.running_mean"].abs().sum() > 0
    assert net(params, buffers, x[:1], "eval_batch").logits.shape == (1, 2)  # one sample has no statistics


def test_names_of_normalisation_layers():
    names = Net(Model(Normed(), nn.Linear(3, 2))).names
    assert names.match(("@batchnorm",)) == ("body.bn.weight", "body.bn.bias")
    assert names.match(("@norm",)) == ("body.bn.weight", "body.bn.bias", "body.ln.weight", "body.ln.bias")
    assert names.match(("head.*",)) == ("head.weight", "head.bias") and names.layers == ("head",)


def test_chosen_layers_work_otherwise_for_one_pass_only():
    net = Net(Model(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2)))
    params, buffers = net.trees()
    x = torch.ones(2, 3)
    plain = net(params, buffers, x, "train").logits
    other = net(params, buffers, x, "train", {"body.0": lambda layer, z: layer.weight.sum() * z})
    torch.testing.assert_close(other.features, torch.relu(params["body.0.weight"].sum() * x))
    assert torch.equal(net(params, buffers, x, "train").logits, plain)


def test_gradients_of_single_samples_with_channels_last():
    net = Net(Model(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()), nn.Linear(12, 2)), channels_last=True)
    params, buffers = net.trees()
    x = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))

    def loss(p, x):
        return net(p, buffers, x.unsqueeze(0), "eval").logits.square().sum()

    # `vmap` has no form of `clone(memory_format=channels_last)`
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
    for place, sample in enumerate(x):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        alone = torch.autograd.grad(loss(leaves, sample), list(leaves.values()))
        for own, expected in zip(each.values(), alone, strict=True):
            torch.testing.assert_close(own[place], expected)


class ByTorch(nn.Dropout):
    """The same layer, left as torch made it."""


class FeaturesByTorch(nn.Dropout2d):
    """The same."""


class Mixed(nn.Module):
    """Dropout as a layer and as a function."""

    def __init__(self, drop):
        super().__init__()
        self.flat, self.drop, self.fc = nn.Flatten(), drop, nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(nn.functional.dropout(self.drop(self.flat(x)), 0.2, self.training))


def dropping(drop, features, inplace=False):
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(
        conv=nn.Conv2d(1, 4, 3), maps=features(0.4), norm=nn.BatchNorm2d(4), flat=nn.Flatten(),
        hidden=nn.Linear(144, 16), drop=drop(0.3, inplace=inplace), relu=nn.ReLU(), fc=nn.Linear(16, 10),
    ))  # fmt: skip


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("inplace", [False, True])
def test_masks_from_the_visits_own_stream_are_those_of_torch(memory_format, inplace):
    options = {"clients": 4, "rounds": 2, "split": "iid", "executor": "serial", "memory_format": memory_format}
    ours, torchs = (
        unskew.run(model=dropping(*kinds, inplace=inplace), head="fc", **options).server
        for kinds in ((nn.Dropout, nn.Dropout2d), (ByTorch, FeaturesByTorch))
    )
    assert storage.encode(ours) == storage.encode(torchs)


def test_a_network_that_draws_elsewhere_too_keeps_its_order_of_draws():
    def play(drop):
        torch.manual_seed(0)
        return unskew.run(model=Mixed(drop), head="fc", clients=4, rounds=2, split="iid", executor="serial").server

    assert storage.encode(play(nn.Dropout(0.3))) == storage.encode(play(ByTorch(0.3)))
