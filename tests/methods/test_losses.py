"""MOON, FedNTD, FedRS, FedLC and FedRCL: golden numbers, identities, edge cases, one by one and stacked."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from awkward import DATA, config, play, tiny_data
from support import FixedData, assert_tree, golden, golden_names, golden_task, memory_store, to_tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.net import Net
from unskew.core.round_loop import rounds
from unskew.executors.serial import Serial
from unskew.methods.fedavg import FedAvg
from unskew.methods.fedlc import FedLC
from unskew.methods.fedntd import FedNTD
from unskew.methods.fedrs import FedRS
from unskew.methods.moon import Moon
from unskew.models.base import Model, build, find_depths
from unskew.runs import building, engine
from unskew.terms.cosine import normalise
from unskew.terms.moon import ModelContrast
from unskew.terms.ntd import NotTrue, drop_true
from unskew.terms.rcl import RelaxedContrast, pool


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def assert_close(actual, expected, file):
    torch.testing.assert_close(actual, double(expected), rtol=file.rtol, atol=file.atol)


def batch_of(y, mask=None):
    return Batch(None, torch.tensor(y), torch.arange(len(y)), mask)


def value_and_gradients(loss, *inputs):
    """The loss of these tensors, and its gradient for each."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    value = loss(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves)


def assert_same_model(mine, other):
    assert mine.server["model"].keys() == other.server["model"].keys()
    assert all(torch.equal(value, other.server["model"][name]) for name, value in mine.server["model"].items())


class GivenData(FixedData):
    """Given batches whose samples are numbered throughout, so that a fixed model's answers can be looked up."""

    def batches(self, settings, order, noise, skip_single):
        for _ in range(settings.epochs):
            yield from self.passes(0)

    def passes(self, batch):
        done = 0
        for x, y in self.given:
            yield Batch(x, y, torch.arange(done, done + len(y)))
            done += len(y)


def given_task(method, file):
    return golden_task(method, file, [GivenData(file.inputs["batches"], file.inputs["dims"]["c"])], [[0]])


def given_visit(method, file, **previous):
    """The visit of a client that received the file's global model, with what it remembers."""
    task = given_task(method, file)
    state = {f"previous/{name}": tree for name, tree in previous.items()}
    job = Job("train", 1, 0, {"model": task.initial["model"], "buffers": {}}, state)
    return task, job, task.visit(job, task.federation.train(0))


# -------------------------------------------------------------------------------------------- MOON


@pytest.mark.parametrize("name", golden_names("moon*"))
def test_moon_loss_of_a_batch(name):
    file = golden(name)
    method = Moon(mu=file.hyper["mu"], tau=file.hyper["tau"])
    _, _, c = given_visit(method, file, model=to_tree(file.inputs["params_prev"]))
    batch = next(c.passes())
    out = c.forward(to_tree(file.inputs["params_local"]), batch.x)
    seen = c.with_fields(forward=lambda params, x, mode="train", **options: c.forward(params, x, mode, **options))

    def loss(logits, z):
        own = Output(logits, z)
        return method.criterion(seen, own, batch) + sum(term(seen, {}, batch, own) for term in c.terms)

    value, (grad_logits, grad_z) = value_and_gradients(loss, out.logits.detach(), out.features.detach())
    assert_close(value, file.expected["loss"], file)
    assert_close(grad_logits, file.expected["grad_logits"], file)
    assert_close(grad_z, file.expected["grad_z"], file)


@pytest.mark.parametrize("name", golden_names("moon*"))
def test_moon_round(name):
    file = golden(name)
    task, job, _ = given_visit(
        Moon(mu=file.hyper["mu"], tau=file.hyper["tau"]), file, model=to_tree(file.inputs["params_prev"])
    )
    reply = task.work(job)
    after = {key: value + reply.groups["delta"][key] for key, value in task.initial["model"].items()}
    assert_tree(after, file.expected["params_after"], file)
    assert_tree(reply.state["previous/model"], file.expected["params_after"], file)


