"""FedProto in both forms and FedFM: golden numbers, identities, what travels, one by one and stacked."""

import json
from types import SimpleNamespace

import pytest
import torch

from awkward import DATA, config, play
from support import golden, golden_names, initial_model, survey
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.core.jobs import Job, Reply
from unskew.core.reducers import total
from unskew.methods.fedfm import FedFM
from unskew.methods.fedproto import FedProto
from unskew.runs import building
from unskew.terms.proto import PrototypeDistance

CLASSES, SIZE, CLIENTS = 3, 64, 5


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def assert_close(actual, expected, file):
    torch.testing.assert_close(actual, double(expected), rtol=file.rtol, atol=file.atol)


def visit(means, available):
    return SimpleNamespace(message={"prototypes": {"means": means, "available": torch.tensor(available)}})


def check_term(term, c, file, value, grad):
    z = double(file.inputs["z"]).requires_grad_()
    y = torch.tensor(file.inputs["y"])
    found = term(c, {}, Batch(None, y, torch.arange(len(y))), Output(z, z))
    found.backward()
    assert_close(found.detach(), file.expected[value], file)
    assert_close(z.grad, file.expected[grad], file)
    return z.grad


def merge(replies):
    """The clients' trees added up, one by one and as a stack."""
    one_by_one, at_once = total(None), total(None)
    for client, value in enumerate(replies):
        one_by_one.add(value, Reply(client))
    at_once.add_stack({key: torch.stack([r[key] for r in replies]) for key in replies[0]}, [Reply(0)] * len(replies))
    return one_by_one.result(), at_once.result()


class Held:
    """A client with a sample for each count, whose features are given class means; the slots see nothing else."""

    def __init__(self, means, counts):
        self.counts, self.num_classes, self.diagnostics = counts, len(counts), SimpleNamespace(note=lambda *_: None)
        self.initial = {"model": {"head.weight": torch.zeros(len(counts), means.shape[1], dtype=means.dtype)}}
        self.received, self.buffer_policy, self._means = {"model": {}}, "local", means

    def passes(self):
        y = torch.arange(self.num_classes).repeat_interleave(self.counts.long())
        yield Batch(self._means[y], y, torch.arange(len(y)))

    def features(self, params, x, mode):
        assert mode == "eval"
        return x


def held_by(file, key):
    means, counts = double(file.inputs[key]), double(file.inputs["local_counts"])
    return [Held(own, n) for own, n in zip(means, counts, strict=True)]


def assert_same_model(mine, other):
    assert all(torch.equal(value, mine.server["model"][name]) for name, value in other.server["model"].items())


# ---------------------------------------------------------------------------------------- FedProto


@pytest.mark.parametrize("name", golden_names("fedproto*"))
def test_fedproto(name):
    file = golden(name)
    c = visit(double(file.inputs["global_protos"]), file.inputs["available"])
    (term,) = FedProto(lam=1.0).own_terms()
    grad = check_term(term, c, file, "loss", "grad")
    assert not grad[~torch.tensor(file.inputs["available"])[torch.tensor(file.inputs["y"])]].any()
    method = FedProto(form="original")
    replies = [method.upload(c, {})["prototypes"] for c in held_by(file, "local_protos")]
    previous = {"means": double(file.inputs["global_protos"]), "available": torch.tensor(file.inputs["available"])}
    for merged in merge(replies):
        after = method.update(SimpleNamespace(record={}), {"prototypes": previous}, {"prototypes": merged})
        held = double(file.inputs["local_counts"]).sum(0) > 0
        expected = torch.where(held.unsqueeze(1), double(file.expected["global_protos_uniform"]), previous["means"])
        torch.testing.assert_close(after["prototypes"]["means"], expected, rtol=file.rtol, atol=file.atol)
        assert torch.equal(after["prototypes"]["available"], previous["available"] | held)


@pytest.mark.parametrize("unit", [False, True])
def test_without_prototypes_the_term_is_exactly_nothing(unit):
    z = torch.randn(3, 2).requires_grad_()
    c, batch = visit(torch.zeros(2, 2), [False, False]), Batch(None, torch.tensor([0, 1, 1]), torch.arange(3))
    value = PrototypeDistance(unit=unit)(c, {}, batch, Output(z, z))
    assert value == 0 and not torch.autograd.grad(value, z)[0].any()


