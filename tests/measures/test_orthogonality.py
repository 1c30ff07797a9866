"""The cosine between gradients."""

import pytest
import torch

from unskew.measures.orthogonality import cosine


def test_the_cosine_of_rounding_is_zero():
    ahead = {"w": torch.tensor([1.0, 0.0])}
    assert cosine(ahead, {"w": torch.tensor([1.0, 1.0])}).item() == pytest.approx(0.5**0.5)
    assert cosine(ahead, {"w": torch.tensor([1e-8, 0.0])}).item() == 0
    assert cosine({"w": torch.zeros(2)}, {"w": torch.zeros(2)}).item() == 0