def test_moon_by_hand():
    # z = (3, 4), z_g = (1, 0), z_p = (0, 2): cosines 0.6 and 0.8; tau 0.5: log(1 + e^(0.2 / 0.5)) = log(1 + e^0.4)
    out = Output(None, torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    c = SimpleNamespace(
        teacher=lambda batch: Output(None, torch.tensor([[1.0, 0.0], [1.0, 0.0]])),
        predecessor=lambda batch: Output(None, torch.tensor([[0.0, 2.0], [0.0, 2.0]])),
    )
    first = Batch(None, None, None, torch.tensor([True, False]))
    assert ModelContrast(mu=2.0, tau=0.5)(c, {}, first, out).item() == pytest.approx(2 * 0.913015, rel=1e-5)
    # a zero vector has cosine 0 with everything: log 2
    second = Batch(None, None, None, torch.tensor([False, True]))
    assert ModelContrast(tau=0.5)(c, {}, second, out).item() == pytest.approx(0.693147, rel=1e-5)


def test_moon_without_strength_and_in_its_first_round_is_fedavg_bit_for_bit():
    assert_same_model(play("moon(mu=0)"), play("fedavg"))
    # received and previous model are both the initial one: the gradient of the contrast is exactly 0
    assert_same_model(play("moon(mu=5)", rounds=1), play("fedavg", rounds=1))
    second = play("moon(mu=5)").server["model"], play("fedavg").server["model"]
    assert any(not torch.equal(value, second[1][name]) for name, value in second[0].items())


def test_each_fixed_model_of_moon_looks_at_every_sample_once(monkeypatch):
    task = building.prepare(config("moon", local={"batch": 8, "epochs": 3}), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    job = Job("train", 1, 0, task.method.download(task.server_context(1), server, 0))
    seen = []
    run = Net.__call__

    def count(self, params, buffers, x, mode, *options):
        if mode == "eval":
            seen.append(len(x))
        return run(self, params, buffers, x, mode, *options)

    monkeypatch.setattr(Net, "__call__", count)
    reply = task.work(job)
    assert reply.num_steps > 3 and sum(seen) == 2 * reply.num_samples


def test_the_projection_head_of_moon():
    plain = build("cnn8", (1, 8, 8), 10)
    made = Moon(projection=256).remodel(plain, 10)
    names = [name for name, _ in made.named_parameters()]
    assert names[:2] == ["body.0.weight", "body.0.bias"] and names[-2:] == ["head.weight", "head.bias"]
    out = made(torch.rand(2, 1, 8, 8))
    assert out.features.shape == (2, 256) and out.logits.shape == (2, 10)
    extra = 64 * 64 + 64 + 64 * 256 + 256 + 256 * 10 + 10 - (64 * 10 + 10)
    count = sum(value.numel() for value in made.parameters())
    assert count == sum(value.numel() for value in plain.parameters()) + extra
    assert Moon().remodel(plain, 10) is plain


# ------------------------------------------------------------------------------------------ FedNTD


@pytest.mark.parametrize("name", golden_names("fedntd*"))
def test_fedntd(name, tmp_path):
    file = golden(name)
    method = FedNTD(beta=file.hyper["beta"], tau=file.hyper["tau"])
    task, _, c = given_visit(method, file)
    batch = next(c.passes())
    out = c.forward(to_tree(file.inputs["params_local"]), batch.x)
    assert_close(out.logits, file.expected["logits_local"], file)
    assert_close(c.teacher(batch).logits, file.expected["logits_global"], file)
    part = NotTrue(beta=1.0, tau=file.hyper["tau"])(c, {}, batch, out)
    assert_close(part, file.expected["ntd_part"], file)

    def loss(logits):
        own = Output(logits, out.features)
        return method.criterion(c, own, batch) + sum(term(c, {}, batch, own) for term in c.terms)

    value, (grad,) = value_and_gradients(loss, out.logits.detach())
    assert_close(value, file.expected["loss"], file)
    assert_close(grad, file.expected["grad_logits"], file)
    (done,) = rounds(task, Serial(task), memory_store(tmp_path), method.init(task.server_context(0)), 1, 1)
    assert_tree(done.server["model"], file.expected["params_after"], file)


def test_fedntd_without_strength_is_fedavg_bit_for_bit():
    assert_same_model(play("fedntd(beta=0)"), play("fedavg"))


def test_the_true_class_is_dropped():
    logits = torch.arange(6.0).view(2, 3)
    assert drop_true(logits, torch.tensor([0, 1])).tolist() == [[1.0, 2.0], [3.0, 5.0]]


@pytest.mark.parametrize("classes", [1, 2])
def test_fewer_than_three_classes_leave_ntd_nothing_to_say(classes):
    logits = torch.randn(4, classes, generator=torch.Generator().manual_seed(0))
    c = SimpleNamespace(teacher=lambda batch: Output(logits.flip(0) * 3, None))
    batch = batch_of([0, classes - 1, 0, classes - 1])
    value, (grad,) = value_and_gradients(lambda own: NotTrue()(c, {}, batch, Output(own, None)), logits)
    assert value == 0 and not grad.any()


def test_with_two_classes_fedntd_is_fedavg():
    data = replace(tiny_data(classes=2), classes=("a", "b"))
    runs = [engine.run(config(spec, split="iid", clients=3), dataset=data) for spec in ("fedntd", "fedavg")]
    assert_same_model(*runs)


# ------------------------------------------------------------------------------------ FedRS, FedLC


def check_criterion(method, file, y, counts, loss, grad):
    c = SimpleNamespace(counts=torch.tensor(counts))

    def criterion(logits):
        return method.criterion(c, Output(logits, logits), batch_of(y))

    value, (found,) = value_and_gradients(criterion, double(file.inputs["logits"]))
    assert_close(value, loss, file)
    assert_close(found, grad, file)
    return found


@pytest.mark.parametrize("name", golden_names("fedrs_loss*"))
def test_fedrs(name):
    file = golden(name)
    counts = [int(held) for held in file.inputs["present"]]
    method = FedRS(alpha=file.hyper["alpha"])
    check_criterion(method, file, file.inputs["y"], counts, file.expected["loss"], file.expected["grad"])


@pytest.mark.parametrize("name", golden_names("fedlc_loss*"))
def test_fedlc(name):
    file, method = golden(name), FedLC(tau=golden(name).hyper["tau"])
    for case in ("", "_missing"):
        counts = file.inputs[f"counts{case}"]
        grad = check_criterion(method, file, file.inputs[f"y{case}"], counts, file.expected[f"loss{case}"],
                               file.expected[f"grad{case}"])  # fmt: skip
        assert not grad[:, torch.tensor(counts) == 0].any()


def test_fedrs_without_restriction_is_fedavg_bit_for_bit():
    assert_same_model(play("fedrs(alpha=1)"), play("fedavg"))


def test_fedlc_without_margins_is_fedavg_where_every_client_holds_every_class():
    complete = {"split": "iid", "clients": 4}
    runs = [engine.run(config(spec, **complete), dataset=tiny_data()) for spec in ("fedlc(tau=0)", "fedavg")]
    assert_same_model(*runs)
    missing = [play(spec).server["model"] for spec in ("fedlc(tau=0)", "fedavg")]
    assert any(not torch.equal(value, missing[1][name]) for name, value in missing[0].items())


def test_fedlc_without_margins_is_cross_entropy_over_the_held_classes():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    y, c = [0, 2, 2, 0, 2], SimpleNamespace(counts=torch.tensor([2, 0, 3, 0]))
    batch = batch_of(y)
    value, (grad,) = value_and_gradients(lambda o: FedLC(tau=0).criterion(c, Output(o, o), batch), logits)
    held = torch.tensor([0, 2])
    alone = torch.nn.functional.cross_entropy(logits[:, held], torch.tensor(y) // 2)
    torch.testing.assert_close(value, alone)
    assert grad.isfinite().all() and not grad[:, [1, 3]].any()


@pytest.mark.parametrize("method", [FedRS(), FedLC(), FedLC(tau=0), FedLC(tau=10)])
def test_predictions_use_plain_logits(method):
    out = torch.randn(2, 3)
    c = SimpleNamespace(
        counts=torch.tensor([3, 0, 0]), forward=lambda params, x, mode: Output(out if mode == "eval" else None, None)
    )
    assert method.predict(c, {}, None) is out


# ------------------------------------------------------------------------------------------ FedRCL


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("name", golden_names("fedrcl_losses*"))
def test_fedrcl(name, padding):
    file = golden(name)
    hyper = {"tau": file.hyper["temperature"], "threshold": file.hyper["threshold"],
             "negatives": file.hyper["topk_neg"], "levels": "features"}  # fmt: skip
    z, y = double(file.inputs["z"]), file.inputs["y"]
    count = len(z)
    mask = torch.arange(count + padding) < count if padding else None
    z, y = torch.cat([z, z[:1].expand(padding, -1)]), y + y[:1] * padding
    for key, strengths in (("scl", (1.0, 0.0)), ("penalty", (0.0, 1.0))):
        term = RelaxedContrast(contrast=strengths[0], penalty=strengths[1], **hyper)
        batch = batch_of(y, mask)
        value, (grad,) = value_and_gradients(lambda z, t=term, b=batch: t(NO_MAPS, {}, b, Output(z, z)), z)
        assert_close(value, file.expected[key], file)
        assert_close(grad[:count], file.expected[f"grad_{key}"], file)
        assert not grad[count:].any()


NO_MAPS = SimpleNamespace(names=SimpleNamespace(depths=()))


@pytest.mark.parametrize("y", [[0], [0, 0, 0], [0, 1, 2], [0, 1]])
def test_samples_without_partner_or_without_others(y):
    z = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0))
    batch = batch_of(y)

    def loss(contrast, penalty):
        term = RelaxedContrast(contrast=contrast, penalty=penalty)
        return value_and_gradients(lambda z: term(NO_MAPS, {}, batch, Output(z, z)), z)

    (apart, (pushed,)), (alike, (relaxed,)) = loss(1.0, 0.0), loss(0.0, 1.0)
    assert pushed.isfinite().all() and relaxed.isfinite().all()
    if len(set(y)) == 1:  # nobody to be apart from
        assert apart == 0 and not pushed.any()
    if len(set(y)) == len(y):  # no partner: q = -1, a constant
        assert alike.item() == pytest.approx(torch.log1p(torch.exp(torch.tensor(-2 / 0.1))).item(), rel=1e-3)
        torch.testing.assert_close(relaxed, torch.zeros_like(z), atol=1e-6, rtol=0)


def test_fedrcl_by_hand():
    # tau 1, cosines: samples 0 and 1 of class a are equal (1), sample 2 of class b is orthogonal (0)
    # SCL: 0 and 1: log(e + 1) - 1 = 0.313262; 2: positive itself (1), the two others (0): log(e + 2) - 1 = 0.551445
    # penalty: 0 and 1: q = 1: log 2; 2: no partner, q = -1: log(1 + e^-2) = 0.126928
    z = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    batch = batch_of([0, 0, 1])
    apart = RelaxedContrast(tau=1.0, penalty=0.0)(NO_MAPS, {}, batch, Output(z, z))
    assert apart.item() == pytest.approx((2 * 0.313262 + 0.551445) / 3, rel=1e-5)
    alike = RelaxedContrast(tau=1.0, contrast=0.0)(NO_MAPS, {}, batch, Output(z, z))
    assert alike.item() == pytest.approx((2 * 0.693147 + 0.126928) / 3, rel=1e-5)


def test_levels_are_pooled_and_averaged():
    names = SimpleNamespace(depths=("body.0",))
    term, batch = RelaxedContrast(), batch_of([0, 0, 1, 1])
    rng = torch.Generator().manual_seed(0)
    maps, z = torch.randn(4, 5, 3, 3, generator=rng), torch.randn(4, 6, generator=rng)
    assert term.maps(names) == ("body.0",) and RelaxedContrast(levels="features").maps(names) == ()
    both = term(SimpleNamespace(names=names), {}, batch, Output(z, z).with_maps({"body.0": maps}))
    each = [term(NO_MAPS, {}, batch, Output(value, value)) for value in (maps.mean((2, 3)), z)]
    torch.testing.assert_close(both, sum(each) / 2)
    tokens = torch.randn(4, 7, 5, generator=rng)
    assert torch.equal(pool(tokens), tokens.mean(1)) and pool(z) is z


@pytest.mark.parametrize(
    "model, levels",
    [
        ("resnet18", ("body.stem.1", "body.stage1.1.0", "body.stage2.1.0", "body.stage3.1.0")),
        ("mobilenetv2", ("body.stage3", "body.stage4", "body.stage6")),
        ("mobilenetv2_flfa", ("body.stage2", "body.stage3", "body.stage4")),
        ("cnn8(norm=batch)", ("body.0", "body.3")),
        ("mlp", ()),
    ],
)
def test_levels_of_networks(model, levels):
    """Before the last ReLU of each: some of what they give is negative."""
    net = Net(build(model, (3, 16, 16), 10))
    assert RelaxedContrast().maps(net.names) == levels
    params = {name: value.detach() for name, value in net.module.named_parameters()}
    buffers = {name: value.clone() for name, value in net.module.named_buffers() if name in net.names.buffers}
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    seen = net(params, buffers, x, "train", maps=levels).maps
    assert all((seen[level] < 0).any() for level in levels)


def test_an_activation_in_place_is_not_looked_behind():
    body = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)), nn.Conv2d(4, 4, 3), nn.Flatten())
    assert find_depths(Model(body, nn.Linear(4, 2))) == ("body.0",)


