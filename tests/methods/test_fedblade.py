"""FedETF, FedBlade and FedDecorr: golden numbers, identities, and edge cases one by one and stacked."""

from types import SimpleNamespace

import pytest
import torch

from support import golden, golden_names
from unskew.core import correlation, prototypes
from unskew.core.context import Diagnostics
from unskew.core.jobs import Reply
from unskew.core.reducers import total
from unskew.data.local import Batch
from unskew.methods.fedblade import FedBlade
from unskew.methods.fedetf import FedETF
from unskew.models.base import Output
from unskew.models.etf import ETFHead, simplex
from unskew.terms.alignment import FeatureAlignment, ProjectorAlignment
from unskew.terms.feddecorr import Decorrelate
from unskew.terms.lddecorr import LDDecorr


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def assert_close(actual, expected, file):
    torch.testing.assert_close(actual, double(expected), rtol=file.rtol, atol=file.atol)


def visit(**fields):
    return SimpleNamespace(diagnostics=Diagnostics(), **fields)


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
        x, degrees = correlation.standardised(z.detach(), mask, file.constants["var_eps"])
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
    inverse, log_det, used, done = correlation._factorised(nearly, 1e-4)
    assert done and used.item() == pytest.approx(1e-3)
    assert log_det.item() == pytest.approx(torch.logdet(nearly + 1e-3 * torch.eye(2)).item(), rel=1e-4)
    torch.testing.assert_close(inverse, torch.linalg.inv(nearly + 1e-3 * torch.eye(2)))
    hopeless = correlation._factorised(torch.diag(torch.tensor([1.0, -1.0])), 1e-4)
    assert not hopeless[3] and not hopeless[0].any() and hopeless[1] == 0
    grams = torch.stack([nearly, torch.diag(torch.tensor([1.0, -1.0])), torch.eye(2)])
    stacked = torch.vmap(lambda gram: correlation._factorised(gram, 1e-4))(grams)
    assert stacked[3].tolist() == [True, False, True]
    torch.testing.assert_close(stacked[0][:2], torch.stack([inverse, hopeless[0]]))


def test_skipped_batches_are_counted(monkeypatch):
    monkeypatch.setattr(correlation, "_factorised", lambda gram, jitter: (
        torch.zeros_like(gram), torch.zeros(()), torch.tensor(jitter), torch.tensor(False)))  # fmt: skip
    c, z = visit(), torch.rand(4, 3).requires_grad_()
    value = LDDecorr()(c, {}, batch_of(z), Output(z, z))
    assert value == 0 and not torch.autograd.grad(value, z)[0].any()
    assert c.diagnostics.means() == {"lddecorr_skipped": 1.0}


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
    at_once.add_stack({key: torch.stack([r[key] for r in replies]) for key in replies[0]}, [1.0] * len(replies))
    known = torch.ones(len(previous), dtype=torch.bool)
    server = {"model": {}, "buffers": {}, "prototypes": {"means": previous, "available": known}}
    for merged in (one_by_one.result(), at_once.result()):
        after = FedBlade().update(SimpleNamespace(record={}), server, {"delta": {}, "prototypes": merged})
        assert_close(after["prototypes"]["means"], file.expected["global_new"], file)
        assert after["prototypes"]["available"].all()
        first = prototypes.merged_means({"means": previous, "available": ~known}, merged)
        assert torch.equal(first["available"], counts.sum(0) > 0)
