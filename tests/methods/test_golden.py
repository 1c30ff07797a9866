"""FedAvg, FedProx and SCAFFOLD against numbers computed outside this project (UNSKEW_GOLDEN: other inputs)."""

import pytest
import torch

from support import (
    FixedData,
    Recording,
    assert_tree,
    golden,
    golden_names,
    golden_task,
    memory_store,
    rename,
    to_tree,
)
from unskew.base import tree
from unskew.core.jobs import Job, Reply
from unskew.core.reducers import buffers, mean
from unskew.core.round_loop import rounds
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedprox import FedProx
from unskew.methods.scaffold import Scaffold
from unskew.terms.prox import Prox


def data(file, key, size=None):
    return FixedData(file.inputs[key], file.inputs["dims"]["c"], size)


def play(task, tmp_path, last):
    executor = Recording(task)
    server = task.method.init(task.server_context(0))
    for done in rounds(task, executor, memory_store(tmp_path), server, 1, last):
        yield done, executor.replies


def local_models(task_initial, replies):
    return [tree.add(task_initial, reply.groups["delta"]) for reply in replies]


@pytest.mark.parametrize("name", golden_names("fedavg_round*"))
def test_fedavg_round(name, tmp_path):
    file = golden(name)
    clients = [
        data(file, key, size)
        for key, size in zip(("batches", "batches_client2"), file.inputs["client_sizes"], strict=True)
    ]
    task = golden_task(FedAvg(), file, clients, [list(range(len(clients)))])
    ((done, replies),) = play(task, tmp_path, 1)
    for number, local in enumerate(local_models(task.initial["model"], replies), 1):
        assert_tree(local, file.expected[f"client{number}"], file)
    assert_tree(done.server["model"], file.expected["global_new"], file)


@pytest.mark.parametrize("name", golden_names("fedprox_local*"))
def test_fedprox_local(name, tmp_path):
    file = golden(name)
    task = golden_task(FedProx(mu=file.hyper["mu"]), file, [data(file, "batches")], [[0]])
    ((done, _),) = play(task, tmp_path, 1)
    assert_tree(done.server["model"], file.expected["params_after"], file)


@pytest.mark.parametrize("name", golden_names("fedprox_local*"))
def test_prox_term_away_from_the_received_model(name):
    file = golden(name)
    task = golden_task(FedAvg(), file, [data(file, "batches")], [[0]])
    c = task.visit(Job("train", 1, 0, {"model": task.initial["model"]}), task.federation.train(0))
    value = Prox(mu=file.hyper["mu"])(c, to_tree(file.inputs["params_other"]), None, None)
    expected = torch.tensor(file.expected["prox_term_at_other"], dtype=torch.float64)
    torch.testing.assert_close(value, expected, rtol=file.rtol, atol=file.atol)


def flat(params):
    names = [rename(f"{layer}.{kind}") for layer in ("fc1", "classifier") for kind in ("weight", "bias")]
    return torch.cat([params[name].flatten() for name in names])


@pytest.mark.parametrize("name", golden_names("scaffold_two_rounds_*"))
def test_scaffold_two_rounds(name, tmp_path):
    file = golden(name)
    divisor = "plain" if name.endswith("plain_divisor") else "momentum"
    count = file.hyper["n_clients"]
    clients = [data(file, "batches_client1" if client == 1 else "batches") for client in range(count)]
    task = golden_task(Scaffold(divisor=divisor), file, clients, file.inputs["plan"])
    received = task.initial["model"]
    for (done, replies), expected in zip(
        play(task, tmp_path, len(file.inputs["plan"])), file.expected["rounds"], strict=True
    ):
        assert [reply.client for reply in replies] == expected["selected"]
        assert [reply.num_samples for reply in replies] == expected["sizes"]
        for local, wanted in zip(local_models(received, replies), expected["local"], strict=True):
            assert_tree(local, wanted, file)
        for reply in replies:
            control = torch.tensor(expected["c_i"][str(reply.client)], dtype=torch.float64)
            torch.testing.assert_close(flat(reply.state["control"]), control, rtol=file.rtol, atol=file.atol)
        control = torch.tensor(expected["c"], dtype=torch.float64)
        torch.testing.assert_close(flat(done.server["control"]), control, rtol=file.rtol, atol=file.atol)
        assert_tree(done.server["model"], expected["global_new"], file)
        received = done.server["model"]


@pytest.mark.parametrize("name", golden_names("bn_aggregation*"))
def test_batchnorm_aggregation(name):
    file = golden(name)
    merge_params, merge_buffers = mean(None), buffers(None)
    for client, (state, size) in enumerate(zip(file.inputs["states"], file.inputs["sizes"], strict=True)):
        tensors = {
            key: torch.tensor(value, dtype=torch.int64 if key == "num_batches_tracked" else torch.float64)
            for key, value in state.items()
        }
        reply = Reply(client, {}, weight=float(size))
        merge_params.add(tree.select(tensors, ["weight", "bias"]), reply)
        merge_buffers.add(tree.without(tensors, ["weight", "bias"]), reply)
    merged = {**merge_params.result(), **merge_buffers.result()}
    assert merged["num_batches_tracked"].dtype == torch.int64
    assert merged.keys() == file.expected.keys()
    for key, value in file.expected.items():
        torch.testing.assert_close(
            merged[key], torch.tensor(value, dtype=merged[key].dtype), rtol=file.rtol, atol=file.atol
        )
