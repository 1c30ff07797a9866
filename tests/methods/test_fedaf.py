"""FedAF and FedDM: golden files, a pencil, identities, and what each option changes (UNSKEW_GOLDEN: other inputs)."""

import dataclasses
import functools
import itertools
import json
import math

import pytest
import torch
from torch import nn

import unskew
from awkward import DATA, config, play
from support import FixedData, FixedFederation, assert_tree, golden, golden_names, memory_store, tiny_mlp, to_tree
from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.core.jobs import Job, Reply
from unskew.core.method import methods
from unskew.core.net import Net
from unskew.core.round_loop import rounds
from unskew.core.schedule import Constant
from unskew.core.task import Task
from unskew.executors.serial import Serial
from unskew.methods import condensation, fedaf
from unskew.methods.fedaf import FedAF
from unskew.methods.feddm import FedDM, perturb
from unskew.models.base import build
from unskew.models.sizes import count_parameters
from unskew.runs import building

LOSSES = pytest.mark.parametrize("name", golden_names("fedaf_losses*"))
QUICK = {"steps": 3, "server_epochs": 2, "ipc": 2}


class GivenData(FixedData):
    """A client's samples in double precision."""

    device = torch.device("cpu")

    def passes(self, batch=500):
        for x, y in self.given:
            yield Batch(x, y, torch.arange(len(y)))


def small_task(text):
    """A task on the awkward clients."""
    return building.prepare(config(text), dataset=DATA).task


def first_message(task, client=0):
    return task.method.download(task.server_context(1), task.method.init(task.server_context(0)), client)


def array(value):
    return torch.tensor(value, dtype=torch.float64)


def near(actual, expected, file):
    torch.testing.assert_close(actual, array(expected), rtol=file.rtol, atol=file.atol)


def a_task(method, params, clients):
    """A task on the golden network; its dimensions are those of the parameters."""
    params = to_tree(params)
    (h, i), c = params["body.fc1.weight"].shape, len(params["head.bias"])
    data = [GivenData([client], c) for client in clients]
    federation = FixedFederation(data, type("D", (), {"num_classes": c}))
    settings = LocalSettings(lr=0.1, batch=1)
    return Task(method, federation, Net(tiny_mlp(i, h, c)), {"model": params, "buffers": {}}, 0, settings, Constant(),
                "average", len(clients))  # fmt: skip


def of_file(file, **options):
    """The task, the method with the file's values, and its options."""
    known = {field.name for field in dataclasses.fields(FedAF)}
    method = FedAF(**{name: v for name, v in file.hyper.items() if name in known}, **options)
    return a_task(method, file.inputs["params_global"], file.inputs["clients"]), method


def surveyed(task, method):
    """The server after the survey, and every client's V_k."""
    s, server = task.server_context(1, tuple(range(len(task.federation)))), method.init(task.server_context(0))
    reducer, replies = fedaf.class_rows(s), []
    for client in range(len(task.federation)):
        replies.append(task.work(Job("survey", 1, client, method.download(s, server, client))))
        reducer.add(replies[-1].groups["logits"], replies[-1])
    return s, method.digest(s, server, {"logits": reducer.result()}), [reply.groups["logits"] for reply in replies]


def visit(task, method, client=0):
    s, server, _ = surveyed(task, method)
    message = {**method.download(s, server, client), **method.brief(s, server, client)}
    return task.visit(Job("train", 1, client, message), task.federation.train(client))


def has_rows(actual, expected, file):
    """The table has exactly the rows of the file, and zeros elsewhere."""
    assert sorted(map(str, torch.nonzero(actual["held"]).flatten().tolist())) == sorted(expected)
    for label, row in expected.items():
        near(actual["rows"][int(label)], row, file)
    assert not actual["rows"][~actual["held"]].any()


def as_images(by_label):
    """Images and classes of a dictionary by class."""
    x = torch.cat([array(rows) for rows in by_label.values()])
    return {"x": x, "y": torch.cat([torch.full((len(rows),), int(label)) for label, rows in by_label.items()])}


def theta_given(monkeypatch, *given):
    """The directions of the coming steps; the last ones stay."""
    left = list(given)
    monkeypatch.setattr(fedaf, "draw_directions", lambda *_: array(left.pop(0) if len(left) > 1 else left[0]))


