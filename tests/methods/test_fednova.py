"""FedNova against numbers computed outside this project (UNSKEW_GOLDEN: other inputs), by hand; identities."""

import pytest
import torch

from awkward import DATA, config, play
from support import (
    FixedData,
    Recording,
    assert_tree,
    gap,
    golden,
    golden_names,
    golden_task,
    initial_model,
    memory_store,
)
from unskew.base import tree
from unskew.core.jobs import Job, Reply, Stack
from unskew.core.round_loop import rounds
from unskew.methods.fednova import FedNova, normalised, over_movers
from unskew.methods.momentum_steps import count_plain_steps
from unskew.runs import building


def clients_of(file):
    """Client 0 has `batches`, client k `batches_clientk`."""
    keys = ["batches", *(f"batches_client{k}" for k in range(1, len(file.inputs["sizes"])))]
    classes = file.inputs["dims"]["c"]
    return [FixedData(file.inputs[key], classes, size) for key, size in zip(keys, file.inputs["sizes"], strict=True)]


@pytest.mark.parametrize("name", golden_names("fednova_round*"))
def test_golden_round(name, tmp_path):
    file = golden(name)
    clients = clients_of(file)
    task = golden_task(FedNova(), file, clients, [list(range(len(clients)))])
    executor = Recording(task)
    server = task.method.init(task.server_context(0))
    (done,) = rounds(task, executor, memory_store(tmp_path), server, 1, 1)
    for reply, steps, a, local in zip(
        executor.replies, file.inputs["local_steps"], file.expected["a"], file.expected["local"], strict=True
    ):
        assert reply.num_steps == steps
        assert float(reply.groups["steps"]["a"]) == pytest.approx(a, rel=file.rtol, abs=file.atol)
        # what is sent is how the model moved: measures and FLFA look at it
        assert_tree(tree.add(task.initial["model"], reply.groups["delta"]), local, file)
    assert_tree(done.server["model"], file.expected["global_new"], file)


def test_steps_with_momentum_by_hand():
    # momentum 0.5, three steps along gradients of 1: velocities 1, 1.5, 1.75, together 4.25
    assert count_plain_steps(torch.tensor(3.0, dtype=torch.float64), 0.5).item() == 4.25
    assert count_plain_steps(torch.tensor(0.0, dtype=torch.float64), 0.5).item() == 0
    assert count_plain_steps(torch.tensor(3.0, dtype=torch.float64), 0.0).item() == 3


def merged(moves, steps, sizes, stacked):
    """What the reducers make of clients that moved so far in so many steps."""
    value, a = torch.tensor(moves).view(-1, 1), torch.tensor(steps)
    groups = {"delta": {"w": value}, "steps": {"a": a}}
    stack = Stack(groups, len(moves), True)
    replies = [Reply(k, weight=float(size), num_samples=size, stack=stack, place=k) for k, size in enumerate(sizes)]
    found = {"delta": normalised(None), "steps": over_movers(None)}
    for group, reducer in found.items():
        if stacked:
            reducer.add_stack(groups[group], replies)
        else:
            for k, size in enumerate(sizes):
                reply = Reply(k, stack.take(k), weight=float(size), num_samples=size)
                reducer.add(reply.groups[group], reply)
    return {group: reducer.result() for group, reducer in found.items()}


