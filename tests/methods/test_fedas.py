"""FedPer and FedAS: golden files (UNSKEW_GOLDEN: other inputs), a pencil, identities, divisions, ablations."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import unskew
from awkward import DATA, config, play
from support import FixedData, FixedFederation, PlannedTask, golden, golden_names, initial_model
from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.core.jobs import Job, Reply
from unskew.core.method import methods
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.schedule import Constant
from unskew.core.visit import open_personal
from unskew.core.wrapper import Wrapper
from unskew.data.batches import LocalData, Pipeline
from unskew.data.dataset import Samples
from unskew.data.transforms import transforms
from unskew.methods.fedas.fisher import fisher_trace
from unskew.methods.fedas.method import FedAS
from unskew.methods.fedas.synchronise import shares
from unskew.models.base import Model
from unskew.runs import building, engine

# ------------------------------------------------------------------------------------------- golden files


class Client(FixedData):
    """A client whose batches are given, for passes too."""

    def passes(self, batch):
        for x, y in self.given:
            yield Batch(x, y, torch.arange(len(y)))


def params_of(table):
    """A golden file's parameters under our names: base.* is the body."""
    return {name.replace("base.", "body."): torch.tensor(value, dtype=torch.float64) for name, value in table.items()}


def assert_params(actual, table, file):
    for name, value in params_of(table).items():
        torch.testing.assert_close(
            actual[name], value, rtol=file.rtol, atol=file.atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def close(actual, expected, file):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(actual, dtype=torch.float64), expected, rtol=file.rtol, atol=file.atol)


def task_of(method, file, lr=0.1, epochs=1):
    i, h, c = (file.inputs["dims"][key] for key in "ihc")
    clients = [Client(batches, c) for batches in file.inputs["clients"]]
    return PlannedTask(
        method=method, federation=FixedFederation(clients, SimpleNamespace(num_classes=c)),
        net=Net(Model(nn.Sequential(nn.Linear(i, h), nn.ReLU()), nn.Linear(h, c)).double()),
        initial={"model": params_of(file.inputs["params_global"]), "buffers": {}}, seed=0,
        local=LocalSettings(lr=lr, batch=1, epochs=epochs), schedule=Constant(), buffer_policy="average", cohort_size=1,
        plan=[list(range(len(clients)))],
    )  # fmt: skip


def visit(task, client, received, previous=None):
    """A client's context: the body it received, the model it trained last."""
    state = {} if previous is None else {"personal": previous, "visited": {"yes": torch.tensor(True)}}
    message = {"model": {name: value for name, value in received.items() if name.startswith("body.")}}
    return task.visit(Job("train", 1, client, message, state), task.federation.train(client))


def alignment(file, loss):
    lr, epochs = file.hyper["align_lr"], file.hyper["align_epochs"]
    return FedAS(align_lr=lr, align_epochs=epochs, align_loss=loss)


def previous_models(file):
    return enumerate(params_of(table) for table in file.inputs["params_prev_local"])


@pytest.mark.parametrize("name", golden_names("fedas_alignment*"))
def test_alignment_of_a_private_copy(name):
    file = golden(name)
    task = task_of(alignment(file, "code"), file)
    for k, previous in previous_models(file):
        aligned = task.method.start(visit(task, k, task.initial["model"], previous))
        assert_params(aligned, file.expected["official_loss_own_copy"][k], file)


@pytest.mark.parametrize("name", golden_names("fedas_alignment*"))
def test_alignment_of_one_object_by_all_clients_is_the_official_code(name):
    """The official code aligns the server's model itself, so each client receives what the one before left."""
    file = golden(name)
    task = task_of(alignment(file, "code"), file)
    received = task.initial["model"]
    for k, previous in previous_models(file):
        received = task.method.start(visit(task, k, received, previous))
        assert_params(received, file.expected["official_shared_object"][k], file)


@pytest.mark.parametrize("name", golden_names("fedas_alignment*"))
@pytest.mark.parametrize("loss, key", [("paper", "paper_mean"), ("paper_sum", "paper_sum_over_dims")])
def test_alignment_by_the_paper(name, loss, key):
    file = golden(name)
    task = task_of(alignment(file, loss), file)
    for k, previous in previous_models(file):
        expected = file.expected[key][k]
        aligned = task.method.start(visit(task, k, task.initial["model"], previous))
        assert_params(aligned, expected["base_after"], file)
        batches = file.inputs["clients"][k] * file.hyper["align_epochs"]
        for step, (batch, value) in enumerate(zip(batches, expected["losses"], strict=True)):
            close(loss_after(file, loss, previous, batches[:step], batch), value, file)


