"""The Hessian's eigenvalues: known matrices, the exact Hessian of a small network, and limits."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from awkward import DATA, config, play
from unskew.base.process import prepare_process
from unskew.core.jobs import Job
from unskew.measures.base import Look, choose_test_samples, measures
from unskew.measures.hessian import hessian_product, top_eigenvalues
from unskew.models.base import Model
from unskew.runs import building


def task_of(run):
    return building.prepare(run, dataset=DATA).task


def matrix_with(values):
    """A symmetric matrix with these eigenvalues, and a vector to start from."""
    rng = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=rng))
    return q @ torch.tensor(values).double().diag() @ q.T, torch.randn(len(values), dtype=q.dtype, generator=rng)


@pytest.mark.parametrize("size", [6, 7, 21, 60, 600])
def test_lanczos_on_known_eigenvalues(size):
    matrix, start = matrix_with([-30.0, 9, 8, 7.5, 5, 4.9, *torch.linspace(-2, 2, size - 6).tolist()])
    found = top_eigenvalues(lambda v: matrix @ v, start, 5, tolerance=1e-9)
    assert found == pytest.approx([9, 8, 7.5, 5, 4.9], rel=1e-7)


@pytest.mark.parametrize("top", [3, 5])
def test_a_matrix_with_fewer_eigenvalues_than_asked_for(top):
    matrix, start = matrix_with([-3.0, 2.0, 1.0])
    assert top_eigenvalues(lambda v: matrix @ v, start, top) == pytest.approx([2, 1, -3])


@pytest.mark.parametrize(("top", "most"), [(1, 4), (5, 8), (5, 30), (5, 60), (12, 40)])
def test_products_are_limited_and_what_converged_is_kept(top, most, caplog):
    # close eigenvalues converge slowly, two far ones at once
    values = [50.0, 20.0, *torch.linspace(0, 1, 298).tolist()]
    matrix, start = matrix_with(values)
    products = 0

    def product(vector):
        nonlocal products
        products += 1
        return matrix @ vector

    found = top_eigenvalues(product, start, top, most, tolerance=1e-8)
    assert products <= most and len(found) < top
    assert found == pytest.approx([50, 20][: len(found)])
    assert f"{len(found)} of {top} eigenvalues converged within {most} products" in caplog.text
    assert len(found) == 2 or most < 30


def test_a_measure_that_did_not_converge_has_no_ratio(caplog):
    last = play("fedavg", measure="hessian(samples=20, most=8, tolerance=1e-12)").rounds[-1]["measures"]
    assert last["hessian_ratio"] is None and "hessian_5" not in last
    assert "raise most or tolerance" in caplog.text


def test_a_model_that_diverged_has_no_eigenvalues():
    task = task_of(config("fedavg", measure="hessian"))
    server = task.method.init(task.server_context(0))
    broken = {**server, "model": {name: value * torch.nan for name, value in server["model"].items()}}
    look = Look(task, broken, 2, True, True, {"round": 2}, [], [])
    assert measures.build("hessian(samples=5)").figures(look) == {"hessian_1": None, "hessian_ratio": None}


def test_the_product_is_that_of_the_exact_hessian():
    task = task_of(config("fedavg", model="mlp(hidden=[2])"))
    net = task.net.module.double()
    assert isinstance(net, Model) and not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    params = {name: value.double() for name, value in task.initial["model"].items()}
    data = choose_test_samples(task, 17)
    c = task.client_context(Job("test", 0, -1, {"model": params, "buffers": {}}), data)
    x, y = next((batch.x.double(), batch.y) for batch in data.passes(100))
    flat = torch.cat([params[name].flatten() for name in task.trainable])

    def loss(vector):
        parts_ = vector.split([params[name].numel() for name in task.trainable])
        tree = {name: part.view_as(params[name]) for name, part in zip(task.trainable, parts_, strict=True)}
        return nn.functional.cross_entropy(functional_call(net, tree, (x,)).logits, y)

    exact = torch.autograd.functional.hessian(loss, flat, vectorize=True)

    class Doubled:
        def passes(self, batch):
            for part in data.passes(batch):
                yield part._replace(x=part.x.double())

        def __len__(self):
            return len(data)

    product = hessian_product(c, params, Doubled(), 9)  # several batches make up the mean
    vector = torch.randn(len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(product(vector), exact @ vector)
    with prepare_process(1):
        found = top_eigenvalues(product, vector, 5, tolerance=1e-6)
    expected = torch.linalg.eigvalsh(exact).flip(0)[:5].tolist()
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)