def test_without_strength_and_in_its_first_round_averaged_fedproto_is_fedavg():
    assert_same_model(play("fedproto(lam=0)"), play("fedavg"))
    assert_same_model(play("fedproto", rounds=1), play("fedavg", rounds=1))


def test_prototypes_are_plain_means_over_clients_of_the_trained_models():
    # lr tiny: every local model is the initial one
    result = play("fedproto", rounds=1, model="mlp", local={"batch": 8, "lr": 1e-30})
    task = building.prepare(result.run, dataset=DATA).task
    start, s = initial_model(result.run, DATA), task.server_context(1)
    own = []
    for client in range(CLIENTS):
        (batch,) = task.federation.train(client).passes(60)
        features = s.features(start, batch.x, "eval")
        own.append({label: features[batch.y == label].mean(0) for label in batch.y.unique().tolist()})
    for label in range(CLASSES):
        mean = torch.stack([means[label] for means in own if label in means]).mean(0)
        torch.testing.assert_close(result.server["prototypes"]["means"][label], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_in_the_original_form_models_stay_and_prototypes_travel(executor, tmp_path):
    how = {"executor": executor, **({"chunk": 3} if executor == "stacked" else {})}
    result = play("fedproto(form=original)", tmp_path / "run", execution=how)
    start = initial_model(result.run, DATA)
    assert all(torch.equal(value, start[name]) for name, value in result.server["model"].items())
    row = result.rounds[1]
    assert row["bytes_down"] == CLIENTS * (4 * SIZE * CLASSES + CLASSES)
    assert row["bytes_up"] == CLIENTS * (4 * SIZE * CLASSES + 4 * CLASSES)
    rows = [json.loads(line) for line in (tmp_path / "run/clients.jsonl").read_text().splitlines()]
    noted = {row["client"]: row["prototype_bytes"] for row in rows if "prototype_bytes" in row}
    assert noted == {0: 4 * SIZE * 3, 1: 4 * SIZE, 2: 4 * SIZE, 3: 4 * SIZE * 3, 4: 4 * SIZE * 3}
    assert "accuracy" not in row and result.summary["personal"]["pooled"] > 0.9
    with pytest.raises(InputError, match="predicts by more than its network"):
        result.client_model(0)


def original_visit(kind="train"):
    task = building.prepare(config("fedproto(form=original)"), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 0)
    assert message["model"] == {} and "buffers" not in message
    return task, message, task.work(Job(kind, 1, 0, message))


def test_an_original_client_goes_on_from_its_own_model_and_statistics():
    task, message, reply = original_visit()
    assert set(reply.groups) == {"prototypes"} and {"personal", "buffers"} <= set(reply.state)
    c = task.visit(Job("train", 2, 0, message, reply.state), task.federation.train(0))
    assert all(torch.equal(value, c.received["model"][name]) for name, value in reply.state["personal"].items())
    assert all(torch.equal(value, c.buffers[name]) for name, value in reply.state["buffers"].items())
    assert any(not torch.equal(value, c.initial["model"][name]) for name, value in reply.state["personal"].items())


def test_the_nearest_prototype_is_predicted():
    task, message, reply = original_visit()
    first = task.visit(Job("personal", 1, 0, message, reply.state), task.federation.train(0))
    batch = next(first.passes())
    z = first.features(first.received["model"], batch.x, "eval")
    none = task.method.predict(first, first.received["model"], batch.x)  # no prototype yet: the client's classifier
    assert torch.equal(none, first.forward(first.received["model"], batch.x, "eval").logits)
    means = torch.stack([z[0], z[1], torch.full_like(z[0], 1e3)])
    known = {"means": means, "available": torch.tensor([True, True, False])}
    c = first.with_fields(message={**message, "prototypes": known})
    scores = task.method.predict(c, c.received["model"], batch.x)
    distances = torch.cdist(z, means[:2])
    assert scores[:2].argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(scores[:, :2], -distances.square(), rtol=1e-4, atol=1e-3)
    assert (scores.argmax(1) < 2).all() and scores.isfinite().all()
    both = task.method.predict(c.with_fields(message={**message, "prototypes": {**known, "means": means.flip(0)}}),
                               c.received["model"], means.new_zeros(0, *batch.x.shape[1:]))  # fmt: skip
    assert both.shape == (0, CLASSES)


# ------------------------------------------------------------------------------------------- FedFM


@pytest.mark.parametrize("name", golden_names("fedfm*"))
def test_fedfm(name):
    file = golden(name)
    anchors = double(file.inputs["anchors"])
    c = visit(anchors, [True] * len(anchors))
    for guide, key in (("contrast", "ce"), ("l2", "l2")):
        (term,) = FedFM(lam=1.0, tau=file.hyper["tau"], guide=guide).own_terms()
        check_term(term, c, file, f"loss_{key}", f"grad_{key}")
    method = FedFM()
    replies = [method.survey(c)["prototypes"] for c in held_by(file, "local_anchors")]
    previous = {"means": anchors, "available": torch.zeros(len(anchors), dtype=torch.bool)}
    held = double(file.inputs["local_counts"]).sum(0) > 0
    for merged in merge(replies):
        server = method.digest(None, {"prototypes": previous}, {"prototypes": merged})
        assert_close(server["prototypes"]["means"][held], double(file.expected["global_anchors"])[held].tolist(), file)
        assert torch.equal(server["prototypes"]["available"], held)


def test_without_strength_and_while_it_warms_up_fedfm_is_fedavg():
    plain = play("fedavg")
    assert_same_model(play("fedfm(lam=0)"), plain)
    for guide in ("contrast", "l2"):
        assert_same_model(play(f"fedfm(guide={guide}, warmup=2)"), plain)
    late, soon = play("fedfm(warmup=1)").server["model"], play("fedfm").server["model"]
    assert any(not torch.equal(value, soon[name]) for name, value in late.items())


def test_anchors_are_of_the_received_model_and_a_class_that_nobody_holds_keeps_its_own():
    task = building.prepare(config("fedfm", model="mlp"), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 2)
    old = torch.full_like(server["prototypes"]["means"], 7.0)
    before = {**server, "prototypes": {"means": old, "available": torch.tensor([True, True, False])}}
    brief = survey(task, before, message, client=2)["prototypes"]  # client 2 holds class 0 alone
    (batch,) = task.federation.train(2).passes(60)
    mean = task.server_context(1).features(message["model"], batch.x, "eval").mean(0)
    torch.testing.assert_close(brief["means"][0], mean)
    assert torch.equal(brief["means"][1:], old[1:]) and brief["available"].tolist() == [True, True, False]


def test_bytes_of_the_anchors():
    plain, mine = (play(spec, rounds=1).rounds[1] for spec in ("fedavg", "fedfm"))
    assert mine["bytes_down"] - plain["bytes_down"] == CLIENTS * (4 * SIZE * CLASSES + CLASSES)
    assert mine["bytes_up"] - plain["bytes_up"] == CLIENTS * (4 * SIZE * CLASSES + 4 * CLASSES)


# ------------------------------------------------------------------------------------ both of them


def test_terms_that_need_prototypes_work_in_both():
    play("fedfm(terms=[proto(weight=0.1)])", rounds=1)
    play("fedproto(terms=[feature_alignment])", rounds=2)


@pytest.mark.parametrize(
    "spec, line",
    [
        ("fedavg(terms=[proto])", "needs global class prototypes.* use it in fedblade or fedfm or fedpac or fedproto"),
        ("fedproto(form=both)", "fedproto.form"), ("fedfm(tau=0)", "fedfm.tau"), ("fedfm(guide=cos)", "fedfm.guide"),
        ("flfa(fedproto(form=original))", "needs a method whose clients train the model and send how it moved"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(spec, line):
    with pytest.raises(InputError, match=line) as error:
        play(spec, rounds=1)
    assert "\n" not in str(error.value)


def test_a_personal_form_needs_local_tests():
    with pytest.raises(InputError, match="gives personal models only"):
        play("fedproto(form=original)", evaluation={"local_test": "none"})
