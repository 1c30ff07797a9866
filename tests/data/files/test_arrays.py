import numpy as np
import torch

from unskew.data.files.arrays import split_stratified


def test_stratified_splits_keep_shares_and_never_change():
    y = np.array([0] * 50 + [1] * 5 + [2])
    train, test = split_stratified(y, 0.2)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(56))
    assert np.bincount(y[test.numpy()], minlength=3).tolist() == [11, 1, 0]
    assert torch.equal(test, split_stratified(y, 0.2)[1])
