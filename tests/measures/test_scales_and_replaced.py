"""The scales of FedSOL's perturbation, parameters replaced by Fisher information, and spectra."""

import pytest
import torch

import unskew
from unskew.core.jobs import Reply
from unskew.measures.rank import effective_rank, spectrum
from unskew.measures.replaced import replace_top
from unskew.measures.scales import LayerScales


def test_scales_by_hand():
    """Lambda of a weight [2, 2] is taken along its first dimension: 3 and 4 of 5, 1 and 0 of 1."""
    reducer = LayerScales(None)
    reducer.add({"a.weight": torch.tensor([[3.0, -1.0], [-4.0, 0.0]]), "a.bias": torch.tensor([0.0, 0.0])}, Reply(0))
    reducer.add({"a.weight": torch.zeros(2, 2), "a.bias": torch.tensor([1.0, 0.0])}, Reply(1))
    assert reducer.result() == {"a": pytest.approx(((0.6 + 0.8 + 1.0) / 6 + 1.0 / 6) / 2)}


def test_the_highest_scores_are_replaced_and_no_others():
    params, other = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}, {"a": torch.ones(3), "b": torch.ones(2, 2)}
    scores = {"a": torch.tensor([0.1, 5.0, 0.2]), "b": torch.tensor([[0.0, 3.0], [0.3, 0.4]])}
    found = replace_top(params, other, scores, 2 / 7)
    assert found["a"].tolist() == [0, 1, 0] and found["b"].tolist() == [[0, 1], [0, 0]]
    assert all(not value.any() for value in params.values())


def test_spectrum_has_the_eigenvalues_of_the_covariance():
    features = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.linalg.eigvalsh(torch.cov(features.T, correction=0))
    torch.testing.assert_close(spectrum(features) / 30, wanted)
    shares = wanted / wanted.sum()
    assert effective_rank(features) == pytest.approx(float((-(shares * shares.log()).sum()).exp()))


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_in_a_run(executor):
    plain = {"clients": 4, "rounds": 2, "steps": 8, "lr": 0.1, "sample": 1.0, "model": "mlp", "split": "dirichlet:0.1"}
    run = unskew.run("fedavg", measure=["replaced(share=0.2)", "scales", "spectrum"], executor=executor, **plain)
    found = run.rounds[-1]["measures"]
    assert found["replaced_fisher"] < found["replaced_random"] <= found["replaced_none"]
    assert list(found["scales"]) == ["body.1", "head"]
    assert all(0 < value <= 1 for value in found["scales"].values())
    values = found["spectrum"]
    assert values == sorted(values, reverse=True) and len(values) == 64
    bare = unskew.run("fedavg", executor=executor, **plain)
    assert all(torch.equal(value, run.published["model"][name]) for name, value in bare.published["model"].items())
