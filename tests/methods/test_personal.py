"""LG-FedAvg, FedBABU, FedRep, FedRoD, local training, CD2-pFed: golden files, a pencil, torch's SGD, identities."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from awkward import DATA, config, in_double, play
from support import FixedData, FixedFederation, PlannedTask, gap, golden, golden_names, initial_model
from unskew.base import progress, tree
from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.core import local_loop
from unskew.core.context import STATISTICS
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.core.net import Net
from unskew.core.schedule import Constant
from unskew.core.visit import open_personal
from unskew.methods.cd2_pfed import CD2pFed
from unskew.methods.fedrod import FedRoD
from unskew.methods.finetuned import plain_gradient
from unskew.methods.local import Local
from unskew.models.base import Model
from unskew.runs import building
from unskew.terms.cyclic import Cyclic, silence_private

HOLDOUT = {"evaluation": {"local_test": "holdout"}}


@methods.register("test_balanced")
class Balanced(Method):
    """FedAvg under balanced softmax."""

    def criterion(self, c, out, batch):
        return batch.cross_entropy(out.logits + c.counts.to(out.logits.dtype).log())


@methods.register("test_random_head")
class RandomHead(Method):
    """FedAvg whose head is not trained."""

    frozen = ("head.*",)


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    for name in [name for name in methods if methods.get(name).__module__ == __name__]:
        del methods._classes[name]


def same(mine, other):
    return mine.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in mine.items())


def assert_same_server(mine, other):
    for group in ("model", "buffers"):
        assert same(mine.server[group], other.server[group])


def part(model, begin):
    return {name: value for name, value in model.items() if name.startswith(begin)}


def size(model):
    return 4 * sum(value.numel() for value in model.values())


def down(result):
    """Bytes sent to each client."""
    return result.rounds[1]["bytes_down"] / len(result.rounds[1]["clients"])


def visit(spec, round_=1, state=None, kind="train", **options):
    task = building.prepare(config(spec, **options), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 0)
    job = Job(kind, round_, 0, message, state or {})
    return task, job, task.visit(job, task.federation.train(0))


EXECUTORS = pytest.mark.parametrize("how", [{}, {"executor": "stacked", "chunk": 3}], ids=["serial", "stacked"])


# -------------------------------------------------------------------------------------------- LG-FedAvg


def test_lg_fedavg_sends_the_head_and_keeps_the_body():
    result = play("lg_fedavg", **HOLDOUT)
    start = initial_model(result.run, DATA)
    assert down(result) == size(part(start, "head."))  # 4 P_omega; BatchNorm's statistics stay with the body
    assert same(part(result.server["model"], "body."), part(start, "body."))
    assert not same(part(result.server["model"], "head."), part(start, "head."))
    bodies = [dict(result.client_model(client).named_parameters()) for client in (0, 3)]
    assert all(torch.equal(body["head.weight"], result.server["model"]["head.weight"]) for body in bodies)
    assert not torch.equal(bodies[0]["body.0.weight"], bodies[1]["body.0.weight"])


# ----------------------------------------------------------------------------------------------- FedBABU


@EXECUTORS
def test_fedbabu_is_fedavg_under_a_head_at_rest(how):
    mine, other = (play(spec, execution=how) for spec in ("fedbabu(finetune=2)", "test_random_head"))
    assert_same_server(mine, other)
    start = initial_model(mine.run, DATA)
    assert same(part(mine.server["model"], "head."), part(start, "head."))
    assert down(mine) == down(other) - size(part(start, "head."))  # all have the head: it is not sent


@pytest.mark.parametrize("where", ["all", "head", "body"])
def test_fedbabu_tunes_as_finetuned_does(where):
    mine, other = (play(spec, **HOLDOUT) for spec in (
        f"fedbabu(finetune=2, where={where})", f"finetuned(test_random_head, epochs=2, where={where})"))  # fmt: skip
    for client in range(5):
        assert same(mine.client_model(client).state_dict(), other.client_model(client).state_dict())


def test_fedbabu_without_fine_tuning_is_the_global_model():
    result = play("fedbabu(finetune=0)", **HOLDOUT)
    assert same(result.client_model(0).state_dict(), result.model().state_dict())


# ------------------------------------------------------------------------------------------------ FedRep


@EXECUTORS
def test_fedrep_without_epochs_of_the_body_keeps_its_bits(how):
    result = play("fedrep(body_epochs=0)", execution=how)
    assert same(result.server["model"], initial_model(result.run, DATA))


def test_fedrep_takes_turns():
    task, _, c = visit("fedrep(head_epochs=1, body_epochs=0)")
    start = task.method.start(c)
    first = task.method.train(c, start)
    assert same(part(first, "body."), part(start, "body.")) and not same(part(first, "head."), part(start, "head."))
    task, _, c = visit("fedrep(head_epochs=0)")
    only = task.method.train(c, start)
    assert same(part(only, "head."), part(start, "head.")) and not same(part(only, "body."), part(start, "body."))
    task, _, c = visit("fedrep")  # the body begins where the head's epoch ended
    both = task.method.train(c, start)
    assert same(part(both, "head."), part(first, "head."))
    _, _, again = visit("fedrep(head_epochs=0)")
    again.buffers.update(tree.copy(first_buffers(start)))
    assert same(both, task.method.__class__(head_epochs=0).train(again, first))


def first_buffers(start):
    """BatchNorm's statistics after the head's epoch."""
    task, _, c = visit("fedrep(body_epochs=0)")
    task.method.train(c, start)
    return c.buffers


def test_fedrep_by_hand():
    # body weight 1 on x = 2: z = 2; head (0, 0): p = (1/2, 1/2), y = 0: gradient of the head is
    # ((1/2 - 1) 2, (1/2) 2) = (-1, 1); lr 0.5: head (1/2, -1/2). Then the body: o = (1, -1), p_1 = 1/(1 + e^2),
    # dL/dz = p_1 (w_1 - w_0) = -p_1, times x: -2 p_1; body 1 + 0.5 * 2 p_1 = 1 + p_1
    net = Net(Model(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)).double())
    data = FixedData([{"x": [[2.0]], "y": [0]}], 2)
    task = given_task("fedrep", net, data, {"body.weight": [[1.0]], "head.weight": [[0.0], [0.0]]}, lr=0.5)
    c = task.visit(Job("train", 1, 0, {"model": {"body.weight": task.initial["model"]["body.weight"]}}), data)
    trained = task.method.train(c, task.method.start(c))
    assert trained["head.weight"].flatten().tolist() == [0.5, -0.5]
    assert trained["body.weight"].item() == pytest.approx(1 + 1 / (1 + torch.tensor(2.0).double().exp().item()))


def test_fedrep_needs_something_of_the_client_s_own():
    with pytest.raises(InputError, match="fedrep trains the client's own part first") as error:
        play("fedrep(division=layers(patterns=[]))")
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------ FedRoD


def given_task(method, net, data, initial, lr, **local):
    params = {name: torch.tensor(value, dtype=torch.float64) for name, value in initial.items()}
    return PlannedTask(
        method=methods.build(method), net=net, initial={"model": params, "buffers": {}}, seed=0, plan=[[0]],
        federation=FixedFederation([data], SimpleNamespace(num_classes=len(initial["head.weight"]))),
        local=LocalSettings(lr=lr, batch=1, **local), schedule=Constant(), buffer_policy="average", cohort_size=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", golden_names("fedrod_step*"))
def test_fedrod_step(name):
    file = golden(name)
    i, h, classes = (file.inputs["dims"][key] for key in "ihc")
    net = Net(Model(nn.Sequential(nn.Linear(i, h), nn.ReLU()), nn.Linear(h, classes)).double())
    data = FixedData([{"x": file.inputs["x"], "y": file.inputs["y"]}], classes)
    counts = torch.tensor(file.inputs["counts"]).long()
    data.y = torch.arange(classes).repeat_interleave(counts)  # the client holds more than this batch
    initial = {key.replace("base.", "body."): value for key, value in file.inputs["params"].items()}
    task = given_task(FedRoD(), net, data, initial, file.hyper["lr"])
    own = {
        f"head.{key}": torch.tensor(value, dtype=torch.float64) for key, value in file.inputs["personal_head"].items()
    }
    job = Job("train", 1, 0, {"model": task.initial["model"]}, {"personal_head": own})
    c = task.visit(job, data)
    assert c.counts.tolist() == counts.tolist()

    def close(actual, expected):
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=file.rtol, atol=file.atol)

    ((x, y),) = data.given
    batch, out = Batch(x, y, torch.arange(len(y))), c.forward(task.initial["model"], x)
    (term,) = task.method.own_terms()
    both = {**task.initial["model"], **{f"personal_{key}": value for key, value in own.items()}}
    close(task.method.criterion(c, out, batch), file.expected["loss_balanced"])
    close(term(c, both, batch, out), file.expected["loss_personal"])
    reply = task.work(job)
    after = tree.add(task.initial["model"], reply.groups["delta"])
    for key, value in file.expected["params_after"].items():
        close(after[key.replace("base.", "body.")], value)
    for key, value in file.expected["personal_head_after"].items():
        close(reply.state["personal_head"][f"head.{key}"], value)


@EXECUTORS
@pytest.mark.parametrize("model", ["cnn8(norm=batch)", "mlp"])
def test_fedrod_shares_what_fedavg_under_balanced_softmax_has(model, how):
    assert_same_server(*(play(spec, model=model, execution=how) for spec in ("fedrod", "test_balanced")))


def test_fedrod_predicts_with_both_heads_and_strangers_with_one():
    result = play("fedrod", **HOLDOUT)
    assert "accuracy" in result.rounds[-1] and "personal" in result.rounds[-1]
    task, job, _ = visit("fedrod")
    state = task.work(job).state
    c = task.visit(Job("personal", 1, 0, job.message, state), task.federation.train(0))
    found = task.method.personalise(c)
    c, x = c.with_fields(made=found.made), next(c.passes()).x
    out = c.forward(found.params, x, "eval")
    own = F.linear(out.features, state["personal_head"]["head.weight"], state["personal_head"]["head.bias"])
    torch.testing.assert_close(task.method.predict(c, found.params, x), out.logits + own)
    assert torch.equal(task.method.predict(c.with_fields(made={}), found.params, x), out.logits)
    with pytest.raises(InputError, match="predicts by more than its network"):
        result.client_model(0)


# ------------------------------------------------------------------------------------------ local training


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_training_is_torch_s(momentum):
    torch.manual_seed(1)
    model = Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)).double()
    initial = {name: value.tolist() for name, value in model.state_dict().items()}
    given = [{"x": torch.randn(5, 3).tolist(), "y": [0, 1, 1, 0, 1]}, {"x": torch.randn(2, 3).tolist(), "y": [1, 0]}]
    data = FixedData(given, 2)
    task = given_task(Local(epochs=4, decay=0.5), Net(model), data, initial, 0.1, momentum=momentum, weight_decay=0.01)
    reply = task.work(Job("train", 1, 0, {"model": {}}))
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    plain.load_state_dict(dict(zip(plain.state_dict(), task.initial["model"].values(), strict=True)))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
    for _ in range(4):
        for x, y in data.given:
            optimiser.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimiser.step()
        schedule.step()
    for mine, theirs in zip(reply.state["personal"].values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_local_training_sends_nothing_and_trains_once(caplog):
    options = {**HOLDOUT, "sample": 0.6, "rounds": 4, "model": in_double("cnn8(norm=batch)")}
    how = {"memory_format": "contiguous"}
    serial = play("local(epochs=3)", **options, execution=how)
    stacked = play("local(epochs=3)", **options, execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert all(row["bytes_up"] == row["bytes_down"] == 0 for row in serial.rounds[1:])
    start = initial_model(serial.run, DATA)
    assert same(serial.server["model"], start) and gap(stacked, serial, start) == 0
    earlier = play("local(epochs=3)", **{**options, "rounds": 1}, execution=how)
    for client in range(5):
        mine, theirs = (result.client_model(client).state_dict() for result in (stacked, serial))
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-9, atol=1e-9)
        if client in earlier.rounds[1]["clients"]:
            assert same(earlier.client_model(client).state_dict(), theirs)  # later rounds change nothing


def test_local_training_does_not_look_at_other_clients():
    one, all_ = (play("local(epochs=2)", rounds=1, sample=share, **HOLDOUT) for share in (0.2, 1.0))
    (client,) = one.rounds[1]["clients"]
    assert same(one.client_model(client).state_dict(), all_.client_model(client).state_dict())


def test_local_training_says_how_far_it_is(monkeypatch):
    said = []
    monkeypatch.setattr(progress, "say", lambda *what: said.append(what))
    task, job, _ = visit("local(epochs=2)")
    task.work(job)
    assert said == [("training alone: epochs", 0, 2), ("training alone: epochs", 1, 2)]


# ----------------------------------------------------------------------------------------------- CD2-pFed


@EXECUTORS
def test_cd2_pfed_without_distillation_is_fedper_with_divided_channels(how):
    mine, other = (play(spec, execution=how) for spec in (
        "cd2_pfed(distillation=0)", "fedper(division=channels(share=0.5))"))  # fmt: skip
    assert_same_server(mine, other)


def test_private_channels_are_silent():
    _, _, c = visit("cd2_pfed")
    params, batch = c.received["model"], next(c.passes())
    alone = silence_private(params, c.message["model"])
    maps = c.forward(alone, batch.x, "batch", maps=("body.1", "body.2")).maps
    for value in maps.values():  # BatchNorm and what follows it
        half = value.shape[1] // 2
        assert value[:, half:].abs().sum() == 0 and value[:, :half].abs().sum() > 0
    assert same(part(alone, "head."), part(params, "head."))
    before = tree.copy(c.buffers)
    Cyclic()(c, params, batch, c.forward(params, batch.x, "batch"))
    assert same(before, c.buffers)


def test_cyclic_distillation_by_hand():
    # two channels, the second one private, and a head that hands them on: whole o = z = (1, 3), alone o = z = (1, 0).
    # p = softmax(1, 3) and p_s = softmax(1, 0):
    # KL(p || p_s) + KL(p_s || p) = sum (p - p_s)(log p - log p_s)
    net = Net(Model(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)).double())
    data = FixedData([{"x": [[1.0]], "y": [0]}], 2)
    initial = {"body.weight": [[1.0], [3.0]], "head.weight": [[1.0, 0.0], [0.0, 1.0]]}
    task = given_task(CD2pFed(distillation=0.5), net, data, initial, lr=0.1)
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, 0)
    assert message["model"]["body.weight"].tolist() == [[1.0]]
    c = task.visit(Job("train", 1, 0, message), data)
    ((x, y),) = data.given
    (term,) = task.method.own_terms()
    batch, params = Batch(x, y, torch.arange(1)), c.received["model"]
    p, alone = torch.tensor([1.0, 3.0]).double().softmax(0), torch.tensor([1.0, 0.0]).double().softmax(0)
    expected = 0.5 * ((p - alone) * (p.log() - alone.log())).sum()
    value = term(c, params, batch, c.forward(params, x))
    torch.testing.assert_close(value, expected)
    # what teaches is constant: o gets p - p_s of the second divergence, o_s p_s - p of the first; the private weight
    # of the body is reached by o alone, 0.5 (p_1 - p_s1) x
    grads = c.grad(lambda q: term(c, q, batch, c.forward(q, x)), params)
    torch.testing.assert_close(grads["body.weight"][1, 0], 0.5 * (p - alone)[1])
    torch.testing.assert_close(grads["body.weight"][0, 0], 0.5 * ((p - alone)[0] + (alone - p)[0]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("inner", ["fedala", "own(fedavg)", "fedper(evaluate=own)"])
def test_fine_tuning_goes_on_from_the_statistics_that_belong_to_the_model(inner):
    """And is tested with them as they are after it: BatchNorm's statistics of a client's own model are its own."""
    prepared = building.prepare(config(f"finetuned({inner}, epochs=2)"), dataset=DATA)
    task, client = prepared.task, 3
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1, (client,)), server, client)
    trained = task.work(Job("train", 1, client, message)).state
    job = Job("personal", 1, client, message, trained)
    c = task.visit(job, task.federation.train(client))
    before, after = task.method.inner.personalise(c), task.method.personalise(c)
    name = next(name for name in before.made[STATISTICS] if name.endswith("running_mean"))
    assert not torch.equal(before.made[STATISTICS][name], c.buffers[name])  # its own, not the received ones
    assert not torch.equal(before.made[STATISTICS][name], after.made[STATISTICS][name])
    by_hand = c.aside(epochs=2, steps=None).with_buffers(before.made[STATISTICS])
    params = local_loop.sgd(by_hand, before.params, plain_gradient, purpose="finetune")
    assert torch.equal(by_hand.buffers[name], after.made[STATISTICS][name])
    x = DATA.test.x[:8].float()
    tested, found = open_personal(c, after)
    scores = task.method.predict(tested, found, x)
    assert torch.equal(scores, c.forward(params, x, "eval", buffers=by_hand.buffers).logits)