def loss_after(file, loss, previous, batches, batch):
    """The alignment loss of a batch after steps on other batches."""
    method = FedAS(align_lr=file.hyper["align_lr"], align_loss=loss)
    task = task_of(method, file)
    task.federation.clients[0] = Client([*batches, batch], file.inputs["dims"]["c"])
    c = visit(task, 0, task.initial["model"], previous)
    task.federation.clients[0].given.pop()
    params = method.start(c)
    (term,) = FedAS(align_loss=loss, align_mode="parallel").own_terms()
    (own,) = Client([batch], file.inputs["dims"]["c"]).passes(1)
    return term(method._with_targets(c), params, own, c.forward(params, own.x))


def trained(file, method):
    """Each client's model after local training from the golden start, and its context."""
    task = task_of(method, file, file.hyper["local_lr"], file.hyper["local_epochs"])
    for k, table in enumerate(file.inputs["params_after_alignment"]):
        start = params_of(table)
        c = visit(task, k, task.initial["model"], start)
        yield c, task.method.train(c, start)


@pytest.mark.parametrize("name", golden_names("fedas_round*"))
@pytest.mark.parametrize("kind, key", [("batch", "batch_sum"), ("full", "full"), ("per_sample", "per_sample_mean")])
def test_local_training_and_fisher_traces(name, kind, key):
    file = golden(name)
    for k, (c, params) in enumerate(trained(file, FedAS(fisher=kind))):
        assert_params(params, file.expected["params_after_local"][k], file)
        close(fisher_trace(c, params, kind), file.expected["tfim_alternatives"][key][k], file)
        if kind == "batch":
            close(fisher_trace(c, params, kind), file.expected["tfim_official"][k], file)


def merged(file, **options):
    """The server's model after the golden clients' replies; and their shares."""
    method = FedAS(**options)
    task = task_of(method, file)
    s = task.server_context(1)
    replies = [
        Reply(k, method.upload(c, params), weight=float(method.weight(c, params)), num_samples=int(c.num_samples))
        for k, (c, params) in enumerate(trained(file, method))
    ]
    weights, reducer = method.weigh(s, replies), method.reducers["delta"](s)
    for reply, weight in zip(replies, weights, strict=True):
        reducer.add(reply.groups["delta"], reply._replace(weight=weight))
    s = replace(s, replied=tuple(range(len(replies))))
    found = method.update(s, method.init(s), {"delta": reducer.result()})
    return found["model"], weights


@pytest.mark.parametrize("name", golden_names("fedas_round*"))
def test_synchronisation(name):
    file = golden(name)
    shared = {name: value for name, value in file.expected["global_official"].items() if name.startswith("base.")}
    model, weights = merged(file)
    assert_params(model, shared, file)
    close(weights, file.expected["weights_proportional"], file)
    assert_params(merged(file, eq8_literal=True)[0], file.expected["base_eq8_literal_with_1_over_m"], file)
    close(merged(file, normalisation="softmax")[1], file.expected["weights_softmax"], file)
    example = file.expected["minmax_example"]
    close(shares(example["alpha"], [1] * len(example["alpha"]), "minmax"), example["normalised"], file)


RULES = ("proportional", "softmax", "minmax")


@pytest.mark.parametrize("name", golden_names("fedas_weight_edge_cases*"))
@pytest.mark.parametrize("rule", RULES)
def test_weight_edge_cases(name, rule):
    file = golden(name)
    sizes = file.inputs["sizes"]
    for alphas, expected in zip(file.inputs["alphas"], file.expected[rule], strict=True):
        close(shares(alphas, sizes, rule), expected, file)
        close(weighed(alphas, sizes, rule), expected, file)


def weighed(alphas, sizes, rule):
    """The weights of a round whose clients sent these traces."""
    pairs = enumerate(zip(alphas, sizes, strict=True))
    replies = [Reply(k, weight=alpha, num_samples=size) for k, (alpha, size) in pairs]
    return FedAS(normalisation=rule).weigh(None, replies)


