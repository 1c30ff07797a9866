"""Quantisation: round trips within a level, true means, bytes as promised, NaN never hidden."""

import pytest
import torch

from unskew.base import tree
from unskew.wire.quantise import Quantise
from wire.drawing import read, send

BITS = range(2, 17)


def some(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_by_hand_with_three_bits():
    # levels -3 … 3, scale 6: a level is 2; 6, -4 and 0 are levels, so that no rounding is left to chance
    value = torch.tensor([6.0, -4.0, 0.0])
    sent, kept = send(Quantise(bits=3), {"delta": {"w": value}})
    assert kept == {} and list(sent["delta"]) == ["w [3] codes", "w [3] scale"]
    # codes 3, -2, 0 are sent as 6, 1, 3 (binary 110, 001, 011); the planes hold 0, 1, 1 and 1, 0, 1 and 1, 0, 0
    assert sent["delta"]["w [3] codes"].tolist() == [[0b110], [0b101], [0b001]]
    assert torch.equal(Quantise(bits=3).decode(sent)["delta"]["w"], value)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_round_trip_is_within_a_level(bits, dtype):
    groups = {"delta": {"a": some(5, 3, 2).to(dtype), "b": some(8).to(dtype), "c": some().to(dtype)}}
    found = read(Quantise(bits=bits), groups)
    for name, value in groups["delta"].items():
        assert found["delta"][name].dtype == dtype and found["delta"][name].shape == value.shape
        largest = value.abs().max().double()
        rounding = 0.01 if dtype == torch.bfloat16 else 1e-6
        error = (found["delta"][name].double() - value.double()).abs().max()
        assert error <= largest * (1 / (2 ** (bits - 1) - 1) + rounding)
        assert found["delta"][name].double().abs().max() <= largest


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_mean_is_unbiased(bits):
    value = torch.tensor([1.0, 0.5, 0.1, 0.013, 0.0, -0.33, -0.9])
    draws = 4000
    mean = read(Quantise(bits=bits), {"d": {"w": value.repeat(draws, 1)}})["d"]["w"].double().mean(0)
    level = 1 / (2 ** (bits - 1) - 1)
    # the standard deviation of one rounding is at most half a level; five of those of the mean
    assert (mean - value).abs().max() <= 5 * 0.5 * level / draws**0.5
    assert mean[0] == 1 and mean[4] == 0  # levels themselves are never rounded


@pytest.mark.parametrize("bits", BITS)
def test_bytes_are_in_the_message_itself(bits):
    sent = send(Quantise(bits=bits), {"delta": {"w": some(100, 11)}})[0]
    entries = 1100 * bits // 8 if bits in (8, 16) else 138 * bits  # eight entries of a bit are a byte: 1100 = 137.5 x 8
    assert tree.nbytes(sent) == entries + 4


def test_zeros_empty_tensors_and_integers():
    groups = {"delta": {"w": torch.zeros(2, 3), "e": torch.empty(0, 4), "n": torch.tensor([3])}}
    sent = send(Quantise(), groups)[0]
    assert list(sent["delta"]) == ["w [2,3] codes", "w [2,3] scale", "e", "n"]
    found = Quantise().decode(sent)["delta"]
    assert list(found) == list(groups["delta"])
    assert all(torch.equal(found[name], value) for name, value in groups["delta"].items())


@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_what_is_not_finite_stays_so(bits, bad):
    value = torch.tensor([0.5, float(bad), 0.0])
    assert not read(Quantise(bits=bits), {"d": {"w": value}})["d"]["w"].isfinite().any()


def test_tiny_and_huge_numbers():
    for size in (1e-44, 1e-38, 3e38):
        value = torch.tensor([size, -size, 0.0])
        assert torch.equal(read(Quantise(), {"d": {"w": value}})["d"]["w"], value)
