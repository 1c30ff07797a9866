"""Grey values and channels of arrays and files: read one way, and said where another could be meant."""

import numpy as np
import pytest
import torch

import unskew
from small_runs import play, said

RNG = np.random.RandomState(0)
FLAT, LABELS = RNG.randint(256, size=(60, 64)).astype(np.uint8), np.arange(60) % 3


def make_data(x):
    parts = unskew.Samples(x[:40], LABELS[:40]), unskew.Samples(x[40:], LABELS[40:])
    return unskew.Dataset("mine", *parts, classes=("a", "b", "c"), mean=(0.5,), std=(0.5,))


def test_flat_grey_values_of_a_file_are_those_of_a_dataset(tmp_path):
    np.savez(tmp_path / "flat.npz", images=FLAT, labels=LABELS, test_images=FLAT, test_labels=LABELS)
    read = unskew.load(f"npz:{tmp_path / 'flat.npz'}")
    assert read.train.x.dtype == torch.uint8 and (read.mean, read.std) == ((0.5,), (0.5,))
    given = play(data=make_data(FLAT), clients=2)
    assert given.server["model"]["body.1.weight"].shape[1] == 64


def test_integer_features_that_look_like_grey_values_are_said(tmp_path, caplog):
    np.savez(tmp_path / "flat.npz", images=FLAT.astype(np.int64), labels=LABELS)
    assert unskew.load(f"npz:{tmp_path / 'flat.npz'}").train.x.dtype == torch.float32
    assert "integer features up to 255 are used as they are; if they are grey values, save them as uint8" in said(
        caplog
    )


@pytest.mark.parametrize("shape", [(8, 8, 1), (16, 4, 1), (8, 8, 3)])
def test_channels_that_may_come_last_are_said(shape, caplog):
    make_data(RNG.randint(256, size=(60, *shape)).astype(np.uint8))
    assert f"are {shape[0]} channels of {shape[1]}x{shape[2]} here; if the channels come last" in said(caplog)


def test_channels_first_are_not(caplog):
    make_data(RNG.randint(256, size=(60, 3, 8, 3)).astype(np.uint8))
    assert "channels" not in said(caplog)


def test_a_file_whose_channels_may_be_on_either_side_is_said(tmp_path, caplog):
    np.savez(tmp_path / "both.npz", images=RNG.randint(256, size=(60, 3, 8, 3)).astype(np.uint8), labels=LABELS)
    unskew.load(f"npz:{tmp_path / 'both.npz'}")
    assert "are read as [N, H, W, C]; if the channels come first" in said(caplog)