def test_without_strengths_fedrcl_is_fedavg_bit_for_bit():
    assert_same_model(play("fedrcl(contrast=0, penalty=0)"), play("fedavg"))


# ------------------------------------------------------------------------------------- all of them


def test_a_zero_vector_has_no_direction_and_no_gradient():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    value, (grad,) = value_and_gradients(lambda z: normalise(z).sum(), z)
    assert value.item() == pytest.approx(1.4) and not grad[0].any() and grad.isfinite().all()


@pytest.mark.parametrize("term", [RelaxedContrast(), RelaxedContrast(negatives=9), NotTrue(tau=2.0), ModelContrast()])
def test_stacked_and_padded_equals_one_by_one(term):
    rng = torch.Generator().manual_seed(0)
    z, fixed, y = torch.randn(5, 6, 4, generator=rng).double(), torch.randn(2, 6, 4, generator=rng).double(), None
    y = torch.randint(0, 3, (5, 6), generator=rng)
    counts = torch.tensor([6, 5, 2, 1, 0])
    masks = torch.arange(6) < counts.unsqueeze(1)

    def value(z, y, mask, fixed=fixed):
        c = SimpleNamespace(names=NO_MAPS.names, teacher=lambda batch: Output(fixed[0], fixed[0]),
                            predecessor=lambda batch: Output(fixed[1], fixed[1]))  # fmt: skip
        return term(c, {}, Batch(None, y, None, mask), Output(z, z))

    z.requires_grad_()
    together = torch.vmap(value)(z, y, masks)
    (grads,) = torch.autograd.grad(together.sum(), z)
    assert grads.isfinite().all()
    for found, grad, own, labels, count in zip(together, grads, z, y, counts, strict=True):
        if count == 0:
            assert found == 0 and not grad.any()
            continue
        alone = own[:count].detach().requires_grad_()
        expected = value(alone, labels[:count], None, fixed[:, :count])
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(grad[:count], torch.autograd.grad(expected, alone)[0])
        assert not grad[count:].any()


