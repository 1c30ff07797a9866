"""Ditto: the golden step, a pencil, and what it is without its pull."""

import pytest
import torch
from torch import nn

from awkward import DATA, config, play
from split_mlp import Client, assert_params, params_of, split_task
from support import golden, golden_names
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core import local_loop
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.methods.ditto import Ditto
from unskew.methods.finetuned import plain_gradient
from unskew.models.user_module import GivenModule
from unskew.runs import building


@pytest.mark.parametrize("name", golden_names("ditto_step*"))
def test_golden_step(name):
    file = golden(name)
    batch = {"x": file.inputs["x"], "y": file.inputs["y"]}
    dims, received = file.inputs["dims"], params_of(file.inputs["params_received"])
    task = split_task(Ditto(lam=file.hyper["lam"]), dims, [Client([batch], dims["c"])], received, file.hyper["lr"])
    state = {"ditto/model": params_of(file.inputs["params_personal"]), "ditto/visited": {"yes": torch.tensor(True)}}
    reply = task.work(Job("train", 1, 0, {"model": received}, state))
    assert_params(reply.state["ditto/model"], file.expected["personal_after"], file)
    assert_params(tree.add(received, reply.groups["delta"]), file.expected["global_local_after"], file)


def test_by_hand():
    # one weight, v = 3, w = 1, lam 0.5, no data gradient (all logits equal): v - 0.1 * 0.5 * (3 - 1) = 2.9
    dims = {"i": 1, "h": 1, "c": 2}
    zero = {"body.0.weight": torch.zeros(1, 1), "body.0.bias": torch.zeros(1), "head.weight": torch.zeros(2, 1),
            "head.bias": torch.zeros(2)}  # fmt: skip
    w = {name: value.double() for name, value in zero.items()}
    w["body.0.weight"] += 1
    v = {**w, "body.0.weight": w["body.0.weight"] + 2}
    task = split_task(Ditto(), dims, [Client([{"x": [[1.0], [1.0]], "y": [0, 1]}], 2)], w)
    state = {"ditto/model": v, "ditto/visited": {"yes": torch.tensor(True)}}
    reply = task.work(Job("train", 1, 0, {"model": w}, state))
    assert reply.state["ditto/model"]["body.0.weight"].item() == pytest.approx(2.9, abs=1e-12)


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("inner", ["fedavg", "scaffold", "fedprox(mu=0.5)"])
@pytest.mark.parametrize("lam", [0, 0.5])
def test_the_global_part_is_the_inner_method_bit_for_bit(inner, lam):
    ours, plain = play(f"ditto({inner}, lam={lam})", rounds=3), play(inner, rounds=3)
    for group in plain.server:
        same(ours.server[group], plain.server[group])
    assert [row.get("accuracy") for row in ours.rounds] == [row.get("accuracy") for row in plain.rounds]
    assert [row.get("bytes_up") for row in ours.rounds] == [row.get("bytes_up") for row in plain.rounds]


def test_not_even_dropouts_numbers_differ():
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)]
    model = GivenModule.of(nn.Sequential(*layers), "4")
    ours, plain = (play(spec, model=model).server["model"] for spec in ("ditto", "fedavg"))
    same(ours, plain)


def test_without_its_pull_a_personal_model_is_local_sgd():
    """Over the client's visits alone, from the initial model, with its own BatchNorm statistics."""
    result = play("ditto(lam=0, personal_epochs=2)", rounds=3, sample=0.6)
    task = building.prepare(config("ditto(lam=0, personal_epochs=2)", rounds=3, sample=0.6), dataset=DATA).task
    seen = set()
    for client in range(5):
        v, buffers = task.initial["model"], task.initial["buffers"]
        for row in result.rounds[1:]:
            if client not in row["clients"]:
                continue
            seen.add(client)
            job = Job("train", row["round"], client, task.initial)
            c = task.visit(job, task.federation.train(client)).aside(epochs=2).with_buffers(buffers)
            v, buffers = local_loop.sgd(c, v, plain_gradient, purpose="ditto"), c.buffers
        state = result._models.states.get(client)
        if client in seen:
            same(state["ditto/model"], v)
            same(state["ditto/buffers"], buffers)
        else:
            assert not state
    assert len(seen) > 2


def test_absent_clients_keep_their_model_and_new_ones_use_the_received():
    task = building.prepare(config("ditto"), dataset=DATA).task
    first = task.work(Job("train", 1, 0, task.initial))
    newer = {"model": tree.scale(task.initial["model"], 2.0), "buffers": task.initial["buffers"]}
    c = task.visit(Job("personal", 5, 0, newer, first.state), task.federation.train(0))
    same(task.method.personalise(c).params, first.state["ditto/model"])
    c = task.visit(Job("personal", 5, 0, newer), task.federation.train(0))
    same(task.method.personalise(c).params, newer["model"])


def test_outputs_and_refusals():
    assert Ditto().output == methods.build("ditto(scaffold)").output == "both"
    assert methods.build("ditto(lg_fedavg)").output == "personal"
    for inner in ("fedper", "fedala", "finetuned(fedavg)", "knnper", "fedrod", "fedbabu"):
        with pytest.raises(InputError, match="has a rule of its own for that, which would be left out"):
            methods.build(f"ditto({inner})")
    with pytest.raises(InputError, match="ditto needs a method whose clients train the model; fedaf does not"):
        methods.build("ditto(fedaf)")
    with pytest.raises(InputError, match="ditto has a rule of its own"):
        methods.build("ditto(ditto)")
    with pytest.raises(InputError, match="lam"):
        methods.build("ditto(lam=-1)")
