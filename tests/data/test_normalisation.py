"""Normalisation as an option of a data set."""

import pytest
import torch

import unskew
from unskew.base.errors import InputError
from unskew.data.sources import load
from unskew.runs.config import Run, from_table


def test_usual_constants_are_no_part_of_the_hash_and_others_are():
    plain = Run()
    assert from_table({"data": "digits(normalisation=usual)"}).hash == plain.hash
    assert from_table({"data": "digits(normalisation=half)"}).hash != plain.hash


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [("half", (0.5,), (0.5,)), ("'0.25; 0.5'", (0.25,), (0.5,)), ("usual", None, None)],
)
def test_images_are_normalised_by_the_chosen_constants(text, mean, std):
    usual, chosen = load("digits"), load(f"digits(normalisation={text})")
    assert (chosen.mean, chosen.std) == ((mean, std) if mean else (usual.mean, usual.std))
    assert torch.equal(chosen.train.x, usual.train.x)


def test_the_result_depends_on_it():
    options = {"rounds": 1, "clients": 3, "steps": 2}
    usual = unskew.run("fedavg", data="digits", **options)
    half = unskew.run("fedavg", data="digits(normalisation='0.1; 0.2')", **options)
    assert usual.summary["loss"] != half.summary["loss"]


@pytest.mark.parametrize(
    "text", ["cinic", "'0.5'", "'0.5; 0'", "'a; b'", "'0.5 0.5; 0.1 0.1'", "imagenet", "'nan; 1'", "'1; inf'"]
)
def test_what_does_not_fit_is_one_line(text):
    with pytest.raises(InputError, match="normalisation"):
        load(f"digits(normalisation={text})")


def test_numbers_are_not_images(tmp_path):
    import numpy as np

    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype("f4"), np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    assert load(f"npz:{tmp_path}/mine.npz").shape == (3,)
    with pytest.raises(InputError, match="numbers already"):
        load({"name": "npz", "path": f"{tmp_path}/mine.npz", "normalisation": "half"})


IMAGES = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("x", "mean", "std", "line"),
    [
        (IMAGES.numpy(), (0.5,), (0.5,), "expected a tensor, got ndarray"),
        (IMAGES, (0.5,) * 3, (0.5,) * 3, "for each of 1 channels, or one for all, got 3 and 3"),
        (IMAGES, 0.5, (0.5,), "expected mean as numbers, one per channel, got 0.5"),
        (IMAGES, (0.5,), (0.0,), "every std above 0"),
    ],
)
def test_what_cannot_be_normalised_is_one_line(x, mean, std, line):
    with pytest.raises(InputError, match=line):
        unskew.normalise(x, mean, std)


def test_lists_of_constants_are_taken():
    assert torch.equal(unskew.normalise(IMAGES, [0.5], [0.5]), unskew.normalise(IMAGES, (0.5,), (0.5,)))