@pytest.mark.parametrize(
    "spec, other",
    [
        ("fedavg(terms=[moon(mu=0.5)])", "moon(mu=0.5)"),
        ("fedavg(terms=[ntd(beta=0.7)])", "fedntd(beta=0.7)"),
        ("fedavg(terms=[rcl])", "fedrcl"),
    ],
)
def test_a_term_in_fedavg_is_the_method(spec, other):
    assert_same_model(play(spec), play(other))


def test_terms_join():
    play("fedavg(terms=[ntd(beta=1.0), moon(mu=1.0)])", rounds=1)
    play("scaffold(terms=[moon(mu=1)])", rounds=1)
    assert FedAvg(terms=(NotTrue(),)).loss_terms() == (NotTrue(),)


@pytest.mark.parametrize(
    "spec, line",
    [
        ("moon(tau=0)", "moon.tau"), ("fedntd(beta=-1)", "fedntd.beta"), ("fedrs(alpha=2)", "fedrs.alpha"),
        ("fedlc(tau=-1)", "fedlc.tau"), ("fedrcl(levels=all)", "fedrcl.levels"), ("fedrcl(negatives=0)", "negatives"),
        ("fedsol(moon)", "does not depend on what where=head moves; use where=all"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(spec, line):
    with pytest.raises(InputError, match=line) as error:
        play(spec, rounds=1)
    assert "\n" not in str(error.value)