@LOSSES
def test_mean_logits_and_soft_labels(name):
    file = golden(name)
    for missing, key in (("holders", "V_holders_only"), ("zeros", "V_zeros_for_missing")):
        task, method = of_file(file, missing=missing)
        _, server, own = surveyed(task, method)
        for client, expected in zip(own, file.expected["V_k"], strict=True):
            has_rows(client, expected, file)
        has_rows(server["logits"], file.expected[key], file)
    task, method = of_file(file)
    merged = fedaf.class_rows(None)
    for client, expected in enumerate(file.expected["R_k"]):
        c = visit(task, method, client)
        images = condensation.first_images(c, condensation.gather(c), 1, 1)
        sent = method.upload(c.with_made(images=images), {})["soft"]
        has_rows(sent, expected, file)
        merged.add(sent, Reply(client))
    mean = fedaf.average(merged.result(), "holders")
    has_rows(mean, file.expected["R_holders_only"], file)
    if "class_without_holder" in file.hyper:
        assert not mean["held"][file.hyper["class_without_holder"]]


@LOSSES
def test_terms_of_client_0_without_resampling(name, monkeypatch):
    file = golden(name)
    expected, projections = file.expected["client0"], file.inputs["projections"]
    theta_given(monkeypatch, projections)
    images = as_images(file.inputs["S"][0])
    for distance, key in (("sliced", "CDC"), ("sliced_p1", "CDC_p1"), ("sorted", "CDC_sorted")):
        task, method = of_file(file, distance=distance, projections=len(projections))
        c = visit(task, method)
        real, made = (
            condensation.average_by_class(condensation.look(c, c.received["model"], x), y, c.num_classes)
            for x, y in (condensation.gather(c)[:2], (images["x"], images["y"]))
        )
        near(method.cdc_loss(c, made.logits, c.message["logits"]), expected[key], file)
        near(condensation.squared_gap(real.features, made.features), expected["DM"], file)
        near(method.matching(c, real, made), expected["DM"] + file.hyper["lambda_loc"] * expected[key], file)


@LOSSES
def test_one_step_of_client_0_without_resampling(name, monkeypatch):
    file = golden(name)
    theta_given(monkeypatch, file.inputs["projections"])
    task, method = of_file(file)
    method = dataclasses.replace(method, gamma=1.0)
    c = visit(task, method)
    images = as_images(file.inputs["S"][0])
    after = method.condense(c, c.received["model"], images, [condensation.gather(c)])
    near(after["x"], as_images(file.expected["client0"]["S_after_one_sgd_step"])["x"].tolist(), file)
    gradient = (images["x"] - after["x"]) / method.image_lr
    near(gradient, as_images(file.expected["client0"]["grad_S"])["x"].tolist(), file)


@LOSSES
def test_condensation_steps(name, monkeypatch):
    file = golden(name)
    steps, given = file.expected["condensation"]["steps"], file.inputs["condensation"]
    task, method = of_file(file)
    drawn = [to_tree(params) for params in file.inputs["params_random"]]
    c = visit(task, method)
    for params, expected in zip(drawn, file.expected["resampled"], strict=True):
        one = dataclasses.replace(c, fresh=lambda seed, params=params: params)
        assert_tree(method.network(one, c.received["model"]), expected, file)
    real = condensation.gather(c)

    def batches():
        for by_class in given["real_index"]:
            index = torch.tensor([position for own in by_class.values() for position in own])
            yield Batch(real.x[index], real.y[index], index)

    for count, step in enumerate(steps, 1):
        theta_given(monkeypatch, *given["projections"])
        c = dataclasses.replace(c, fresh=lambda seed, left=list(drawn): left.pop(0))
        losses, seen = [], []
        monkeypatch.setattr(c.diagnostics, "note", lambda key, value, to=losses: to.append(value))
        monkeypatch.setattr(FedAF, "direction", lambda self, grads, to=seen: to.append(grads["x"].clone()) or grads)
        first = as_images(file.inputs["S"][0])
        after = method.condense(c, c.received["model"], first, itertools.islice(batches(), count))
        near(losses[-1], step["loss"], file)
        near(seen[-1], as_images(step["grad_S"])["x"].tolist(), file)
        near(after["x"], as_images(step["S_after"])["x"].tolist(), file)


