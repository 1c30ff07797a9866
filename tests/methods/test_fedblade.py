"""FedETF, FedBlade and FedDecorr: golden numbers, identities, and edge cases one by one and stacked."""

from types import SimpleNamespace

import pytest
import torch

from awkward import DATA, play
from support import golden, golden_names, initial_model
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.registry import default_of
from unskew.core.context import Diagnostics
from unskew.core.jobs import Reply
from unskew.core.net import Net
from unskew.core.reducers import total
from unskew.methods.fedblade import FedBlade, global_prototypes
from unskew.methods.fedetf import FedETF
from unskew.models.base import Model, architectures, build
from unskew.models.etf import ETFHead, head_inputs, simplex
from unskew.models.sizes import count_parameters
from unskew.runs import building
from unskew.terms import lddecorr
from unskew.terms.bilateral_alignment import FeatureAlignment, ProjectorAlignment
from unskew.terms.correlation import standardise
from unskew.terms.feddecorr import Decorrelate
from unskew.terms.lddecorr import LDDecorr


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def assert_close(actual, expected, file):
    torch.testing.assert_close(actual, double(expected), rtol=file.rtol, atol=file.atol)


def visit(**fields):
    return SimpleNamespace(diagnostics=Diagnostics(), guarded=False, **fields)


def batch_of(features, y=None, mask=None):
    y = torch.zeros(len(features), dtype=torch.int64) if y is None else torch.tensor(y)
    return Batch(features, y, torch.arange(len(y)), mask)


def term_value(term, features, mask=None):
    return term(visit(), {}, batch_of(features, mask=mask), Output(features, features))


# ------------------------------------------------------------------------------------------ FedETF


@pytest.mark.parametrize("name", golden_names("etf_classifier*"))
def test_etf_classifier(name):
    file = golden(name)
    vectors = simplex(double(file.inputs["U"]))
    assert_close(vectors, file.expected["V"], file)
    assert_close(vectors.T @ vectors, file.expected["gram"], file)
    drawn = ETFHead(3, file.hyper["p"], file.hyper["C"]).vectors  # whichever is drawn has the same angles
    torch.testing.assert_close(drawn.T @ drawn, double(file.expected["gram"]).float(), rtol=1e-5, atol=1e-6)


def head_of(weight, bias, vectors, scale):
    head = ETFHead(weight.shape[1], *vectors.shape).double()
    head.projector.weight, head.projector.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    head.scale = torch.nn.Parameter(double(scale))
    head.vectors = vectors
    return head


@pytest.mark.parametrize("name", golden_names("fedetf_balanced_loss*"))
def test_fedetf_balanced_loss(name):
    file = golden(name)
    projected = double(file.inputs["projected"]).requires_grad_()
    size = projected.shape[1]
    head = head_of(torch.eye(size).double(), torch.zeros(size).double(), double(file.inputs["V"]),
                   file.hyper["temperature"])  # fmt: skip
    c = visit(counts=torch.tensor(file.inputs["counts"]))
    loss = FedETF().criterion(c, Output(head(projected), projected), batch_of(projected, file.inputs["y"]))
    loss.backward()
    assert_close(loss.detach(), file.expected["loss"], file)
    assert_close(projected.grad, file.expected["grad_projected"], file)
    assert_close(head.scale.grad, file.expected["grad_temperature"], file)


def test_a_class_that_the_client_lacks_has_weight_and_gradient_zero():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = FedETF().criterion(visit(counts=torch.tensor([3, 0, 2, 0])), Output(logits, logits), batch_of(logits))
    (grad,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and grad.isfinite().all() and not grad[:, [1, 3]].any()


SIZES = {"sl_vit": (3, 32, 32)}


QUICK = ("cnn8", "convnet3", "fedavg_cnn", "mlp", "mobilenetv2_flfa")
MODELS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in architectures
    if name not in ("given", "python")
]


@pytest.mark.parametrize("name", MODELS)
def test_the_head_fits_every_model_and_adds_one_parameter(name):
    shape = SIZES.get(name, (3, 16, 16))
    torch.manual_seed(0)
    plain = build(name, shape, 10)
    before = {key: value.clone() for key, value in plain.state_dict().items()}
    made = FedETF(etf_scale=2.0).remodel(plain, 10)
    assert count_parameters(made) == count_parameters(plain) + 1
    for key, value in before.items():
        assert torch.equal(plain.state_dict()[key], value)  # the model that was given stays as it was
        assert not key.startswith("body.") or torch.equal(made.state_dict()[key], value)
    out = made.eval()(torch.rand(2, *shape))
    assert out.logits.shape == (2, 10) and out.features.shape[1] == head_inputs(plain.head)
    assert "head.vectors" not in made.state_dict() and list(Net(made).constants) == ["head.vectors"]


