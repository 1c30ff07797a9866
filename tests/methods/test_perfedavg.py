"""Per-FedAvg, first order: the golden file, a pencil, what it is for a step of no length, adaptation."""

from dataclasses import replace

import pytest
import torch

from awkward import DATA, config, play
from support import FixedData, assert_tree, golden, golden_names, golden_task
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core import local_loop
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.methods.perfedavg import PerFedAvg
from unskew.runs import building


@pytest.mark.parametrize("name", golden_names("perfedavg_fo_local*"))
def test_golden_visit(name):
    file = golden(name)
    file.hyper["lr"] = file.hyper["inner_lr"]
    method = PerFedAvg(beta=file.hyper["outer_lr"])
    client = FixedData(file.inputs["batches"], file.inputs["dims"]["c"])
    task = golden_task(method, file, [client], [[0]])
    reply = task.work(Job("train", 1, 0, {"model": task.initial["model"]}))
    assert reply.num_steps == len(file.inputs["batches"])
    assert_tree(tree.add(task.initial["model"], reply.groups["delta"]), file.expected["params_after"], file)


def test_by_hand():
    # f = w^2 / 2 on both batches: gradient w; w = 1, lr 0.5: there = 0.5; step 0.1 * 0.5: w = 0.95
    class Square(PerFedAvg):
        def gradient(self, c, params, batch):
            return params

    c = building.prepare(config("perfedavg"), dataset=DATA).task
    c = c.visit(Job("train", 1, 0, c.initial), c.federation.train(0)).aside(lr=0.5, momentum=0.0)
    at = {"model": {"w": torch.ones(1)}, "velocity": {"w": torch.zeros(1)}}
    done = Square(beta=0.1)._meta_step(c, at, (None, None))
    assert done["model"]["w"].item() == pytest.approx(0.95)


def test_without_an_inner_step_it_is_sgd_on_every_second_batch():
    """As long as there is no momentum, which the first half-steps would feed."""
    task = building.prepare(config("perfedavg", model="cnn8"), dataset=DATA).task
    c = task.visit(Job("train", 1, 0, task.initial), task.federation.train(0))
    still = c.with_fields(settings=replace(c.settings, lr=0.0, momentum=0.0))
    ours = PerFedAvg(beta=0.05).train(still, task.initial["model"])
    plain = c.with_fields(settings=replace(c.settings, lr=0.05, momentum=0.0, epochs=2 * c.settings.epochs))
    method = methods.build("fedavg")
    theirs = local_loop.sgd(plain, task.initial["model"], lambda c, p, two: method.gradient(c, p, two[1]), together=2)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_clients_adapt_before_their_test():
    task = building.prepare(config("perfedavg(adapt_epochs=0)"), dataset=DATA).task
    c = task.visit(Job("personal", 1, 0, task.initial), task.federation.train(0))
    plain = task.method.personalise(c)
    assert all(torch.equal(value, task.initial["model"][name]) for name, value in plain.items())
    tuned = methods.build("finetuned(perfedavg(adapt_epochs=0), epochs=2)").personalise(c)
    again = task.visit(Job("personal", 1, 0, task.initial), task.federation.train(0))
    mine = PerFedAvg(adapt_epochs=2).personalise(again)
    assert all(torch.equal(value, tuned[name]) for name, value in mine.items())
    assert PerFedAvg.output == "tuned"


def test_steps_count_meta_steps():
    result = play("perfedavg", rounds=1, local={"batch": 8, "steps": 3, "lr": 0.05}, split="iid", clients=3)
    assert not result.summary["diverged"]
    task = building.prepare(config("perfedavg", local={"batch": 8, "steps": 3, "lr": 0.05}), dataset=DATA).task
    assert task.work(Job("train", 1, 0, task.initial)).num_steps == 3


def test_bad_options_are_one_line():
    for spec in ("perfedavg(beta=0)", "perfedavg(adapt_epochs=-1)"):
        with pytest.raises(InputError):
            methods.build(spec)