# ---------------------------------------------------------------------------------------------- by hand


def scalar_task(method, batch=2, **settings):
    """Feature z = w x, logits (v_0 z, v_1 z); one client with x = 1 and x = 3, both of class 0."""
    data = Samples(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))
    pipeline = Pipeline(2, (), (), transforms.build("none"))
    body, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    return PlannedTask(
        method=method,
        federation=FixedFederation([LocalData(data, None, pipeline)], SimpleNamespace(num_classes=2)),
        net=Net(Model(body, head)),
        initial={"model": {"body.weight": torch.zeros(1, 1), "head.weight": torch.zeros(2, 1)}, "buffers": {}},
        seed=0, local=LocalSettings(lr=0.1, batch=batch, **settings), schedule=Constant(), buffer_policy="average",
        cohort_size=1, plan=[[0]] * 3,
    )  # fmt: skip


def test_alignment_by_hand():
    # previous w = 1: features 1 and 3, class mean 2. received w = 0: loss ((0-2)^2 + (0-2)^2) / 2,
    # gradient (2 (-2) 1 + 2 (-2) 3) / 2 = -8, so w = 0 + 0.01 * 8. Two samples are one batch smaller than 16.
    task = scalar_task(FedAS(), momentum=0.9, weight_decay=0.1, steps=7)  # the training's own: not the alignment's
    previous = {"body.weight": torch.ones(1, 1), "head.weight": torch.full((2, 1), 5.0)}
    c = visit(task, 0, task.initial["model"], previous)
    start = task.method.start(c)
    assert start["body.weight"].item() == pytest.approx(0.08)
    assert torch.equal(start["head.weight"], previous["head.weight"])
    assert c.num_steps == 0  # alignment is not training
    # each sample's own target: (2 (0-1) 1 + 2 (0-3) 3) / 2 = -10
    c = visit(scalar_task(FedAS(align_loss="paper")), 0, task.initial["model"], previous)
    assert FedAS(align_loss="paper").start(c)["body.weight"].item() == pytest.approx(0.1)
    # parallel: training's loss is log 2 (logits 0) + 4
    method = FedAS(align_mode="parallel")
    c = method._with_targets(visit(scalar_task(method), 0, task.initial["model"], previous))
    (batch,) = c.passes()
    zero = {**previous, "body.weight": torch.zeros(1, 1)}
    assert method.loss(c, zero, batch).item() == pytest.approx(math.log(2) + 4)


@pytest.mark.parametrize("kind, batch, expected", [("batch", 2, 2.0), ("batch", 1, 5.0), ("full", 1, 2.0),
                                                   ("per_sample", 2, 2.5)])  # fmt: skip
def test_trace_by_hand(kind, batch, expected):
    # w = 1, v = 0: p = (1/2, 1/2), so the gradient of v is (-z/2, z/2), that of w is 0. z = 1: squared norm 1/2,
    # z = 3: 9/2; of their mean (z = 2): 2
    task = scalar_task(FedAS(), batch)
    c = visit(task, 0, task.initial["model"])
    params = {"body.weight": torch.ones(1, 1), "head.weight": torch.zeros(2, 1)}
    if (kind, batch) == ("batch", 1):  # a last sample alone would join the one before: give it company
        c = replace(c, data=Client([{"x": [[1.0]], "y": [0]}, {"x": [[3.0]], "y": [0]}], 2))
        params = {name: value.double() for name, value in params.items()}
    assert fisher_trace(c, params, kind).item() == pytest.approx(expected)


def test_a_trace_that_is_not_finite_costs_no_client_its_place():
    task = scalar_task(FedAS())
    c = visit(task, 0, task.initial["model"])
    huge = {"body.weight": torch.full((1, 1), 1e30), "head.weight": torch.zeros(2, 1)}
    assert fisher_trace(c, huge, "batch").item() == -1
    for rule in RULES:
        assert shares([4.0, -1.0], [10, 30], rule) == [0.25, 0.75] == weighed([4.0, -1.0], [10, 30], rule)
        assert shares([4.0, math.nan], [10, 30], rule) == [0.25, 0.75]


