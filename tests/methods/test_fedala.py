"""FedALA: the golden file, a pencil, the first time, and what it is where own and received model agree."""

import pytest
import torch

from awkward import DATA, config, in_double, play
from split_mlp import assert_params, close, params_of, split_task
from support import gap, golden, golden_names, initial_model
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.data.batches import LocalData, Pipeline
from unskew.data.dataset import Samples
from unskew.data.transforms import transforms
from unskew.methods.fedala import FedALA, mix
from unskew.runs import building


class InDouble(Pipeline):
    """Samples as they are."""

    def inputs(self, x, draws=None):
        return x


def golden_visit(file, method, start_over=False):
    """A visit in round 2 with the file's models; its weights begin at 1."""
    given, dims = file.inputs, file.inputs["dims"]
    x, y = torch.tensor(given["samples"]["x"], dtype=torch.float64), torch.tensor(given["samples"]["y"])
    data = LocalData(Samples(x, y), None, InDouble(dims["c"], (), (), transforms.build("none")))
    w, v = params_of(given["params_global"]), params_of(given["params_local"])
    task = split_task(method, dims, [data], w, batch=file.hyper["batch_size"], shuffle=False)
    state = {"fedala/model": v, "fedala/visited": {"yes": torch.tensor(True)}}
    if not start_over:
        names = list(w)[-method.layer_idx :]
        state["weights"] = {name: torch.ones_like(w[name]) for name in names}
    return task.visit(Job("train", 2, 0, {"model": w}, state), data)


def golden_method(file, **more):
    return FedALA(layer_idx=file.hyper["layer_idx"], eta=file.hyper["eta"],
                  share=file.constants["rand_percent"] / 100, **more)  # fmt: skip


@pytest.mark.parametrize("name", golden_names("fedala_init*"))
def test_golden_pass(name):
    file = golden(name)
    method = golden_method(file)
    params, made = method.start(golden_visit(file, method))
    assert_params(params, file.expected["params_initialised"], file)
    assert len(made["weights"]) == len(file.expected["ala_weights"])
    for own, expected in zip(made["weights"].values(), file.expected["ala_weights"], strict=True):
        close(own, expected, file)


def test_a_head_alone_and_the_whole_network_agree(monkeypatch):
    file = golden("fedala_init")
    method = golden_method(file)
    known = method.start(golden_visit(file, method))
    monkeypatch.setattr("unskew.methods.fedala._in_head", lambda weights: False)
    whole = method.start(golden_visit(file, method))
    torch.testing.assert_close(known.params, whole.params, rtol=1e-12, atol=1e-12)


def test_by_hand():
    # own 1, received 3: at weight 1 it is 3, at 0.5 it is 2; what has no weight is the received
    found = mix({"a": torch.tensor(1.0), "b": torch.tensor(5.0)}, {"a": torch.tensor(3.0), "b": torch.tensor(7.0)},
                {"a": torch.tensor(0.5)})  # fmt: skip
    assert found == {"a": 2.0, "b": 7.0}


def test_the_first_time_goes_on_until_the_loss_is_steady():
    """A large threshold is met at the first look, after eleven passes; a threshold of 0 never."""
    file = golden("fedala_init")

    def weights(**options):
        method = golden_method(file, **options)
        return method.start(golden_visit(file, method, start_over=True)).made["weights"]["head.weight"]

    one, eleven, twelve = (weights(start_passes=n, threshold=0) for n in (1, 11, 12))
    assert not torch.equal(one, eleven) and not torch.equal(eleven, twelve)
    assert torch.equal(eleven, weights(threshold=1e9))
    assert not torch.equal(eleven, weights(threshold=0))


def test_round_one_is_fedavgs_and_weights_persist():
    first, fedavg = play("fedala", rounds=1), play("fedavg", rounds=1)
    assert all(torch.equal(value, fedavg.server["model"][name]) for name, value in first.server["model"].items())
    assert not any("weights" in first._models.states.get(client) for client in range(5))
    second, fedavg = play("fedala", rounds=2), play("fedavg", rounds=2)
    assert any(not torch.equal(value, fedavg.server["model"][name]) for name, value in second.server["model"].items())
    kept = second._models.states.get(0)["weights"]
    assert set(kept) == {"head.weight", "head.bias"}
    assert all(((value >= 0) & (value <= 1)).all() for value in kept.values())
    assert any((value < 1).any() for value in kept.values())


def test_where_nothing_is_learnt_it_is_fedavg():
    """With weights that stay at 1 (a step of almost no length) the mixture is the received model."""
    ours, plain = play("fedala(eta=1e-30, start_passes=1)", rounds=3), play("fedavg", rounds=3)
    for name, value in plain.server["model"].items():
        torch.testing.assert_close(ours.server["model"][name], value, rtol=1e-4, atol=1e-5)


def test_clients_are_tested_with_what_they_trained_last():
    task = building.prepare(config("fedala"), dataset=DATA).task
    first = task.work(Job("train", 1, 0, task.initial))
    newer = {"model": tree.scale(task.initial["model"], 2.0), "buffers": task.initial["buffers"]}
    for state, expected in ((first.state, first.state["fedala/model"]), ({}, newer["model"])):
        c = task.visit(Job("personal", 5, 0, newer, state), task.federation.train(0))
        found = task.method.personalise(c).params
        assert all(torch.equal(value, expected[name]) for name, value in found.items())


@pytest.mark.parametrize("spec", ["fedala(layer_idx=0, start_passes=12)", "fedala(layer_idx=5)"])
@pytest.mark.parametrize("sample", [1.0, 0.6])
def test_newcomers_and_others_stack(spec, sample, caplog):
    # in double precision: in single, rounding may turn a ReLU on one processor and not on another
    options = {"rounds": 3, "sample": sample, "model": in_double("cnn8")}
    serial = play(spec, **options, execution={"memory_format": "contiguous"})
    stacked = play(spec, **options, execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-9


def test_bad_options_are_one_line():
    for spec in ("fedala(eta=0)", "fedala(share=0)", "fedala(share=1.5)", "fedala(layer_idx=-1)",
                 "fedala(start_passes=0)"):  # fmt: skip
        with pytest.raises(InputError):
            methods.build(spec)
