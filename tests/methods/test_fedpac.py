"""FedPAC: golden statistics, objectives and weights, a round by its parts, and what single options leave."""

import numpy as np
import pytest
import torch

from awkward import DATA, config, play
from split_mlp import Client, close, params_of, split_task
from support import Recording, golden, golden_names, memory_store
from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.round_loop import rounds
from unskew.methods.fedpac.collaboration import drop_small, head_weights, objectives, solve
from unskew.methods.fedpac.method import FedPAC
from unskew.runs import building
from unskew.terms.proto import PrototypeDistance

GOLDEN = pytest.mark.parametrize("name", golden_names("fedpac*"))


def golden_task(file, method=None):
    dims = file.inputs["dims"]
    clients = [Client(batches, dims["c"]) for batches in file.inputs["clients"]]
    assert len(clients) == file.hyper["n_clients"]
    return split_task(method or FedPAC(), dims, clients, params_of(file.inputs["params_received"]))


@GOLDEN
def test_golden_statistics_objectives_and_weights(name):
    file = golden(name)
    task = golden_task(file)
    server = task.method.init(task.server_context(0))
    found = []
    for client in range(len(file.inputs["clients"])):
        message = task.method.download(task.server_context(1), server, client)
        found.append(task.work(Job("survey", 1, client, message)).groups["statistics"])
    v, h = (torch.stack([own[key] for own in found]) for key in ("V", "h"))
    close(v, file.expected["V"], file)
    close(h, file.expected["h"], file)
    check_weights(v, h, file.expected, file)


@GOLDEN
def test_golden_threshold(name):
    file = golden(name)
    v, h = (torch.tensor(file.inputs["threshold_case"][key], dtype=torch.float64) for key in ("V", "h"))
    check_weights(v, h, file.expected["threshold_case"], file)


def check_weights(v, h, expected, file):
    matrices = objectives(v, h)
    close(matrices, expected["P"], file)
    close(np.stack([solve(matrix) for matrix in matrices]), expected["head_weights_exact"], file)
    close(np.stack([drop_small(solve(matrix)) for matrix in matrices]), expected["head_weights"], file)
    close(head_weights(v, h), expected["head_weights"], file)


@GOLDEN
def test_a_round_combines_the_trained_heads_with_the_golden_weights(name, tmp_path):
    file = golden(name)
    task = golden_task(file)
    executor = Recording(task)
    server = task.method.init(task.server_context(0))
    (done,) = rounds(task, executor, memory_store(tmp_path), server, 1, 1)
    after = task.server_context(2)
    for client, weights in enumerate(file.expected["head_weights"]):
        sent = task.method.download(after, done.server, client)["model"]
        for key in ("head.weight", "head.bias"):
            heads = [reply.groups["head"][key] for reply in executor.replies]
            close(sent[key], sum(w * head for w, head in zip(weights, heads, strict=True)).tolist(), file)
        for key in ("body.0.weight", "body.0.bias"):
            assert torch.equal(sent[key], done.server["model"][key])
    assert not {"V", "h"} & done.server.keys() and done.server["prototypes"]["available"].all()


# ------------------------------------------------------------------------------------------ a pencil


def test_weights_by_hand():
    # equal h: D = 0, so a_k goes with 1 / V_k: V = (1, 3): (0.75, 0.25)
    assert head_weights(torch.tensor([1.0, 3.0]), torch.zeros(2, 1, 1)).tolist() == [pytest.approx([0.75, 0.25])] * 2
    # h = 0 and 1, V = (1, 1): for client 0 P = diag(1, 1 + 1): weights 2/3 and 1/3
    found = head_weights(torch.ones(2), torch.tensor([[[0.0]], [[1.0]]]))
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 3]) and found[1].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_degenerate_matrices_have_weights():
    assert solve(np.zeros((3, 3))).tolist() == pytest.approx([1 / 3] * 3)  # features that are all zero
    assert solve(np.zeros((1, 1))).tolist() == [1.0]
    # a client without variance is best served by itself alone
    assert head_weights(torch.tensor([0.0, 1.0]), torch.tensor([[[0.0]], [[5.0]]]))[0].tolist() == [1.0, 0.0]
    # eigenvalues -1 and 2: the first is dropped, what is left is (1, 1)/2 * 2 twice: any mixture costs the same
    mixed = np.array([[0.5, 1.5], [1.5, 0.5]])
    assert solve(mixed).sum() == pytest.approx(1.0) and (solve(mixed) >= 0).all()
    # eigenvalues -1 and 5 along the axes: the first is dropped, and that client costs nothing
    assert solve(np.diag([-1.0, 5.0])).tolist() == pytest.approx([1.0, 0.0], abs=1e-9)


