"""FedACG against numbers computed outside this project (UNSKEW_GOLDEN: other inputs), by hand; identities."""

import pytest
import torch

from awkward import DATA, config, play
from support import golden, golden_names, play_vectors
from unskew.core.jobs import Job
from unskew.methods.fedacg import FedACG
from unskew.runs import building


@pytest.mark.parametrize("name", golden_names("fedacg_server*"))
def test_golden_rounds(name, tmp_path):
    file = golden(name)
    local = file.inputs["local_per_round"]
    options = {**file.hyper, "weights": "uniform"}
    sizes = range(1, len(local[0]) + 1)  # unequal, which must not matter
    played = play_vectors(FedACG, options, file.inputs["w0"], lambda r, client, _: local[r][client], sizes, tmp_path)
    assert len(local) == len(file.expected["rounds"])
    for expected, (sent, server) in zip(file.expected["rounds"], played, strict=False):
        found = {"sent": sent, "momentum": server["momentum"]["head.w"], "global_new": server["model"]["head.w"]}
        for key, value in found.items():
            wanted = torch.tensor(expected[key], dtype=torch.float64)
            torch.testing.assert_close(value, wanted, rtol=file.rtol, atol=file.atol)


def test_by_hand(tmp_path):
    # lambda 0.5; one client of 3 and one of 1 samples, who move by 4 and 8 from what they got: by samples 5, else 6
    # w = m = 5; sent 5 + 2.5 = 7.5; w = 7.5 + 5 = 12.5, m = 2.5 + 5 = 7.5
    for weights, wanted in (("samples", [(0, 5, 5), (7.5, 12.5, 7.5)]), ("uniform", [(0, 6, 6), (9, 15, 9)])):
        options = {"lam": 0.5, "beta": 0.0, "weights": weights}
        played = play_vectors(FedACG, options, [0.0], lambda _, k, w: w + (4, 8)[k], [3, 1], tmp_path / weights)
        for found, (sent, server) in zip(wanted, played, strict=False):
            assert (sent.item(), server["model"]["head.w"].item(), server["momentum"]["head.w"].item()) == found


def test_without_momentum_and_term_it_is_fedavg():
    mine, plain = (play(method, rounds=3).server for method in ("fedacg(lam=0, beta=0)", "fedavg"))
    for group in ("model", "buffers"):
        assert all(torch.equal(mine[group][name], value) for name, value in plain[group].items())


def test_without_momentum_it_is_fedprox_of_twice_beta():
    mine, plain = (play(method, rounds=3).server["model"] for method in ("fedacg(lam=0, beta=0.05)", "fedprox(mu=0.1)"))
    assert all(torch.equal(mine[name], value) for name, value in plain.items())


def test_clients_get_what_lies_ahead_and_the_test_what_is_there():
    task = building.prepare(config("fedacg(lam=0.5)"), dataset=DATA).task
    method, s = task.method, task.server_context(1, (0,))
    server = method.init(task.server_context(0))
    server["momentum"] = {name: torch.ones_like(value) for name, value in server["momentum"].items()}
    message = method.download(s, server, 0)
    c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
    for name, value in server["model"].items():
        assert torch.equal(message["model"][name], value + 0.5)
        assert torch.equal(c.received["model"][name], value + 0.5)  # what prox and FLFA's feedback refer to
        assert torch.equal(method.publish(s, server)["model"][name], value)
    batch = next(iter(c.batches()))
    value = method.own_terms()[0](c, {name: v + 0.1 for name, v in message["model"].items()}, batch, None)
    count = sum(v.numel() for v in message["model"].values())
    torch.testing.assert_close(value, torch.tensor(0.001 * 0.01 * count), rtol=1e-4, atol=0)


def test_bytes_are_fedavgs():
    mine, plain = (play(method, rounds=1).rounds[1] for method in ("fedacg", "fedavg"))
    assert all(mine[key] == plain[key] for key in ("bytes_up", "bytes_down"))


def test_clients_are_tested_with_w_not_with_what_lies_ahead():
    """A fine-tuning of no epochs starts from what a client would be sent now, for a test."""
    for method in ("fedacg", "fedavg"):
        options = {"rounds": 3, "evaluation": {"local_test": "holdout"}}
        alone, tuned = (
            play(spec, **options).rounds[-1]["personal"] for spec in (method, f"finetuned({method}, epochs=0)")
        )
        assert alone == tuned