@LOSSES
@pytest.mark.parametrize("which", ["server", "server_minibatch"])
def test_server_loss(name, which):
    file = golden(name)
    expected = file.expected[which]
    task, method = of_file(file)
    s = task.server_context(1)
    tables, data = fedaf.class_rows(s), condensation.union(s)
    for client, own in enumerate(file.inputs["S"]):
        c = visit(task, method, client)
        groups = method.upload(c.with_made(images=as_images(own)), {})
        tables.add(groups["soft"], Reply(client))
        data.add(groups["data"], Reply(client))
    merged = {"data": data.result(), "soft": tables.result()}
    x, y = merged["data"]["x"], merged["data"]["y"]
    if which == "server_minibatch":
        x, y = array(file.inputs[which]["x"]), torch.tensor(file.inputs[which]["y"])
    batch = Batch(x, y, torch.arange(len(y)))
    loss = method.server_loss(s, merged)
    grads, value = s.grad_and_value(lambda p: loss(p, batch), task.initial["model"])
    near(value, expected["total"], file)
    assert_tree(grads, expected["grads"], file)
    logits = s.forward(task.initial["model"], x).logits
    near(batch.cross_entropy(logits), expected["CE"], file)
    near(fedaf.lgkm_loss(logits, y, fedaf.average(merged["soft"], "holders"), method.tau), expected["LGKM"], file)
    if which == "server":  # a batch of everything is the full form
        whole = dataclasses.replace(method, lgkm="full").server_loss(s, merged)
        near(whole(task.initial["model"], batch), expected["total"], file)


@pytest.mark.parametrize("name", golden_names("feddm_terms*"))
def test_feddm_terms(name):
    file = golden(name)
    params, noise = to_tree(file.inputs["params"]), to_tree(file.inputs["noise"])
    moved = perturb(params, noise, file.hyper["rho"])
    assert_tree(moved, file.expected["params_perturbed"], file)
    far = perturb(params, noise, file.hyper["rho_large"])
    assert_tree(far, file.expected["params_perturbed_short_noise"], file)

    real = {"x": file.inputs["x_real"], "y": [0] * len(file.inputs["x_real"])}
    images = {"x": array(file.inputs["x_syn"]), "y": torch.zeros(len(file.inputs["x_syn"]), dtype=torch.int64)}
    for clip, key in ((0.0, "grad_syn"), (file.hyper["clip"], "grad_clipped")):
        method = FedDM(clip=clip, rho=0, image_lr=1.0)
        task = a_task(method, file.inputs["params"], [real])
        c = task.visit(Job("train", 1, 0, {"model": moved}), task.federation.train(0))
        after = method.condense(c, moved, images, [condensation.gather(c)])
        near(images["x"] - after["x"], file.expected[key], file)
        near(array(c.diagnostics.means()["train_loss"]), file.expected["loss"], file)


@pytest.mark.parametrize("name", golden_names("fedaf_bytes*"))
def test_bytes(name):
    file = golden(name)
    for case, up, images in zip(
        file.inputs["cases"], file.expected["up_bytes"], file.expected["images_only"], strict=True
    ):
        given = case["C"], case["classes_held"], case["ipc"], tuple(case["shape"])
        assert condensation.count_bytes(*given) == up
        assert condensation.count_bytes(*given, tables=0) == images
    sizes = {
        key: count_parameters(build(spec, shape, 10))
        for key, spec, shape in (
            ("convnet_params_32x32", "convnet3", (3, 32, 32)),
            ("convnet_params_64x64", "convnet3", (3, 64, 64)),
            ("resnet18_torchvision_params", "resnet18_imagenet", (3, 32, 32)),
        )
    }
    assert all(count == file.expected[key] for key, count in sizes.items())
    per_float = file.constants["bytes_per_float"]
    for key, size in (("mib_convnet", "convnet_params_64x64"), ("mib_resnet18", "resnet18_torchvision_params")):
        assert math.isclose(per_float * sizes[size] / 2**20, file.expected[key], rel_tol=file.rtol)


# ------------------------------------------------------------------------------------------ with a pencil


def test_two_steps_by_hand():
    # features are the inputs; real mean (1 + 3) / 2 = 2, synthetic 0: loss 4, gradient -4, x = 0 + 4/4 = 1;
    # then gradient -2, velocity 0.5 * -4 - 2 = -4, x = 1 + 1 = 2
    net = Net(unskew.models.Model(nn.Identity(), nn.Linear(1, 2)).double())
    model, buffers = net.trees()
    data = GivenData([{"x": [[1.0], [3.0]], "y": [0, 0]}], 2)
    method = FedDM(rho=0, clip=0, logits=False, image_lr=0.25, image_momentum=0.5)
    federation = FixedFederation([data], type("D", (), {"num_classes": 2}))
    task = Task(
        method,
        federation,
        net,
        {"model": model, "buffers": buffers},
        0,
        LocalSettings(0.1, 1),
        Constant(),
        "average",
        1,
    )
    c = task.visit(Job("train", 1, 0, {"model": model}), data)
    images = {"x": torch.zeros(1, 1, dtype=torch.float64), "y": torch.zeros(1, dtype=torch.int64)}
    for steps, expected in ((1, 1.0), (2, 2.0)):
        after = method.condense(c, model, images, condensation.real_batches(c, condensation.gather(c), 5, steps))
        assert after["x"].item() == expected


