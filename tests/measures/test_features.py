"""Separability, rank and collapse: golden numbers, exact identities, and a projector beside the extractor."""

import pytest
import torch
from torch import nn

from awkward import play
from support import golden, golden_names
from unskew.core.method import Method, methods
from unskew.measures.base import measures
from unskew.measures.collapse import collapse
from unskew.measures.rank import correlation_rank, effective_rank
from unskew.measures.separability import separability
from unskew.models.base import Model


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", golden_names("metrics*"))
def test_features_of_the_golden_file(name):
    file = golden(name)
    x, y = double(file.inputs["features"]), torch.tensor(file.inputs["y"])
    found = {
        **separability(x, y),
        **collapse(x, y),
        "erank_covariance": effective_rank(x),
        "erank_correlation": correlation_rank(x),
    }
    theirs = {"nc1_trace_pinv": "nc1_trace_pinv_over_C", "nc2_gram": "nc2_gram_frobenius"}
    for key, value in found.items():
        assert value == pytest.approx(file.expected[theirs.get(key, key)], rel=file.rtol, abs=file.atol), key


def test_a_simplex_is_a_collapse():
    simplex = double([[2, -1, -1], [-1, 2, -1], [-1, -1, 2]])
    found = collapse(simplex.repeat(4, 1) + 5, torch.arange(3).repeat(4))
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)


def test_rank_of_so_many_equal_directions():
    x = torch.cat([torch.eye(4, dtype=torch.float64), -torch.eye(4, dtype=torch.float64)])
    assert effective_rank(x) == pytest.approx(4)
    dead = torch.cat([x, torch.full((8, 3), 7.0, dtype=torch.float64)], 1)  # units that never change
    assert effective_rank(dead) == pytest.approx(4) == correlation_rank(dead)
    assert effective_rank(dead[:, 4:]) == 0 == correlation_rank(dead[:, 4:])


def test_figures_that_are_not_defined_are_none():
    one_class, same = torch.zeros(3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.float64)
    assert separability(same, one_class) == {"intra": 0.0, "inter": None, "separability": None}
    assert set(collapse(same, one_class).values()) == {None}
    two = collapse(same, torch.tensor([0, 1, 1]))
    assert two["nc1_trace_pinv"] is None is two["nc1_trace_ratio"] and two["nc2_normalised"] is None
    diverged = torch.full((3, 2), torch.nan, dtype=torch.float64)
    for name in ("separability", "rank", "collapse"):
        assert set(measures.build(name).measure_finite(diverged, torch.tensor([0, 1, 1])).values()) == {None}


def test_a_projector_is_looked_at_too():
    class Projecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.projector = nn.Linear(4, 3)

        def forward(self, x):
            return self.projector(x) * 2

    @methods.register("test_projecting")
    class ProjectingMethod(Method):
        """A head that projects."""

        def remodel(self, model, num_classes):
            return Model(nn.Sequential(nn.Flatten(), nn.Linear(32, 4)), Projecting())

    last = play("test_projecting", measure="rank,separability(space=projector)").rounds[-1]["measures"]
    assert last.keys() == {
        "rank_covariance", "rank_correlation", "projector_rank_covariance", "projector_rank_correlation",
        "projector_intra", "projector_inter", "projector_separability",
    }  # fmt: skip
    assert 0 < last["projector_rank_covariance"] <= 3 and last["rank_covariance"] <= 4