def test_fresh_parameters_have_the_initial_scale():
    made = FedETF(etf_scale=3.0).remodel(build("mlp", (4,), 3), 3)
    net = Net(made)
    params, buffers = net.trees()
    fresh = net.fresh({"model": params, "buffers": buffers}, 7)
    assert fresh["head.scale"] == 3.0
    assert not torch.equal(fresh["head.projector.weight"], params["head.projector.weight"])


def test_heads_that_cannot_be():
    with pytest.raises(InputError, match="p >= 3"):
        FedETF(p=2).remodel(build("mlp", (4,), 3), 3)
    with pytest.raises(InputError, match="at least 2 classes"):
        FedETF().remodel(build("mlp", (4,), 1), 1)
    with pytest.raises(InputError, match="expected a linear layer"):
        FedETF().remodel(Model(torch.nn.Linear(4, 3), torch.nn.ReLU()), 3)
    assert FedETF(p=8).remodel(build("mlp", (4,), 3), 3).head.vectors.shape == (8, 3)


@pytest.mark.parametrize("scale", [2.0, -2.0, 0.0])
def test_prediction_is_by_the_cosines_whatever_the_scale(scale):
    run = play("fedetf", rounds=1).run
    task = building.prepare(run, dataset=DATA).task
    params = {**task.initial["model"], "head.scale": torch.tensor(scale)}
    c = task.server_context(1)
    x = torch.rand(6, *DATA.shape)
    cosines = c.forward({**params, "head.scale": torch.tensor(1.0)}, x, mode="eval").logits
    scores = task.method.predict(c, params, x)
    assert torch.equal(scores.argmax(1), cosines.argmax(1))
    if scale > 0:
        assert torch.equal(scores, c.forward(params, x, mode="eval").logits)


# ----------------------------------------------------------------------------------- decorrelation


def in_blocks(file):
    return [(key, double(file.inputs[key]), block) for key, block in file.expected.items()]


@pytest.mark.parametrize("name", golden_names("fedblade_lddecorr*"))
@pytest.mark.parametrize("padding", [0, 3])
def test_lddecorr(name, padding):
    file = golden(name)
    term = LDDecorr(weight=1.0, **file.constants)
    for key, z, expected in in_blocks(file):
        mask = torch.arange(len(z) + padding) < len(z) if padding else None
        z = torch.cat([z, z[:1].expand(padding, -1)]).requires_grad_()
        value = term_value(term, z, mask)
        value.backward()
        count = len(z) - padding
        assert_close(value.detach(), expected["loss"], file)
        assert_close(z.grad[:count], expected["grad"], file)
        assert not z.grad[count:].any()
        x, degrees = standardise(z.detach(), mask, file.constants["var_eps"])
        torch.testing.assert_close(torch.linalg.eigvalsh(x.T @ x / degrees), double(expected["eigenvalues"]),
                                   rtol=file.rtol, atol=1e-9)  # fmt: skip
        if key == "dead_column":
            constant = (z[:1] == z).all(0)
            assert constant.any() and not z.grad[:, constant].any()


@pytest.mark.parametrize("name", golden_names("feddecorr_loss*"))
@pytest.mark.parametrize("padding", [0, 3])
def test_feddecorr(name, padding):
    file = golden(name)
    z = double(file.inputs["z"])
    count, eps = len(z), file.constants["eps"]
    mask = torch.arange(count + padding) < count if padding else None
    z = torch.cat([z, z[:1].expand(padding, -1)]).requires_grad_()
    value = term_value(Decorrelate(weight=1.0, var_eps=eps), z, mask)
    value.backward()
    assert_close(value.detach(), file.expected["loss_official"], file)
    assert_close(z.grad[:count], file.expected["grad_official"], file)
    paper = term_value(Decorrelate(weight=1.0, var_eps=eps, paper_scale=True), z, mask)
    assert_close(paper.detach(), file.expected["loss_paper_eq8"], file)


