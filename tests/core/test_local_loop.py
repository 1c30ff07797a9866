"""The local loop and its batches."""

import pytest
import torch

from support import FixedData, golden, golden_task
from unskew.base.settings import LocalSettings
from unskew.base.tree import copy
from unskew.core.jobs import Job
from unskew.data.batches import LocalData, Pipeline, batch_bounds
from unskew.data.dataset import Samples
from unskew.data.transforms import transforms
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedprox import FedProx

NONE = transforms.build("none")


def local(n, augment=NONE, shape=(1, 4, 4)):
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, *shape), generator=rng, dtype=torch.uint8)
    return LocalData(Samples(x, torch.arange(n) % 3), None, Pipeline(3, (0.5,), (0.5,), augment))


def generators(seed=0):
    return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)


def sizes(data, **settings):
    wanted = LocalSettings(lr=0.1, **settings)
    batches = list(data.batches(wanted, *generators(), skip_single=False))
    return [len(batch.y) for batch in batches]


def test_short_last_batches_are_kept_unless_dropped():
    assert sizes(local(7), batch=3) == [3, 3, 1]
    assert sizes(local(7), batch=3, drop_last=True) == [3, 3]
    assert sizes(local(2), batch=3, drop_last=True) == [2]  # no full batch: the short one stays


def test_steps_run_over_epochs():
    assert sizes(local(7), batch=3, steps=5) == [3, 3, 1, 3, 3]
    assert sizes(local(7), batch=3, steps=2) == [3, 3]


def test_a_batch_of_one_is_skipped_with_batchnorm_only():
    assert batch_bounds(7, 3, skip_single=True) == [(0, 3), (3, 6)]
    assert batch_bounds(1, 3, skip_single=True) == []
    assert batch_bounds(1, 3) == [(0, 1)]
    data, settings = local(1), LocalSettings(lr=0.1, batch=3, steps=4)
    assert list(data.batches(settings, *generators(), skip_single=True)) == []


def test_a_test_pass_has_no_single_tail():
    assert [len(batch.y) for batch in local(7).passes(3)] == [3, 4]
    assert [len(batch.y) for batch in local(1).passes(3)] == [1]


def test_every_epoch_is_a_fresh_shuffle_of_all_samples():
    data = local(10)
    batches = list(data.batches(LocalSettings(lr=0.1, batch=4, epochs=2), *generators(), skip_single=False))
    first, second = (torch.cat([b.positions for b in batches[i : i + 3]]) for i in (0, 3))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    for batch in batches:
        assert torch.equal(batch.y, data.y[batch.positions])
        torch.testing.assert_close(batch.x, (data.source.x[batch.positions] / 255 - 0.5) / 0.5)


def test_batches_do_not_depend_on_how_they_are_gathered(monkeypatch):
    for augment in (NONE, transforms.build("crop_flip")):
        data, settings = local(10, augment), LocalSettings(lr=0.1, batch=4)
        at_once = list(data.batches(settings, *generators(), skip_single=False))
        monkeypatch.setattr("unskew.data.batches.EPOCH_LIMIT", 0)
        one_by_one = list(data.batches(settings, *generators(), skip_single=False))
        monkeypatch.undo()
        assert all(torch.equal(a.x, b.x) for a, b in zip(at_once, one_by_one, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_one_client_is_plain_sgd_as_torch_does_it(momentum, decay):
    file = golden("fedavg_round")
    file.hyper = {"lr": 0.1, "momentum": momentum, "weight_decay": decay}
    task = golden_task(FedAvg(), file, [FixedData(file.inputs["batches"], file.inputs["dims"]["c"])], [[0]])
    reply = task.work(Job("train", 1, 0, task.initial))
    module = task.net.module
    model = type(module)(module.body, module.head)
    params = copy(task.initial["model"])
    leaves = [value.requires_grad_() for value in params.values()]
    optimiser = torch.optim.SGD(leaves, lr=0.1, momentum=momentum, weight_decay=decay)
    for x, y in task.federation.train(0).given:
        optimiser.zero_grad()
        logits = torch.func.functional_call(model, params, (x,)).logits
        torch.nn.functional.cross_entropy(logits, y).backward()
        optimiser.step()
    for name, value in params.items():
        moved = task.initial["model"][name] + reply.groups["delta"][name]
        torch.testing.assert_close(moved, value.detach(), rtol=1e-12, atol=1e-12)


def test_fedprox_with_mu_zero_is_fedavg_bit_for_bit():
    file = golden("fedavg_round")
    data = FixedData(file.inputs["batches"], file.inputs["dims"]["c"])
    replies = []
    for method in (FedAvg(), FedProx(mu=0.0)):
        task = golden_task(method, file, [data], [[0]])
        replies.append(task.work(Job("train", 1, 0, task.initial)).groups["delta"])
    assert all(torch.equal(replies[0][name], replies[1][name]) for name in replies[0])