def test_soft_label_loss_by_hand():
    # R = (1/2, 1/2), T = (3/4, 1/4): KL(R|T) + KL(T|R) = -1/4 ln(2/3) + 1/4 ln 2 = 1/4 ln 3; class 1 is absent
    r = {"rows": torch.tensor([[0.5, 0.5], [0.5, 0.5]]), "held": torch.tensor([True, True])}
    value = fedaf.lgkm_loss(torch.tensor([[math.log(3), 0.0]]), torch.tensor([0]), r, tau=1.0)
    assert math.isclose(value.item(), math.log(3) / 8, rel_tol=1e-6)


def test_soft_label_loss_is_finite_where_a_soft_label_is_zero():
    r = {"rows": torch.tensor([[1.0, 0.0]]), "held": torch.tensor([True])}
    logits = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    fedaf.lgkm_loss(logits, torch.tensor([0]), {**r, "held": torch.tensor([True, False])[:1]}, 1.0).backward()
    assert logits.grad.isfinite().all()


def test_directions_are_unit_vectors_and_the_squared_distance_is_right_on_average():
    theta = fedaf.draw_directions(20_000, 5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(20_000))
    u, v = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), torch.zeros(1, 5)
    assert math.isclose(fedaf.sliced_distance(u, v, theta, 2).item(), 55 / 5, rel_tol=0.02)


# --------------------------------------------------------------------------------------------- identities


@functools.cache
def model_of(spec, **options):
    return play(spec, **options).server["model"]


