"""FedDyn against numbers computed outside this project (UNSKEW_GOLDEN: other inputs), by hand; identities."""

import pytest
import torch

from awkward import DATA, config, play
from support import (
    FixedData,
    Recording,
    assert_tree,
    golden,
    golden_names,
    golden_task,
    memory_store,
    play_vectors,
)
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.method import methods
from unskew.core.round_loop import rounds
from unskew.methods.feddyn import FedDyn
from unskew.runs import building


@pytest.mark.parametrize("name", golden_names("feddyn_two_rounds*"))
def test_golden_rounds(name, tmp_path):
    file = golden(name)
    keys = ["batches_client1" if client == 1 else "batches" for client in range(file.hyper["n_clients"])]
    clients = [FixedData(file.inputs[key], file.inputs["dims"]["c"]) for key in keys]
    task = golden_task(FedDyn(alpha=file.hyper["alpha"]), file, clients, file.inputs["plan"])
    executor = Recording(task)
    server = task.method.init(task.server_context(0))
    received = task.initial["model"]
    played = rounds(task, executor, memory_store(tmp_path), server, 1, len(file.inputs["plan"]))
    for done, expected in zip(played, file.expected["rounds"], strict=True):
        assert [reply.client for reply in executor.replies] == expected["selected"]
        for reply in executor.replies:
            client = str(reply.client)
            assert reply.num_samples == expected["sizes"][client]
            assert_tree(tree.add(received, reply.groups["delta"]), expected["local"][client], file)
            assert_tree(reply.state["gradient"], expected["grad_state"][client], file)
        assert_tree(done.server["h"], expected["h"], file)
        assert_tree(done.server["model"], expected["global_new"], file)
        received = done.server["model"]


def test_the_server_by_hand(tmp_path):
    # alpha 0.5, N = 2, both move by 4, then by 2 (samples 1 and 3): h = -0.5 * 4 = -2, w = 4 + 2/0.5 = 8;
    # h = -2 - 0.5 * 2 = -3, w = 10 + 3/0.5 = 16
    played = play_vectors(FedDyn, {"alpha": 0.5}, [0.0], lambda r, _, w: w + (4.0, 2.0)[r], [1, 3], tmp_path)
    for h, w in ((-2.0, 8.0), (-3.0, 16.0)):
        _, server = next(played)
        assert server["h"]["head.w"].item() == h and server["model"]["head.w"].item() == w


def replies_of(spec, tmp_path, **options):
    task = building.prepare(config(spec, **options), dataset=DATA).task
    executor = Recording(task)
    (done,) = rounds(task, executor, memory_store(tmp_path), task.method.init(task.server_context(0)), 1, 1)
    return executor.replies, done.server, task.initial


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_the_first_uploads_are_fedproxs(alpha, tmp_path):
    mine, _, _ = replies_of(f"feddyn(alpha={alpha})", tmp_path)
    prox, _, _ = replies_of(f"fedprox(mu={alpha})", tmp_path)
    for ours, theirs in zip(mine, prox, strict=True):
        assert ours.groups.keys() == theirs.groups.keys()
        for group, own in theirs.groups.items():
            assert all(torch.equal(ours.groups[group][name], value) for name, value in own.items())


def test_with_all_clients_of_equal_size_the_first_model_is_twice_the_mean_minus_the_start(tmp_path):
    options = {"split": "iid", "clients": 4, "model": "mlp"}  # alpha: a power of two divides without rounding
    mine, server, initial = replies_of("feddyn(alpha=0.125)", tmp_path, **options)
    assert len({reply.num_samples for reply in mine}) == 1
    _, plain, _ = replies_of("fedprox(mu=0.125)", tmp_path, **options)
    for name, start in initial["model"].items():
        torch.testing.assert_close(server["model"][name], 2 * plain["model"][name] - start)


def test_absent_clients_count_as_still(tmp_path):
    options = {"sample": 0.4}
    result = play("feddyn", rounds=1, **options).server
    prox, plain, _ = replies_of("fedprox(mu=0.1)", tmp_path, **options)  # the same uploads
    assert len(prox) == 2
    for name, h in result["h"].items():
        torch.testing.assert_close(h, -0.1 / 5 * sum(reply.groups["delta"][name] for reply in prox))
        torch.testing.assert_close(result["model"][name], plain["model"][name] - h / 0.1)
    # buffers are averaged without h
    assert all(torch.equal(result["buffers"][name], value) for name, value in plain["buffers"].items())


def test_no_strength_is_refused_in_one_line():
    with pytest.raises(InputError, match="alpha") as error:
        methods.build("feddyn(alpha=0)")
    assert "\n" not in str(error.value)
