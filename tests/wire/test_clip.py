"""Clipping with a pencil: one length over all tensors and groups, integers untouched, nothing hidden."""

import torch

from unskew.wire.clip import Clip
from wire.drawing import send


def test_by_hand_over_two_groups():
    # |(3, 0, 4)| = 5, so that norm 1 makes everything a fifth
    groups = {"delta": {"w": torch.tensor([3.0, 0.0])}, "control": {"w": torch.tensor(4.0), "n": torch.tensor(7)}}
    sent, kept = send(Clip(norm=1.0), groups)
    torch.testing.assert_close(sent["delta"]["w"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(sent["control"]["w"], torch.tensor(0.8))
    assert sent["control"]["n"].item() == 7 and sent["control"]["n"].dtype == torch.int64 and kept == {}


def test_what_is_short_enough_stays_bit_for_bit():
    groups = {"delta": {"w": torch.tensor([0.3, 0.4])}}
    assert torch.equal(send(Clip(norm=0.6), groups)[0]["delta"]["w"], groups["delta"]["w"])
    zero = {"delta": {"w": torch.zeros(3)}}
    assert torch.equal(send(Clip(), zero)[0]["delta"]["w"], torch.zeros(3))


def test_large_numbers_do_not_become_zero_and_nan_stays():
    large = {"delta": {"w": torch.tensor([3e30, 4e30])}}  # its square overflows in single precision
    torch.testing.assert_close(send(Clip(), large)[0]["delta"]["w"], torch.tensor([0.6, 0.8]))
    for bad in (float("nan"), float("inf")):
        groups = {"delta": {"w": torch.tensor([bad, 1.0]), "v": torch.ones(2)}}
        assert not send(Clip(), groups)[0]["delta"]["w"].isfinite().all()


def test_nothing_to_clip():
    groups = {"delta": {"n": torch.tensor([5])}}
    assert send(Clip(), groups) == (groups, {})
