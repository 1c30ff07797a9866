"""What a second trial by a newcomer found: faults of plugins that were silent, or told as something else."""

import pytest
import torch
from torch import nn

import unskew
from unskew import Method, registries
from unskew.base.errors import SlotError
from unskew.core import reducers
from unskew.models.base import Model

SMALL = {"data": "digits", "model": "mlp", "clients": 4, "split": "iid", "rounds": 2, "epochs": 1, "lr": 0.1}


class DrawnResult(reducers.mean):
    """Draws from torch's generator."""

    def result(self):
        return {name: value * torch.rand(()) for name, value in super().result().items()}


class NoResult(reducers.mean):
    """Gives nothing."""

    def result(self):
        return {}


def weigh_by_chance(self, s, replies):
    return torch.rand(len(replies)).tolist()


def survey(self, c):
    return {"a": {"x": torch.ones(1)}}


def add_unknown(self, s, server, client):
    return {"model": {"zzz": torch.zeros(10)}}


def add_part(self, s, server, client):
    return {"model": {"head.bias": torch.zeros(10)}}


def criterion_through_data(self, c, out, batch):
    out.features.data.mul_(0)
    return batch.cross_entropy(out.logits)


def criterion_in_place(self, c, out, batch):
    out.logits.mul_(2)
    return batch.cross_entropy(out.logits)


def weight_from_list(self, c, params):
    self._seen.append(1)
    return c.num_samples * len(self._seen)


def weight_from_class(self, c, params):
    type(self)._n += 1
    return c.num_samples


def weight_with_threads(self, c, params):
    torch.set_num_threads(2)
    return c.num_samples


def put(client):
    def update(self, s, server, merged):
        s.per_client.put(client, {"a": {"b": torch.ones(1)}})
        return server

    return update


def put_in_download(self, s, server, client):
    s.per_client.put(0, {})
    return server


def send_more(self, c, params):
    return {**Method.upload(self, c, params), "extra": {"a": torch.ones(1)}}


def weighing(value):
    return lambda self, s, replies: value


def weight_of(value):
    return lambda self, c, params: torch.tensor(value, dtype=torch.float64)


USABLE = "0 or from 1e-30 to 1e30, got"
FAULTS = {
    "empty result": ({"reducers": {"delta": NoResult}}, r"NoResult.result returns a tree without body.1.bias"),
    "unknown in brief": (
        {"survey_reducers": {"a": reducers.total}, "survey": survey, "brief": add_unknown},
        "brief returns 'model' with the unknown name 'zzz'",
    ),
    "part in brief": (
        {"survey_reducers": {"a": reducers.total}, "survey": survey, "brief": add_part},
        "brief returns 'model' without body.1.bias",
    ),
    "output by data": ({"criterion": criterion_through_data}, "criterion changes out.features in place"),
    "output": ({"criterion": criterion_in_place}, "criterion changes out.logits in place"),
    "list of the class": ({"weight": weight_from_list, "_seen": []}, r"weight changes Faulty._seen \(of the class\)"),
    "number of the class": ({"weight": weight_from_class, "_n": 0}, r"weight changes Faulty._n \(of the class\)"),
    "threads": ({"weight": weight_with_threads}, r"weight sets the number of torch's threads \(2\)"),
    "no client": ({"update": put("x")}, "clients by their numbers, from 0 to 3, got 'x', in .*update"),
    "client 99": ({"update": put(99)}, "clients by their numbers, from 0 to 3, got 99, in .*update"),
    "client True": ({"update": put(True)}, "clients by their numbers, from 0 to 3, got True, in .*update"),
    "put while reading": (
        {"download": put_in_download},
        "put is for init, digest and update; download, brief and publish only read",
    ),
    "unread group": ({"upload": send_more}, r"upload sends \['extra'\] but has no reducer for it"),
    "no weights": ({"weigh": weighing(None)}, f"weigh must return a list of 4 weights, .* {USABLE} None"),
    "too few weights": ({"weigh": weighing([1.0])}, f"weigh must return a list of 4 weights, .* {USABLE} 1"),
    "huge weights": ({"weigh": weighing([1e308] * 4)}, f"weigh must return a list of 4 weights, .* {USABLE} 4"),
    "huge weight": ({"weight": weight_of(1e308)}, rf"weight must return a number that is {USABLE} 1e\+308"),
    "tiny weight": ({"weight": weight_of(1e-320)}, f"weight must return a number that is {USABLE} 9.9"),
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_line_names_the_slot(fault, executor, own_names):
    slots, said = FAULTS[fault]
    kind = registries.methods.register("faulty")(type("Faulty", (Method,), {"__module__": "mine", **slots}))
    with pytest.raises(SlotError, match=said) as error:
        unskew.run(kind(), executor=executor, **SMALL)
    assert "\n" not in str(error.value) and "in round 1" in str(error.value)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    "slots", [{"weigh": weigh_by_chance}, {"reducers": {"delta": DrawnResult}}], ids=["weigh", "add"]
)
def test_what_the_server_draws_does_not_depend_on_who_works(slots, own_names):
    """Seeded for each call: in `serial` the clients' layers draw from the same generator in between."""
    kind = registries.methods.register("drawing")(type("Drawing", (Method,), {"__module__": "mine", **slots}))
    serial, pool, stacked = (unskew.run(kind(), executor=how, **SMALL) for how in ("serial", "pool", "stacked"))
    for name, value in serial.server["model"].items():
        assert torch.equal(pool.server["model"][name], value)
        torch.testing.assert_close(stacked.server["model"][name], value, rtol=1e-3, atol=1e-4)


def with_head(head):
    return lambda self, model, classes: Model(model.body, head())


def spoil(self, model, classes):
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    return model


NETWORKS = {
    "lazy": (with_head(lambda: nn.LazyLinear(10)), "'head.weight' is lazy and has no shape yet"),
    "seven outputs": (with_head(lambda: nn.Linear(64, 7)), r"expected logits of shape \(2, 10\)"),
    "twelve outputs": (with_head(lambda: nn.Linear(64, 12)), r"expected logits of shape \(2, 10\)"),
    "other inputs": (with_head(lambda: nn.Linear(63, 10)), r"fails on inputs of shape \(1, 8, 8\)"),
    "double": (lambda self, model, classes: model.double(), r"convert the network with .float\(\)"),
    "not a number": (spoil, "'head.weight' holds NaN or infinite values"),
}