@pytest.mark.parametrize("stacked", [False, True])
def test_a_round_by_hand(stacked):
    # moves 4 and 6 in 2 and 6 steps, samples 1 and 3: sum p (w_k - w)/a = 2/4 + 3/4 = 1.25, sum p a = 2/4 + 18/4 = 5
    found = merged([4.0, 6.0], [2.0, 6.0], [1, 3], stacked)
    assert found["delta"]["w"].item() == 1.25 and found["steps"]["a"].item() == 5
    after = FedNova().update(None, {"model": {"w": torch.ones(1)}, "buffers": {}}, found)
    assert after["model"]["w"].item() == 1 + 1.25 * 5
    # a client of 4 samples without a step: it counts in the first sum, and has no part in the second
    found = merged([4.0, 6.0, 0.0], [2.0, 6.0, 0.0], [1, 3, 4], stacked)
    assert found["delta"]["w"].item() == 0.625 and found["steps"]["a"].item() == 5
    # nobody took a step
    found = merged([0.0], [0.0], [4], stacked)
    after = FedNova().update(None, {"model": {"w": torch.ones(1)}, "buffers": {}}, found)
    assert after["model"]["w"].item() == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equally_many_steps_it_is_fedavg(momentum):
    """Also beside a client whose only sample BatchNorm cannot use, which takes none."""
    local = {"batch": 8, "steps": 3, "lr": 0.05, "momentum": momentum}
    mine, plain = (play(method, local=local) for method in ("fednova", "fedavg"))
    assert gap(mine, plain, initial_model(plain.run, DATA)) < 1e-5
    unequal = {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": momentum}
    mine, plain = (play(method, local=unequal) for method in ("fednova", "fedavg"))
    assert gap(mine, plain, initial_model(plain.run, DATA)) > 0.01


def test_bytes_are_fedavgs_and_four(tmp_path):
    mine, plain = (play(method, tmp_path / method) for method in ("fednova", "fedavg"))
    for ours, theirs in zip(mine.rounds[1:], plain.rounds[1:], strict=True):
        assert ours["bytes_up"] == theirs["bytes_up"] + 4 * 5 and ours["bytes_down"] == theirs["bytes_down"]


# ---------------------------------------------------------------------------------------------- control=ccvr


def test_the_controls_first_round_is_plain_and_later_ones_are_not():
    first = [play(method, rounds=1).server for method in ("fednova(control=ccvr)", "fednova")]
    assert all(torch.equal(first[0]["model"][name], value) for name, value in first[1]["model"].items())
    second = [play(method, rounds=2).server["model"] for method in ("fednova(control=ccvr)", "fednova")]
    assert any(not torch.equal(second[0][name], value) for name, value in second[1].items())


def test_controls_are_what_a_plain_step_went_along(tmp_path):
    task = building.prepare(config("fednova(control=ccvr)"), dataset=DATA).task
    executor, store = Recording(task), memory_store(tmp_path)
    server = task.method.init(task.server_context(0))
    (done,) = rounds(task, executor, store, server, 1, 1)
    moved = [reply for reply in executor.replies if reply.groups["steps"]["a"] > 0]  # client 1 has but one sample
    lr, whole, part = task.settings(1).lr, sum(reply.num_samples for reply in moved), len(moved) / 5
    assert len(moved) == 4
    dbar = tree.zeros_like(done.server["control"])
    for reply in executor.replies:
        a, kept = reply.groups["steps"]["a"], reply.state["control"]
        if a == 0:
            assert reply.client == 1 and not any(value.any() for value in kept.values())
        for name, value in kept.items():
            if a > 0:
                torch.testing.assert_close(value, -reply.groups["delta"][name] / (lr * a))
                dbar[name] += part * value * reply.num_samples / whole
    for name, value in dbar.items():
        torch.testing.assert_close(done.server["control"][name], value)


def test_the_control_is_the_gradient_of_its_term():
    task = building.prepare(config("fednova(control=ccvr)", model="mlp"), dataset=DATA).task
    message = task.method.download(task.server_context(1, (0,)), task.method.init(task.server_context(0)), 0)
    message["control"] = {name: torch.full_like(value, 0.3) for name, value in message["control"].items()}
    state = {"control": {name: torch.full_like(value, 0.1) for name, value in message["control"].items()}}
    c = task.visit(Job("train", 1, 0, message, state), task.federation.train(0))
    plain = building.prepare(config("fedavg", model="mlp"), dataset=DATA).task
    batch = next(iter(c.batches()))
    away = {name: value + 0.1 for name, value in message["model"].items()}
    mine, theirs = task.method.gradient(c, away, batch), plain.method.gradient(c.with_fields(terms=()), away, batch)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value + 0.2)


def test_bytes_of_the_control(tmp_path):
    mine, plain = (play(method, tmp_path / method, rounds=1) for method in ("fednova(control=ccvr)", "fednova"))
    size = tree.nbytes({"control": mine.server["control"]})
    assert mine.rounds[1]["bytes_up"] == plain.rounds[1]["bytes_up"]
    assert mine.rounds[1]["bytes_down"] == plain.rounds[1]["bytes_down"] + 5 * size