@pytest.mark.parametrize("clients", [2, 7, 40])
def test_weights_are_optimal(clients):
    """The conditions for a minimum: P a is the same where a > 0, and not smaller elsewhere."""
    rng = np.random.RandomState(clients)
    for matrix in objectives(torch.tensor(rng.rand(clients)), torch.tensor(rng.randn(clients, 3, 4))):
        a = solve(matrix)
        slope = matrix @ a
        assert (slope >= a @ slope - 1e-9).all() and abs(slope[a > 1e-9] - a @ slope).max() < 1e-9


def test_the_term_by_hand():
    # features (1, 3) of class 0 with prototype (0, 1): (1 + 4) / 2 = 2.5; class 1 has none: 0; the mean is 1.25
    class C:
        message = {"prototypes": {"means": torch.tensor([[0.0, 1.0], [9.0, 9.0]]),
                                  "available": torch.tensor([True, False])}}  # fmt: skip

    out = Output(torch.zeros(2, 2), torch.tensor([[1.0, 3.0], [7.0, 7.0]]))
    value = PrototypeDistance(weight=2.0)(C, {}, Batch(torch.zeros(2), torch.tensor([0, 1]), torch.arange(2)), out)
    assert value.item() == 2.5


# ----------------------------------------------------------------------------------------- the visit


def test_the_head_first_and_then_the_body():
    task = building.prepare(config("fedpac(head_epochs=2)", model="cnn8"), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 0)
    full = task.work(Job("train", 1, 0, message)).groups
    c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
    head = FedPAC(head_epochs=2).train(c.aside(epochs=0), message["model"])  # without epochs of the body
    assert all(torch.equal(head[name], full["head"][name]) for name in full["head"])
    assert all(torch.equal(value, message["model"][name]) == name.startswith("body.") for name, value in head.items())
    assert all(name.startswith("body.") for name in full["delta"])
    assert any(value.any() for value in full["delta"].values())


def test_without_alignment_and_head_epochs_the_body_is_trained_alone():
    ours = play("fedpac(lam=0, head_epochs=0)", rounds=1)
    start = building.prepare(ours.run, dataset=DATA).task.initial["model"]
    assert all(torch.equal(value, start[name]) == name.startswith("head.")
               for name, value in ours.server["model"].items())  # fmt: skip


def test_bytes_and_alignment_begins_with_the_second_round():
    result = play("fedpac", rounds=2, model="cnn8", sample=1.0)
    model = result.server["model"]
    everything, (classes, d) = tree.nbytes({"m": model}), model["head.weight"].shape
    means = 4 * d * classes
    up, down = everything + 4 * (d * classes + 1) + means + 4 * classes, everything + means + classes
    assert [row["bytes_up"] for row in result.rounds[1:]] == [5 * up] * 2
    assert [row["bytes_down"] for row in result.rounds[1:]] == [5 * down] * 2
    assert 0 < result.rounds[1]["method"]["own_head_share"] <= 1
    first, plain = (play(f"fedpac(lam={lam})", rounds=1).server["model"] for lam in (1, 0))
    assert all(torch.equal(value, plain[name]) for name, value in first.items())
    second, plain = (play(f"fedpac(lam={lam})", rounds=2).server["model"] for lam in (1, 0))
    assert any(not torch.equal(value, plain[name]) for name, value in second.items())


def test_bad_options_are_one_line():
    for spec in ("fedpac(lam=-1)", "fedpac(head_epochs=-1)"):
        with pytest.raises(InputError):
            methods.build(spec)
