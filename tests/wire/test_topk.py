"""Sparsification with a pencil: the largest entries, and what was left out comes back."""

import pytest
import torch

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.wire.chain import Chain
from unskew.wire.quantise import Quantise
from unskew.wire.topk import TopK
from wire.drawing import Drawing, read, send


def test_error_feedback_by_hand_over_two_rounds():
    processor = TopK(share=0.5)
    # round 1: of (3, -1, 2, -4) the largest two are 3 and -4; -1 and 2 stay
    sent, kept = send(processor, {"delta": {"w": torch.tensor([[3.0, -1.0], [2.0, -4.0]])}})
    assert sent["delta"]["w [2,2] indices"].tolist() == [0, 3]
    assert sent["delta"]["w [2,2] values"].tolist() == [3.0, -4.0]
    assert kept["delta"]["w"].tolist() == [[0.0, -1.0], [2.0, 0.0]]
    # round 2: (1, -1, 1, 1) + memory = (1, -2, 3, 1): -2 and 3 are sent, (1, 0, 0, 1) stays
    sent, kept = send(processor, {"delta": {"w": torch.tensor([[1.0, -1.0], [1.0, 1.0]])}}, kept)
    assert processor.decode(sent)["delta"]["w"].tolist() == [[0.0, -2.0], [3.0, 0.0]]
    assert kept["delta"]["w"].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_without_error_feedback_nothing_is_kept():
    sent, kept = send(TopK(share=0.5, error_feedback=False), {"delta": {"w": torch.tensor([3.0, -1.0])}})
    assert kept == {} and sent["delta"]["w [2] values"].tolist() == [3.0]


def test_at_least_one_entry_and_all_of_them():
    value = torch.tensor([[0.1, -0.2, 0.3]])
    assert read(TopK(share=0.01), {"d": {"w": value}})["d"]["w"].tolist() == [[0.0, 0.0, pytest.approx(0.3)]]
    assert torch.equal(read(TopK(share=1), {"d": {"w": value}})["d"]["w"], value)
    assert torch.equal(read(TopK(), {"d": {"w": torch.tensor(2.0)}})["d"]["w"], torch.tensor(2.0))


def test_bytes_are_four_of_place_and_four_of_value():
    sent = send(TopK(share=0.1), {"delta": {"w": torch.randn(50, 4)}})[0]
    assert tree.nbytes(sent) == 20 * 8


def test_a_tensor_that_is_absent_for_a_while_keeps_its_memory():
    _, kept = send(TopK(share=0.5), {"delta": {"w": torch.tensor([3.0, 1.0]), "v": torch.tensor([2.0, 1.0])}})
    _, later = send(TopK(share=0.5), {"delta": {"w": torch.tensor([3.0, 0.0])}}, kept)
    assert later["delta"]["v"].tolist() == [0.0, 1.0]
    assert later["delta"]["w"].tolist() == [0.0, 1.0]


def test_nan_is_sent():
    assert read(TopK(share=0.3), {"d": {"w": torch.tensor([9.0, float("nan"), 8.0])}})["d"]["w"].isnan().any()


def test_a_changed_shape_is_refused():
    kept = {"delta": {"w": torch.zeros(3)}}
    with pytest.raises(InputError, match=r"'w', and its shape changed from \[3\] to \[2\]; use topk\(error_feedback=f"):
        send(TopK(), {"delta": {"w": torch.zeros(2)}}, kept)


def test_quantise_after_it_quantises_the_values():
    chain = Chain(((TopK(share=0.5), ("delta",)), (Quantise(bits=3), ("delta",))))
    sent, kept = chain.encode(Drawing(), {"delta": {"w": torch.tensor([6.0, -4.0, 1.0, 0.0])}}, {})
    assert list(sent["delta"]) == ["w [4] indices", "w [4] values [2] codes", "w [4] values [2] scale"]
    assert kept["wire/topk/delta"]["w"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert chain.decode(sent)["delta"]["w"].tolist() == [6.0, -4.0, 0.0, 0.0]