def test_buffers_are_merged_with_the_same_weights_as_the_parameters():
    """A round of two clients, one of which counts nothing: its statistics must not count either."""

    @methods.register("test_first_client_counts")
    class FirstCounts(methods.get("fedavg")):
        """Only the cohort's first client counts."""

        def weigh(self, s, replies):
            return [1.0 if reply.client == s.cohort[0] else 0.0 for reply in replies]

    options = {"model": "cnn8(norm=batch)", "clients": 2, "rounds": 1, "split": "iid", "memory_format": "contiguous"}
    alone = {}

    class Seen(Observer):
        def trained(self, c, params):
            alone[int(c.client)] = {name: value.clone() for name, value in c.buffers.items()}

    unskew.run("fedavg", watch=Seen(), **options)
    for executor in ("serial", "stacked"):
        result = unskew.run("test_first_client_counts", executor=executor, **options)
        first = result.rounds[-1]["clients"][0]
        for name, value in result.server["buffers"].items():
            if value.is_floating_point():
                torch.testing.assert_close(value, alone[first][name], rtol=1e-5, atol=1e-6)
        assert any(not torch.allclose(alone[0][name], alone[1][name]) for name in alone[0] if "mean" in name)


# ------------------------------------------------------------------------------- identities, whole runs

OFF = "align=false, synchronise=false"


def same(mine, theirs):
    """Whether two runs have the same models and the same figures of the clients' own tests."""
    models = all(torch.equal(mine.server["model"][name], value) for name, value in theirs.server["model"].items())
    return models and [row.get("personal") for row in mine.rounds] == [row.get("personal") for row in theirs.rounds]


@pytest.mark.parametrize("evaluate", ["received", "own"])
def test_without_alignment_and_synchronisation_it_is_fedper(evaluate):
    options = {"rounds": 3, "sample": 0.6}
    assert same(play(f"fedas({OFF}, evaluate={evaluate})", **options), play(f"fedper(evaluate={evaluate})", **options))


@pytest.mark.parametrize(
    "division", ["layers(patterns=['head.*'])", "channels(share=0)", "channels(share=0.9, grow=999)"]
)
def test_divisions_that_are_the_head(division):
    assert same(play(f"fedper(division={division})"), play("fedper"))


PARTS = (
    "align=false", "synchronise=false", "align_mode=parallel", "align_loss=paper", "align_target=received",
    "fisher=full", "normalisation=softmax", "eq8_literal=true",
)  # fmt: skip


def test_each_part_changes_the_model():
    runs = [play(f"fedas({what})", local={"batch": 8, "lr": 0.05}) for what in ("", OFF, *PARTS)]
    models = [torch.cat([value.flatten() for value in run.server["model"].values()]) for run in runs]
    assert all(not torch.equal(a, b) for n, a in enumerate(models) for b in models[:n])


def test_only_the_head_stays_and_only_the_body_moves_at_the_server():
    result = play("fedper", local={"batch": 8, "buffers": "reset"})
    start = initial_model(result.run, DATA)
    moved = {name for name, value in result.server["model"].items() if not torch.equal(value, start[name])}
    assert moved and all(name.startswith("body.") for name in moved)


def test_bytes_are_the_body_and_one_number():
    options = {"local": {"batch": 8, "buffers": "reset"}, "evaluation": {"every": 3}}
    body = sum(value.nbytes for name, value in initial_model(play("fedper", **options).run, DATA).items()
               if name.startswith("body."))  # fmt: skip
    for spec, more in (("fedper", 0), ("fedas", 4), (f"fedas({OFF})", 0)):
        row = play(spec, **options).rounds[1]
        assert row["bytes_down"] == 5 * body and row["bytes_up"] == 5 * (body + more)


def test_rows_tell_traces_and_shares(tmp_path):
    play("fedas", tmp_path / "run", rounds=1)
    rows = [row for row in map(json.loads, (tmp_path / "run/clients.jsonl").read_text().splitlines()) if "share" in row]
    whole = sum(row["fisher_alpha"] for row in rows)
    for row in rows:
        assert row["share"] == pytest.approx(row["fisher_alpha"] / whole, rel=1e-6)