def both_forms(term, z):
    """The term's value and gradient, and the same by the d x d matrix written out."""
    z = z.clone().requires_grad_()
    x = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()
    gram = x.T @ x
    if isinstance(term, LDDecorr):
        plain = -torch.logdet(gram / (len(z) - 1) + term.jitter * torch.eye(z.shape[1]).double())
    else:
        away = gram[~torch.eye(z.shape[1], dtype=torch.bool)]
        plain = away.square().mean() / len(z)
    ours = term_value(term, z)
    return (ours, *torch.autograd.grad(ours, z)), (plain, *torch.autograd.grad(plain, z))


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (8, 8)])
@pytest.mark.parametrize("term", [LDDecorr(weight=1.0), Decorrelate(weight=1.0)])
def test_the_smaller_matrix_gives_value_and_gradient_of_the_large_one(term, shape):
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ours, plain in zip(*both_forms(term, z), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("term", [LDDecorr(), Decorrelate(), Decorrelate(paper_scale=True)])
@pytest.mark.parametrize("z", [torch.full((1, 5), 0.3), torch.full((4, 5), 0.3), torch.rand(4, 1), torch.zeros(3, 2)])
def test_degenerate_batches_have_finite_values_and_gradients(term, z):
    z = z.clone().requires_grad_()
    value = term_value(term, z)
    (grad,) = torch.autograd.grad(value, z)
    assert value.isfinite() and grad.isfinite().all()
    if len(z) == 1:
        assert value == 0 and not grad.any()
    if (z == z[:1]).all():
        assert not grad.any()


def test_a_matrix_without_factor_gets_more_jitter_then_is_skipped():
    nearly = torch.diag(torch.tensor([1.0, -5e-4]))
    inverse, log_det, used, done = lddecorr._factorise(nearly, 1e-4)
    assert done and used.item() == pytest.approx(1e-3)
    assert log_det.item() == pytest.approx(torch.logdet(nearly + 1e-3 * torch.eye(2)).item(), rel=1e-4)
    torch.testing.assert_close(inverse, torch.linalg.inv(nearly + 1e-3 * torch.eye(2)))
    hopeless = lddecorr._factorise(torch.diag(torch.tensor([1.0, -1.0])), 1e-4)
    assert not hopeless[3] and not hopeless[0].any() and hopeless[1] == 0
    grams = torch.stack([nearly, torch.diag(torch.tensor([1.0, -1.0])), torch.eye(2)])
    stacked = torch.vmap(lambda gram: lddecorr._factorise(gram, 1e-4))(grams)
    assert stacked[3].tolist() == [True, False, True]
    torch.testing.assert_close(stacked[0][:2], torch.stack([inverse, hopeless[0]]))


def test_skipped_batches_are_counted(monkeypatch):
    monkeypatch.setattr(lddecorr, "_factorise", lambda gram, jitter: (
        torch.zeros_like(gram), torch.zeros(()), torch.tensor(jitter), torch.tensor(False)))  # fmt: skip
    c, z = visit(), torch.rand(4, 3).requires_grad_()
    value = LDDecorr()(c, {}, batch_of(z), Output(z, z))
    assert value == 0 and not torch.autograd.grad(value, z)[0].any()
    assert c.diagnostics.means() == {"lddecorr_skipped": 1.0, "dead_features": 0.0}


@pytest.mark.parametrize("term", [LDDecorr(), Decorrelate()])
def test_dead_features_are_counted(term):
    """Those that are the same in all real rows; a batch of one sample has none to tell."""
    z = torch.tensor([[0.0, 7.0, 1.0, 2.0], [0.0, 7.0, 3.0, 1.0], [9.0, 9.0, 9.0, 9.0]])

    def dead(real):
        c = visit()
        term(c, {}, batch_of(z, mask=real), Output(z, z))
        [share] = [noted for name, (noted, _) in c.diagnostics._sums.items() if name == "dead_features"]
        return share

    masks = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    assert [dead(mask).item() for mask in masks] == torch.vmap(dead)(masks).tolist() == [0.0, 0.5, 0.0]


# ---------------------------------------------------------------------------------------- FedBlade


class Losses:
    """The golden file's network (features, then projector and fixed vectors) under one set of available prototypes."""

    def __init__(self, file, available):
        i = file.inputs
        self.file, self.z = file, double(i["z"]).requires_grad_()
        vectors = double(i["V"])
        self.head = head_of(double(i["proj_weight"]), double(i["proj_bias"]), vectors, file.hyper["temperature"])
        self.params = {f"head.{name}": value for name, value in self.head.named_parameters()}
        means = torch.where(available.unsqueeze(1), double(i["prototypes"]), 0.0)
        self.c = visit(
            counts=torch.tensor(i["counts"]),
            message={"prototypes": {"means": means, "available": available}},
            constants={"head.vectors": vectors},
            terms=(),
            maps=(),
            forward=self.forward,
        )
        self.batch = batch_of(self.z, i["y"])

    def forward(self, params, x):
        return Output(self.head(x), x)

    def term(self, term):
        return term(self.c, self.params, self.batch, self.forward(self.params, self.z))

    def total(self, **changed):
        hyper, constants = self.file.hyper, self.file.constants
        method = FedBlade(lambda_ld=hyper["lambda_ld"], gamma=hyper["gamma"], tau=hyper["tau"],
                          **constants, **changed)  # fmt: skip
        self.c.terms = method.loss_terms()
        return method.loss(self.c, self.params, self.batch)

    def check(self, value, expected):
        self.z.grad = None
        self.head.zero_grad()
        value.backward()
        assert_close(value.detach(), expected["loss"], self.file)
        found = {
            "grad_z": self.z.grad,
            "grad_proj_weight": self.head.projector.weight.grad,
            "grad_proj_bias": self.head.projector.bias.grad,
            "grad_temperature": self.head.scale.grad,
        }
        for key, grad in found.items():
            if key in expected:
                shape = double(expected[key])
                assert_close(torch.zeros_like(shape) if grad is None else grad, expected[key], self.file)
            else:
                assert grad is None or not grad.any(), f"{key} should get no gradient"

    def check_block(self, block):
        tau = self.file.hyper["tau"]
        self.check(self.term(ProjectorAlignment(weight=1.0)), block["PA"])
        self.check(self.term(FeatureAlignment(weight=1.0, tau=tau)), block["FA"])
        without = FeatureAlignment(weight=1.0, tau=tau, distribution_factor=False)
        self.check(self.term(without), block["FA_without_DF"])
        self.check(self.total(), block["total"])


@pytest.mark.parametrize("name", golden_names("fedblade_losses*"))
def test_fedblade_losses(name):
    file = golden(name)
    everything = Losses(file, torch.ones(len(file.inputs["prototypes"]), dtype=torch.bool))
    everything.check_block(file.expected)
    bare = FedBlade(decorrelation="none", pa=False, fa=False)
    everything.c.terms = bare.loss_terms()
    everything.check(bare.loss(everything.c, everything.params, everything.batch), file.expected["sup"])
    for key, flags in file.inputs["available"].items():
        Losses(file, torch.tensor(flags)).check_block(file.expected[key])


@pytest.mark.parametrize("name", golden_names("fedblade_losses*"))
def test_a_sample_whose_class_has_no_prototype_gives_exactly_nothing(name):
    file = golden(name)
    for flags in file.inputs["available"].values():
        case = Losses(file, torch.tensor(flags))
        for factor in (True, False):
            value = case.term(FeatureAlignment(tau=file.hyper["tau"], distribution_factor=factor))
            (grad,) = torch.autograd.grad(value, case.z)
            without = ~torch.tensor(flags)[case.batch.y]
            assert not grad[without].any() and grad.isfinite().all()


@pytest.mark.parametrize("name", golden_names("fedblade_prototypes*"))
def test_fedblade_prototypes(name):
    file = golden(name)
    local, counts, previous = (double(file.inputs[key]) for key in ("local", "counts", "previous"))
    one_by_one, at_once = total(None), total(None)
    replies = [{"sums": own * n.unsqueeze(1), "counts": n} for own, n in zip(local, counts, strict=True)]
    for client, value in enumerate(replies):
        one_by_one.add(value, Reply(client))
    at_once.add_stack({key: torch.stack([r[key] for r in replies]) for key in replies[0]}, [Reply(0)] * len(replies))
    known = torch.ones(len(previous), dtype=torch.bool)
    server = {"model": {}, "buffers": {}, "prototypes": {"means": previous, "available": known}}
    for merged in (one_by_one.result(), at_once.result()):
        after = FedBlade().update(SimpleNamespace(record={}), server, {"delta": {}, "prototypes": merged})
        assert_close(after["prototypes"]["means"], file.expected["global_new"], file)
        assert after["prototypes"]["available"].all()
        first = global_prototypes({"means": previous, "available": ~known}, merged)
        assert torch.equal(first["available"], counts.sum(0) > 0)


def test_without_its_parts_fedblade_is_fedetf_bit_for_bit():
    plain = play("fedetf")
    for spec in ("fedblade(decorrelation=none, pa=false, fa=false)", "fedblade(lambda_ld=0, gamma=0)"):
        bare = play(spec)
        assert bare.server.keys() == plain.server.keys()
        for group, tree in plain.server.items():
            assert all(torch.equal(value, bare.server[group][name]) for name, value in tree.items())
        assert [row.get("bytes_up") for row in bare.rounds] == [row.get("bytes_up") for row in plain.rounds]


def test_without_weight_feddecorr_is_fedavg_bit_for_bit():
    plain, bare = play("fedavg").server["model"], play("feddecorr(beta=0)").server["model"]
    assert all(torch.equal(value, bare[name]) for name, value in plain.items())


def test_without_prototypes_the_first_round_has_no_alignment():
    whole, without = (play(spec, rounds=1).server["model"] for spec in ("fedblade", "fedblade(pa=false, fa=false)"))
    assert all(torch.equal(value, without[name]) for name, value in whole.items())


def test_prototypes_are_mean_features_of_the_trained_local_models():
    # lr tiny: every local model is the initial one, so that the means over clients are those over all samples
    result = play("fedblade(decorrelation=none)", rounds=1, model="mlp", local={"batch": 8, "lr": 1e-30})
    task = building.prepare(result.run, dataset=DATA).task
    x = task.federation.common("test", 0, 60)  # the same samples as the training set
    (batch,) = x.passes(60)
    features = task.server_context(1).features(initial_model(result.run, DATA), batch.x, "eval")
    means = torch.stack([features[batch.y == label].mean(0) for label in range(3)])
    torch.testing.assert_close(result.server["prototypes"]["means"], means, rtol=1e-5, atol=1e-6)
    assert result.server["prototypes"]["available"].all()
    assert result.rounds[1]["method"] == {"prototypes": 3}


def test_bytes_of_the_prototypes():
    plain, whole = (play(spec, rounds=1).rounds[1] for spec in ("fedetf", "fedblade"))
    clients, classes, size = 5, 3, 64
    assert whole["bytes_down"] - plain["bytes_down"] == clients * (4 * size * classes + classes)
    assert whole["bytes_up"] - plain["bytes_up"] == clients * (4 * size * classes + 4 * classes)


def test_alignment_terms_say_that_they_need_prototypes():
    with pytest.raises(InputError, match="use it in fedblade"):
        play("fedavg(terms=[feature_alignment])", rounds=1)


def test_defaults_are_the_papers():
    assert {key: default_of(FedBlade, key) for key in ("lambda_ld", "gamma", "tau", "etf_scale")} == {
        "lambda_ld": 0.005, "gamma": 1.0, "tau": 0.1, "etf_scale": 1.0
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
@pytest.mark.parametrize("term", [LDDecorr(weight=1.0), Decorrelate(weight=1.0), Decorrelate(paper_scale=True)])
def test_stacked_and_padded_equals_one_by_one(term, shape):
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(5, *shape, generator=rng, dtype=torch.float64).requires_grad_()
    counts = torch.tensor([shape[0], shape[0] - 1, 2, 1, 0])
    masks = torch.arange(shape[0]) < counts.unsqueeze(1)
    quiet = SimpleNamespace(diagnostics=SimpleNamespace(note=lambda name, value: None))
    together = torch.vmap(lambda x, mask: term(quiet, {}, Batch(x, None, None, mask), Output(x, x)))(z, masks)
    (grads,) = torch.autograd.grad(together.sum(), z)
    assert grads.isfinite().all()
    for value, grad, own, count in zip(together, grads, z, counts, strict=True):
        if count == 0:
            assert value == 0 and not grad.any()
            continue
        alone = own[:count].detach().requires_grad_()
        expected = term_value(term, alone)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad[:count], torch.autograd.grad(expected, alone)[0])
        assert not grad[count:].any()
