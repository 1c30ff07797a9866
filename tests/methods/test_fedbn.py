"""FedBN: what stays and what travels, where it is FedAvg, and its figure on the common test set."""

import pytest
import torch

from awkward import DATA, config, play
from support import initial_model
from unskew.core.jobs import Job
from unskew.runs import building

NORM = {f"body.{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")}


def first_visit():
    task = building.prepare(config("fedbn"), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 0)
    return task, message, task.work(Job("train", 1, 0, message))


def test_normalisation_stays_with_the_client():
    task, message, reply = first_visit()
    assert set(message) == {"model"} and not NORM & message["model"].keys()
    assert set(reply.groups) == {"delta"} and not NORM & reply.groups["delta"].keys()
    assert set(reply.state["personal"]) == NORM
    assert any(name.endswith("running_mean") for name in reply.state["buffers"])
    c = task.visit(Job("personal", 2, 0, message, reply.state), task.federation.train(0))
    own = task.method.personalise(c)
    for name, value in own.items():
        assert torch.equal(value, (reply.state["personal"] if name in NORM else message["model"])[name])
    assert all(torch.equal(value, c.buffers[name]) for name, value in reply.state["buffers"].items())


def test_bytes_are_fedavgs_without_normalisation():
    mine, plain = (play(spec, rounds=1).rounds[1] for spec in ("fedbn", "fedavg"))
    # scale, shift, running mean and variance of 16 and 32 channels, and two counters of 8 bytes, for five clients
    saved = 5 * (4 * 4 * (16 + 32) + 2 * 8)
    assert [plain[key] - mine[key] for key in ("bytes_down", "bytes_up")] == [saved, saved]


@pytest.mark.parametrize("model", ["cnn8", "mlp"])
def test_without_normalisation_layers_the_model_is_fedavgs(model):
    mine, plain = (play(spec, model=model).server["model"] for spec in ("fedbn", "fedavg"))
    assert all(torch.equal(value, mine[name]) for name, value in plain.items())


def test_the_server_never_trains_normalisation_and_gives_no_global_figure():
    result = play("fedbn")
    start = initial_model(result.run, DATA)
    same = {name for name, value in result.server["model"].items() if torch.equal(value, start[name])}
    assert same == NORM
    assert all("accuracy" not in row for row in result.rounds)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_its_figure_on_the_common_test_set_is_the_mean_over_clients(executor):
    how = {"executor": executor, **({"chunk": 3} if executor == "stacked" else {})}
    result = play("fedbn", evaluation={"local_test": "common"}, execution=how)
    right = []
    for client in range(5):
        model = result.client_model(client)
        batch = next(building.prepare(result.run, dataset=DATA).task.federation.common("test", 0, 60).passes(60))
        right.append((model(batch.x).logits.argmax(1) == batch.y).float().mean().item())
    assert result.summary["personal"]["mean"] == pytest.approx(sum(right) / 5, abs=1e-6)
    assert result.summary["personal"]["clients_tested"] == 5


def test_common_test_sets_are_looked_up_for_a_global_model():
    result = play("fedavg", evaluation={"local_test": "common"})
    assert result.summary["personal"]["mean"] == pytest.approx(result.rounds[-1]["accuracy"])


def test_a_network_without_normalisation_is_said(caplog):
    play("fedbn", model="mlp", rounds=1)
    assert "fedbn: the network has no normalisation layer, so this is fedavg" in caplog.text