def same(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


def spec(method, **options):
    return str(methods.get(method)(**{**QUICK, **options}))


def test_without_its_parts_fedaf_is_feddm_without_its_own():
    ours = play(spec("fedaf", lambda_loc=0, lambda_glob=0, gamma=1))
    theirs = play(spec("feddm", rho=0, clip=0, logits=False))
    assert same(ours.server["model"], theirs.server["model"])
    assert [row["bytes_up"] for row in ours.rounds[1:]] == [row["bytes_up"] for row in theirs.rounds[1:]]


def test_a_stale_exchange_has_no_logits_at_first_and_costs_the_same_bytes():
    stale, plain = (spec("fedaf", exchange="stale", lambda_loc=10), spec("fedaf", lambda_loc=0))
    assert same(model_of(stale, rounds=1), model_of(plain, rounds=1))
    assert not same(model_of(stale, rounds=2), model_of(plain, rounds=2))
    runs = [play(spec("fedaf", exchange=way)).rounds[1:] for way in ("stale", "in_round")]
    assert [(a["bytes_up"], a["bytes_down"]) for a in runs[0]] == [(b["bytes_up"], b["bytes_down"]) for b in runs[1]]


@pytest.mark.parametrize("method, change", [
    ("fedaf", {"lambda_loc": 10.0}), ("fedaf", {"lambda_glob": 5.0}), ("fedaf", {"gamma": 0.5}),
    ("fedaf", {"tau": 0.5}), ("fedaf", {"lgkm": "full", "server_batch": 4}),
    ("fedaf", {"missing": "zeros"}), ("fedaf", {"distance": "sorted"}),
    ("fedaf", {"distance": "sliced_p1"}), ("fedaf", {"projections": 3}), ("fedaf", {"real_batch": 2}),
    ("fedaf", {"mean_of": 1}), ("fedaf", {"mean_of": 0}), ("fedaf", {"quantise": True}), ("fedaf", {"image_lr": 0.1}),
    ("fedaf", {"image_momentum": 0.0}), ("fedaf", {"server_momentum": 0.0}), ("fedaf", {"steps": 4}),
    ("feddm", {"rho": 1.0}), ("feddm", {"clip": 0.01}), ("feddm", {"logits": False}),
])  # fmt: skip
def test_every_option_changes_something(method, change):
    base = {"lambda_loc": 1.0, "server_lr": 0.05} if method == "fedaf" else {"server_lr": 0.05}
    if "server_batch" in change:
        base["server_batch"] = change["server_batch"]
    assert not same(model_of(spec(method, **base), rounds=1), model_of(spec(method, **{**base, **change}), rounds=1))


# ------------------------------------------------------------------------------------------ what is sent


def rows_of(folder):
    return [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("quantise", [False, True])
def test_measured_bytes_are_the_papers_and_what_it_does_not_count(tmp_path, quantise):
    play(spec("fedaf", quantise=quantise), tmp_path, rounds=1)
    rows = {row["client"]: row for row in rows_of(tmp_path) if "bytes_up" in row}
    classes, shape, ipc = 3, (2, 4, 4), QUICK["ipc"]
    one = rows[1]  # the client with a single sample: one class
    pixels = ipc * math.prod(shape)
    assert one["bytes_up_8bit"] == condensation.count_bytes(classes, 1, ipc, shape) == pixels + 2 * 4 * classes**2
    labels, flags = 8 * ipc, 2 * classes
    images = pixels + 2 * 4 * shape[0] if quantise else 4 * pixels
    assert one["bytes_up"] == images + labels + 2 * 4 * classes**2 + flags
    fedavg = play("fedavg", tmp_path / "plain", rounds=1).rounds[1]["bytes_down"] / 5
    assert one["bytes_down"] == fedavg + 4 * classes**2 + classes


def test_eight_bits_are_the_pixels_levels():
    task = small_task("feddm(quantise=true, steps=0, mean_of=1)")
    reply = task.work(Job("train", 1, 0, first_message(task)))
    sent = reply.groups["data"]
    assert sent["x"].dtype == torch.uint8
    originals = {tuple(image.flatten().tolist()) for image in DATA.train.x}
    assert all(tuple(image.flatten().tolist()) in originals for image in sent["x"])  # real images, unchanged
    back = condensation.union(None)
    back.add(sent, reply)
    torch.testing.assert_close(back.result()["x"], (sent["x"] / 255 - 0.5) / 0.5)


def first_two_visits(text):
    """What client 0 sends in rounds 1 and 2."""
    task = small_task(text)
    message = first_message(task)
    first = task.work(Job("train", 1, 0, message))
    return first, task.work(Job("train", 2, 0, message, first.state))


def test_a_warm_start_goes_on_from_the_last_images():
    first, second = first_two_visits("feddm(steps=0, ipc=2, warm_start=true)")
    assert torch.equal(first.groups["data"]["x"], second.groups["data"]["x"])
    first, second = first_two_visits("feddm(steps=0, ipc=2)")
    assert not first.state and not torch.equal(first.groups["data"]["x"], second.groups["data"]["x"])


def test_the_server_goes_on_from_its_model_and_its_buffers_are_its_own():
    done = play(spec("feddm", server_lr=0), rounds=1)
    assert same(small_task("feddm").initial["model"], done.server["model"])
    means = [value for name, value in done.server["buffers"].items() if name.endswith("running_mean")]
    assert means and all(value.any() for value in means)
    assert done.rounds[1]["method"]["server_loss"] > 0


def test_a_client_without_samples_sends_no_images(tmp_path):
    task = small_task("fedaf(steps=2, server_epochs=1, ipc=1)")
    empty = task.federation.train(0)
    empty = type(empty)(empty.source, empty.index[:0], empty.pipeline)
    federation = FixedFederation([empty, task.federation.train(3)], task.federation.dataset)
    task = dataclasses.replace(task, federation=federation, cohort_size=2)
    server = task.method.init(task.server_context(0))
    (done,) = rounds(task, Serial(task), memory_store(tmp_path), server, 1, 1)
    assert tree.all_finite(done.server) and not same(done.server["model"], server["model"])
    federation = FixedFederation([empty], task.federation.dataset)
    task = dataclasses.replace(task, federation=federation, cohort_size=1)
    (done,) = rounds(task, Serial(task), memory_store(tmp_path / "none"), server, 1, 1)
    assert same(done.server["model"], server["model"])


def test_refusals():
    with pytest.raises(InputError, match="fedaf trains no model at its clients"):
        play("fedaf(terms=[prox(mu=1)])")
    with pytest.raises(InputError, match="gamma"):
        methods.build("fedaf(gamma=0)")
    data = dataclasses.replace(
        DATA,
        train=dataclasses.replace(DATA.train, x=DATA.train.x.float()),
        test=dataclasses.replace(DATA.test, x=DATA.test.x.float()),
    )
    with pytest.raises(Exception, match="quantise needs images of 8 bits"):
        unskew.run("feddm(quantise=true, steps=1, server_epochs=1)", data=data, model="mlp", split="natural", rounds=1)


def test_one_image_is_seen_with_its_own_statistics():
    task = small_task("feddm")
    c = task.visit(Job("train", 1, 1, first_message(task, 1)), task.federation.train(1))
    one = condensation.gather(c).x
    assert len(one) == 1
    before = tree.copy(c.buffers)
    seen = condensation.look(c, c.received["model"], one)
    assert seen.logits.shape == (1, 3) and isinstance(seen, Output) and seen.logits.isfinite().all()
    assert same(before, c.buffers)