def test_alignment_leaves_running_statistics_alone_and_happens_at_the_first_visit():
    task = building.prepare(config("fedas"), dataset=DATA).task
    message = task.method.download(task.server_context(1), task.method.init(task.server_context(0)), 0)
    c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
    before = tree.copy(c.buffers)
    start = task.method.start(c)
    assert all(torch.equal(c.buffers[name], value) for name, value in before.items())
    moved = {name for name, value in start.items() if not torch.equal(value, task.initial["model"][name])}
    assert moved and all(name.startswith("body.") for name in moved)


@pytest.mark.parametrize("spec", ["fedper(evaluate=own)", "fedas"])
def test_own_evaluation_takes_the_last_whole_model_and_before_any_visit_the_received_one(spec):
    task = building.prepare(config(spec), dataset=DATA).task
    method = task.method
    server = method.init(task.server_context(0))
    reply = task.work(Job("train", 1, 0, method.download(task.server_context(1), server, 0)))
    newer = {**server, "model": {name: value + 1 for name, value in server["model"].items()}}
    message = method.download(task.server_context(2), newer, 0)
    absent = task.visit(Job("personal", 2, 0, message, reply.state), task.federation.train(0))
    tested, kept = open_personal(absent, method.personalise(absent))
    moved = tree.add(reply.groups["delta"], method.shared(absent, server["model"]))
    assert all(torch.allclose(kept[name], value) for name, value in moved.items())
    (batch,) = absent.passes()
    buffers = reply.state["buffers"]
    assert torch.equal(
        method.predict(tested, kept, batch.x), absent.forward(kept, batch.x, "eval", buffers=buffers).logits
    )
    never = task.visit(Job("personal", 2, 1, message), task.federation.train(1))
    _, received = open_personal(never, method.personalise(never))
    assert all(torch.equal(received[name], message["model"].get(name, server["model"][name])) for name in received)


# ------------------------------------------------------------------------------------ divisions, refusals


def test_channels_travel_as_slices_and_the_rest_stays():
    run = config("fedas(division=channels(share=0.25, grow=2))", rounds=3)
    task = building.prepare(run, dataset=DATA).task
    method = task.method
    server = method.init(task.server_context(0))
    for round_, share in ((1, 0.125), (2, 0.25), (3, 0.25)):
        message = method.download(task.server_context(round_), server, 0)["model"]
        for name, value in server["model"].items():
            rows = 0 if name.startswith("head.") else len(value) - int(share * len(value))
            assert len(message.get(name, ())) == rows
    result = engine.run(run, dataset=DATA)
    for name, value in result.server["model"].items():
        fixed = value[len(value) - int(0.125 * len(value)) :] if name.startswith("body.") else value
        assert torch.equal(fixed, task.initial["model"][name][-len(fixed) :] if len(fixed) else fixed)


def test_alignment_of_channels_moves_received_rows_only():
    task = building.prepare(config("fedas(division=channels(share=0.5))"), dataset=DATA).task
    message = task.method.download(task.server_context(1), task.method.init(task.server_context(0)), 0)
    c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
    start = task.method.start(c)
    for name, part in message["model"].items():
        assert torch.equal(start[name][len(part) :], task.initial["model"][name][len(part) :])
    assert any(not torch.equal(start[name][: len(part)], part) for name, part in message["model"].items())


def test_a_wrapper_around_a_division_changes_nothing():
    if "test_plain" not in list(methods):
        methods.register("test_plain")(type("Plain", (Wrapper,), {"__doc__": "Nothing but the method inside."}))
    for inner in ("fedas(division=channels(share=0.5))", "fedper(evaluate=own)"):
        assert same(play(f"test_plain({inner})", sample=0.6), play(inner, sample=0.6))


@pytest.mark.parametrize("spec, said", [
    ("fedas(eq8_literal=true, synchronise=false)", "eq8_literal needs synchronise"),
    ("fedas(division=layers(patterns=['body.*']))", "set align=false"),
    ("fedper(division=layers(patterns=['*']))", "leaves nothing to share"),
    ("fedper(division=layers(patterns=['nosuch.*']))", "no parameter matches 'nosuch.*'"),
    ("fedper(division=nosuch)", "unknown division 'nosuch'"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(spec, said):
    with pytest.raises(InputError, match=said.replace("*", r"\*")):
        play(spec, rounds=1)
