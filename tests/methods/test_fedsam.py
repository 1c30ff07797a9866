"""FedSAM and FedASAM against numbers computed outside this project (UNSKEW_GOLDEN: other inputs); identities."""

from dataclasses import replace

import pytest
import torch

from awkward import DATA, config, play
from support import FixedData, assert_tree, golden, golden_names, golden_task
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.observer import Observer
from unskew.methods.fedasam import FedASAM
from unskew.methods.fedsam import FedSAM
from unskew.runs import building

FILES = [(kind, name) for kind, pattern in ((FedSAM, "fedsam_local*"), (FedASAM, "fedasam_local*"))
         for name in golden_names(pattern)]  # fmt: skip


class Before(Observer):
    """Keeps the parameters before each step."""

    def __init__(self):
        self.seen = []

    def before_step(self, c, params, batch):
        self.seen.append(tree.copy(params))


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_golden_training(kind, name):
    file = golden(name)
    method = kind(rho=file.hyper["rho"])
    data = FixedData(file.inputs["batches"], file.inputs["dims"]["c"])
    task = golden_task(method, file, [data], [[0]])
    c = task.visit(Job("train", 1, 0, {"model": task.initial["model"], "buffers": {}}), data)
    before = Before()
    after = method.train(replace(c, observers=(before,)), task.initial["model"])
    for params, batch, wanted in zip(before.seen, c.batches(), file.expected["perturbations"], strict=True):
        grads = c.grad(lambda p, batch=batch: method.loss(c, p, batch), params)
        assert_tree(method._ascend(params, grads), wanted, file)
    assert_tree(after, file.expected["params_after"], file)


def test_perturbations_by_hand():
    # w = (2, -4 | 1), g = (3, 0 | 4): norm 5. SAM, rho 10: (6, 0 | 8)
    w = {"l.weight": torch.tensor([2.0, -4.0]), "l.bias": torch.tensor([1.0])}
    g = {"l.weight": torch.tensor([3.0, 0.0]), "l.bias": torch.tensor([4.0])}
    assert all(torch.equal(v, 2 * g[n]) for n, v in FedSAM(rho=10.0)._ascend(w, g).items())
    # |w| g = (6, 0 | 4), norm sqrt 52; w^2 g = (12, 0 | 4)
    eps = FedASAM(rho=10.0)._ascend(w, g)
    torch.testing.assert_close(torch.cat(list(eps.values())), torch.tensor([12.0, 0.0, 4.0]) * 10 / 52**0.5)
    # authors: T = (2.5, 4.5 | 1): T g = (7.5, 0 | 4), norm 8.5; T^2 g = (18.75, 0 | 4)
    eps = FedASAM(rho=10.0, form="authors", eta=0.5)._ascend(w, g)
    torch.testing.assert_close(torch.cat(list(eps.values())), torch.tensor([18.75, 0.0, 4.0]) * 10 / 8.5)


@pytest.mark.parametrize("method", [FedSAM(), FedASAM(), FedASAM(form="authors")])
def test_a_gradient_of_zeros_moves_nothing(method):
    w = {"l.weight": torch.tensor([2.0, -4.0]), "l.bias": torch.tensor([1.0])}
    assert not any(step.any() for step in method._ascend(w, tree.zeros_like(w)).values())


@pytest.mark.parametrize("spec", ["fedsam(rho=0)", "fedasam(rho=0)", "fedasam(rho=0, form=authors)"])
def test_without_radius_it_is_fedavg(spec):
    mine, plain = (play(method).server for method in (spec, "fedavg"))
    for group in ("model", "buffers"):
        assert all(torch.equal(mine[group][name], value) for name, value in plain[group].items())


def test_the_gradient_is_taken_at_the_moved_weights():
    task = building.prepare(config("fedsam(rho=0.3)", model="mlp"), dataset=DATA).task
    message = task.method.download(task.server_context(1, (0,)), task.method.init(task.server_context(0)), 0)
    c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
    batch, w = next(iter(c.batches())), message["model"]

    def plain(at):
        return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), at)

    g = plain(w)
    there = tree.add_scaled(w, g, 0.3 / tree.norm(g))
    torch.testing.assert_close(tree.norm(tree.sub(there, w)), torch.tensor(0.3))
    for name, value in plain(there).items():
        torch.testing.assert_close(task.method.gradient(c, w, batch)[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", ["fedsam", "fedasam", "fedasam(form=authors)"])
def test_batchnorm_is_updated_once_a_step_and_at_the_unmoved_weights(spec):
    def buffers_after_one_step(spec):
        task = building.prepare(config(spec), dataset=DATA).task
        message = task.method.download(task.server_context(1, (0,)), task.method.init(task.server_context(0)), 0)
        c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
        task.method.gradient(c, message["model"], next(iter(c.batches())))
        return c.buffers

    mine, plain = buffers_after_one_step(spec), buffers_after_one_step("fedavg")
    assert mine.keys() == plain.keys() and all(torch.equal(mine[name], value) for name, value in plain.items())


@pytest.mark.parametrize("name", ["fedsam", "fedasam"])
def test_inside_fedsol_it_is_refused_in_one_line(name):
    with pytest.raises(InputError, match="does to its gradient") as error:
        methods.build(f"fedsol({name})")
    assert "\n" not in str(error.value)
